//! The agent's unix socket: HTTP/1, so that any client can ask. Whoever may open it is the
//! operator's user or group.
//!
//! `GET /v1/status` a report, after a new pass; `POST /v1/clients/NAME` a certificate, made anew where
//! it is due or with `?renew`.

use std::convert::Infallible;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use http_body_util::{BodyExt as _, Empty, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Method, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot};

use super::{Agent, AgentError};
use crate::member::{certificates, place};
use crate::paths::Paths;
use crate::spec::ClusterSpec;

/// What can be asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// The last report, after one more look.
    Status,
    /// A certificate for this client.
    Issue {
        /// Its name.
        name: String,
        /// A new one, also where there is a good one.
        renew: bool,
    },
}

/// Asks for a new certificate.
const RENEW: &str = "renew";

/// A request and where its answer goes.
pub struct Question {
    request: Request,
    answer: oneshot::Sender<Result<String, String>>,
}

/// The socket, removed when it is dropped.
pub struct Socket {
    path: PathBuf,
}

impl Drop for Socket {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Begins to serve. The directory's lock is held, so what lies at the path is a leftover.
pub fn serve(paths: &Paths, questions: mpsc::Sender<Question>) -> Result<Socket, AgentError> {
    let path = paths.socket();
    let _ = fs::remove_file(&path);
    let failed = |what| {
        let path = path.clone();
        move |source| AgentError::System { what, path, source }
    };
    let listener = UnixListener::bind(&path).map_err(failed("listen on"))?;
    fs::set_permissions(&path, Permissions::from_mode(0o660)).map_err(failed("set the mode of"))?;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let questions = questions.clone();
            let service = service_fn(move |request| {
                let questions = questions.clone();
                async move { Ok::<_, Infallible>(respond(request, questions).await) }
            });
            tokio::spawn(
                hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service),
            );
        }
    });
    Ok(Socket { path })
}

async fn respond(
    request: hyper::Request<Incoming>,
    questions: mpsc::Sender<Question>,
) -> Response<Full<Bytes>> {
    let path = request.uri().path();
    let request = match (request.method(), path.strip_prefix("/v1/clients/")) {
        (&Method::GET, _) if path == "/v1/status" => Request::Status,
        (&Method::POST, Some(name)) => Request::Issue {
            name: name.to_owned(),
            renew: request.uri().query() == Some(RENEW),
        },
        _ => return reply(StatusCode::NOT_FOUND, "no such request"),
    };
    let (sender, receiver) = oneshot::channel();
    if questions
        .send(Question {
            request,
            answer: sender,
        })
        .await
        .is_err()
    {
        return reply(StatusCode::SERVICE_UNAVAILABLE, "the agent is ending");
    }
    match receiver.await {
        Ok(Ok(text)) => reply(StatusCode::OK, text),
        Ok(Err(why)) => reply(StatusCode::UNPROCESSABLE_ENTITY, why),
        Err(_) => reply(StatusCode::SERVICE_UNAVAILABLE, "the agent is ending"),
    }
}

fn reply(status: StatusCode, text: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(text.into()));
    *response.status_mut() = status;
    response
}

/// Asks a running agent. `None`: there is none.
pub async fn ask(socket: &Path, request: &Request) -> Option<Result<String, String>> {
    let stream = UnixStream::connect(socket).await.ok()?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .ok()?;
    let driver = tokio::spawn(connection);
    let (method, path) = match request {
        Request::Status => (Method::GET, "/v1/status".to_owned()),
        Request::Issue { name, renew: false } => (Method::POST, format!("/v1/clients/{name}")),
        Request::Issue { name, renew: true } => {
            (Method::POST, format!("/v1/clients/{name}?{RENEW}"))
        }
    };
    let request = hyper::Request::builder()
        .method(method)
        .uri(path)
        .header("host", "operator")
        .body(Empty::<Bytes>::new())
        .ok()?;
    let response = sender.send_request(request).await.ok()?;
    let status = response.status();
    let body = response.into_body().collect().await.ok()?.to_bytes();
    driver.abort();
    let text = String::from_utf8_lossy(&body).into_owned();
    Some(if status.is_success() {
        Ok(text)
    } else {
        Err(text)
    })
}

impl Agent {
    /// Answers one question.
    pub(super) async fn answer(&mut self, spec: &ClusterSpec, question: Question) {
        let answer = match question.request {
            Request::Status => {
                // One more pass, so that the answer is of now and what is due is done.
                self.pass(spec).await;
                match &self.memory.published {
                    Some(report) => {
                        serde_json::to_string(report).map_err(|error| error.to_string())
                    }
                    None => Err("nothing was observed yet".to_owned()),
                }
            }
            Request::Issue { name, renew } => {
                let observed = self.gather(spec).await;
                let place = place::resolve(&self.paths, spec);
                let validity = certificates::validity(spec, &observed, &place.storage_dir);
                let (now, clock) = (observed.now, observed.clock);
                let due = renew || certificates::client_due(&self.certificates, &name, now, clock);
                let files = if due {
                    self.certificates.issue(&name, validity)
                } else {
                    Ok(self.certificates.client_files(&name))
                };
                let text = files.map_err(|error| error.to_string());
                text.and_then(|it| serde_json::to_string(&it).map_err(|error| error.to_string()))
            }
        };
        let _ = question.answer.send(answer);
    }
}
