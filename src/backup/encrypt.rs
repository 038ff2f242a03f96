//! Encryption with age: this machine holds public keys only, and cannot read what it sends.

use std::fs::File;
use std::io::{self, Read, Seek as _, Write};
use std::path::{Path, PathBuf};

use crate::untrusted;

/// A secret key takes a line of 75 characters.
const IDENTITIES_MAX: u64 = 64 * 1024;

/// Why an encrypted snapshot cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum DecryptError {
    /// No identity was named.
    #[error("the snapshot is encrypted: name the file with the secret key with --identity")]
    NoIdentity,
    /// The file of secret keys cannot be used.
    #[error("the identity file {} cannot be used: {why}", path.display())]
    Identity {
        /// Which one.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// Not for this key, or damaged.
    #[error("the snapshot cannot be decrypted with {}: {why}", path.display())]
    Refused {
        /// The identity file.
        path: PathBuf,
        /// What age says.
        why: String,
    },
    /// A file could not be read or written.
    #[error("failed to decrypt {}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
}

/// Encrypts an open file to public keys, from its beginning.
pub fn encrypt(mut from: &File, recipients: &[String], to: &mut dyn Write) -> io::Result<()> {
    from.rewind()?;
    encrypt_from(&mut from, recipients, to)
}

/// Encrypts some bytes to public keys.
pub fn encrypt_bytes(from: &[u8], recipients: &[String], to: &mut dyn Write) -> io::Result<()> {
    encrypt_from(&mut &*from, recipients, to)
}

fn encrypt_from(from: &mut dyn Read, recipients: &[String], to: &mut dyn Write) -> io::Result<()> {
    let keys: Vec<age::x25519::Recipient> = recipients
        .iter()
        .map(|it| it.parse().map_err(io::Error::other))
        .collect::<io::Result<_>>()?;
    let keys = keys.iter().map(|it| it as &dyn age::Recipient);
    let encryptor = age::Encryptor::with_recipients(keys).map_err(io::Error::other)?;
    let mut writer = encryptor.wrap_output(to)?;
    io::copy(from, &mut writer)?;
    writer.finish()?;
    Ok(())
}

/// Decrypts a file with the secret keys in another.
pub fn decrypt(
    from: &Path,
    identity: Option<&Path>,
    to: &mut dyn Write,
) -> Result<(), DecryptError> {
    let path = identity.ok_or(DecryptError::NoIdentity)?;
    let file = untrusted::open(from).map_err(|source| DecryptError::Io {
        path: from.to_owned(),
        source,
    })?;
    decrypt_from(file, path, to)
}

/// Decrypts some bytes with the secret keys in a file.
pub fn decrypt_bytes(from: &[u8], path: &Path, to: &mut dyn Write) -> Result<(), DecryptError> {
    decrypt_from(from, path, to)
}

fn decrypt_from(from: impl Read, path: &Path, to: &mut dyn Write) -> Result<(), DecryptError> {
    let unusable = |why: String| DecryptError::Identity {
        path: path.to_owned(),
        why,
    };
    let text =
        untrusted::read_given(path, IDENTITIES_MAX).map_err(|error| unusable(error.to_string()))?;
    let text = String::from_utf8_lossy(&text);
    let keys: Vec<age::x25519::Identity> = text
        .lines()
        .map(str::trim)
        .filter(|it| !it.is_empty() && !it.starts_with('#'))
        .map(|it| it.parse().map_err(|why: &str| unusable(why.to_owned())))
        .collect::<Result<_, _>>()?;
    if keys.is_empty() {
        return Err(unusable(
            "it holds no key of the kind that age-keygen makes".to_owned(),
        ));
    }
    let refused = |why: age::DecryptError| DecryptError::Refused {
        path: path.to_owned(),
        why: why.to_string(),
    };
    let decryptor = age::Decryptor::new(from).map_err(refused)?;
    let keys = keys.iter().map(|it| it as &dyn age::Identity);
    let mut reader = decryptor.decrypt(keys).map_err(refused)?;
    io::copy(&mut reader, to).map_err(|error| DecryptError::Refused {
        path: path.to_owned(),
        why: error.to_string(),
    })?;
    Ok(())
}
