//! Where things lie in host mode. `--root DIR` puts all three directories under DIR.

use std::path::{Path, PathBuf};

/// The three directories of host mode.
#[derive(Clone, Debug)]
pub struct Paths {
    /// `/etc/etcd-operator`: the document.
    pub etc: PathBuf,
    /// `/var/lib/etcd-operator`: what must outlive a reboot.
    pub lib: PathBuf,
    /// `/run/etcd-operator`: what must not.
    pub run: PathBuf,
    /// The root given, for files of the system itself.
    pub root: PathBuf,
}

impl Paths {
    /// Under `root`; `/` is the real one.
    pub fn under(root: &Path) -> Self {
        Paths {
            etc: root.join("etc/etcd-operator"),
            lib: root.join("var/lib/etcd-operator"),
            run: root.join("run/etcd-operator"),
            root: root.to_owned(),
        }
    }

    /// The document, unless the command line names another.
    pub fn document(&self) -> PathBuf {
        self.etc.join("cluster.yaml")
    }

    /// The last document that was sound.
    pub fn kept_document(&self) -> PathBuf {
        self.lib.join("document.json")
    }

    /// Held by the agent, or by a command that runs without one.
    pub fn operator_lock(&self) -> PathBuf {
        self.lib.join("operator.lock")
    }

    /// The agent's socket.
    pub fn socket(&self) -> PathBuf {
        self.run.join("operator.sock")
    }

    /// The last published status.
    pub fn status(&self) -> PathBuf {
        self.run.join("status.json")
    }

    /// Versions of etcd, one folder each.
    pub fn store(&self) -> PathBuf {
        self.lib.join("store")
    }

    /// Records about snapshots: where they were written, what is still to be copied, the lock.
    pub fn backup(&self) -> PathBuf {
        self.lib.join("backup")
    }

    /// How the last snapshots went, in this boot.
    pub fn backup_runs(&self) -> PathBuf {
        self.run.join("backup.json")
    }

    /// The last changes of etcd's version, and the one that failed.
    pub fn upgrades(&self) -> PathBuf {
        self.lib.join("upgrades.json")
    }

    /// What the new etcd logged that did not serve a copy of the data.
    pub fn rehearsal_log(&self) -> PathBuf {
        self.lib.join("rehearsal.log")
    }

    /// A restore that was asked for and has not ended.
    pub fn restore(&self) -> PathBuf {
        self.lib.join("restore.json")
    }

    /// How the last restore ended.
    pub fn restored(&self) -> PathBuf {
        self.lib.join("restored.json")
    }

    /// When the document's policy replaced damaged data.
    pub fn recoveries(&self) -> PathBuf {
        self.lib.join("recoveries.json")
    }

    /// CAs, leaves and clients.
    pub fn tls(&self) -> PathBuf {
        self.lib.join("tls")
    }

    /// The member's own state: identity, launch record, lock, log.
    pub fn member(&self) -> PathBuf {
        self.lib.join("member")
    }

    /// What the guard needs for a start.
    pub fn launch(&self) -> PathBuf {
        self.member().join("launch.json")
    }

    /// The launch that served last.
    pub fn served(&self) -> PathBuf {
        self.member().join("served.json")
    }

    /// Who lives here.
    pub fn identity(&self) -> PathBuf {
        self.member().join("identity.json")
    }

    /// There while the document's size is 0: whoever starts the guard, a boot among them, etcd stays
    /// stopped.
    pub fn hibernates(&self) -> PathBuf {
        self.member().join("hibernates")
    }

    /// Held by etcd for as long as it lives.
    pub fn member_lock(&self) -> PathBuf {
        self.member().join("member.lock")
    }

    /// etcd's configuration.
    pub fn etcd_conf(&self) -> PathBuf {
        self.member().join("etcd.conf.yaml")
    }

    /// etcd's own, rotated log.
    pub fn etcd_log(&self) -> PathBuf {
        self.member().join("log/etcd.log")
    }

    /// A person asked for a pause.
    pub fn pause(&self) -> PathBuf {
        self.run.join("pause.json")
    }

    /// Starts since etcd last served.
    pub fn starts(&self) -> PathBuf {
        self.run.join("starts.json")
    }

    /// How far the log was seen to reach.
    pub fn seen(&self) -> PathBuf {
        self.run.join("seen.json")
    }

    /// What the guard refused last.
    pub fn refusal(&self) -> PathBuf {
        self.run.join("refusal.json")
    }

    /// The process that the guard became.
    pub fn process(&self) -> PathBuf {
        self.run.join("process.json")
    }

    /// What etcd wrote to its standard error: nothing but its last words.
    pub fn etcd_stderr(&self) -> PathBuf {
        self.run.join("etcd.stderr")
    }

    /// systemd-timesyncd's sign of a synchronised clock (rule G2).
    pub fn timesync_marker(&self) -> PathBuf {
        self.root.join("run/systemd/timesync/synchronized")
    }

    /// Units that an administrator, or the operator, adds to this host.
    pub fn units(&self) -> PathBuf {
        self.root.join("etc/systemd/system")
    }

    /// k3s' embedded etcd (rule A10).
    pub fn k3s_embedded_etcd(&self) -> PathBuf {
        self.root.join("var/lib/rancher/k3s/server/db/etcd")
    }
}
