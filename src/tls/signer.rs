//! The key with which a cluster signs its snapshots and the bundle of its CAs: Ed25519, beside the CAs.
//!
//! ```text
//! tls/signer/signer.key      PKCS#8 PEM, 0600
//! ```
//!
//! Whoever can write to a bucket can put a snapshot there; only who has this key can sign one. People know it by its
//! public half, `ed25519:` and 32 bytes in base64, which a document pins in `backup.trustedSigners`.

use std::fs;
use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{KeyPair, PKCS_ED25519, PublicKeyData as _, SigningKey as _};
use ring::signature::{ED25519, UnparsedPublicKey};
use serde::{Deserialize, Serialize};

use super::{Certificates, TlsError};

/// Where it lies, below the certificates.
pub(super) const FOLDER: &str = "signer";
/// Its file.
pub(super) const FILE: &str = "signer.key";
/// What the public half begins with.
const SCHEME: &str = "ed25519:";

/// A signature, and who made it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Signed {
    /// The public key.
    pub by: String,
    /// In base64.
    pub signature: String,
}

impl Signed {
    /// Whether it is that key's signature of these bytes.
    pub fn holds_for(&self, bytes: &[u8]) -> bool {
        let decoded = |it: &str| STANDARD.decode(it).ok();
        let key = self.by.strip_prefix(SCHEME).and_then(decoded);
        let (Some(key), Some(signature)) = (key, decoded(&self.signature)) else {
            return false;
        };
        UnparsedPublicKey::new(&ED25519, key)
            .verify(bytes, &signature)
            .is_ok()
    }
}

/// A key that signs.
pub struct Signer {
    key: KeyPair,
}

impl Signer {
    pub(super) fn read(pem: &str) -> Option<Self> {
        let key = KeyPair::from_pem(pem).ok()?;
        key.is_compatible(&PKCS_ED25519).then_some(Signer { key })
    }

    /// As in `backup.trustedSigners`.
    pub fn public(&self) -> String {
        format!("{SCHEME}{}", STANDARD.encode(self.key.der_bytes()))
    }

    /// Signs these bytes.
    pub fn sign(&self, bytes: &[u8]) -> Option<Signed> {
        let signature = self.key.sign(bytes).ok()?;
        Some(Signed {
            by: self.public(),
            signature: STANDARD.encode(signature),
        })
    }
}

impl Certificates {
    pub(super) fn signer_path(&self) -> PathBuf {
        self.dir.join(FOLDER).join(FILE)
    }

    /// The key that signs; none where there is none yet.
    ///
    /// # Errors
    /// Its file is damaged: whoever signs with it must not go on without a signature.
    pub fn sound_signer(&self) -> Result<Option<Signer>, TlsError> {
        let path = self.signer_path();
        match (self.signer(), path.exists()) {
            (None, true) => Err(TlsError::Signer(path)),
            (signer, _) => Ok(signer),
        }
    }

    /// Whether there is a key, usable or not.
    pub fn has_signer(&self) -> bool {
        self.signer_path().exists()
    }

    /// The key that signs; none where there is none, or where its file cannot be read.
    pub fn signer(&self) -> Option<Signer> {
        Signer::read(&fs::read_to_string(self.signer_path()).ok()?)
    }

    /// Makes the key if there is none. A damaged one is never replaced, as what it signed would be nobody's; and it keeps
    /// no certificate from being made.
    pub(super) fn ensure_signer(&self) -> Result<(), TlsError> {
        if self.has_signer() {
            return Ok(());
        }
        let folder = self.dir.join(FOLDER);
        let failed = |source| TlsError::Mint {
            name: FOLDER.to_owned(),
            source,
        };
        let key = KeyPair::generate_for(&PKCS_ED25519).map_err(failed)?;
        self.place(&folder, &[(FILE, key.serialize_pem().as_bytes())])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_its_own_signature_of_the_same_bytes_holds() {
        let root = std::env::temp_dir().join(format!("signer-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        let signer = |name: &str| {
            let certificates = Certificates::at(root.join(name));
            certificates.ensure_signer().unwrap();
            let first = certificates.signer().unwrap();
            certificates.ensure_signer().unwrap();
            assert_eq!(certificates.signer().unwrap().public(), first.public());
            first
        };
        let (ours, other) = (signer("ours"), signer("other"));
        let made = ours.sign(b"snapshot").unwrap();
        assert!(
            made.by.starts_with(SCHEME) && made.by.len() == 52,
            "{}",
            made.by
        );
        assert!(made.holds_for(b"snapshot") && !made.holds_for(b"snapshos"));
        let forged = Signed {
            by: other.public(),
            ..made.clone()
        };
        assert!(!forged.holds_for(b"snapshot"));
        for signature in ["", "=", "AAAA", &STANDARD.encode([0; 64])] {
            let signature = signature.to_owned();
            assert!(
                !Signed {
                    signature,
                    ..made.clone()
                }
                .holds_for(b"snapshot")
            );
        }
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn a_damaged_key_is_told_and_not_replaced() {
        let root = std::env::temp_dir().join(format!("signer-damaged-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        let certificates = Certificates::at(&root);
        certificates.ensure_signer().unwrap();
        let path = root.join(FOLDER).join(FILE);
        crate::state::write_file(&path, b"no key").unwrap();
        certificates.ensure_signer().unwrap();
        assert!(matches!(
            certificates.sound_signer(),
            Err(TlsError::Signer(_))
        ));
        assert_eq!(fs::read(&path).unwrap(), b"no key");
        assert!(certificates.signer().is_none());
        fs::remove_dir_all(&root).unwrap();
    }
}
