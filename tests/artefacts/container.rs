//! The image in a real container: imported by containerd, as k3s does it, and run by runc.
//!
//! containerd runs with a configuration, state and socket of its own, and ends with the test.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::Duration;

use serde_json::Value;

use crate::image::{image, reference};
use crate::{ARCHES, Scratch, VERSION, arg, dist, run, skip, text};

/// How long containerd may take to answer; it takes a tenth of a second.
const PATIENCE: u32 = 100;

struct Containerd {
    process: Child,
    dir: Scratch,
    /// Also the name of the cgroups that runc makes.
    namespace: String,
}

impl Containerd {
    fn start() -> Containerd {
        let dir = Scratch::empty();
        let at = |name: &str| dir.0.join(name).display().to_string();
        let config = format!(
            "version = 2\nroot = \"{}\"\nstate = \"{}\"\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n\
             [grpc]\naddress = \"{}\"\n",
            at("root"),
            at("state"),
            socket().display()
        );
        fs::write(dir.0.join("config.toml"), config).unwrap();
        let log = fs::File::create(dir.0.join("log")).unwrap();
        let process = Command::new("containerd")
            .args(["--config", &at("config.toml")])
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let started = Containerd {
            process,
            dir,
            namespace: format!("etcd-operator-{}", std::process::id()),
        };
        let answers = || started.ctr(&["version"]).status.success();
        let ready =
            (0..PATIENCE).any(|_| answers() || (sleep(Duration::from_millis(100)), false).1);
        let log = fs::read_to_string(started.dir.0.join("log")).unwrap();
        assert!(ready, "containerd does not answer: {log}");
        started
    }

    fn ctr(&self, arguments: &[&str]) -> Output {
        let socket = socket();
        let ours = ["--address", arg(&socket), "--namespace", &self.namespace];
        crate::output("ctr", &[&ours[..], arguments].concat())
    }
}

/// A socket's path may be 107 bytes long, which the build directory's may be already.
fn socket() -> PathBuf {
    std::env::temp_dir().join(format!("etcd-operator-ctr-{}.sock", std::process::id()))
}

impl Drop for Containerd {
    fn drop(&mut self) {
        for container in text(&self.ctr(&["containers", "list", "-q"]).stdout).lines() {
            self.ctr(&["tasks", "delete", "--force", container]);
            self.ctr(&["containers", "delete", container]);
        }
        let _ = Command::new("kill")
            .arg(self.process.id().to_string())
            .status();
        let _ = self.process.wait();
        let _ = fs::remove_file(socket());
        let _ = fs::remove_file(socket().with_extension("sock.ttrpc"));
        // runc leaves the folders above its cgroups, empty.
        for controller in fs::read_dir("/sys/fs/cgroup")
            .into_iter()
            .flatten()
            .flatten()
        {
            let _ = fs::remove_dir(controller.path().join(&self.namespace));
        }
        let _ = fs::remove_dir(PathBuf::from("/sys/fs/cgroup").join(&self.namespace));
    }
}

#[test]
fn containerd_imports_the_image_and_runs_it_as_nobody() {
    let Some(dist) = dist() else { return };
    let machine = std::env::consts::ARCH;
    let Some(arch) = ARCHES.iter().find(|it| it.machine == machine) else {
        return skip(&format!("no image is for {machine}"));
    };
    if text(&run("id", &["-u"])).trim() != "0" {
        return skip("a container engine needs root");
    }
    for program in ["containerd", "ctr", "runc"] {
        if Command::new(program).arg("--version").output().is_err() {
            return skip(&format!("{program} is not installed"));
        }
    }
    let containerd = Containerd::start();
    let ctr = |arguments: &[&str]| {
        let output = containerd.ctr(arguments);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), text(&output.stdout), errors)
    };
    let imported = ctr(&["images", "import", arg(&image(&dist, arch))]);
    assert_eq!(imported.0, Some(0), "{imported:?}");
    let images = ctr(&["images", "list", "-q"]);
    assert_eq!(images.1.trim(), reference());

    // No argument: the image's own entrypoint, which asks for a command.
    let asked = ctr(&["run", "--rm", &reference(), "entrypoint"]);
    assert_eq!(asked.0, Some(2), "{asked:?}");
    assert!(asked.2.contains("Usage: etcd-operator"), "{asked:?}");

    // A folder that anybody may write to, and one that only root may.
    let run = |name: &str, mode: &str, arguments: &[&str]| {
        let folder = containerd.dir.0.join(name);
        crate::run("install", &["-d", "-m", mode, arg(&folder)]);
        let mount = format!(
            "type=bind,src={},dst=/data,options=rbind:rw",
            folder.display()
        );
        let given = [
            "run",
            "--rm",
            "--mount",
            &mount,
            &reference(),
            name,
            "/etcd-operator",
        ];
        (folder, ctr(&[&given[..], arguments].concat()))
    };
    let (_, version) = run("version", "0755", &["--version"]);
    assert_eq!(version.0, Some(0), "{version:?}");
    assert_eq!(version.1, format!("etcd-operator {VERSION}\n"));
    let issue = ["--root", "/data", "agent", "--driver", "process"];
    let (_, refused) = run("closed", "0700", &issue);
    assert!(refused.2.contains("is not this user's"), "{refused:?}");

    // The process is who the image says, seen from outside.
    let container = ctr(&["containers", "create", &reference(), "who"]);
    assert_eq!(container.0, Some(0), "{container:?}");
    let info = ctr(&["containers", "info", "who"]).1;
    let info: Value = serde_json::from_str(&info).unwrap();
    let user = &info["Spec"]["process"]["user"];
    assert_eq!((&user["uid"], &user["gid"]), (&65532.into(), &65532.into()));
    assert_eq!(info["Spec"]["process"]["args"][0], "/etcd-operator");
}
