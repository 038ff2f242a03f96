//! Certificates and identity: kept in Secrets, worked on in a directory in memory, so that both homes
//! make and judge certificates with the same code and no key reaches the node's disk.
//!
//! ```text
//! NAME-ca             CAs with their keys, the key that signs snapshots, the operator's certificate, the identity,
//!                     when damaged data was replaced; only the operator reads it
//! NAME-member         what the member's Pod mounts: server and peer pairs, the CAs' certificates
//! NAME-client-CLIENT  tls.crt, tls.key, ca.crt for a client, in the namespace that the document names
//! ```

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{Api, DynamicObject};
use serde_json::{Value, json};

use super::names::{
    self, ACCEPTED, ACCEPTS_CLIENTS_OF, BORN, CLUSTER, CLUSTER_NAMESPACE, MANAGED_BY,
    NEW_AUTHORITY, OPERATOR,
};
use super::objects::{Kind, is_made_for, resource};
use super::seen::Meta;
use super::{Cluster, ControllerError};
use crate::api::DeletionPolicy;
use crate::backup::restore::forget_recoveries;
use crate::changes::Changes;
use crate::clock;
use crate::cluster::ADMIN;
use crate::member::records::IdentityFile;
use crate::state;

/// Key of the members' identities in the CA's Secret.
const IDENTITY: &str = "identity.json";

/// Key of the CA's Secret with the times at which the document's policy replaced damaged data.
const RECOVERIES: &str = "recoveries.json";
/// The same: changes of etcd's version.
const CHANGES: &str = "changes.json";

/// Key of the CA's Secret with which snapshots are signed.
pub(super) const SIGNER_KEY: &str = "signer.key";

/// Keys of the CA's Secret, and the files that they are.
const AUTHORITY: [(&str, &str); 7] = [
    ("peer-ca.crt", "peer-ca/ca.crt"),
    ("peer-ca.key", "peer-ca/ca.key"),
    ("client-ca.crt", "client-ca/ca.crt"),
    ("client-ca.key", "client-ca/ca.key"),
    (SIGNER_KEY, "signer/signer.key"),
    ("operator.crt", "current/operator.crt"),
    ("operator.key", "current/operator.key"),
];

/// Keys of the member's Secret, in the generation that is in use.
const MEMBER: [&str; 6] = [
    "server.crt",
    "server.key",
    "peer.crt",
    "peer.key",
    "client-ca.crt",
    "peer-ca.crt",
];

/// Keys of a client's Secret, as the type kubernetes.io/tls has them, and the files that they are.
const CLIENT: [(&str, &str); 3] = [
    ("tls.crt", "client.crt"),
    ("tls.key", "client.key"),
    ("ca.crt", "ca.crt"),
];

/// Beside these: where etcd is reached, as etcdctl takes it.
const ENDPOINTS: &str = "ETCDCTL_ENDPOINTS";

/// A namespace without the label of [`ACCEPTS_CLIENTS_OF`] is looked at again after so long.
const UNACCEPTED_SECONDS: u64 = 60;

type Data = BTreeMap<String, Vec<u8>>;

/// A Secret of ours.
struct Read {
    data: Data,
    /// It belongs to an object of this name that was deleted, and goes with it.
    goes: bool,
}

/// A client and the namespace of its Secret.
struct Wanted {
    client: String,
    namespace: String,
}

