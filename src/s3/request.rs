//! One request and its answer: signed, sent, tried again where that can help, and judged.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::{Method, Request, Response, StatusCode};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use super::answer::{Answer, Call};
use super::body::{Hashes, Outgoing, Payload};
use super::connection::Connection;
use super::sign::{self, Signable};
use super::{Bucket, S3Error};
use crate::clock;

/// An answer of S3's own is shorter than this.
pub(super) const ANSWER_MAX: usize = 2 * 1024 * 1024;
/// From here on the server is asked whether it wants the payload before it is sent: whoever refuses
/// the key of a long one closes, and the refusal is lost in what is still on its way.
const EXPECT_MIN: u64 = 64 * 1024;
/// A server that does not know the question gets the payload all the same.
const EXPECT_PATIENCE: Duration = Duration::from_secs(1);
/// Clocks that differ by more are told of, and signed around (rule E5).
const SKEW_MAX_SECONDS: i64 = 300;

/// What is asked.
pub(super) struct Ask<'a> {
    pub(super) method: Method,
    /// With the prefix; none for the bucket itself.
    pub(super) key: Option<&'a str>,
    pub(super) query: Vec<(&'static str, String)>,
    /// Names in lower case.
    pub(super) headers: Vec<(&'static str, String)>,
}

impl<'a> Ask<'a> {
    pub(super) fn new(method: Method, key: &'a str) -> Ask<'a> {
        Ask {
            method,
            key: Some(key),
            query: Vec::new(),
            headers: Vec::new(),
        }
    }

    /// Of the bucket itself.
    pub(super) fn bucket() -> Ask<'a> {
        Ask {
            method: Method::GET,
            key: None,
            query: Vec::new(),
            headers: Vec::new(),
        }
    }

    pub(super) fn with(mut self, name: &'static str, value: impl Into<String>) -> Ask<'a> {
        self.query.push((name, value.into()));
        self
    }

    pub(super) fn header(mut self, name: &'static str, value: impl Into<String>) -> Ask<'a> {
        self.headers.push((name, value.into()));
        self
    }
}

/// Bytes sent so far of this payload.
pub(super) type Progress<'a> = &'a mut (dyn FnMut(u64) + Send);
/// Where the bytes of an object go.
pub(super) type Sink<'a> = &'a mut (dyn FnMut(&[u8]) -> io::Result<()> + Send);

/// What happens to the body of the answer.
pub(super) enum Take<'a> {
    /// It is kept, up to this many bytes.
    Keep(usize),
    /// It goes on at once, where it is the object's.
    Pass(Sink<'a>),
}

impl Bucket {
    /// Asks until there is an answer, or no hope.
    pub(super) async fn send(
        &mut self,
        ask: &Ask<'_>,
        payload: &mut Payload<'_>,
        progress: Progress<'_>,
    ) -> Result<Answer, S3Error> {
        let hashes = payload.hashes()?;
        let mut tried = 0;
        loop {
            let take = &mut Take::Keep(ANSWER_MAX);
            let outcome = self.once(ask, payload, &hashes, progress, take).await;
            match outcome {
                Err(error) if error.passes() && tried + 1 < self.patience.tries => {
                    tracing::debug!("S3: {error}");
                    self.back_off(tried).await;
                    tried += 1;
                }
                other => return other,
            }
        }
    }

    /// Asks with no payload.
    pub(super) async fn ask(&mut self, ask: &Ask<'_>) -> Result<Answer, S3Error> {
        self.send(ask, &mut Payload::None, &mut |_| {}).await
    }

    /// Waits longer each time, and not as long as others do.
    pub(super) async fn back_off(&self, tried: u32) {
        let mut random = [0; 1];
        let _ = ring::rand::SecureRandom::fill(&ring::rand::SystemRandom::new(), &mut random);
        let factor = 0.5 + f64::from(random[0]) / 255.0;
        let wait = self.patience.back_off * 4_u32.saturating_pow(tried.min(6));
        sleep(wait.mul_f64(factor)).await;
    }

    /// Asks once; a clock that is wrong costs one more.
    pub(super) async fn once(
        &mut self,
        ask: &Ask<'_>,
        payload: &mut Payload<'_>,
        hashes: &Hashes,
        progress: Progress<'_>,
        take: &mut Take<'_>,
    ) -> Result<Answer, S3Error> {
        let mut answer = self.exchange(ask, payload, hashes, progress, take).await?;
        let mut skew = self.skew_of(&answer);
        if skew.is_some() {
            self.skew_seconds = skew.map(|it| it + self.offset_seconds);
        }
        if let Some(seconds) = skew.take_if(|_| answer.may_be_skew()) {
            self.offset_seconds += seconds;
            tracing::warn!(
                seconds = self.offset_seconds,
                "the S3 server's clock and this machine's differ: signing with the server's time"
            );
            answer = self.exchange(ask, payload, hashes, progress, take).await?;
            skew = Some(self.offset_seconds);
        }
        let server = self.target.server();
        let checked = answer.check(&Call {
            server: &server,
            bucket: self.address.name(),
            region: self.address.region(),
        });
        match (checked, skew) {
            (Err(S3Error::ClockSkew { .. }), seconds) => Err(S3Error::ClockSkew {
                seconds: seconds.unwrap_or(0),
            }),
            (other, _) => other,
        }
    }

    /// The server's time less the one that was signed, where that is much.
    fn skew_of(&self, answer: &Answer) -> Option<i64> {
        let signed = clock::now().0.saturating_add(self.offset_seconds);
        let seconds = answer.date()?.saturating_sub(signed);
        (seconds.abs() > SKEW_MAX_SECONDS).then_some(seconds)
    }

    fn broken(&self, error: &hyper::Error) -> S3Error {
        let source = std::error::Error::source(error).map(|it| format!(" ({it})"));
        S3Error::Broken {
            server: self.target.server(),
            why: format!("{error}{}", source.unwrap_or_default()),
        }
    }

    fn request(
        &self,
        ask: &Ask<'_>,
        hashes: &Hashes,
        body: Outgoing,
        length: u64,
    ) -> Result<Request<Outgoing>, S3Error> {
        let url = ask.key.map_or_else(
            || self.address.base_url().clone(),
            |key| self.address.object_url(key),
        );
        let query = sign::query_string(&ask.query);
        let mut extra = ask.headers.clone();
        if ask.method == Method::PUT {
            extra.push(("content-md5", hashes.md5.clone()));
        }
        let signable = Signable {
            method: ask.method.as_str(),
            url: &url,
            query: &query,
            headers: &extra,
            payload_sha256: &hashes.sha256,
        };
        let at = clock::now().0.saturating_add(self.offset_seconds);
        let region = self.address.region();
        let headers = sign::headers(&signable, &self.credentials, region, at);
        let path = match query.as_str() {
            "" => url.path().to_owned(),
            query => format!("{}?{query}", url.path()),
        };
        let mut request = Request::builder().method(ask.method.clone()).uri(path);
        for (name, value) in headers {
            request = request.header(name, value);
        }
        if matches!(ask.method, Method::PUT | Method::POST) {
            request = request.header("content-length", length);
        }
        if length > EXPECT_MIN {
            // Not signed: proxies may answer it themselves.
            request = request.header("expect", "100-continue");
        }
        let unfit = |_| S3Error::Key(ask.key.unwrap_or_default().to_owned());
        request.body(body).map_err(unfit)
    }

    async fn exchange(
        &mut self,
        ask: &Ask<'_>,
        payload: &mut Payload<'_>,
        hashes: &Hashes,
        progress: Progress<'_>,
        take: &mut Take<'_>,
    ) -> Result<Answer, S3Error> {
        let length = payload.len();
        let (chunks, body) = Outgoing::new(length);
        let mut request = self.request(ask, hashes, body, length)?;
        let wanted = Arc::new(Notify::new());
        let told = Arc::clone(&wanted);
        hyper::ext::on_informational(&mut request, move |answer| {
            if answer.status() == StatusCode::CONTINUE {
                told.notify_one();
            }
        });
        let mut connection = match self.connection.take() {
            Some(kept) if !kept.sender.is_closed() => kept,
            _ => Connection::open(&self.target, self.patience.connect).await?,
        };
        connection.activity.touch();
        if connection.sender.ready().await.is_err() {
            connection = Connection::open(&self.target, self.patience.connect).await?;
        }
        let limit = self.patience.stall;
        let activity = Arc::clone(&connection.activity);
        let stalled = S3Error::Stalled {
            server: self.target.server(),
            seconds: limit.as_secs(),
        };
        let pace = &mut self.pace;
        let feed = async {
            let mut at = 0;
            if length > EXPECT_MIN {
                let _ = timeout(EXPECT_PATIENCE, wanted.notified()).await;
            }
            while at < length {
                let chunk = payload.read(at, pace.chunk())?;
                pace.wait(chunk.len()).await;
                at += chunk.len() as u64;
                if chunks.send(chunk).await.is_err() {
                    // It was answered before it was heard, or the connection broke.
                    return Ok(false);
                }
                progress(at);
            }
            Ok::<_, S3Error>(true)
        };
        let mut whole = length == 0;
        let response = {
            let sending = connection.sender.send_request(request);
            tokio::pin!(sending, feed);
            let mut done = length == 0;
            loop {
                tokio::select! {
                    biased;
                    response = &mut sending => break response,
                    outcome = &mut feed, if !done => {
                        done = true;
                        whole = outcome?;
                    }
                    () = activity.stalled(limit) => return Err(stalled),
                }
            }
        };
        let response = response.map_err(|it| self.broken(&it))?;
        let answer = self.receive(response, &connection, limit, take).await?;
        if whole {
            self.connection = Some(connection);
        }
        Ok(answer)
    }

    async fn receive(
        &mut self,
        response: Response<Incoming>,
        connection: &Connection,
        limit: Duration,
        take: &mut Take<'_>,
    ) -> Result<Answer, S3Error> {
        let (head, mut body) = response.into_parts();
        let mut answer = Answer {
            status: head.status.as_u16(),
            headers: head.headers,
            body: Vec::new(),
        };
        let pass = answer.is_object();
        loop {
            let frame = tokio::select! {
                frame = body.frame() => frame,
                () = connection.activity.stalled(limit) => {
                    return Err(S3Error::Stalled {
                        server: self.target.server(),
                        seconds: limit.as_secs(),
                    });
                }
            };
            let Some(frame) = frame else {
                return Ok(answer);
            };
            let frame = frame.map_err(|it| self.broken(&it))?;
            let Some(data) = frame.data_ref() else {
                continue;
            };
            self.pace.wait(data.len()).await;
            connection.activity.touch();
            match take {
                Take::Pass(sink) if pass => sink(data).map_err(S3Error::Local)?,
                Take::Pass(_) => answer.keep(data, ANSWER_MAX, &self.target.server())?,
                Take::Keep(most) => answer.keep(data, *most, &self.target.server())?,
            }
        }
    }
}
