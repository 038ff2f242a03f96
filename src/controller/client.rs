//! The way to the API server: kube's client over a connection of our own.
//!
//! kube's own stack reads kubeconfigs and runs their credential plugins, which an operator in a Pod
//! never has; leaving it out leaves a YAML library and a process runner out of the binary.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper::Request;
use hyper::header::{AUTHORIZATION, HeaderValue};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use kube::client::{Body, ClientBuilder, ConfigExt as _};
use kube::{Client, Config};
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use tower::ServiceBuilder;
use tower::timeout::TimeoutLayer;
use tower::util::MapRequestLayer;

use super::ControllerError;
use crate::clock;

/// A request ends when no answer has begun within this time: without it, a request into a cut wire
/// would keep a cluster's pass for a quarter of an hour. The server itself gives up after 60 s (its
/// `--request-timeout`). A watch's answer begins at once and may then last.
const ANSWER: Duration = Duration::from_secs(65);
const CONNECT: Duration = Duration::from_secs(20);
/// Silence after which the kernel asks whether the other end is still there, and how often it asks.
const KEEPALIVE: Duration = Duration::from_secs(15);
const KEEPALIVE_PROBES: u32 = 3;
/// The kubelet replaces the token long before it ends; client-go reads it again as often.
const TOKEN_AGE: Duration = Duration::from_secs(60);

/// Connects with the Pod's service account.
pub(super) fn connect() -> Result<Client, ControllerError> {
    let config = Config::incluster().map_err(|error| ControllerError::Config(error.to_string()))?;
    client(&config, ANSWER)
}

fn client(config: &Config, answer: Duration) -> Result<Client, ControllerError> {
    let failed = |error: String| ControllerError::Config(error);
    let mut roots = RootCertStore::empty();
    for certificate in config.root_cert.iter().flatten() {
        let certificate = CertificateDer::from(certificate.as_slice());
        roots
            .add(certificate)
            .map_err(|error| failed(error.to_string()))?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| failed(error.to_string()))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_connect_timeout(Some(CONNECT));
    tcp.set_keepalive(Some(KEEPALIVE));
    tcp.set_keepalive_interval(Some(KEEPALIVE));
    tcp.set_keepalive_retries(Some(KEEPALIVE_PROBES));
    let connector = hyper_rustls::HttpsConnectorBuilder::new()
        .with_tls_config(tls)
        .https_or_http()
        .enable_http1()
        .wrap_connector(tcp);
    let token = config.auth_info.token_file.as_deref().map(Token::at);
    let service = ServiceBuilder::new()
        .layer(TimeoutLayer::new(answer))
        .layer(config.base_uri_layer())
        .layer(MapRequestLayer::new(move |request| {
            authorise(request, token.as_ref())
        }))
        .service(legacy::Client::builder(TokioExecutor::new()).build::<_, Body>(connector));
    Ok(ClientBuilder::new(service, &config.default_namespace).build())
}

fn authorise(mut request: Request<Body>, token: Option<&Token>) -> Request<Body> {
    // Without a readable token the server answers 401, which the caller reports.
    if let Some(header) = token.and_then(Token::header) {
        request.headers_mut().insert(AUTHORIZATION, header);
    }
    request
}

/// A token in a file that the kubelet replaces.
#[derive(Clone)]
struct Token {
    file: PathBuf,
    /// The header, and when (since boot) the file was read.
    read: Arc<Mutex<Option<(HeaderValue, Duration)>>>,
}

impl Token {
    fn at(file: impl AsRef<Path>) -> Self {
        Token {
            file: file.as_ref().to_owned(),
            read: Arc::default(),
        }
    }

    fn header(&self) -> Option<HeaderValue> {
        let now = clock::since_boot();
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((header, at)) = &*read
            && now < *at + TOKEN_AGE
        {
            return Some(header.clone());
        }
        if let Ok(text) = std::fs::read_to_string(&self.file)
            && let Ok(mut header) = HeaderValue::try_from(format!("Bearer {}", text.trim()))
        {
            header.set_sensitive(true);
            *read = Some((header, now));
        }
        // A file that cannot be read for a moment leaves the token that was read before.
        read.as_ref().map(|(header, _)| header.clone())
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use kube::Api;
    use tokio::io::AsyncReadExt as _;
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn a_silent_server_is_given_up_and_has_got_the_token() {
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = silent.local_addr().unwrap();
        let accepted = tokio::spawn(async move {
            let (mut stream, _) = silent.accept().await.unwrap();
            let mut request = vec![0; 4096];
            let length = stream.read(&mut request).await.unwrap();
            // Held open: it is silent, not gone.
            std::mem::forget(stream);
            String::from_utf8_lossy(&request[..length]).into_owned()
        });
        let file = std::env::temp_dir().join(format!("etcd-operator-token-{}", std::process::id()));
        crate::state::write_file(&file, b"one-token\n").unwrap();
        let mut config = Config::new(format!("http://{address}").parse().unwrap());
        config.auth_info.token_file = Some(file.to_string_lossy().into_owned());
        let client = client(&config, Duration::from_millis(200)).unwrap();
        let pods: Api<Pod> = Api::all(client);
        let asked = tokio::time::timeout(Duration::from_secs(10), pods.get_opt("one"));
        let answer = asked.await.expect("the client waits on");
        let why = crate::error::chain(&answer.unwrap_err());
        assert!(why.contains("timed out"), "{why}");
        let request = accepted.await.unwrap();
        assert!(
            request.contains("authorization: Bearer one-token\r\n"),
            "{request}"
        );
        std::fs::remove_file(&file).unwrap();
    }
}
