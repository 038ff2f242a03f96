//! The cluster's own certificates: two CAs, leaves in generations, clients.
//!
//! etcd re-reads its leaf at every handshake, so renewal is one rename of a symbolic link and no
//! restart (rule D38). Peers and clients have CAs apart, so that a client cannot join as a peer
//! (rule D40). It knows cluster names and times, and nothing of etcd's process.
//!
//! ```text
//! tls/peer-ca/ca.{crt,key}  tls/client-ca/ca.{crt,key}  tls/signer/signer.key
//! tls/generations/0001/{server,peer,operator}.{crt,key}  {client,peer}-ca.crt
//! tls/current -> generations/0001
//! tls/clients/NAME -> NAME.0001/{client.crt,client.key,ca.crt}
//! tls/issued/NAME.json                                                  asked for by a person
//! ```

mod authority;
mod bundle;
mod check;
mod issued;
mod mint;
mod mutual;
mod signer;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::cluster::{OPERATOR, Timestamp, is_dns_label};
use crate::state::{self, StateError};

pub use bundle::{Bundle, SignedBundle};
pub use check::{Leaf, Usability, leaf_of};
pub use issued::Issued;
pub use mint::Purpose;
pub use mutual::{MutualError, is_leaf_of, is_operator};
pub use signer::{Signed, Signer};

/// Why certificates could not be made or read.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file could not be written.
    #[error(transparent)]
    State(#[from] StateError),
    /// A file could not be read.
    #[error("failed to read {}", path.display())]
    Read {
        /// Which one.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// A CA is damaged. It is never replaced by itself: every client would have to be told.
    #[error("{} is damaged: {why}; put it back from a copy; or move the directory aside: the operator makes a new CA, and every client needs a new certificate", path.display())]
    Authority {
        /// The CA's directory.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// The key that signs snapshots is damaged.
    #[error("{} is damaged: put it back from a copy; or move it aside: the operator makes a new key, and restores take snapshots signed by the old one only where backup.trustedSigners has it", .0.display())]
    Signer(PathBuf),
    /// The certificate library refused.
    #[error("failed to make a certificate for {name}")]
    Mint {
        /// Its common name.
        name: String,
        /// The library's reason.
        source: rcgen::Error,
    },
    /// The name of a client is not usable as a name.
    #[error(
        "'{0}' is not a client's name: use lower-case letters, digits and '-', at most 63, and not etcd-operator"
    )]
    ClientName(String),
    /// There are enough.
    #[error(
        "there are {CLIENTS_MAX} clients already: remove one that nobody uses: etcd-operator certs remove NAME"
    )]
    TooManyClients,
}

/// The certificates under one directory.
#[derive(Clone, Debug)]
pub struct Certificates {
    dir: PathBuf,
}

/// How new leaves shall be.
#[derive(Clone, Debug)]
pub struct Leaves<'a> {
    /// Names and addresses for the server's certificate.
    pub names: &'a [String],
    /// Names and addresses that peers dial: an etcd that dials another one checks them.
    pub peer_names: &'a [String],
    /// The cluster's name, in every subject.
    pub cluster: &'a str,
    /// When they begin and end.
    pub validity: Validity,
}

/// When a certificate begins and ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// Begins.
    pub not_before: Timestamp,
    /// Ends.
    pub not_after: Timestamp,
}

impl Validity {
    /// With a trusted clock: backdated by a day against small errors (rule D41).
    pub fn trusted(now: Timestamp, life_seconds: i64) -> Self {
        Validity {
            not_before: Timestamp(now.0 - 86_400),
            not_after: Timestamp(now.0 + life_seconds),
        }
    }

    /// With an untrusted one: from 1970 on, so that it is valid whatever the clock says, and for
    /// its life beyond the newest time that is known.
    pub fn provisional(newest_known: Timestamp, life_seconds: i64) -> Self {
        Validity {
            not_before: Timestamp(0),
            not_after: Timestamp(newest_known.0 + life_seconds),
        }
    }
}

/// Twenty years, from the newest time known; from 1970 on, so that a wrong clock does not matter.
const AUTHORITY_SECONDS: i64 = 20 * 365 * 86_400;
/// Clients with a certificate, the document's 16 among them: each takes some 12 KiB of a flash disk, and whoever may ask
/// for one may ask for many.
const CLIENTS_MAX: usize = 64;
/// Generations of leaves that stay: the one in use and the one before it.
const GENERATIONS_KEPT: usize = 2;

/// The files that a client needs to connect.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ClientFiles {
    /// The CA of the server.
    pub ca: PathBuf,
    /// The client's certificate.
    pub cert: PathBuf,
    /// The client's key.
    pub key: PathBuf,
    /// The name that the server's certificate must carry, where it is not the address.
    #[serde(skip)]
    pub server_name: Option<String>,
}

