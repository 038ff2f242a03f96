//! Reads a member's data once for each state of its files, in a thread of its own if that takes long.

use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::starts;
use crate::clock;
use crate::etcd::data_dir;
use crate::etcd::examine::examine;
use crate::etcd::files::Unreadable;
use crate::paths::Paths;
use crate::start::damage::Damage;
use crate::start::{DataDir, StartHistory, is_to_be_examined};
use crate::version::Line;

/// Seconds until an unreadable part is read again. A failing disk should not be read often.
const UNREADABLE_SECONDS: u64 = 60;
/// How long an impatient caller waits for an examination to end.
const PATIENCE: Duration = Duration::from_millis(500);

type Examined = Result<Option<Damage>, Unreadable>;

/// Remembers what was read. Losing it costs another reading.
#[derive(Default)]
pub struct Examiner {
    /// Waits for the end of an examination, however long it takes.
    patient: bool,
    /// The result of the last look, with the stamp of the data.
    looked: Option<(String, DataDir)>,
    /// The result of the last examination, with its stamp and its end in seconds since boot.
    examined: Option<(String, Examined, u64)>,
    under_way: Option<(String, mpsc::Receiver<Examined>)>,
}

impl Examiner {
    /// An examiner that waits for the end of every examination.
    pub fn patient() -> Self {
        Examiner {
            patient: true,
            ..Examiner::default()
        }
    }

    /// Looks at data that none of our etcds has open. It reads the files again only after they changed. `changes`: the version
    /// does, so all of the log is asked what another line could not read; at other times its newest segment is enough.
    pub(super) fn look(&mut self, data: &Path, line: Option<Line>, changes: bool) -> DataDir {
        let stamp = format!("{changes} {}", stamp(data, line));
        if let Some((looked, seen)) = &self.looked
            && *looked == stamp
            && seen.unreadable.is_none()
        {
            return DataDir {
                in_use: data_dir::is_in_use(data),
                ..seen.clone()
            };
        }
        let mut seen = data_dir::look(data, line, true);
        if changes {
            seen.log.replays_v2 = data_dir::replays_v2(data, line);
        }
        self.looked = Some((stamp, seen.clone()));
        seen
    }

    /// Examines all of the data if etcd's last end is a reason to, and adds the result to `seen`.
    pub(super) fn examine(
        &mut self,
        paths: &Paths,
        data: &Path,
        line: Option<Line>,
        history: &StartHistory,
        seen: &mut DataDir,
    ) {
        let known = seen.damage.is_some() || seen.unreadable.is_some() || seen.in_use;
        if known || seen.wal_segments == 0 || !is_to_be_examined(history) {
            return;
        }
        let stamp = stamp(data, line);
        if starts::is_sound(paths, &stamp) {
            return;
        }
        match self.result(data, line, &stamp) {
            None => seen.examining = true,
            Some(Ok(None)) => {
                tracing::info!(
                    "etcd's last messages may mean damage; the operator read its files, and they are sound"
                );
                starts::note_sound(paths, &stamp);
            }
            Some(Ok(damage)) => seen.damage.clone_from(damage),
            Some(Err(error)) => seen.unreadable = Some(error.detail()),
        }
    }

    /// The result of the examination; `None` while it is under way.
    fn result(&mut self, data: &Path, line: Option<Line>, stamp: &str) -> Option<&Examined> {
        let now = clock::since_boot().as_secs();
        let is_known = self.examined.as_ref().is_some_and(|(it, result, at)| {
            it == stamp && (result.is_ok() || now < at + UNREADABLE_SECONDS)
        });
        if !is_known {
            let (begun, receiver) = match self.under_way.take() {
                Some(under_way) => under_way,
                None => (stamp.to_owned(), begin(data, line)),
            };
            let answer = if self.patient {
                receiver.recv().ok()
            } else {
                receiver.recv_timeout(PATIENCE).ok()
            };
            let Some(examined) = answer else {
                self.under_way = Some((begun, receiver));
                return None;
            };
            self.examined = Some((begun, examined, clock::since_boot().as_secs()));
        }
        // If the data changed meanwhile, the next look reads it again.
        let known = self.examined.as_ref().filter(|(it, ..)| it == stamp);
        known.map(|(_, examined, _)| examined)
    }
}

/// Identifies the state of the data, and the line of etcd that reads it.
fn stamp(data: &Path, line: Option<Line>) -> String {
    format!("{line:?} {}", data_dir::stamp(data))
}

fn begin(data: &Path, line: Option<Line>) -> mpsc::Receiver<Examined> {
    let (sender, receiver) = mpsc::channel();
    let data = data.to_owned();
    let job = move || {
        let _ = sender.send(examine(&data, line));
    };
    if thread::Builder::new().spawn(job.clone()).is_err() {
        job();
    }
    receiver
}