impl Cluster {
    /// Reads what an operator before this one has left: once, and again when somebody changed it.
    pub(super) async fn load(&mut self) -> Result<(), ControllerError> {
        if self.loaded {
            return Ok(());
        }
        let authority = self.read(&names::authority_secret(&self.name)).await?;
        let member = self.read(&names::member_secret(&self.name)).await?;
        let lives = member.as_ref().is_some_and(|it| !it.goes);
        let [authority, member] = [authority, member].map(|it| it.map(|it| it.data));
        self.check_authority(authority.as_ref(), lives).await?;
        let dir = self.paths.tls();
        state::create_private_dir(&self.paths.run)?;
        let _ = fs::remove_dir_all(&dir);
        forget_recoveries(&self.paths);
        if let Some(data) = authority {
            put(&self.paths.recoveries(), data.get(RECOVERIES))?;
            // A record that cannot be read is begun anew: it decides nothing but whether a version is tried again.
            let changes = data.get(CHANGES);
            let changes = changes.and_then(|it| serde_json::from_slice(it).ok());
            self.memory.changes = changes.unwrap_or_default();
            self.take_identities(data.get(IDENTITY))?;
            let generation = dir.join("generations/0001");
            state::create_private_dir(&generation)?;
            std::os::unix::fs::symlink("generations/0001", dir.join("current")).map_err(
                |source| ControllerError::System {
                    what: "link",
                    path: dir.join("current"),
                    source,
                },
            )?;
            for (key, file) in AUTHORITY {
                let path = dir.join(file);
                if let (true, Some(folder)) = (data.contains_key(key), path.parent()) {
                    state::create_private_dir(folder)?;
                }
                put(&path, data.get(key))?;
            }
            for key in MEMBER {
                put(
                    &generation.join(key),
                    member.as_ref().and_then(|it| it.get(key)),
                )?;
            }
        }
        let object = self.object.clone();
        for wanted in wanted(&self.namespace, &object.object.spec) {
            let name = names::client_secret(&self.name, &wanted.client);
            // Another namespace is written to where it lets us, and never read: made anew, with no harm.
            if wanted.namespace != self.namespace {
                continue;
            }
            let Some(Read { data, .. }) = self.read(&name).await? else {
                continue;
            };
            let folder = dir.join("clients").join(format!("{}.0001", wanted.client));
            state::create_private_dir(&folder)?;
            for (key, file) in CLIENT {
                put(&folder.join(file), data.get(key))?;
            }
            let link = dir.join("clients").join(&wanted.client);
            let _ = std::os::unix::fs::symlink(format!("{}.0001", wanted.client), link);
        }
        self.loaded = true;
        Ok(())
    }

    fn take_identities(&mut self, text: Option<&Vec<u8>>) -> Result<(), ControllerError> {
        let mut recorded: Vec<IdentityFile> = match text {
            Some(text) => {
                serde_json::from_slice(text).map_err(|error| ControllerError::Unreadable {
                    name: names::authority_secret(&self.name),
                    why: format!("{IDENTITY}: {error}"),
                })?
            }
            None => Vec::new(),
        };
        for member in &mut self.members {
            let own = recorded
                .iter()
                .position(|it| it.member.name == member.name.as_str());
            member.identity = own.map(|it| recorded.swap_remove(it));
        }
        Ok(())
    }

    /// CAs and identity never come anew in silence beside what they belong to: every client would be locked out, and
    /// snapshots would be somebody else's.
    async fn check_authority(
        &self,
        authority: Option<&Data>,
        member: bool,
    ) -> Result<(), ControllerError> {
        let name = names::authority_secret(&self.name);
        let parts = AUTHORITY.iter().filter(|it| !it.1.starts_with("current/"));
        let mut parts = parts.map(|it| it.0).chain([IDENTITY]);
        let missing = authority.and_then(|it| parts.find(|key| !it.contains_key(*key)));
        let whole = authority.is_some() && missing.is_none();
        let annotations = self.object.object.metadata.annotations.as_ref();
        let accepted = annotations.and_then(|it| it.get(NEW_AUTHORITY));
        if whole || accepted.is_some_and(|it| it == ACCEPTED) {
            return Ok(());
        }
        let status = self.object.object.status.as_ref();
        let served = status.and_then(|it| it.cluster_id.as_ref());
        let evidence = match served {
            Some(id) => Some(format!("the cluster {id}")),
            None if member => Some(format!("the Secret {}", names::member_secret(&self.name))),
            None => self.born_claim().await?,
        };
        match (evidence, authority) {
            (None, _) => Ok(()),
            (Some(evidence), None) => Err(ControllerError::AuthorityMissing { name, evidence }),
            (Some(_), Some(_)) => Err(ControllerError::Unreadable {
                name,
                why: format!("it has no {}", missing.unwrap_or_default()),
            }),
        }
    }

    /// The claim of a member that was born with CAs.
    async fn born_claim(&self) -> Result<Option<String>, ControllerError> {
        let name = names::claim(&names::founder(&self.name), 0);
        let claim = self
            .objects
            .get(Kind::Claim, &self.namespace, &name)
            .await?;
        let meta = claim.map(|it| it.metadata).unwrap_or_default();
        let labels = meta.labels.unwrap_or_default();
        let owners = meta.owner_references.unwrap_or_default();
        let others = owners.iter().any(|it| it.uid != self.object.meta.uid);
        let ours = labels.get(CLUSTER) == Some(&self.name);
        if ours && (meta.deletion_timestamp.is_some() || others) {
            let kind = Kind::Claim.name();
            return Err(ControllerError::Going { kind, name });
        }
        let born = labels.get(CLUSTER) == Some(&self.name) && labels.contains_key(BORN);
        if born {
            return Ok(Some(format!("the claim {name} with its data")));
        }
        // Of a founder that has given its first one up, or of another member.
        let born = |meta: &Meta| meta.labels.contains_key(BORN) && !meta.deleting;
        let other = self.claims_of_data().find(|it| born(&it.meta));
        Ok(other.map(|it| format!("the claim {} with its data", it.name)))
    }