impl Certificates {
    /// Those under `dir`.
    pub fn at(dir: impl Into<PathBuf>) -> Self {
        Certificates { dir: dir.into() }
    }

    /// The directory whose files etcd reads.
    pub fn current(&self) -> PathBuf {
        self.dir.join("current")
    }

    /// The files of the operator as a client.
    pub fn operator_files(&self) -> ClientFiles {
        let current = self.current();
        ClientFiles {
            ca: current.join("client-ca.crt"),
            cert: current.join("operator.crt"),
            key: current.join("operator.key"),
            server_name: None,
        }
    }

    /// The files of a named client.
    pub fn client_files(&self, name: &str) -> ClientFiles {
        let dir = self.dir.join("clients").join(name);
        ClientFiles {
            ca: dir.join("ca.crt"),
            cert: dir.join("client.crt"),
            key: dir.join("client.key"),
            server_name: None,
        }
    }

    /// Makes the two CAs and the key that signs, if there are none. A damaged one is an error, never replaced.
    pub fn ensure_authorities(
        &self,
        cluster: &str,
        newest_known: Timestamp,
    ) -> Result<(), TlsError> {
        let end = Timestamp(newest_known.0 + AUTHORITY_SECONDS);
        let validity = Validity {
            not_before: Timestamp(0),
            not_after: end,
        };
        for (dir, role) in [("peer-ca", "peer CA"), ("client-ca", "client CA")] {
            let path = self.dir.join(dir);
            if path.exists() {
                mint::Authority::load(&path)?;
                continue;
            }
            let (cert, key) = mint::authority(&format!("{cluster} {role}"), validity)?;
            self.place(
                &path,
                &[("ca.crt", cert.as_bytes()), ("ca.key", key.as_bytes())],
            )?;
        }
        self.ensure_signer()
    }

    /// Whether both CAs can sign, or are still to be made.
    pub fn authorities_usable(&self) -> bool {
        ["peer-ca", "client-ca"].iter().all(|it| {
            let path = self.dir.join(it);
            !path.exists() || mint::Authority::load(&path).is_ok()
        })
    }

    /// Makes new leaves for etcd and the operator: a new generation, complete and synced before
    /// the link points at it.
    pub fn mint(&self, leaves: &Leaves<'_>) -> Result<(), TlsError> {
        let clients = mint::Authority::load(&self.dir.join("client-ca"))?;
        let peers = mint::Authority::load(&self.dir.join("peer-ca"))?;
        let name = |role: &str| format!("{} {role}", leaves.cluster);
        let server = clients.leaf(
            &name("server"),
            leaves.names,
            Purpose::Server,
            leaves.validity,
        )?;
        let peer = peers.leaf(
            &name("peer"),
            leaves.peer_names,
            Purpose::Peer,
            leaves.validity,
        )?;
        let operator = clients.leaf(OPERATOR, &[], Purpose::Client, leaves.validity)?;
        let generations = self.dir.join("generations");
        state::create_private_dir(&generations)?;
        let number = numbered(&generations, "")
            .last()
            .map_or(1, |(it, _)| it + 1);
        let path = generations.join(format!("{number:04}"));
        self.place(
            &path,
            &[
                ("server.crt", server.0.as_bytes()),
                ("server.key", server.1.as_bytes()),
                ("peer.crt", peer.0.as_bytes()),
                ("peer.key", peer.1.as_bytes()),
                ("operator.crt", operator.0.as_bytes()),
                ("operator.key", operator.1.as_bytes()),
                ("client-ca.crt", clients.pem().as_bytes()),
                ("peer-ca.crt", peers.pem().as_bytes()),
            ],
        )?;
        point(
            &self.current(),
            Path::new(&format!("generations/{number:04}")),
        )?;
        prune(&generations, "");
        Ok(())
    }

    /// Makes a certificate for a client and puts it in its place.
    pub fn issue(&self, name: &str, validity: Validity) -> Result<ClientFiles, TlsError> {
        if !is_client_name(name) {
            return Err(TlsError::ClientName(name.to_owned()));
        }
        let known = self.clients();
        if known.len() >= CLIENTS_MAX && !known.iter().any(|it| it == name) {
            return Err(TlsError::TooManyClients);
        }
        let authority = mint::Authority::load(&self.dir.join("client-ca"))?;
        let (cert, key) = authority.leaf(name, &[], Purpose::Client, validity)?;
        let clients = self.dir.join("clients");
        state::create_private_dir(&clients)?;
        let prefix = format!("{name}.");
        let number = numbered(&clients, &prefix)
            .last()
            .map_or(1, |(it, _)| it + 1);
        let folder = format!("{prefix}{number:04}");
        self.place(
            &clients.join(&folder),
            &[
                ("client.crt", cert.as_bytes()),
                ("client.key", key.as_bytes()),
                ("ca.crt", authority.pem().as_bytes()),
            ],
        )?;
        point(&clients.join(name), Path::new(&folder))?;
        prune(&clients, &prefix);
        Ok(self.client_files(name))
    }

