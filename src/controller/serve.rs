//! `/metrics` of all clusters, `/livez` and `/readyz` of the operator itself, on its Pod's address.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::rc::Rc;
use std::sync::Arc;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

use super::seen::Key;
use super::{ControllerError, Shared};
use crate::http;
use crate::telemetry::{Metrics, plain};

/// The metrics of each cluster.
#[derive(Default)]
pub(super) struct Fleet(RefCell<BTreeMap<Key, Arc<Metrics>>>);

impl Fleet {
    pub(super) fn of(&self, namespace: &str, name: &str) -> Arc<Metrics> {
        let key = (namespace.to_owned(), name.to_owned());
        let mut all = self.0.borrow_mut();
        let made = || Metrics::of_cluster(namespace, name);
        all.entry(key).or_insert_with(made).clone()
    }

    pub(super) fn forget(&self, namespace: &str, name: &str) {
        let key = (namespace.to_owned(), name.to_owned());
        self.0.borrow_mut().remove(&key);
    }

    fn page(&self) -> String {
        let all: Vec<Arc<Metrics>> = self.0.borrow().values().cloned().collect();
        Metrics::pages(&all)
    }
}

/// Begins to answer.
pub(super) async fn begin(shared: &Rc<Shared>) -> Result<(), ControllerError> {
    let address = shared.own.listen;
    let listener = TcpListener::bind(address).await;
    let listener = listener.map_err(|source| ControllerError::System {
        what: "listen on",
        path: address.to_string().into(),
        source,
    })?;
    let shared = shared.clone();
    tokio::task::spawn_local(async move {
        let mut open = http::Connections::default();
        loop {
            let (stream, _) = http::accept(|| listener.accept()).await;
            let shared = shared.clone();
            let service = service_fn(move |request: Request<Incoming>| {
                let response = respond(&shared, request.uri().path());
                async move { Ok::<_, Infallible>(response) }
            });
            let served = http::builder().serve_connection(TokioIo::new(stream), service);
            open.admit(tokio::task::spawn_local(served).abort_handle());
        }
    });
    Ok(())
}

fn respond(shared: &Shared, path: &str) -> Response<Full<Bytes>> {
    let ok = |text: &str| (StatusCode::OK, text.to_owned());
    let scopes = super::watch::scopes(&shared.own);
    let in_one = |is_ready: &dyn Fn(&str) -> bool| scopes.iter().any(|it| is_ready(it));
    let (status, text) = match path {
        "/metrics" => (StatusCode::OK, shared.metrics.page()),
        // Whoever answers lives: the loop that looks and the one that answers are one thread.
        "/livez" => ok("ok\n"),
        "/readyz" if !in_one(&|it| shared.pods.is_ready_in(it)) => (
            StatusCode::SERVICE_UNAVAILABLE,
            "the API server has not answered yet\n".to_owned(),
        ),
        "/readyz" if !shared.acting.get() => ok("standing by\n"),
        "/readyz" if shared.is_ready() => ok("acting\n"),
        // Where one namespace's Role is missing, the others are worked on.
        "/readyz" if in_one(&|it| shared.is_ready_in(it)) => {
            ok("acting; not every namespace can be watched: see the log\n")
        }
        "/readyz" => (
            StatusCode::SERVICE_UNAVAILABLE,
            "not every watch works: see the log\n".to_owned(),
        ),
        _ => (
            StatusCode::NOT_FOUND,
            "this server has /metrics, /livez and /readyz\n".to_owned(),
        ),
    };
    plain(status, text)
}
