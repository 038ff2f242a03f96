//! Starts that failed, and how the last one ended.

use core::fmt;

use crate::diagnosis::{self, Diagnosis, Kind};

/// Starts since etcd last served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartHistory {
    /// Starts within [`super::START_WINDOW_SECONDS`] that ended before etcd served.
    pub failed: u32,
    /// Seconds until the oldest of them no longer counts.
    pub window_left: u64,
    /// How the last start ended, whether it had served or not.
    pub ending: Ending,
}

impl StartHistory {
    /// No start since etcd last served.
    pub const NONE: StartHistory = StartHistory {
        failed: 0,
        window_left: 0,
        ending: Ending::UNKNOWN,
    };
}

/// etcd's own message, cut to fit.
pub type LastWords = heapless::String<120>;

/// How a start ended: what etcd logged, and what the system reported. These are hints, not proof.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ending {
    /// The meaning of etcd's fatal message, if it is known.
    pub diagnosis: Option<&'static Diagnosis>,
    /// The fatal message, if its meaning is unknown.
    pub words: LastWords,
    /// What the system reported.
    pub how: How,
}

/// What the system reports about an ended process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// The system reported nothing.
    Unknown,
    /// The process exited with this code.
    Exit(u8),
    /// A signal ended it.
    Signal(u8),
    /// The kernel killed it because memory ran out.
    OutOfMemory,
}

impl Ending {
    /// Nothing is known.
    pub const UNKNOWN: Ending = Ending {
        diagnosis: None,
        words: LastWords::new(),
        how: How::Unknown,
    };

    /// Whether etcd reported damaged data or crashed, which is a reason to read the data.
    pub fn hints_at_damage(&self) -> bool {
        self.diagnosis.is_some_and(|it| it.kind == Kind::Damage)
    }

    /// Whether etcd ended because the disk was full.
    pub fn for_want_of_room(&self) -> bool {
        self.diagnosis
            .is_some_and(|it| it.reason == diagnosis::DISK_FULL)
    }
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.diagnosis, self.how) {
            (Some(it), _) if it.kind == Kind::Damage => {
                write!(
                    f,
                    "etcd says \"{}\", and its files were found sound",
                    it.text
                )
            }
            (Some(it), _) => write!(f, "{} (etcd: {})", it.meaning, it.text),
            (None, _) if !self.words.is_empty() => write!(f, "etcd says \"{}\"", self.words),
            (None, how) => write!(f, "{how}"),
        }
    }
}

impl fmt::Display for How {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            How::Unknown => write!(f, "it left no word and nobody saw its end"),
            How::Exit(code) => write!(f, "it ended with exit code {code} and without a word"),
            How::Signal(9) => write!(f, "killed by signal 9 (SIGKILL)"),
            How::Signal(number) => write!(f, "killed by signal {number}"),
            How::OutOfMemory => write!(f, "killed by the kernel for want of memory"),
        }
    }
}
