//! Making certificates: ECDSA P-256, the smallest that every client of etcd understands.

use std::fs;
use std::net::IpAddr;
use std::path::Path;

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, SanType,
};
use time::OffsetDateTime;

use super::{TlsError, Validity};
use crate::cluster::Timestamp;

/// What a leaf is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// etcd towards clients. Also as a client: etcd dials itself (etcd#9785).
    Server,
    /// etcd towards etcd, both ways.
    Peer,
    /// A client.
    Client,
}

/// A certificate and its key, both PEM.
pub(super) type Pair = (String, String);

/// A CA that can sign.
pub(super) struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

fn date(timestamp: Timestamp) -> OffsetDateTime {
    OffsetDateTime::from_unix_timestamp(timestamp.0).unwrap_or(OffsetDateTime::UNIX_EPOCH)
}

fn params(name: &str, validity: Validity) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.not_before = date(validity.not_before);
    params.not_after = date(validity.not_after);
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.use_authority_key_identifier_extension = true;
    params
}

fn failed(name: &str) -> impl Fn(rcgen::Error) -> TlsError + '_ {
    move |source| TlsError::Mint {
        name: name.to_owned(),
        source,
    }
}

/// A new CA. One more may stand below it: that of another host, whose keys do not travel.
pub(super) fn authority(name: &str, validity: Validity) -> Result<Pair, TlsError> {
    let mut params = params(name, validity);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(1));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let key = KeyPair::generate().map_err(failed(name))?;
    let cert = params.self_signed(&key).map_err(failed(name))?;
    Ok((cert.pem(), key.serialize_pem()))
}

impl Authority {
    /// Reads a CA, and checks that its two files belong together.
    pub(super) fn load(dir: &Path) -> Result<Self, TlsError> {
        let read = |name: &str| {
            let path = dir.join(name);
            fs::read_to_string(&path).map_err(|source| TlsError::Read { path, source })
        };
        let damaged = |why: &str| TlsError::Authority {
            path: dir.to_owned(),
            why: why.to_owned(),
        };
        let pem = read("ca.crt")?;
        let key =
            KeyPair::from_pem(&read("ca.key")?).map_err(|_| damaged("the key cannot be read"))?;
        if !super::check::certificate_has_key(&pem, &key) {
            return Err(damaged("the certificate and the key do not match"));
        }
        let issuer = Issuer::from_ca_cert_pem(&pem, key)
            .map_err(|_| damaged("the certificate cannot be read"))?;
        Ok(Authority { pem, issuer })
    }

    /// The certificate.
    pub(super) fn pem(&self) -> &str {
        &self.pem
    }

    /// Signs a new leaf.
    pub(super) fn leaf(
        &self,
        name: &str,
        names: &[String],
        purpose: Purpose,
        validity: Validity,
    ) -> Result<Pair, TlsError> {
        let mut params = params(name, validity);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = match purpose {
            Purpose::Server | Purpose::Peer => {
                vec![
                    ExtendedKeyUsagePurpose::ServerAuth,
                    ExtendedKeyUsagePurpose::ClientAuth,
                ]
            }
            Purpose::Client => vec![ExtendedKeyUsagePurpose::ClientAuth],
        };
        for it in names {
            let san = match it.parse::<IpAddr>() {
                Ok(address) => SanType::IpAddress(address),
                Err(_) => SanType::DnsName(it.as_str().try_into().map_err(failed(name))?),
            };
            params.subject_alt_names.push(san);
        }
        let key = KeyPair::generate().map_err(failed(name))?;
        let cert = params.signed_by(&key, &self.issuer).map_err(failed(name))?;
        Ok((cert.pem(), key.serialize_pem()))
    }
}