    /// A Secret of ours; one that is not is no reason to look into it.
    async fn read(&mut self, name: &str) -> Result<Option<Read>, ControllerError> {
        let secret = self
            .objects
            .get(Kind::Secret, &self.namespace, name)
            .await?;
        let Some(secret) = secret else {
            return Ok(None);
        };
        let labels = secret.metadata.labels.as_ref();
        if !labels.is_some_and(|it| is_made_for(it, &self.name)) {
            return Err(ControllerError::not_ours(Kind::Secret, name));
        }
        // The one of a cluster of this name that was deleted with everything goes with it.
        let owners = secret.metadata.owner_references.clone().unwrap_or_default();
        let other = |it: &OwnerReference| it.uid != self.object.meta.uid;
        if name == names::authority_secret(&self.name) && owners.iter().any(other) {
            let kind = Kind::Secret.name();
            let name = name.to_owned();
            return Err(ControllerError::Going { kind, name });
        }
        let data = secret.data["data"].as_object().cloned().unwrap_or_default();
        let decoded = data.into_iter().filter_map(|(key, value)| {
            let bytes = STANDARD.decode(value.as_str()?).ok()?;
            Some((key, bytes))
        });
        let data = decoded.collect();
        let goes = owners.iter().any(other);
        self.objects.note_read(Kind::Secret, secret);
        Ok(Some(Read { data, goes }))
    }

    /// Writes what changed: the CAs first, so that nothing that they signed is ever without them.
    pub(super) async fn push(&mut self) -> Result<(), ControllerError> {
        let dir = self.paths.tls();
        let mut authority = files(&AUTHORITY.map(|(key, file)| (key, dir.join(file))));
        let recorded = self.members.iter().filter_map(|it| it.identity.as_ref());
        let recorded: Vec<&IdentityFile> = recorded.collect();
        if !recorded.is_empty() {
            let text = serde_json::to_vec(&recorded).unwrap_or_default();
            authority.insert(IDENTITY.to_owned(), text);
        }
        if authority.is_empty() {
            return Ok(());
        }
        authority.extend(files(&[(RECOVERIES, self.paths.recoveries())]));
        if self.memory.changes != Changes::default() {
            let text = serde_json::to_vec(&self.memory.changes).unwrap_or_default();
            authority.insert(CHANGES.to_owned(), text);
        }
        let name = names::authority_secret(&self.name);
        self.put_secret(&name, authority).await?;
        let current = dir.join("current");
        let member = files(&MEMBER.map(|it| (it, current.join(it))));
        if member.len() == MEMBER.len() {
            let name = names::member_secret(&self.name);
            self.put_secret(&name, member).await?;
        }
        Ok(())
    }

    /// Certificates for clients; a namespace that has not opted in gets none.
    pub(super) async fn push_clients(&mut self) -> Result<(), ControllerError> {
        let object = self.object.clone();
        let mut all = Vec::new();
        for wanted in wanted(&self.namespace, &object.object.spec) {
            all.push(self.push_client(&wanted).await);
        }
        all.into_iter().collect()
    }

    async fn push_client(&mut self, wanted: &Wanted) -> Result<(), ControllerError> {
        let folder = self.paths.tls().join("clients").join(&wanted.client);
        let mut data = files(&CLIENT.map(|(key, file)| (key, folder.join(file))));
        if data.len() < CLIENT.len() {
            return Ok(());
        }
        let endpoints = format!("https://{}:{}", self.server_name(), self.client_port());
        data.insert(ENDPOINTS.to_owned(), endpoints.into_bytes());
        let name = names::client_secret(&self.name, &wanted.client);
        let namespace = wanted.namespace.as_str();
        let other = (namespace != self.namespace).then_some(namespace);
        let secret = self.secret(&name, "kubernetes.io/tls", data, other);
        if let Some(namespace) = other {
            let fresh = self.objects.is_fresh(Kind::Secret, &secret);
            if fresh || !self.gives_leave(namespace).await? {
                return Ok(());
            }
        }
        self.objects.ensure_unwatched(Kind::Secret, secret).await
    }

