//! A backup worker, from outside: what the operator asks it, and the snapshot that the Pod of a restore fetches.

use std::fs::File;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper::{Method, StatusCode};
use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use super::local::MANIFEST_MAX;
use super::manifest::Manifest;
use super::{Phase, Progress};
use crate::clock;
use crate::error::chain;
use crate::http::{Answer, Way};
use crate::tls::ClientFiles;

/// Where it answers.
pub const PORT: u16 = 2390;
/// How the id of a request begins that is made for a rehearsal, and not by a person: retention counts its snapshot among
/// those of the schedule.
pub const FOR_REHEARSAL: &str = "rehearsal-";
/// Nobody answers within so long, or sends the next piece.
const STALL: Duration = Duration::from_secs(30);
/// A worker is back within so long after its node is; if its Pod has another address then, the operator makes the
/// restore's anew.
const COMES: Duration = Duration::from_secs(120);
const PAUSE: Duration = Duration::from_secs(1);

/// The worker that serves the snapshots of a restore, as the restore's Pod is told it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Served {
    /// Whose snapshots these are: this cluster, or another one of the namespace.
    pub cluster: String,
    /// Of the worker's Pod; none where it has none, or does not answer and another place may have the snapshot: nobody
    /// waits for it then.
    pub address: Option<SocketAddr>,
    /// A name that its certificate carries.
    pub server_name: String,
    /// Why it has no address.
    pub why: String,
}

/// Why a worker sends no manifest.
#[derive(Debug)]
pub enum Unsent {
    /// What was asked for fits several, in its words.
    Several(String),
    /// It does not say, or what it says is no manifest.
    Silent(String),
}

impl From<String> for Unsent {
    fn from(why: String) -> Self {
        Unsent::Silent(why)
    }
}

impl Served {
    /// In words, for a person.
    pub fn place(&self) -> String {
        format!("the backup worker of {}", self.cluster)
    }

    /// What is known of a snapshot, or of `latest`; none where it does not lie there. A worker that only has not come up
    /// yet, as after a reboot of its node, is waited for.
    ///
    /// # Errors
    /// The worker does not say, or what it says is no manifest.
    pub async fn manifest(&self, tls: &Path, name: &str) -> Result<Option<Manifest>, Unsent> {
        let most = usize::try_from(MANIFEST_MAX).unwrap_or(usize::MAX);
        let files = files(tls);
        let path = format!("/snapshots/{name}/manifest");
        let begun = clock::since_boot();
        let answer = loop {
            let asked = async { self.way(&files)?.ask(Method::GET, &path, most).await };
            let silent = |_| Err(format!("nothing within {} s", STALL.as_secs()));
            match timeout(STALL, asked).await.unwrap_or_else(silent) {
                // It starts; or the kubelet has not brought a renewed certificate to both Pods yet.
                Err(_) | Ok((StatusCode::SERVICE_UNAVAILABLE | StatusCode::FORBIDDEN, _))
                    if self.address.is_some() && clock::since_boot() < begun + COMES =>
                {
                    tokio::time::sleep(PAUSE).await;
                }
                answer => break answer,
            }
        };
        match answer? {
            (StatusCode::OK, text) => {
                let named = serde_json::from_slice::<Named>(&text);
                let named = named.map_err(|it| it.to_string())?.name;
                let manifest = Manifest::decode(&text, &named).map_err(|it| chain(&it))?;
                Ok(Some(manifest))
            }
            (StatusCode::NOT_FOUND, _) => Ok(None),
            (status, text) => {
                let text = String::from_utf8_lossy(&text).trim().to_owned();
                Err(match status {
                    StatusCode::CONFLICT => Unsent::Several(text),
                    _ => Unsent::Silent(format!("{status}: {text}")),
                })
            }
        }
    }

    /// Fetches the file of a snapshot, and no more of it than its manifest says. Where the connection ends it goes on at
    /// the same byte.
    ///
    /// # Errors
    /// The worker does not send it, or it cannot be written.
    pub async fn fetch(
        &self,
        tls: &Path,
        manifest: &Manifest,
        file: &mut File,
        progress: &mut (dyn FnMut(Progress) + Send),
    ) -> Result<(), String> {
        let (mut done, total) = (0, manifest.file.size);
        let (files, mut refused, mut last) = (files(tls), None, clock::since_boot());
        while done < total {
            let before = done;
            let path = format!("/snapshots/{}/file?from={done}", manifest.name);
            let fetched = async {
                let way = self.way(&files)?;
                let request = way.request(Method::GET, &path)?;
                let stream = timeout(STALL, way.connect()).await;
                let stream = stream.map_err(|_| "no connection".to_owned())??;
                let mut answer = Answer::of(stream, request, STALL)
                    .await
                    .map_err(|it| chain(&*it))?;
                if answer.head.status != StatusCode::OK {
                    return Err(answer.head.status.to_string());
                }
                while let Some(bytes) = answer.piece().await.map_err(|it| chain(&*it))? {
                    let more = done + bytes.len() as u64;
                    let written = if more > total {
                        Err(io::Error::other("it is longer than its manifest says"))
                    } else {
                        file.write_all(&bytes)
                    };
                    if let Err(error) = written {
                        refused = Some(error.to_string());
                        return Ok(());
                    }
                    done = more;
                    let phase = Phase::Copying;
                    progress(Progress { phase, done, total });
                }
                Ok(())
            };
            let fetched: Result<(), String> = fetched.await;
            // What cannot be written here is no fault of the worker's.
            if let Some(why) = refused.take() {
                return Err(why);
            }
            if done > before {
                last = clock::since_boot();
            } else if clock::since_boot() >= last + COMES {
                return Err(fetched.err().unwrap_or_else(|| "it is cut off".to_owned()));
            }
            if done < total {
                tokio::time::sleep(PAUSE).await;
            }
        }
        Ok(())
    }

    fn way<'a>(&'a self, files: &'a ClientFiles) -> Result<Way<'a>, String> {
        Ok(Way {
            address: self.address.ok_or_else(|| self.why.clone())?,
            server_name: &self.server_name,
            files,
        })
    }
}

#[derive(Deserialize)]
struct Named {
    name: String,
}

/// The member's certificate, as its Secret is mounted.
pub fn files(tls: &Path) -> ClientFiles {
    let file = |name: &str| -> PathBuf { tls.join(name) };
    ClientFiles {
        server_name: None,
        ca: file("client-ca.crt"),
        cert: file("server.crt"),
        key: file("server.key"),
    }
}
