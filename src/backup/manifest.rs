//! The manifest beside each snapshot (rules B3, B11): what a restore needs to know before it opens
//! the snapshot, and what verification compares it with.

use serde::{Deserialize, Serialize};

use crate::clock::parse_rfc3339;
use crate::cluster::Timestamp;
use crate::state::sha256;
use crate::tls::{Signed, Signer};
use crate::version::Version;

/// The format that this version writes. A change that an older version cannot read raises it.
pub const FORMAT: u32 = 1;

/// What is known of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Manifest {
    /// [`FORMAT`].
    pub format: u32,
    /// The snapshot's name.
    pub name: String,
    /// The document's name.
    pub cluster: String,
    /// In hexadecimal; the database itself does not carry it.
    #[serde(rename = "clusterID")]
    pub cluster_id: String,
    /// The member that it was taken from.
    pub member: String,
    /// In hexadecimal.
    #[serde(rename = "memberID")]
    pub member_id: String,
    /// The version of etcd that wrote it, or of its data, if etcd had lowered it for an older line.
    pub etcd_version: String,
    /// The version of the operator that took it.
    pub operator_version: String,
    /// RFC 3339; none where the clock was not trusted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created: Option<String>,
    /// The boot of the machine in which it was taken, and seconds since its begin.
    pub boot_id: String,
    /// Seconds since that boot.
    pub since_boot: u64,
    /// Why it was taken.
    pub class: Class,
    /// For how many seconds a person wants it; none: until a person removes it.
    #[serde(
        default,
        rename = "ttlSeconds",
        skip_serializing_if = "Option::is_none"
    )]
    pub ttl: Option<u64>,
    /// The store's revision.
    pub revision: Revision,
    /// Entries of all buckets, as `etcdutl snapshot status` counts them.
    pub entries: u64,
    /// `etcdutl snapshot status`' hash, in hexadecimal.
    pub hash: String,
    /// The database as etcd sent it.
    pub database: Database,
    /// The file beside this one.
    pub file: File,
    /// How well it was checked, and when last.
    pub verified: Verified,
    /// By whose key it is signed: see [`super::trust`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signed: Option<Signed>,
    /// sha256 of this manifest with an empty checksum, as compact JSON.
    pub checksum: String,
}

/// Why a snapshot was taken (rule A2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Class {
    /// By the document; goes when its time has come.
    Scheduled,
    /// By a person; stays until a person removes it, or for its time to live.
    OnDemand,
}

/// The store's revision around a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Revision {
    /// Before it was asked for.
    pub before: i64,
    /// The last one that the database has an entry of: etcdutl's `REVISION`.
    pub snapshot: i64,
    /// After it had arrived.
    pub after: i64,
}

impl Revision {
    /// What etcd would call the revision of this data. The database alone tells less where it is empty
    /// or where the last change was a deletion that was compacted away.
    pub fn held(self) -> i64 {
        self.snapshot.max(self.before)
    }
}

/// The database as etcd sent it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Database {
    /// Bytes, without the checksum at its end.
    pub size: u64,
    /// Bytes in use, as etcd said.
    pub in_use: u64,
    /// sha256 of it, which is what stands at its end.
    pub sha256: String,
}

/// The stored file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct File {
    /// `zstd`: independent frames and a table of them.
    pub codec: String,
    /// Bytes.
    pub size: u64,
    /// Of these bytes.
    pub sha256: String,
}

/// How well a snapshot was checked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Verified {
    /// 1 size, 2 hash, 3 structure, 4 a trial restore; 0: found damaged.
    pub level: u8,
    /// RFC 3339; none where the clock was not trusted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
}

/// Why a manifest cannot be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    /// It is none, or changed.
    #[error("the manifest is damaged")]
    Damaged,
    /// A newer version of this operator wrote it.
    #[error(
        "the manifest was written by a newer version of this operator (format {0}, known is {FORMAT})"
    )]
    Newer(u32),
    /// It stands beside another snapshot.
    #[error("the manifest is that of {0}")]
    OfAnother(String),
}

impl Manifest {
    /// The signed bytes: a line that says what they are, then the manifest as compact JSON in the order of its file,
    /// with level 0 and an empty checksum, without `verified.at` and `signed`. How well it was checked is not signed:
    /// each later check writes it anew, also where the key is not, and a restore checks everything again itself.
    fn canonical(&self) -> Vec<u8> {
        let blank = Manifest {
            verified: Verified { level: 0, at: None },
            signed: None,
            checksum: String::new(),
            ..self.clone()
        };
        let mut bytes = b"etcd-operator snapshot 1\n".to_vec();
        bytes.extend(serde_json::to_vec(&blank).unwrap_or_default());
        bytes
    }

    /// Signs it. Without a key it stays unsigned.
    #[must_use]
    pub fn signed_by(self, signer: Option<&Signer>) -> Self {
        let bytes = self.canonical();
        Manifest {
            signed: signer.and_then(|it| it.sign(&bytes)),
            ..self
        }
    }

    /// The public key whose signature it carries; none where it carries none that holds.
    pub fn signer(&self) -> Option<&str> {
        let bytes = self.canonical();
        let signed = self.signed.as_ref().filter(|it| it.holds_for(&bytes))?;
        Some(&signed.by)
    }