    /// Whether another namespace takes clients. Namespaces are not watched, and one that gave no leave is
    /// not asked with each pass.
    async fn gives_leave(&mut self, namespace: &str) -> Result<bool, ControllerError> {
        let now = clock::since_boot().as_secs();
        let asked = self.memory.unaccepted.get(namespace);
        if asked.is_some_and(|it| now < it + UNACCEPTED_SECONDS) {
            return Ok(false);
        }
        let works_there = self.shared.own.works_in(namespace);
        let accepts = works_there && self.accepts_clients(namespace).await?;
        if !accepts {
            self.memory.unaccepted.insert(namespace.to_owned(), now);
            let text = if works_there {
                format!(
                    "the namespace {namespace} gets no Secret: it needs the label {ACCEPTS_CLIENTS_OF}={}",
                    self.namespace
                )
            } else {
                format!(
                    "the namespace {namespace} gets no Secret: this operator works in others alone (controller --namespaces)"
                )
            };
            self.tell("ClientNotAccepted", &text, true).await;
        }
        Ok(accepts)
    }

    /// Whether a namespace has opted in.
    async fn accepts_clients(&self, namespace: &str) -> Result<bool, ControllerError> {
        let resource = resource::<k8s_openapi::api::core::v1::Namespace>();
        let api: Api<DynamicObject> = Api::all_with(self.shared.client.clone(), &resource);
        let found = api
            .get_metadata_opt(namespace)
            .await
            .map_err(|error| ControllerError::of_server("read", "Namespace", namespace, error))?;
        let labels = found.and_then(|it| it.metadata.labels).unwrap_or_default();
        Ok(labels.get(ACCEPTS_CLIENTS_OF) == Some(&self.namespace))
    }

    async fn put_secret(&mut self, name: &str, data: Data) -> Result<(), ControllerError> {
        let secret = self.secret(name, "Opaque", data, None);
        self.objects.ensure_unwatched(Kind::Secret, secret).await
    }

    fn secret(&self, name: &str, kind: &str, data: Data, namespace: Option<&str>) -> Value {
        let encoded: BTreeMap<String, String> = data
            .into_iter()
            .map(|(key, bytes)| (key, STANDARD.encode(bytes)))
            .collect();
        let mut labels = self.labels();
        if namespace.is_some() {
            labels.insert(CLUSTER_NAMESPACE.to_owned(), self.namespace.clone());
        }
        let target = namespace.unwrap_or(&self.namespace);
        let mut metadata = json!({"name": name, "namespace": target, "labels": labels});
        // What goes with the object is what its document lets go; an owner in another namespace is none.
        if namespace.is_none() && self.goes_with_object(name) {
            metadata["ownerReferences"] = self.owner();
        }
        json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": metadata,
            "type": kind,
            "data": encoded,
        })
    }

    /// The CA's Secret outlives the object, like the data (deletionPolicy).
    fn goes_with_object(&self, name: &str) -> bool {
        name != names::authority_secret(&self.name)
            || self.object.object.spec.deletion_policy == DeletionPolicy::Delete
    }

    /// Labels of everything that is made for this cluster.
    pub(super) fn labels(&self) -> BTreeMap<String, String> {
        let pairs = [
            ("app.kubernetes.io/name", "etcd"),
            ("app.kubernetes.io/instance", self.name.as_str()),
            (MANAGED_BY, OPERATOR),
            (CLUSTER, self.name.as_str()),
        ];
        pairs
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into()
    }

    /// The EtcdCluster as the owner of what goes with it.
    pub(super) fn owner(&self) -> Value {
        json!([{
            "apiVersion": format!("{}/{}", crate::api::GROUP, crate::api::VERSION),
            "kind": "EtcdCluster",
            "name": self.name,
            "uid": self.object.meta.uid,
            "controller": true,
            "blockOwnerDeletion": false,
        }])
    }
}

/// The document's clients, and `admin` in the cluster's own namespace.
fn wanted(namespace: &str, spec: &crate::api::EtcdClusterSpec) -> Vec<Wanted> {
    let own = || namespace.to_owned();
    let declared = spec.clients.iter().map(|it| Wanted {
        client: it.name.clone(),
        namespace: it.namespace.clone().unwrap_or_else(own),
    });
    let mut all: Vec<Wanted> = declared.collect();
    if !all.iter().any(|it| it.client == ADMIN) {
        all.push(Wanted {
            client: ADMIN.to_owned(),
            namespace: own(),
        });
    }
    all
}

fn put(path: &Path, bytes: Option<&Vec<u8>>) -> Result<(), ControllerError> {
    match bytes {
        Some(bytes) => Ok(state::write_file(path, bytes)?),
        None => Ok(()),
    }
}

fn files(all: &[(&str, PathBuf)]) -> Data {
    let read = |(key, path): &(&str, PathBuf)| Some(((*key).to_owned(), fs::read(path).ok()?));
    all.iter().filter_map(read).collect()
}
