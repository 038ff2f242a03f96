//! What a replaced box needs so that its clients go on: the CAs and the clients' certificates, in one
//! piece. It holds private keys: whoever takes it away from this host encrypts it (rule A5).

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{Certificates, Signed, Signer, TlsError, check, is_client_name, point, signer};
use crate::state;

const AUTHORITIES: [&str; 2] = ["client-ca", "peer-ca"];
const AUTHORITY_FILES: [&str; 2] = ["ca.crt", "ca.key"];
const CLIENT_FILES: [&str; 3] = ["ca.crt", "client.crt", "client.key"];

/// The CAs, the key that signs and the clients' certificates, as PEM, by folder and file.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bundle {
    authorities: BTreeMap<String, BTreeMap<String, String>>,
    /// As PEM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    signer: Option<String>,
    clients: BTreeMap<String, BTreeMap<String, String>>,
}

/// A bundle, the cluster that it is of, and who says so. Public keys are public: that it could be decrypted says
/// nothing about who encrypted it.
#[derive(Debug, Serialize, Deserialize)]
pub struct SignedBundle {
    cluster: String,
    bundle: Bundle,
    signed: Option<Signed>,
}

impl SignedBundle {
    /// Signs a bundle of this cluster.
    pub fn of(cluster: &str, bundle: Bundle, signer: Option<&Signer>) -> Self {
        let bytes = canonical(cluster, &bundle);
        SignedBundle {
            cluster: cluster.to_owned(),
            bundle,
            signed: signer.and_then(|it| it.sign(&bytes)),
        }
    }

    /// The public key whose signature it carries. None where it carries none that holds for this cluster.
    pub fn signer(&self, cluster: &str) -> Option<&str> {
        let bytes = canonical(cluster, &self.bundle);
        let signed = self.signed.as_ref().filter(|it| it.holds_for(&bytes))?;
        (self.cluster == cluster).then_some(signed.by.as_str())
    }

    /// What is signed.
    pub fn bundle(&self) -> &Bundle {
        &self.bundle
    }
}

/// The signed bytes: a line that says what they are, the cluster's name in a line, the bundle as compact JSON.
fn canonical(cluster: &str, bundle: &Bundle) -> Vec<u8> {
    let mut bytes = format!("etcd-operator authorities 1\n{cluster}\n").into_bytes();
    bytes.extend(serde_json::to_vec(bundle).unwrap_or_default());
    bytes
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

    /// As [`Certificates::authorities`] gives it of those here.
    pub fn fingerprint(&self) -> Option<String> {
        let der = |name: &str| check::der_of(self.authorities.get(name)?.get("ca.crt")?);
        Some(state::sha256(
            &[der("peer-ca")?, der("client-ca")?].concat(),
        ))
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
        bundle.signer = fs::read_to_string(self.signer_path()).ok();
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
        // Whoever knows the cluster by this key goes on knowing it. One that was made here has signed nothing yet.
        if let Some(pem) = bundle
            .signer
            .as_ref()
            .filter(|it| Signer::read(it).is_some())
        {
            let folder = self.dir.join(signer::FOLDER);
            let _ = fs::remove_dir_all(&folder);
            self.place(&folder, &[(signer::FILE, pem.as_bytes())])?;
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
    fn a_bundle_is_of_whoever_signed_it_and_of_one_cluster() {
        let root = std::env::temp_dir().join(format!("signed-bundle-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        let newest = crate::cluster::Timestamp(0);
        let certificates = ["ours", "theirs"].map(|it| Certificates::at(root.join(it)));
        for it in &certificates {
            it.ensure_authorities("shop", newest).unwrap();
        }
        let [ours, theirs] = &certificates;
        let key = ours.signer().unwrap();
        let sealed = SignedBundle::of("shop", ours.export().unwrap(), Some(&key));
        let text = serde_json::to_string(&sealed).unwrap();
        let read = |text: &str| serde_json::from_str::<SignedBundle>(text).unwrap();
        assert_eq!(read(&text).signer("shop"), Some(key.public().as_str()));
        assert_eq!(read(&text).signer("bank"), None);
        let renamed = text.replace("\"shop\"", "\"bank\"");
        assert_eq!(read(&renamed).signer("bank"), None);
        // The CAs are exchanged, and the signature is kept.
        let planted = SignedBundle {
            bundle: theirs.export().unwrap(),
            ..read(&text)
        };
        assert_eq!(planted.signer("shop"), None);
        let unsigned = SignedBundle::of("shop", theirs.export().unwrap(), None);
        assert_eq!(unsigned.signer("shop"), None);
        // A box that was replaced signs as the one before.
        let replaced = Certificates::at(root.join("replaced"));
        replaced.ensure_signer().unwrap();
        replaced.import(read(&text).bundle()).unwrap();
        assert_eq!(replaced.signer().unwrap().public(), key.public());
        fs::remove_dir_all(&root).unwrap();
    }

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
            signer: None,
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
