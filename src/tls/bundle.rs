//! What a replaced box needs so that its clients go on: the CAs and the clients' certificates, in one
//! piece. It holds private keys: whoever takes it away from this host encrypts it (rule A5).

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{Certificates, TlsError, is_client_name, point};
use crate::state;

const AUTHORITIES: [&str; 2] = ["client-ca", "peer-ca"];
const AUTHORITY_FILES: [&str; 2] = ["ca.crt", "ca.key"];
const CLIENT_FILES: [&str; 3] = ["ca.crt", "client.crt", "client.key"];

/// The CAs and the clients' certificates, as PEM, by folder and file.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bundle {
    authorities: BTreeMap<String, BTreeMap<String, String>>,
    clients: BTreeMap<String, BTreeMap<String, String>>,
}

impl fmt::Debug for Bundle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bundle").finish_non_exhaustive()
    }
}

impl Bundle {
    /// The clients in it.
    pub fn clients(&self) -> impl Iterator<Item = &str> {
        self.clients.keys().map(String::as_str)
    }
}

fn read(dir: &Path, names: &[&str]) -> Result<BTreeMap<String, String>, TlsError> {
    let file = |name: &&str| {
        let path = dir.join(name);
        match fs::read_to_string(&path) {
            Ok(text) => Ok(((*name).to_owned(), text)),
            Err(source) => Err(TlsError::Read { path, source }),
        }
    };
    names.iter().map(file).collect()
}

impl Certificates {
    /// Whether there is any CA here, usable or not.
    pub fn has_authorities(&self) -> bool {
        AUTHORITIES.iter().any(|it| self.dir.join(it).exists())
    }

    /// Everything that a replaced box needs.
    pub fn export(&self) -> Result<Bundle, TlsError> {
        let mut bundle = Bundle::default();
        for name in AUTHORITIES {
            let files = read(&self.dir.join(name), &AUTHORITY_FILES)?;
            bundle.authorities.insert(name.to_owned(), files);
        }
        for name in self.clients() {
            let files = read(&self.dir.join("clients").join(&name), &CLIENT_FILES)?;
            bundle.clients.insert(name, files);
        }
        Ok(bundle)
    }

    /// Whether a CA is still to come: there is none, or an import was cut between the two.
    pub fn lacks_an_authority(&self) -> bool {
        AUTHORITIES.iter().any(|it| !self.dir.join(it).exists())
    }

    /// Puts it here, as far as a CA is missing; what is here already stays as it is. May be repeated.
    pub fn import(&self, bundle: &Bundle) -> Result<(), TlsError> {
        if !self.lacks_an_authority() {
            return Ok(());
        }
        for (name, files) in &bundle.clients {
            if is_client_name(name) {
                let clients = self.dir.join("clients");
                state::create_private_dir(&clients)?;
                if clients.join(name).exists() {
                    continue;
                }
                // A folder that nothing points to is what an import left that was cut.
                let free = (1..).map(|it| format!("{name}.{it:04}"));
                let folder = free.into_iter().find(|it| !clients.join(it).exists());
                let folder = folder.unwrap_or_default();
                self.place(&clients.join(&folder), &known(files, &CLIENT_FILES))?;
                point(&clients.join(name), Path::new(&folder))?;
                self.note_issued(name, None)?; // whoever asked for it did so on the box before
            }
        }
        // The CAs last: where the power goes before, it is done again.
        for name in AUTHORITIES.into_iter().rev() {
            if let Some(files) = bundle.authorities.get(name)
                && !self.dir.join(name).exists()
            {
                self.place(&self.dir.join(name), &known(files, &AUTHORITY_FILES))?;
            }
        }
        Ok(())
    }
}

/// The files that we know, and no other name.
fn known<'a>(files: &'a BTreeMap<String, String>, names: &[&'a str]) -> Vec<(&'a str, &'a [u8])> {
    let content = |name: &&'a str| Some((*name, files.get(*name)?.as_bytes()));
    names.iter().filter_map(content).collect()
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "a test writes files")]
mod tests {
    use super::*;

    #[test]
    fn an_import_that_was_cut_anywhere_is_repeated() {
        let root = std::env::temp_dir().join(format!("bundle-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        let files = |names: &[&str]| -> BTreeMap<String, String> {
            names
                .iter()
                .map(|it| ((*it).to_owned(), "pem".to_owned()))
                .collect()
        };
        let bundle = Bundle {
            authorities: AUTHORITIES
                .map(|it| (it.to_owned(), files(&AUTHORITY_FILES)))
                .into(),
            clients: [("shop".to_owned(), files(&CLIENT_FILES))].into(),
        };
        // A folder without its link, and one of the two CAs.
        for left in ["clients/shop.0001", "peer-ca"] {
            let dir = root.join(left.replace('/', "-"));
            fs::create_dir_all(dir.join(left)).unwrap();
            fs::write(dir.join(left).join("ca.crt"), "older").unwrap();
            let certificates = Certificates::at(dir.clone());
            for _ in 0..2 {
                certificates.import(&bundle).unwrap();
                let read = |it: &str| fs::read_to_string(dir.join(it)).unwrap();
                assert_eq!(read("client-ca/ca.key"), "pem");
                assert_eq!(read("clients/shop/client.key"), "pem");
                assert_eq!(read(&format!("{left}/ca.crt")), "older", "it stays");
            }
        }
        fs::remove_dir_all(&root).unwrap();
    }
}
