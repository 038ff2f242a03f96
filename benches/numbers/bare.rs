//! etcd started by hand: the operator's configuration and environment, and no operator.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::client::Target;
use crate::lab::Lab;

/// How it is started.
#[derive(Clone, Debug)]
pub struct Recipe {
    /// The program.
    pub program: PathBuf,
    /// The configuration that the operator rendered.
    pub conf: PathBuf,
    /// Its environment, nothing else.
    pub environment: Vec<(String, String)>,
    /// Where its output goes.
    pub output: PathBuf,
}

impl Recipe {
    /// What the agent of this lab left: its configuration, certificates and data.
    pub fn of(lab: &Lab) -> Self {
        let record = fs::read(lab.lib("member/launch.json")).unwrap();
        let record: serde_json::Value = serde_json::from_slice(&record).unwrap();
        let launch: serde_json::Value =
            serde_json::from_str(record["payload"].as_str().unwrap()).unwrap();
        Recipe {
            program: lab.lib(&format!("store/etcd-{}/etcd", lab.version)),
            conf: lab.lib("member/etcd.conf.yaml"),
            environment: serde_json::from_value(launch["environment"].clone()).unwrap(),
            output: lab.root.join("bare.log"),
        }
    }

    /// Starts it.
    pub fn start(&self) -> Bare {
        let output = File::create(&self.output).unwrap();
        let child = Command::new(&self.program)
            .arg("--config-file")
            .arg(&self.conf)
            .env_clear()
            .envs(self.environment.iter().cloned())
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(output.try_clone().unwrap())
            .stderr(output)
            .spawn()
            .unwrap();
        Bare { child }
    }
}

/// A running etcd, killed when it is dropped.
pub struct Bare {
    child: Child,
}

impl Bare {
    /// Its id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends it by SIGTERM.
    pub fn stop(mut self) {
        crate::lab::kill("TERM", self.child.id());
        self.child.wait().unwrap();
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Where a lab's etcd serves, for its client `admin`.
pub fn target(lab: &Lab) -> Target {
    Target {
        port: lab.ports[0],
        files: lab.lib("tls/clients/admin"),
    }
}

/// Removes a directory, if it is there.
pub fn remove(path: &Path) {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => panic!("{error}"),
        _ => {}
    }
}
