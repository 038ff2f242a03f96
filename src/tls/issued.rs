//! Clients that a person asked a certificate for: they are renewed like those of the document, until a
//! person removes them. Copies elsewhere are the person's, and are known by their ends.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{Certificates, TlsError, is_client_name, numbered};
use crate::cluster::Timestamp;
use crate::state::{self, StateError};

/// A client that a person asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Issued {
    /// Directories with a copy of its files, and when that certificate ends, in seconds since 1970.
    #[serde(default)]
    pub copies: BTreeMap<PathBuf, i64>,
}

impl Certificates {
    fn issued_path(&self, name: &str) -> PathBuf {
        self.dir.join("issued").join(format!("{name}.json"))
    }

    /// Clients that a person asked for, by name. What cannot be read counts as asked for.
    pub fn issued(&self) -> BTreeMap<String, Issued> {
        let entries = fs::read_dir(self.dir.join("issued"));
        let names = entries.into_iter().flatten().flatten().filter_map(|it| {
            let name = it.file_name().into_string().ok()?;
            let name = name.strip_suffix(".json")?;
            is_client_name(name).then(|| name.to_owned())
        });
        names
            .map(|name| {
                let record = state::load(&self.issued_path(&name)).ok().flatten();
                (name, record.unwrap_or_default())
            })
            .collect()
    }

    /// From now on it is renewed; `copy`: the directory that holds a copy, and its end.
    pub fn note_issued(
        &self,
        name: &str,
        copy: Option<(&Path, Timestamp)>,
    ) -> Result<(), TlsError> {
        let path = self.issued_path(name);
        let before: Option<Issued> = state::load(&path).ok().flatten();
        let mut record = before.clone().unwrap_or_default();
        if let Some((dir, end)) = copy {
            record.copies.insert(dir.to_owned(), end.0);
        }
        if before.as_ref() != Some(&record) {
            state::create_private_dir(&self.dir.join("issued"))?;
            state::save(&path, &record)?;
        }
        Ok(())
    }

    /// It is not renewed any more, and its files here go. Copies elsewhere stay valid until they expire.
    pub fn remove_client(&self, name: &str) -> Result<bool, TlsError> {
        let link = self.dir.join("clients").join(name);
        let record = self.issued_path(name);
        let mut there = false;
        for path in [record.with_extension("json.previous"), record, link] {
            match fs::remove_file(&path) {
                Ok(()) => there = true,
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(source) => {
                    let what = "remove";
                    return Err(StateError::Io { what, path, source }.into());
                }
            }
        }
        for (_, folder) in numbered(&self.dir.join("clients"), &format!("{name}.")) {
            let _ = fs::remove_dir_all(folder);
        }
        Ok(there)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::{CLIENTS_MAX, Validity};

    #[test]
    fn no_more_clients_than_a_flash_disk_bears_get_a_certificate() {
        let root = std::env::temp_dir().join(format!("clients-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        let certificates = Certificates::at(&root);
        certificates
            .ensure_authorities("shop", Timestamp(0))
            .unwrap();
        let validity = Validity::provisional(Timestamp(0), 86_400);
        for number in 0..CLIENTS_MAX {
            certificates
                .issue(&format!("client-{number}"), validity)
                .unwrap();
        }
        let refused = certificates.issue("one-more", validity);
        assert!(matches!(refused, Err(TlsError::TooManyClients)));
        certificates.issue("client-7", validity).unwrap();
        certificates.remove_client("client-9").unwrap();
        certificates.issue("one-more", validity).unwrap();
        fs::remove_dir_all(&root).unwrap();
    }
}
