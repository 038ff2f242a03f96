//! What lies between the adapter and a real server: a link that counts, slows, stalls and breaks,
//! with TLS at this end if it is wanted. It knows nothing of HTTP, but for a proxy's CONNECT.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

/// Passes bytes on to a port of loopback. Ends with the test.
pub struct Wire {
    pub port: u16,
    state: Arc<State>,
    task: JoinHandle<()>,
}

type Trap = (u64, Box<dyn FnOnce() + Send>);

#[derive(Default)]
struct State {
    /// From the adapter to the server.
    sent: AtomicU64,
    /// The other way.
    received: AtomicU64,
    connections: AtomicU64,
    /// Bytes a second; 0 as fast as can be.
    rate: AtomicU64,
    /// Passes nothing on once this many bytes were sent; everything else stays as it is.
    stall_at: AtomicU64,
    /// Called once when this many bytes were sent.
    trap: Mutex<Option<Trap>>,
    open: Mutex<Vec<JoinHandle<()>>>,
}

impl Wire {
    pub fn to(port: u16) -> Wire {
        Wire::with(port, None)
    }

    /// Speaks TLS with the adapter, and none with the server.
    pub fn with_tls(port: u16, acceptor: TlsAcceptor) -> Wire {
        Wire::with(port, Some(acceptor))
    }

    fn with(port: u16, acceptor: Option<TlsAcceptor>) -> Wire {
        // Little waits unseen in the kernel.
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(32 * 1024).unwrap();
        socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
        let listener = socket.listen(16).unwrap();
        let own = listener.local_addr().unwrap().port();
        let state = Arc::new(State::default());
        state.stall_at.store(u64::MAX, Ordering::Relaxed);
        let shared = Arc::clone(&state);
        let task = tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                shared.connections.fetch_add(1, Ordering::Relaxed);
                let (state, acceptor) = (Arc::clone(&shared), acceptor.clone());
                let handle = tokio::spawn(async move {
                    let Ok(far) = TcpStream::connect(("127.0.0.1", port)).await else {
                        return;
                    };
                    match acceptor {
                        None => join(near, far, &state).await,
                        Some(acceptor) => match acceptor.accept(near).await {
                            Ok(near) => join(near, far, &state).await,
                            Err(error) => println!("the wire: {error}"),
                        },
                    }
                });
                shared.open.lock().unwrap().push(handle);
            }
        });
        Wire {
            port: own,
            state,
            task,
        }
    }

    pub fn sent(&self) -> u64 {
        self.state.sent.load(Ordering::Relaxed)
    }

    pub fn received(&self) -> u64 {
        self.state.received.load(Ordering::Relaxed)
    }

    pub fn connections(&self) -> u64 {
        self.state.connections.load(Ordering::Relaxed)
    }

    pub fn slow_down(&self, bytes_per_second: u64) {
        self.state.rate.store(bytes_per_second, Ordering::Relaxed);
    }

    /// From this many bytes on nothing goes through, and nothing is closed.
    pub fn stall_at(&self, sent: u64) {
        self.state.stall_at.store(sent, Ordering::Relaxed);
    }

    pub fn flow(&self) {
        self.state.stall_at.store(u64::MAX, Ordering::Relaxed);
    }

    /// Does something once, when this many bytes were sent.
    pub fn when_sent(&self, bytes: u64, act: impl FnOnce() + Send + 'static) {
        *self.state.trap.lock().unwrap() = Some((bytes, Box::new(act)));
    }

    /// Breaks all connections.
    pub fn cut(&self) {
        for handle in self.state.open.lock().unwrap().drain(..) {
            handle.abort();
        }
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.task.abort();
        self.cut();
    }
}

async fn join<N, F>(near: N, far: F, state: &State)
where
    N: AsyncRead + AsyncWrite + Unpin,
    F: AsyncRead + AsyncWrite + Unpin,
{
    let (near_read, near_write) = tokio::io::split(near);
    let (far_read, far_write) = tokio::io::split(far);
    // Either end's close is the end of both.
    tokio::select! {
        () = pass(near_read, far_write, state, &state.sent) => {}
        () = pass(far_read, near_write, state, &state.received) => {}
    }
}

async fn pass(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    state: &State,
    count: &AtomicU64,
) {
    let mut buffer = vec![0; 16 * 1024];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        while state.sent.load(Ordering::Relaxed) >= state.stall_at.load(Ordering::Relaxed) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let rate = state.rate.load(Ordering::Relaxed);
        if rate > 0 {
            tokio::time::sleep(Duration::from_secs_f64(read as f64 / rate as f64)).await;
        }
        let total = count.fetch_add(read as u64, Ordering::Relaxed) + read as u64;
        if std::ptr::eq(count, &raw const state.sent) {
            let mut trap = state.trap.lock().unwrap();
            if let Some((_, act)) = trap.take_if(|(at, _)| total >= *at) {
                act();
            }
        }
        if to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}

/// A proxy that knows CONNECT, and leads every name to one port of loopback.
pub struct Proxy {
    pub port: u16,
    pub asked: Arc<Mutex<Vec<String>>>,
    task: JoinHandle<()>,
}

impl Proxy {
    pub async fn to(port: u16) -> Proxy {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let own = listener.local_addr().unwrap().port();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let heads = Arc::clone(&asked);
        let task = tokio::spawn(async move {
            while let Ok((mut near, _)) = listener.accept().await {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(near.read_u8().await.unwrap());
                }
                heads.lock().unwrap().push(String::from_utf8(head).unwrap());
                let mut far = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
                near.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n")
                    .await
                    .unwrap();
                tokio::spawn(async move {
                    let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
                });
            }
        });
        Proxy {
            port: own,
            asked,
            task,
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A CA of our own, and a server's certificate for these names.
pub fn private_ca(common: &str, names: &[&str]) -> (String, TlsAcceptor) {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    // Of a name of its own, as CAs are.
    params
        .distinguished_name
        .push(DnType::CommonName, format!("{names:?} {common}"));
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let names: Vec<String> = names.iter().map(|it| (*it).to_owned()).collect();
    let leaf = CertificateParams::new(names)
        .unwrap()
        .signed_by(&key, &ca)
        .unwrap();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![leaf.der().clone()], key)
        .unwrap();
    (ca.pem(), TlsAcceptor::from(Arc::new(config)))
}
