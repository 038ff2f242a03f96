//! A reverse proxy that spoils answers: what it does not answer itself goes to a real server, and
//! comes from there, with heads as they are (the signature holds).

use std::sync::{Arc, Mutex};

use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// What becomes of a request.
pub enum Verdict {
    /// The server answers.
    Pass,
    /// It is not passed on: this is the answer.
    Instead(Response<Full<Bytes>>),
    /// The server answers, and nobody hears it: the connection ends.
    Lose,
    /// The server answers, and this header is added.
    Add(&'static str, &'static str),
}

pub struct Editor {
    pub port: u16,
    /// Method and path with query of each request.
    pub seen: Arc<Mutex<Vec<String>>>,
    task: JoinHandle<()>,
}

type Judge = dyn FnMut(&str) -> Verdict + Send;

impl Editor {
    /// `judge` gets method, path and query.
    pub async fn before(port: u16, judge: impl FnMut(&str) -> Verdict + Send + 'static) -> Editor {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let own = listener.local_addr().unwrap().port();
        let judge: Arc<Mutex<Box<Judge>>> = Arc::new(Mutex::new(Box::new(judge)));
        let seen = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&seen);
        let task = tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let (judge, log) = (Arc::clone(&judge), Arc::clone(&log));
                tokio::spawn(async move {
                    let service = service_fn(|request| {
                        let asked = format!("{} {}", request.method(), request.uri());
                        log.lock().unwrap().push(asked.clone());
                        let verdict = judge.lock().unwrap()(&asked);
                        answer(port, request, verdict)
                    });
                    let _ = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(near), service)
                        .await;
                });
            }
        });
        Editor {
            port: own,
            seen,
            task,
        }
    }

    pub fn count(&self, method: &str) -> usize {
        let seen = self.seen.lock().unwrap();
        seen.iter().filter(|it| it.starts_with(method)).count()
    }
}

impl Drop for Editor {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// An answer of one's own.
pub fn instead(status: u16, kind: &str, body: &str) -> Verdict {
    let response = Response::builder()
        .status(status)
        .header("content-type", kind);
    Verdict::Instead(response.body(Full::from(body.to_owned())).unwrap())
}

async fn answer(
    port: u16,
    request: Request<Incoming>,
    verdict: Verdict,
) -> Result<Response<Full<Bytes>>, std::io::Error> {
    if let Verdict::Instead(response) = verdict {
        // Heard to the end, as a server does that is polite.
        let _ = request.into_body().collect().await;
        return Ok(response);
    }
    let stream = TcpStream::connect(("127.0.0.1", port)).await?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(std::io::Error::other)?;
    tokio::spawn(connection);
    let (mut head, body) = request.into_parts();
    head.headers.remove("expect");
    let body = body
        .collect()
        .await
        .map_err(std::io::Error::other)?
        .to_bytes();
    let request = Request::from_parts(head, Full::<Bytes>::new(body));
    let response = sender
        .send_request(request)
        .await
        .map_err(std::io::Error::other)?;
    let (mut head, body) = response.into_parts();
    let body = body
        .collect()
        .await
        .map_err(std::io::Error::other)?
        .to_bytes();
    match verdict {
        Verdict::Lose => return Err(std::io::Error::other("lost")),
        Verdict::Add(name, value) => {
            head.headers.insert(name, value.parse().unwrap());
        }
        Verdict::Pass | Verdict::Instead(_) => {}
    }
    Ok(Response::from_parts(head, Full::from(body)))
}
