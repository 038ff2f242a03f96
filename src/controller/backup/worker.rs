//! The backup worker: its Pod is as the document says, and is asked over mutual TLS. The operator sees no snapshot
//! itself.

use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use hyper::{Method, StatusCode};
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use crate::backup::served::{PORT, Served};
use crate::clock;
use crate::cluster::{Detail, Timestamp, detail};
use crate::controller::apply::unplaceable;
use crate::controller::claim::Which;
use crate::controller::objects::Kind;
use crate::controller::observe::MAKING_SECONDS;
use crate::controller::restore::document;
use crate::controller::seen::{Container, PodSeen};
use crate::controller::{Cluster, ControllerError, names, pod};
use crate::http::Way;
use crate::member::pod::PodMember;
use crate::member::records::Launch;
use crate::observed::TERMINATING_SECONDS;
use crate::spec::ClusterSpec;
use crate::state;
use crate::tls::ClientFiles;
use crate::worker::Config;
use crate::worker::report::{Found, Report};

/// It answers from memory.
const ANSWER: Duration = Duration::from_secs(2);
const ANSWER_MAX: usize = 64 * 1024;
/// A worker that has answered is taken for silent after so long.
const SILENT_SECONDS: u64 = 60;
/// One that is to be replaced is given so long to end what it is at.
const ENDS_SECONDS: u64 = 600;
/// A Pod that the API server refused is tried again after so long.
const REFUSED_SECONDS: u64 = 60;

/// What is remembered of the worker.
#[derive(Default)]
pub(in crate::controller) struct Heard {
    /// What it last said, and when, in seconds since boot.
    pub(super) report: Option<(Rc<Report>, u64)>,
    /// Why it says nothing now.
    pub(super) silent: Option<Silence>,
    /// Why its Pod was refused, and when, in seconds since boot.
    refused: Option<(Detail, u64)>,
    /// For how long its Pod has been made.
    made: clock::Since,
    /// For how long it has been asked to end.
    ends: clock::Since,
    /// For how long it has worked on what it was at when it should be replaced.
    works: clock::Since,
    /// The number of the failure that was told last.
    pub(super) told: Option<u64>,
}

/// Why the worker says nothing.
pub(in crate::controller) struct Silence {
    pub(in crate::controller) why: Detail,
    /// Its Pod only has not come up yet.
    comes: bool,
}

impl From<String> for Silence {
    fn from(why: String) -> Self {
        Silence {
            why: detail(format_args!("{why}")),
            comes: false,
        }
    }
}

impl Heard {
    /// What it knows, and how many seconds ago it said so.
    pub(in crate::controller) fn known(&self) -> Option<(Rc<Report>, u64)> {
        let (report, at) = self.report.clone()?;
        let now = clock::since_boot().as_secs();
        Some((report, now.saturating_sub(at)))
    }

    /// Why nobody can say what lies there now; none: it has just answered, or did a moment ago.
    pub(super) fn unheard(&self) -> Option<Detail> {
        let why = self.silent.as_ref()?.why.clone();
        match self.known() {
            Some((_, seconds)) if seconds < SILENT_SECONDS => None,
            _ => Some(why),
        }
    }

    /// Whether there is more to say of its Pod than that it comes.
    pub(super) fn is_late(&self) -> bool {
        self.silent.as_ref().is_none_or(|it| !it.comes)
    }

    /// Something is waited for that comes within seconds.
    pub(in crate::controller) fn is_expected(&self) -> bool {
        let works = |it: &Report| it.busy || !it.asked.is_empty();
        let report = self.report.as_ref();
        self.silent.is_none() && report.is_some_and(|it| works(&it.0))
    }
}

impl Cluster {
    fn worker(&self) -> Option<Rc<PodSeen>> {
        let name = names::backup_pod(&self.name);
        self.shared.pods.get(&self.namespace, &name)
    }

    /// The claim that snapshots lie on.
    pub(in crate::controller) fn claim_of_snapshots(&self) -> Option<String> {
        let local = self.object.object.spec.local()?;
        let own = || names::snapshots_claim(&self.name);
        Some(local.claim_name.clone().unwrap_or_else(own))
    }

    /// Which worker serves the snapshots of a cluster of this namespace, and at which address now.
    pub(in crate::controller) fn served_by(&self, cluster: &str) -> Served {
        let name = names::backup_pod(cluster);
        let there = self.shared.pods.get(&self.namespace, &name);
        let address = there
            .as_ref()
            .and_then(|it| it.address.as_deref()?.parse::<IpAddr>().ok())
            .map(|it| SocketAddr::new(it, PORT));
        Served {
            cluster: cluster.to_owned(),
            address,
            server_name: format!("{}.{}.svc", names::client_service(cluster), self.namespace),
            why: match there {
                Some(there) => waits(&there).unwrap_or_else(|| format!("the Pod {name} starts")),
                None => format!("the Pod {name} is not there"),
            },
        }
    }

    /// Whether snapshots lie elsewhere, too.
    pub(in crate::controller) fn has_other_places(&self) -> bool {
        self.object.object.spec.destinations().len() > 1
    }

