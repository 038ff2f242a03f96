//! The agent's unix socket: HTTP/1, so that any client can ask. Whoever may open it is the
//! operator's user or group.
//!
//! `GET /v1/status` a report, of a new look where that takes no longer than a moment; `GET /v1/in-force`
//! what an edit is compared with; `POST /v1/reload` reads the document again and answers what it changes,
//! or why it is refused; `POST /v1/clients/NAME` a certificate, made anew where it is due or with `?renew`.

use std::convert::Infallible;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http_body_util::{Empty, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Method, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot};

use super::AgentError;
use crate::http;
use crate::paths::Paths;
use crate::state;

/// What can be asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// A report, of a new look where that takes no longer than a moment.
    Status,
    /// What an edit is compared with.
    InForce,
    /// The document is read again.
    Reload,
    /// A certificate for this client.
    Issue {
        /// Its name.
        name: String,
        /// A new one, also where there is a good one.
        renew: bool,
    },
}

impl Request {
    fn line(&self) -> (Method, String) {
        match self {
            Request::Status => (Method::GET, "/v1/status".to_owned()),
            Request::InForce => (Method::GET, "/v1/in-force".to_owned()),
            Request::Reload => (Method::POST, "/v1/reload".to_owned()),
            Request::Issue { name, renew } => {
                let query = if *renew { RENEW } else { "" };
                (Method::POST, format!("{CLIENTS}{name}{query}"))
            }
        }
    }

    /// `target` is a path, with its query.
    fn parse(method: &Method, target: &str) -> Option<Self> {
        let named = target.strip_prefix(CLIENTS).map(|it| {
            let name = it.strip_suffix(RENEW);
            Request::Issue {
                name: name.unwrap_or(it).to_owned(),
                renew: name.is_some(),
            }
        });
        let known = [Request::Status, Request::InForce, Request::Reload];
        let mut all = known.into_iter().chain(named);
        all.find(|it| it.line() == (method.clone(), target.to_owned()))
    }
}

const CLIENTS: &str = "/v1/clients/";
/// Asks for a new certificate.
const RENEW: &str = "?renew";

/// Where an answer goes.
pub(super) type Answer = oneshot::Sender<Result<String, String>>;

/// A request and where its answer goes.
pub struct Question {
    pub(super) request: Request,
    pub(super) answer: Answer,
}

/// The socket, removed when it is dropped.
pub struct Socket {
    path: PathBuf,
    /// Device and inode of its name: another one may lie there by now.
    place: Option<(u64, u64)>,
    listening: tokio::task::JoinHandle<()>,
}

impl Socket {
    /// Whether it is reached by its name.
    pub fn is_in_place(&self) -> bool {
        self.place.is_some() && place(&self.path) == self.place
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.listening.abort();
        if self.is_in_place() {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn place(path: &Path) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt as _;
    let found = fs::symlink_metadata(path).ok()?;
    Some((found.dev(), found.ino()))
}

/// Begins to serve. The directory's lock is held, so what lies at the path is a leftover.
pub fn serve(paths: &Paths, questions: mpsc::Sender<Question>) -> Result<Socket, AgentError> {
    let path = paths.socket();
    state::create_private_dir(&paths.run)?;
    if fs::symlink_metadata(&path).is_ok_and(|it| it.is_dir()) {
        return Err(AgentError::SocketIsDirectory(path));
    }
    let _ = fs::remove_file(&path);
    let failed = |what| {
        let path = path.clone();
        move |source| AgentError::System { what, path, source }
    };
    let listener = UnixListener::bind(&path).map_err(failed("listen on"))?;
    fs::set_permissions(&path, Permissions::from_mode(0o660)).map_err(failed("set the mode of"))?;
    let listening = tokio::spawn(async move {
        let mut open = http::Connections::default();
        loop {
            let (stream, _) = http::accept(|| listener.accept()).await;
            let questions = questions.clone();
            let service = service_fn(move |request| {
                let questions = questions.clone();
                async move { Ok::<_, Infallible>(respond(request, questions).await) }
            });
            let served = http::builder().serve_connection(TokioIo::new(stream), service);
            open.admit(tokio::spawn(served).abort_handle());
        }
    });
    Ok(Socket {
        place: place(&path),
        path,
        listening,
    })
}

async fn respond(
    request: hyper::Request<Incoming>,
    questions: mpsc::Sender<Question>,
) -> Response<Full<Bytes>> {
    let target = request.uri().path_and_query().map_or("", |it| it.as_str());
    let Some(request) = Request::parse(request.method(), target) else {
        return reply(StatusCode::NOT_FOUND, "no such request");
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

/// What became of a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The agent's answer.
    Answered(String),
    /// The agent refuses, in its words.
    Refused(String),
    /// There is no agent.
    Nobody,
    /// This user may not ask it.
    NotAllowed,
    /// It does not answer.
    Silent,
}

/// An agent answers at once; only a certificate may wait for a pass.
const ANSWER_DEADLINE: Duration = Duration::from_secs(15);

/// Asks a running agent.
pub async fn ask(socket: &Path, request: &Request) -> Reply {
    let stream = match UnixStream::connect(socket).await {
        Ok(stream) => stream,
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            return Reply::NotAllowed;
        }
        Err(_) => return Reply::Nobody,
    };
    let answer = tokio::time::timeout(ANSWER_DEADLINE, exchange(stream, request)).await;
    answer.ok().flatten().unwrap_or(Reply::Silent)
}

async fn exchange(stream: UnixStream, request: &Request) -> Option<Reply> {
    let (method, path) = request.line();
    let request = hyper::Request::builder()
        .method(method)
        .uri(path)
        .header("host", "operator")
        .body(Empty::<Bytes>::new())
        .ok()?;
    let (status, body) = http::ask(stream, request, ANSWER_MAX).await.ok()?;
    let text = String::from_utf8_lossy(&body).into_owned();
    Some(if status.is_success() {
        Reply::Answered(text)
    } else {
        Reply::Refused(text)
    })
}

/// A report has some KiB, a document at most 256 KiB.
const ANSWER_MAX: usize = 4 << 20;