    /// Names of all clients that have a certificate, sorted.
    pub fn clients(&self) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.dir.join("clients")) else {
            return Vec::new();
        };
        let mut names: Vec<String> = entries
            .flatten()
            .filter(|it| it.file_type().is_ok_and(|it| it.is_symlink()))
            .filter_map(|it| it.file_name().into_string().ok())
            .filter(|it| !it.contains('.'))
            .collect();
        names.sort();
        names
    }

    /// Leaves in use, by their role: `server`, `peer`, `operator`.
    pub fn leaves(&self) -> [(&'static str, Result<Leaf, Usability>); 3] {
        let current = self.current();
        ["server", "peer", "operator"].map(|role| {
            let ca = current.join(if role == "peer" {
                "peer-ca.crt"
            } else {
                "client-ca.crt"
            });
            let leaf = leaf_of(
                &current.join(format!("{role}.crt")),
                &current.join(format!("{role}.key")),
                &ca,
            );
            (role, leaf)
        })
    }

    /// A named client's certificate.
    pub fn client_leaf(&self, name: &str) -> Result<Leaf, Usability> {
        let files = self.client_files(name);
        // One that another CA signed than etcd knows is none, also where the CA of then lies beside it.
        let authority = self.dir.join("client-ca/ca.crt");
        let leaf = leaf_of(&files.cert, &files.key, &authority)?;
        let same = check::der(&authority) == check::der(&files.ca);
        let broken = || Usability::Broken(format!("{} is another CA", files.ca.display()));
        same.then_some(leaf).ok_or_else(broken)
    }

    /// When the CA that ends first ends.
    pub fn authority_not_after(&self) -> Option<Timestamp> {
        ["peer-ca", "client-ca"]
            .iter()
            .filter_map(|it| check::not_after(&self.dir.join(it).join("ca.crt")))
            .min()
    }

    /// Puts a complete directory in place at once: files synced, directory renamed and synced.
    fn place(&self, path: &Path, files: &[(&str, &[u8])]) -> Result<(), TlsError> {
        state::create_private_dir(&self.dir)?;
        let mut part = path.as_os_str().to_owned();
        part.push(".part");
        let part = PathBuf::from(part);
        let _ = fs::remove_dir_all(&part);
        state::create_private_dir(&part)?;
        state::write_all_synced(&part, files)?;
        fs::rename(&part, path).map_err(|source| StateError::Io {
            what: "rename",
            path: part.clone(),
            source,
        })?;
        state::sync_dir(path.parent().unwrap_or(&self.dir))?;
        Ok(())
    }
}

/// Whether a certificate may be issued to this name.
pub fn is_client_name(name: &str) -> bool {
    name != OPERATOR && name.len() <= 63 && is_dns_label(name)
}

/// Points a symbolic link at a directory, at once: a handshake sees the old pair or the new one.
fn point(link: &Path, target: &Path) -> Result<(), StateError> {
    let mut fresh = link.as_os_str().to_owned();
    fresh.push(".link");
    let fresh = PathBuf::from(fresh);
    let error = |what, path: &Path| {
        let path = path.to_owned();
        move |source| StateError::Io { what, path, source }
    };
    let _ = fs::remove_file(&fresh);
    std::os::unix::fs::symlink(target, &fresh).map_err(error("link", &fresh))?;
    state::inherit_owner(&fresh).map_err(error("set the owner of", &fresh))?;
    fs::rename(&fresh, link).map_err(error("rename", &fresh))?;
    state::sync_dir(link.parent().unwrap_or_else(|| Path::new("/")))
}

/// Directories `PREFIX0001`, `PREFIX0002`, ... by number.
fn numbered(dir: &Path, prefix: &str) -> Vec<(u32, PathBuf)> {
    let Ok(entries) = fs::read_dir(dir) else {
        return Vec::new();
    };
    let mut found: Vec<(u32, PathBuf)> = entries
        .flatten()
        .filter_map(|it| {
            let name = it.file_name().into_string().ok()?;
            let number = name.strip_prefix(prefix)?.parse().ok()?;
            Some((number, it.path()))
        })
        .collect();
    found.sort();
    found
}

/// Removes generations that no handshake can reach any more. What cannot be removed stays.
fn prune(dir: &Path, prefix: &str) {
    let all = numbered(dir, prefix);
    for (_, path) in all.iter().rev().skip(GENERATIONS_KEPT) {
        let _ = fs::remove_dir_all(path);
    }
}
