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

    /// Puts it here, where there is no CA yet; what is here already stays as it is.
    pub fn import(&self, bundle: &Bundle) -> Result<(), TlsError> {
        if self.has_authorities() {
            return Ok(());
        }
        for (name, files) in &bundle.clients {
            if is_client_name(name) {
                let clients = self.dir.join("clients");
                state::create_private_dir(&clients)?;
                let folder = format!("{name}.0001");
                self.place(&clients.join(&folder), &known(files, &CLIENT_FILES))?;
                point(&clients.join(name), Path::new(&folder))?;
            }
        }
        // The CAs last: where the power goes before, it is done again.
        for name in AUTHORITIES.into_iter().rev() {
            if let Some(files) = bundle.authorities.get(name) {
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