    /// The same of this cluster's own. Where it does not answer and another place may have a snapshot, nobody waits for it.
    pub(in crate::controller) fn served_here(&self) -> Served {
        let mut served = self.served_by(&self.name);
        let silent = self.memory.heard.silent.as_ref();
        if let Some(silent) = silent.filter(|_| self.has_other_places()) {
            (served.address, served.why) = (None, silent.why.to_string());
        }
        served
    }

    /// Asks what it knows. `now`: the time, if it is trusted: its Pod cannot see whether it is. `rests`: nothing is begun.
    pub(super) async fn hear_worker(&mut self, now: Option<Timestamp>, rests: bool) {
        let now = now.map_or(String::new(), |it| format!("now={}&", it.0));
        let member = self.member_pod(self.memory.source);
        let member = member.and_then(|it| it.address.clone());
        let member = member.unwrap_or_default();
        let path = format!("/report?{now}rests={rests}&member={member}");
        match self.ask_worker::<Report>(Method::GET, &path).await {
            Ok(report) => {
                let at = clock::since_boot().as_secs();
                self.memory.heard.report = Some((Rc::new(report), at));
                self.memory.heard.silent = None;
            }
            Err(silence) => self.memory.heard.silent = Some(silence),
        }
    }

    /// What lies there of this name, or of the latest.
    pub(in crate::controller) async fn find(&mut self, name: &str) -> Result<Found, Detail> {
        // Nothing lies there under what is no part of a name; and it is no path of a request.
        if !name
            .bytes()
            .all(|it| it.is_ascii_alphanumeric() || it == b'-')
        {
            return Ok(Found::default());
        }
        let path = format!("/snapshots/{name}");
        let found = self.ask_worker(Method::GET, &path).await;
        found.map_err(|it| detail(format_args!("the backup worker does not say: {}", it.why)))
    }

    /// Asks for a snapshot now.
    pub(in crate::controller) async fn ask_for(&mut self, id: &str) -> Result<(), Silence> {
        let path = format!("/snapshots/{id}");
        self.ask_worker::<()>(Method::POST, &path).await
    }

    async fn ask_worker<T: DeserializeOwned>(
        &mut self,
        method: Method,
        path: &str,
    ) -> Result<T, Silence> {
        let address = self.worker_address()?;
        let files = ClientFiles {
            server_name: None,
            ..self.certificates.operator_files()
        };
        let way = Way {
            address: SocketAddr::new(address, PORT),
            server_name: &self.server_name(),
            files: &files,
        };
        let asked = ask(&way, method, path);
        let answer = match timeout(ANSWER, asked).await {
            Ok(answer) => answer,
            Err(_) => Err(format!("nothing within {} s", ANSWER.as_secs())),
        };
        let (name, there) = (names::backup_pod(&self.name), self.worker());
        let node = there.and_then(|it| it.node.clone()).unwrap_or_default();
        answer.map_err(|why| {
            format!("the Pod {name} on the node {node} does not answer: {why}").into()
        })
    }

    fn worker_address(&mut self) -> Result<IpAddr, Silence> {
        let name = names::backup_pod(&self.name);
        let comes = |why: String| Silence {
            comes: true,
            ..why.into()
        };
        let there = self.worker();
        let ends = there.as_ref().filter(|it| it.meta.deleting);
        if let Some((pod, node)) = ends.and_then(|it| Some((it, it.node.as_ref()?))) {
            let why = format!("the Pod {name} on the node {node} is asked to end");
            let ends = &mut self.memory.heard.ends;
            if ends.seconds(&pod.meta.uid) <= TERMINATING_SECONDS {
                return Err(comes(why));
            }
            let claim = self.claim_of_snapshots().unwrap_or_default();
            return Err(Silence::from(format!(
                "{why}, and does not; if the node is lost for good: kubectl delete pod {name} --force, then kubectl delete pvc {claim}"
            )));
        }
        self.memory.heard.ends.end();
        let Some(there) = there.filter(|it| !it.meta.deleting) else {
            let refused = self.memory.heard.refused.as_ref();
            return Err(match refused {
                Some((why, _)) => why.to_string().into(),
                None => comes(format!("the Pod {name} is not there yet")),
            });
        };
        if let Some(why) = waits(&there) {
            return Err(why.into());
        }
        let address = there.address.as_deref().and_then(|it| it.parse().ok());
        match (&there.container, address) {
            (Container::Running { .. }, Some(address)) => {
                self.memory.heard.made.end();
                Ok(address)
            }
            _ if self.memory.heard.made.seconds(&there.meta.uid) >= MAKING_SECONDS => {
                let why =
                    format!("the Pod {name} is not started: kubectl describe pod {name} says why");
                Err(why.into())
            }
            _ => Err(comes(format!("the Pod {name} starts"))),
        }
    }

