//! Reading certificates: do the files belong together, who signed, from when to when, for whom.

use std::net::IpAddr;
use std::path::Path;

use rcgen::{KeyPair, PublicKeyData as _};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::pem::Pem;

use crate::cluster::Timestamp;

/// A leaf whose pair is sound. Whether it is valid now is the caller's question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaf {
    /// The subject's common name.
    pub name: String,
    /// Begins.
    pub not_before: Timestamp,
    /// Ends.
    pub not_after: Timestamp,
    /// Names and addresses that it stands for.
    pub names: Vec<String>,
}

impl Leaf {
    /// Minted while the clock was not trusted.
    pub fn is_provisional(&self) -> bool {
        self.not_before.0 == 0
    }
}

/// Why a pair is not usable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Usability {
    /// A file is not there.
    Missing,
    /// It cannot be read, the key is another's, or another CA signed it.
    Broken(String),
}

impl std::fmt::Display for Usability {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Usability::Missing => f.write_str("missing"),
            Usability::Broken(why) => f.write_str(why),
        }
    }
}

fn read(path: &Path) -> Result<String, Usability> {
    std::fs::read_to_string(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => Usability::Missing,
        _ => Usability::Broken(format!("{} cannot be read: {error}", path.display())),
    })
}

fn parse_pem(text: &str) -> Option<Pem> {
    Pem::iter_from_buffer(text.as_bytes()).next()?.ok()
}

/// Whether a certificate carries this key's public half.
pub(super) fn certificate_has_key(pem: &str, key: &KeyPair) -> bool {
    let Some(pem) = parse_pem(pem) else {
        return false;
    };
    pem.parse_x509()
        .is_ok_and(|it| it.public_key().raw == key.subject_public_key_info())
}

/// A certificate's bytes.
pub(super) fn der(path: &Path) -> Option<Vec<u8>> {
    der_of(&read(path).ok()?)
}

/// The same of its text.
pub(super) fn der_of(text: &str) -> Option<Vec<u8>> {
    let pem = parse_pem(text)?;
    pem.parse_x509().ok()?;
    Some(pem.contents)
}

/// When a certificate ends.
pub(super) fn not_after(path: &Path) -> Option<Timestamp> {
    let pem = parse_pem(&read(path).ok()?)?;
    Some(Timestamp(
        pem.parse_x509().ok()?.validity().not_after.timestamp(),
    ))
}

/// Reads a pair and checks that key, certificate and CA belong together.
pub fn leaf_of(cert: &Path, key: &Path, ca: &Path) -> Result<Leaf, Usability> {
    let (cert_pem, key_pem, ca_pem) = (read(cert)?, read(key)?, read(ca)?);
    let broken = |path: &Path, why: &str| Usability::Broken(format!("{}: {why}", path.display()));
    let pem = parse_pem(&cert_pem).ok_or_else(|| broken(cert, "no certificate in PEM"))?;
    let certificate = pem
        .parse_x509()
        .map_err(|_| broken(cert, "not an X.509 certificate"))?;
    let key_pair = KeyPair::from_pem(&key_pem).map_err(|_| broken(key, "no private key in PEM"))?;
    if certificate.public_key().raw != key_pair.subject_public_key_info() {
        return Err(broken(key, "the key does not match the certificate"));
    }
    let ca_parsed = parse_pem(&ca_pem).ok_or_else(|| broken(ca, "no certificate in PEM"))?;
    let authority = ca_parsed
        .parse_x509()
        .map_err(|_| broken(ca, "not an X.509 certificate"))?;
    if certificate
        .verify_signature(Some(authority.public_key()))
        .is_err()
    {
        return Err(broken(cert, "not signed by the CA beside it"));
    }
    Ok(describe(&certificate))
}

/// The common name of a certificate.
pub(super) fn name_of(der: &[u8]) -> Option<String> {
    let (_, certificate) = x509_parser::parse_x509_certificate(der).ok()?;
    let name = certificate.subject().iter_common_name().next()?;
    name.as_str().ok().map(str::to_owned)
}

fn describe(certificate: &X509Certificate<'_>) -> Leaf {
    let common_name = certificate.subject().iter_common_name().next();
    let alternative = certificate.subject_alternative_name().ok().flatten();
    let names = alternative
        .iter()
        .flat_map(|it| it.value.general_names.iter())
        .filter_map(|it| match it {
            GeneralName::DNSName(name) => Some((*name).to_owned()),
            GeneralName::IPAddress(bytes) => ip(bytes).map(|it| it.to_string()),
            _ => None,
        });
    Leaf {
        name: common_name
            .and_then(|it| it.as_str().ok())
            .unwrap_or_default()
            .to_owned(),
        not_before: Timestamp(certificate.validity().not_before.timestamp()),
        not_after: Timestamp(certificate.validity().not_after.timestamp()),
        names: names.collect(),
    }
}

fn ip(bytes: &[u8]) -> Option<IpAddr> {
    <[u8; 4]>::try_from(bytes)
        .map(IpAddr::from)
        .or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from))
        .ok()
}
