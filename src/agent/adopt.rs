//! An etcd of ours whose record was lost: /run was emptied, or somebody's copy went over it.
//!
//! It is taken up again where three things that nobody else has prove it: it holds the member's lock, it was
//! started with the member's configuration, and over the operator's certificates it answers as the cluster and
//! the member of the identity. Until then it is somebody else's, and not signalled.

use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use super::Agent;
use crate::clock;
use crate::etcd::client;
use crate::member::records::{Launch, Running};
use crate::process::{self, ProcessRecord};
use crate::render;
use crate::start::Identity;
use crate::state;

/// It is asked in every pass until it is proven, and may hang.
const ANSWER_DEADLINE: Duration = Duration::from_secs(2);

impl Agent {
    /// Writes the record again, where one is missing and the process that runs is proven to be ours.
    /// Whether it did.
    pub(super) async fn adopt(&mut self) -> bool {
        if Running::load(&self.paths).is_some() {
            return false;
        }
        let Some(running) = self.prove().await else {
            return false;
        };
        let pid = running.process.pid;
        let path = self.paths.process();
        if path.is_dir() && !state::is_link(&path) {
            // What lies there is none of ours; an empty directory is in nobody's way.
            let _ = fs::remove_dir(&path);
        }
        let saved = state::create_private_dir(&self.paths.run)
            .and_then(|()| state::save_volatile(&path, &running));
        match saved {
            Ok(()) => {
                tracing::warn!(
                    pid,
                    "the record of etcd's process was lost; this process holds the member's lock, runs with its configuration and answers as this cluster: the operator manages it again"
                );
                true
            }
            Err(error) => {
                self.log_once(&crate::error::chain(&error));
                false
            }
        }
    }

    async fn prove(&self) -> Option<Running> {
        let paths = &self.paths;
        let file = paths.member_lock();
        if !process::is_locked(&file) {
            return None; // in most cases; who holds it takes the kernel milliseconds to tell
        }
        let pid = process::lock_holder(&file)?;
        if !process::has_argument(pid, &paths.etcd_conf()) {
            return None;
        }
        let stat = process::stat(pid)?;
        let (launch, left_out) = self.launch_in_force()?;
        let process = ProcessRecord {
            pid,
            start_time: stat.start_time,
            boot_id: clock::boot_id(),
            started: stat.start_time.saturating_mul(1000) / rustix::param::clock_ticks_per_second(),
        };
        let running = Running {
            process,
            launch,
            starts: 1,
            left_out,
        };
        let identity = self.served_identity(&running.launch)?;
        let (url, files) = (running.client_url(), self.certificates.operator_files());
        let look = client::look(&url, &files);
        let look = tokio::time::timeout(ANSWER_DEADLINE, look).await.ok()?;
        let details = look.details?;
        if Some((details.cluster, details.member)) != identity.served {
            return None;
        }
        // Nothing was put in its place meanwhile.
        running.process.is_alive().then_some(running)
    }

    /// What etcd was started with, and the addresses that it was started without: the guard wrote that configuration
    /// right before.
    fn launch_in_force(&self) -> Option<(Launch, Vec<SocketAddr>)> {
        let conf = fs::read_to_string(self.paths.etcd_conf()).ok()?;
        let next = state::load::<Launch>(&self.paths.launch()).ok().flatten();
        let served = self.served().map(|it| it.launch);
        next.into_iter().chain(served).find_map(|it| {
            let mut left_out = it.clients_but(&[]);
            left_out.retain(|it| !render::listens_on(&conf, *it));
            let same = if left_out.is_empty() {
                it.conf.clone()
            } else {
                render::listening_on(&it.conf, &it.clients_but(&left_out))
            };
            let is_of = same == conf || render::with_short_log(&same) == conf;
            is_of.then_some((it, left_out))
        })
    }

    /// Who lives there, once it has served.
    fn served_identity(&self, launch: &Launch) -> Option<Identity> {
        let (identity, marker) =
            crate::member::records::load_identities(&self.paths, &launch.storage_dir).ok()?;
        identity.or(marker)?.to_identity()
    }
}
