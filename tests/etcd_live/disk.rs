//! A disk of its own for a lab: an ext4 image on a loop device, that can be frozen, filled and
//! turned read-only. Needs root.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::lab::{skip, text};

/// A mounted disk. Thawed and unmounted when it is dropped; declare it before the lab, so that it
/// outlives what runs on it.
pub struct Disk {
    image: PathBuf,
    pub path: PathBuf,
}

/// Whether this process may mount; says what is skipped otherwise.
pub fn may_mount() -> bool {
    let root = run("id", &["-u"]).is_ok_and(|it| it == "0");
    let tools = ["mkfs.ext4", "mount", "fsfreeze"]
        .iter()
        .all(|it| run("sh", &["-c", &format!("command -v {it}")]).is_ok());
    if !root || !tools || !Path::new("/dev/loop-control").exists() {
        skip("a disk that can be frozen needs root, loop devices, e2fsprogs and util-linux");
        return false;
    }
    true
}

impl Disk {
    /// A new one of so many MiB.
    pub fn new(name: &str, mebibytes: u64) -> Disk {
        let base = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let image = base.join(format!("disk-{}-{name}.img", std::process::id()));
        let path = image.with_extension("mount");
        fs::File::create(&image)
            .unwrap()
            .set_len(mebibytes << 20)
            .unwrap();
        fs::create_dir_all(&path).unwrap();
        let disk = Disk { image, path };
        disk.command("mkfs.ext4", &["-q", "-m", "0", "IMAGE"]);
        disk.mount();
        disk
    }

    fn command(&self, program: &str, arguments: &[&str]) {
        let arguments: Vec<&str> = arguments
            .iter()
            .map(|it| match *it {
                "IMAGE" => self.image.to_str().unwrap(),
                "PATH" => self.path.to_str().unwrap(),
                other => other,
            })
            .collect();
        run(program, &arguments).unwrap_or_else(|why| panic!("{program} {arguments:?}: {why}"));
    }

    /// Writes block until what this returns is dropped. Declare it after the lab: nobody ends who
    /// has a thread in a frozen file system.
    #[must_use]
    pub fn freeze(&self) -> Frost<'_> {
        self.command("fsfreeze", &["-f", "PATH"]);
        Frost(self)
    }

    fn mount(&self) {
        self.command("mount", &["-o", "loop,errors=remount-ro", "IMAGE", "PATH"]);
    }

    /// What the kernel does when it finds an error: nothing can be written any more, also not by
    /// those who have files open.
    pub fn turn_read_only(&self) {
        let path = self.path.to_str().unwrap();
        let device = run("findmnt", &["-n", "-o", "SOURCE", path]).unwrap();
        let name = device.rsplit('/').next().unwrap();
        fs::write(format!("/sys/fs/ext4/{name}/trigger_fs_error"), "1").unwrap();
    }

    /// Mounts it anew, as after a repair. Nobody may have a file open on it.
    pub fn repair(&self) {
        let path = self.path.to_str().unwrap();
        let deadline = Instant::now() + Duration::from_secs(10);
        while let Err(why) = run("umount", &[path]) {
            assert!(Instant::now() < deadline, "{why}");
            std::thread::sleep(Duration::from_millis(50));
        }
        self.mount();
    }

    /// Fills it until so many bytes are free, with a file that can be removed again.
    pub fn fill_to(&self, free: u64) -> PathBuf {
        let path = self.path.join("part");
        let mut file = fs::File::create(&path).unwrap();
        let left = || etcd_operator::disk::free_bytes(&self.path).unwrap();
        while left() > free {
            std::io::Write::write_all(&mut file, &vec![7; 1 << 20]).unwrap();
        }
        path
    }

    /// Fills it to the last byte with a file that can be removed again.
    pub fn fill(&self) -> PathBuf {
        let path = self.path.join("ballast");
        let mut file = fs::File::create(&path).unwrap();
        for block in [1 << 20, 4096, 1] {
            while std::io::Write::write_all(&mut file, &vec![7; block]).is_ok() {}
        }
        path
    }
}

/// A frozen disk.
pub struct Frost<'a>(&'a Disk);

impl Drop for Frost<'_> {
    fn drop(&mut self) {
        let _ = run("fsfreeze", &["-u", self.0.path.to_str().unwrap()]);
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let path = self.path.to_str().unwrap();
        // Detached at once; the kernel lets go when the last process does.
        let _ = run("umount", &["-l", path]);
        let _ = fs::remove_dir(&self.path);
        let _ = fs::remove_file(&self.image);
    }
}

/// A file system that never answers, like a share whose server is gone: FUSE with nobody behind it. Whatever was
/// in the directory is back when this is dropped. Needs root.
pub struct Silent {
    holder: Child,
    path: PathBuf,
}

impl Silent {
    /// Mounted over a directory that is there.
    pub fn over(path: &Path) -> Silent {
        let script = "exec 5<>/dev/fuse && mount -i -t fuse \
            -o fd=5,rootmode=40000,user_id=0,group_id=0 silent \"$0\" && exec sleep 600";
        let mut shell = Command::new("sh");
        let holder = shell.args(["-c", script]).arg(path).spawn().unwrap();
        let deadline = Instant::now() + Duration::from_secs(10);
        let mounts = || fs::read_to_string("/proc/self/mounts").unwrap();
        while !mounts().contains(&format!("silent {} fuse", path.display())) {
            assert!(Instant::now() < deadline, "FUSE was not mounted");
            std::thread::sleep(Duration::from_millis(20));
        }
        let path = path.to_owned();
        Silent { holder, path }
    }
}

impl Drop for Silent {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
        let _ = run("umount", &["-l", self.path.to_str().unwrap()]);
    }
}

/// Runs a program to its end: what it printed, or what it complained about.
pub fn run(program: &str, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| error.to_string())?;
    if output.status.success() {
        Ok(text(&output.stdout).trim().to_owned())
    } else {
        Err(text(&output.stderr).trim().to_owned())
    }
}
