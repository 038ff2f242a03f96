//! TLS in which both ends show a certificate of this cluster: between the operator and what it has made.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};

use super::ClientFiles;
use super::check::name_of;
use crate::cluster::OPERATOR;

/// Why no connection can be made with these files.
#[derive(Debug, thiserror::Error)]
#[error("the certificates cannot be used: {0}")]
pub struct MutualError(String);

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn unusable(error: impl ToString) -> MutualError {
    MutualError(error.to_string())
}

struct Pair {
    roots: RootCertStore,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

/// Read anew for each connection: they are renewed in place.
fn read(files: &ClientFiles) -> Result<Pair, MutualError> {
    let mut roots = RootCertStore::empty();
    for it in CertificateDer::pem_file_iter(&files.ca).map_err(unusable)? {
        roots.add(it.map_err(unusable)?).map_err(unusable)?;
    }
    let chain = CertificateDer::pem_file_iter(&files.cert).map_err(unusable)?;
    Ok(Pair {
        roots,
        chain: chain.collect::<Result<_, _>>().map_err(unusable)?,
        key: PrivateKeyDer::from_pem_file(&files.key).map_err(unusable)?,
    })
}

impl ClientFiles {
    /// For a client that shows this certificate, to servers of this CA.
    ///
    /// # Errors
    /// A file is missing, or is none of ours.
    pub fn to_dial(&self) -> Result<ClientConfig, MutualError> {
        let Pair { roots, chain, key } = read(self)?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(unusable)?
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key)
            .map_err(unusable)
    }

    /// For a server that shows this certificate, and lets in who shows one of this CA.
    ///
    /// # Errors
    /// A file is missing, or is none of ours.
    pub fn to_serve(&self) -> Result<ServerConfig, MutualError> {
        let Pair { roots, chain, key } = read(self)?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone());
        ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(unusable)?
            .with_client_cert_verifier(verifier.build().map_err(unusable)?)
            .with_single_cert(chain, key)
            .map_err(unusable)
    }
}

/// Whether who has shown these certificates is the operator: no other client is given its name.
pub fn is_operator(shown: Option<&[CertificateDer<'_>]>) -> bool {
    let own = shown.and_then(<[_]>::first);
    own.and_then(|it| name_of(it)).as_deref() == Some(OPERATOR)
}

/// Whether who has shown these certificates holds the one in this file: a Pod of the same member's.
pub fn is_leaf_of(shown: Option<&[CertificateDer<'_>]>, file: &Path) -> bool {
    let shown = shown.and_then(<[_]>::first);
    let own = CertificateDer::pem_file_iter(file).ok();
    let own = own.and_then(|mut it| it.next()?.ok());
    shown.is_some_and(|it| own.as_ref() == Some(it))
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio_rustls::{TlsAcceptor, TlsConnector};

    use super::*;
    use crate::tls::{Certificates, Leaves, Validity};

    struct Room(std::path::PathBuf);

    impl Drop for Room {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    /// Certificates of a cluster, and the files of its member.
    fn cluster(room: &Room, name: &str) -> (Certificates, ClientFiles) {
        let own = Certificates::at(room.0.join(name));
        let now = crate::clock::now();
        own.ensure_authorities(name, now).unwrap();
        let validity = Validity::trusted(now, 3600);
        let names = ["shop-client.default.svc".to_owned()];
        let leaves = Leaves {
            names: &names,
            peer_names: &names,
            cluster: name,
            validity,
        };
        own.mint(&leaves).unwrap();
        own.issue("till", validity).unwrap();
        let current = own.current();
        let server = ClientFiles {
            ca: current.join("client-ca.crt"),
            cert: current.join("server.crt"),
            key: current.join("server.key"),
            server_name: None,
        };
        (own, server)
    }

    /// Whether a connection comes about, and with whom by the server's look.
    async fn meet(server: &ClientFiles, client: &ClientFiles) -> Option<bool> {
        let acceptor = TlsAcceptor::from(Arc::new(server.to_serve().unwrap()));
        let connector = TlsConnector::from(Arc::new(client.to_dial().unwrap()));
        let (near, far) = tokio::io::duplex(64 * 1024);
        let met = tokio::spawn(async move {
            let mut stream = acceptor.accept(far).await.ok()?;
            let who = is_operator(stream.get_ref().1.peer_certificates());
            stream.write_all(b"a").await.ok()?;
            Some(who)
        });
        let name = "shop-client.default.svc".try_into().unwrap();
        if let Ok(mut stream) = connector.connect(name, near).await {
            let _ = stream.read_u8().await;
        }
        met.await.unwrap()
    }

    #[tokio::test]
    async fn nobody_but_the_operator_of_this_cluster_is_taken_for_it() {
        let room = Room(std::env::temp_dir().join(format!("mutual-{}", std::process::id())));
        let (own, server) = cluster(&room, "shop");
        let (other, _) = cluster(&room, "other");
        assert_eq!(meet(&server, &own.operator_files()).await, Some(true));
        assert_eq!(meet(&server, &own.client_files("till")).await, Some(false));
        assert_eq!(
            meet(&server, &server).await,
            Some(false),
            "the member itself"
        );
        let stranger = ClientFiles {
            ca: server.ca.clone(),
            ..other.operator_files()
        };
        assert_eq!(meet(&server, &stranger).await, None);
        let nobody = ClientFiles {
            cert: room.0.join("none.crt"),
            ..server
        };
        assert!(nobody.to_serve().is_err());
    }
}
