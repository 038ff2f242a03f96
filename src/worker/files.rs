//! Snapshots on their way to the Pod of a restore: read beside the loop, so that a slow disk holds up nobody else.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http_body_util::Full;
use hyper::body::{Bytes, Frame};
use hyper::{Response, StatusCode};
use tokio::sync::mpsc;

use crate::backup::local::LocalStore;
use crate::backup::name::{Several, SnapshotName};
use crate::error::chain;
use crate::telemetry::plain;

/// Bytes of one piece; two are in memory for each that is served.
const PIECE: usize = 64 * 1024;

/// What is asked for.
pub(super) struct Wanted {
    /// Its name, or another word for it.
    pub(super) name: String,
    /// The file from this byte on; none: the manifest.
    from: Option<u64>,
}

/// `/snapshots/NAME/manifest` or `/snapshots/NAME/file?from=N`.
pub(super) fn asked(path: &str, query: &str) -> Option<Wanted> {
    let (name, what) = path.strip_prefix("/snapshots/")?.split_once('/')?;
    let from = match (what, query) {
        ("manifest", "") => None,
        ("file", "") => Some(0),
        ("file", query) => Some(query.strip_prefix("from=")?.parse().ok()?),
        _ => return None,
    };
    let name = name.to_owned();
    Some(Wanted { name, from })
}

/// The snapshot that a word means.
pub(super) enum Meant {
    /// Nobody has looked yet.
    Unknown,
    /// None lies there, or none that counts.
    None,
    /// It fits several.
    Several(Several),
    Named(SnapshotName),
}

/// Answers.
pub(super) async fn respond(
    (wanted, meant): (Wanted, Meant),
    store: Option<LocalStore>,
) -> Response<Body> {
    if let Meant::Several(several) = &meant {
        return text(StatusCode::CONFLICT, several.to_string());
    }
    let opened = tokio::task::spawn_blocking(move || open(wanted.from, meant, store));
    match opened.await {
        Ok(Ok(Some(body))) => Response::new(body),
        Ok(Ok(None)) => text(
            StatusCode::NOT_FOUND,
            "there is no such snapshot\n".to_owned(),
        ),
        Ok(Err(error)) => text(StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
    }
}

/// An answer in words.
pub(super) fn text(status: StatusCode, text: String) -> Response<Body> {
    plain(status, text).map(Body::Whole)
}

/// `from`: the file from this byte on; none: the manifest.
fn open(
    from: Option<u64>,
    meant: Meant,
    store: Option<LocalStore>,
) -> Result<Option<Body>, String> {
    let (name, store) = match (meant, store) {
        (Meant::Named(name), Some(store)) => (name, store),
        (Meant::Unknown, _) => return Err("it has not listed the snapshots yet".to_owned()),
        _ => return Ok(None),
    };
    let Some(found) = store.find(&name).map_err(|it| chain(&it))? else {
        return Ok(None);
    };
    match (from, found.manifest) {
        (None, Ok(manifest)) => Ok(Some(Body::Whole(Full::new(manifest.encode().into())))),
        (Some(from), _) => {
            let mut file = store.open(&name).map_err(|it| it.to_string())?;
            let sought = file.seek(SeekFrom::Start(from));
            sought.map_err(|it| it.to_string())?;
            Ok(Some(Body::of(file)))
        }
        (None, Err(why)) => Err(why),
    }
}

/// An answer: a text, or a file piece by piece.
pub(super) enum Body {
    Whole(Full<Bytes>),
    Pieces(mpsc::Receiver<io::Result<Bytes>>),
}

impl Body {
    /// A thread reads for as long as somebody takes.
    fn of(mut file: File) -> Self {
        let (give, take) = mpsc::channel(1);
        std::thread::spawn(move || {
            loop {
                let mut piece = vec![0; PIECE];
                let read = match file.read(&mut piece) {
                    Ok(0) => return,
                    Ok(size) => {
                        piece.truncate(size);
                        Ok(Bytes::from(piece))
                    }
                    Err(error) => Err(error),
                };
                let failed = read.is_err();
                if give.blocking_send(read).is_err() || failed {
                    return;
                }
            }
        });
        Body::Pieces(take)
    }
}

impl hyper::body::Body for Body {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        match self.get_mut() {
            Body::Whole(text) => {
                let frame = ready!(Pin::new(text).poll_frame(context));
                Poll::Ready(frame.map(|it| it.map_err(|never| match never {})))
            }
            Body::Pieces(take) => {
                let piece = ready!(take.poll_recv(context));
                Poll::Ready(piece.map(|it| it.map(Frame::data)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_is_one_of_three() {
        let from = |path: &str, query: &str| asked(path, query).map(|it| (it.name, it.from));
        let name = || "a".to_owned();
        assert_eq!(from("/snapshots/a/manifest", ""), Some((name(), None)));
        assert_eq!(from("/snapshots/a/file", ""), Some((name(), Some(0))));
        assert_eq!(from("/snapshots/a/file", "from=7"), Some((name(), Some(7))));
        for (path, query) in [
            ("/snapshots/a", ""),
            ("/snapshots/a/other", ""),
            ("/snapshots/a/manifest", "from=1"),
            ("/snapshots/a/file", "from=-1"),
            ("/snapshots/a/file", "to=1"),
            ("/report", ""),
        ] {
            assert_eq!(from(path, query), None, "{path} {query}");
        }
    }

    #[test]
    fn what_does_not_lie_there_is_not_opened() {
        let store = LocalStore::at(std::path::Path::new("/"), "etc");
        let open = |meant| open(None, meant, Some(store.clone()));
        let name = "etc-0-20261121T131500Z-r1234-9f3ab2c1".parse().unwrap();
        assert!(matches!(open(Meant::Named(name)), Ok(None)));
        assert!(matches!(open(Meant::None), Ok(None)));
        assert!(open(Meant::Unknown).is_err(), "nobody has looked yet");
    }
}