    /// Its Pod is as the document says; one that is no longer is replaced when it has ended what it does.
    pub(super) async fn keep_worker(&mut self, spec: &ClusterSpec) -> Result<(), ControllerError> {
        let there = self.worker();
        if let Some(there) = &there
            && !self.owns(there)
        {
            return Err(ControllerError::not_ours(Kind::Pod, &there.name));
        }
        if there.as_ref().is_some_and(|it| it.meta.deleting) {
            return Ok(());
        }
        let Some(made) = self.made_worker(spec) else {
            return match there {
                Some(there) => self.remove_pod(&there, None).await,
                None => Ok(()),
            };
        };
        match there {
            None => self.make_worker(made).await,
            Some(there) if there.is_over() => self.remove_pod(&there, Some(0)).await,
            Some(there) => {
                let made_from = &made["metadata"]["annotations"][names::MADE_FOR];
                if there.made_for.as_deref() == made_from.as_str() {
                    self.memory.heard.works.end();
                    return Ok(());
                }
                let busy = self.memory.heard.known().is_some_and(|it| it.0.busy);
                let works = &mut self.memory.heard.works;
                if busy && works.seconds(&there.meta.uid) < ENDS_SECONDS {
                    return Ok(());
                }
                self.remove_pod(&there, None).await
            }
        }
    }

    async fn make_worker(&mut self, made: serde_json::Value) -> Result<(), ControllerError> {
        let now = clock::since_boot().as_secs();
        let refused = self.memory.heard.refused.as_ref();
        if refused.is_some_and(|it| now < it.1 + REFUSED_SECONDS) {
            return Ok(());
        }
        let made = match self.ensure_claim(Which::Snapshots).await {
            Ok(()) => self.objects.ensure(Kind::Pod, made, None).await,
            Err(error) => Err(error),
        };
        match made {
            Err(ControllerError::Going { .. }) => Ok(()), // the watch rings when it has gone
            Err(error) if unplaceable(&error).is_some() => {
                let why = detail(format_args!("{error}"));
                self.memory.heard.refused = Some((why, now));
                Ok(())
            }
            made => {
                self.memory.heard.refused = None;
                made
            }
        }
    }

    /// The Pod that the document asks for; none where it asks for no snapshots, or the cluster has not
    /// served yet.
    fn made_worker(&self, spec: &ClusterSpec) -> Option<serde_json::Value> {
        let mut records = self.members.iter().filter_map(|it| it.identity.as_ref());
        let mut identity = records.find(|it| it.member.id.is_some())?.clone();
        // That a change is not final is nothing to it.
        let member = &mut identity.member;
        (member.other_version, member.other_image, member.goes_back) = (None, None, false);
        let object = self.object.clone();
        let wire = &object.object.spec;
        let claim = self.claim_of_snapshots()?;
        let member = self.pod_member(spec, &identity)?;
        let hosts = self.members.iter().take(usize::from(spec.size).max(1));
        let config = Config {
            hosts: hosts.map(|it| self.member_host(&it.name)).collect(),
            port: spec.network.client_port,
            server_name: self.server_name(),
            lib: pod::records(&self.name),
        };
        let image = self.shared.image.borrow().clone();
        // The worker starts no member: an edit of what a member is started with replaces no worker.
        let member = PodMember {
            launch: Launch {
                names: Vec::new(),
                peer_names: Vec::new(),
                environment: Vec::new(),
                conf: String::new(),
                asked: serde_json::Value::Null,
                settings: 0,
                ..member.launch
            },
            ..member
        };
        let parts = self.parts(spec, wire, &member, &image);
        let document = document(&self.name, wire, &identity);
        let name = names::backup_pod(&self.name);
        let mut made = pod::worker(&parts, &name, &config, &document, &claim);
        let sum = state::sha256(made.to_string().as_bytes());
        made["metadata"]["annotations"][names::MADE_FOR] = sum[..16].into();
        Some(made)
    }
}

/// Why its container is not started.
fn waits(pod: &PodSeen) -> Option<String> {
    let name = &pod.name;
    match &pod.container {
        Container::Waiting { reason, .. } if reason == "CrashLoopBackOff" => {
            Some(format!("the Pod {name} fails, and {}", pod.restarts()))
        }
        Container::Waiting { reason, message }
            if !["PodInitializing", "ContainerCreating"].contains(&reason.as_str()) =>
        {
            let text = format!("the Pod {name} waits: {reason} {message}");
            Some(text.trim().to_owned())
        }
        Container::None if pod.reason == "Unschedulable" => Some(format!(
            "the Pod {name} cannot be scheduled: {}",
            pod.message
        )),
        _ => None,
    }
}

/// One question.
async fn ask<T: DeserializeOwned>(way: &Way<'_>, method: Method, path: &str) -> Result<T, String> {
    match way.ask(method, path, ANSWER_MAX).await? {
        (StatusCode::OK, body) => serde_json::from_slice(&body).map_err(|it| it.to_string()),
        (StatusCode::ACCEPTED, _) => serde_json::from_str("null").map_err(|it| it.to_string()),
        (status, body) => {
            let text = String::from_utf8_lossy(&body);
            Err(format!("{status}: {}", text.trim()))
        }
    }
}