    fn sum(&self) -> String {
        let blank = Manifest {
            checksum: String::new(),
            ..self.clone()
        };
        sha256(&serde_json::to_vec(&blank).unwrap_or_default())
    }

    /// As it is written.
    pub fn encode(&self) -> Vec<u8> {
        let whole = Manifest {
            checksum: self.sum(),
            ..self.clone()
        };
        let mut bytes = serde_json::to_vec_pretty(&whole).unwrap_or_default();
        bytes.push(b'\n');
        bytes
    }

    /// Reads one that shall be of this snapshot.
    pub fn decode(bytes: &[u8], name: &str) -> Result<Self, ManifestError> {
        #[derive(Deserialize)]
        struct Format {
            format: u32,
        }
        match serde_json::from_slice::<Format>(bytes) {
            Ok(it) if it.format > FORMAT => return Err(ManifestError::Newer(it.format)),
            Ok(_) => {}
            Err(_) => return Err(ManifestError::Damaged),
        }
        let manifest: Manifest =
            serde_json::from_slice(bytes).map_err(|_| ManifestError::Damaged)?;
        // To the byte, its checksum included.
        if manifest.encode() != bytes {
            return Err(ManifestError::Damaged);
        }
        if manifest.name != name {
            return Err(ManifestError::OfAnother(manifest.name));
        }
        Ok(manifest)
    }

    /// When it was taken, by a trusted clock.
    pub fn created(&self) -> Option<Timestamp> {
        parse_rfc3339(self.created.as_deref()?)
    }

    /// The etcd that can read it; none where what is written there is no version.
    pub fn etcd(&self) -> Option<Version> {
        self.etcd_version.parse().ok()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn manifest() -> Manifest {
        Manifest {
            format: FORMAT,
            name: "shop-0-20261121T131500Z-r12-0000000a".to_owned(),
            cluster: "shop".to_owned(),
            cluster_id: "00000000000000aa".to_owned(),
            member: "shop-0".to_owned(),
            member_id: "00000000000000bb".to_owned(),
            etcd_version: "3.6.14".to_owned(),
            operator_version: "0.1.0".to_owned(),
            created: Some("2026-11-21T13:15:00Z".to_owned()),
            boot_id: "b".to_owned(),
            since_boot: 7,
            class: Class::Scheduled,
            ttl: None,
            revision: Revision {
                before: 12,
                snapshot: 12,
                after: 13,
            },
            entries: 30,
            hash: "0000000a".to_owned(),
            database: Database {
                size: 20480,
                in_use: 16384,
                sha256: "cc".to_owned(),
            },
            file: File {
                codec: "zstd".to_owned(),
                size: 900,
                sha256: "dd".to_owned(),
            },
            verified: Verified { level: 3, at: None },
            signed: None,
            checksum: String::new(),
        }
    }

    #[test]
    fn a_signature_holds_for_everything_but_the_level() {
        let root = std::env::temp_dir().join(format!("manifest-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&root);
        let certificates = crate::tls::Certificates::at(&root);
        certificates
            .ensure_authorities("shop", Timestamp(0))
            .unwrap();
        let key = certificates.signer().unwrap();
        let name = manifest().name;
        let it = manifest().signed_by(Some(&key));
        let read = |it: &Manifest| Manifest::decode(&it.encode(), &name).unwrap();
        assert_eq!(read(&it).signer(), Some(key.public().as_str()));
        let checked = Manifest {
            verified: Verified {
                level: 4,
                at: Some("2026-11-22T00:00:00Z".to_owned()),
            },
            ..it.clone()
        };
        assert_eq!(read(&checked).signer(), Some(key.public().as_str()));
        assert_eq!(manifest().signed_by(None).signer(), None);
        let mut others = vec![it.clone(); 5];
        others[0].created = Some("2099-01-01T00:00:00Z".to_owned());
        others[1].cluster_id = "00000000000000ab".to_owned();
        others[2].file.sha256 = "ee".to_owned();
        others[3].revision.snapshot += 1;
        others[4].ttl = Some(1);
        for other in others {
            assert_eq!(read(&other).signer(), None, "{other:?}");
        }
        std::fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn a_changed_missing_or_added_byte_is_found() {
        let (it, name) = (manifest(), "shop-0-20261121T131500Z-r12-0000000a");
        let bytes = it.encode();
        let read = Manifest::decode(&bytes, name).unwrap();
        assert_eq!(read.created(), Some(Timestamp(1_795_266_900)));
        assert_eq!(
            Manifest {
                checksum: String::new(),
                ..read.clone()
            },
            it
        );
        for index in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[index] ^= 1;
            let (mut missing, mut added) = (bytes.clone(), bytes.clone());
            missing.remove(index);
            added.insert(index, b' ');
            for other in [changed, missing, added] {
                assert!(Manifest::decode(&other, name).is_err(), "byte {index}");
            }
        }
        let newer = String::from_utf8(bytes.clone())
            .unwrap()
            .replace("\"format\": 1", "\"format\": 2");
        assert_eq!(
            Manifest::decode(newer.as_bytes(), name),
            Err(ManifestError::Newer(2))
        );
        let other = Manifest::decode(&bytes, "shop-0-20261121T131500Z-r12-0000000b");
        assert_eq!(other, Err(ManifestError::OfAnother(name.to_owned())));
    }
}
