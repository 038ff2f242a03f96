//! What can be wrong with a database.

use std::io;

/// Why a database cannot be trusted.
#[derive(Debug, thiserror::Error)]
pub enum BoltError {
    /// It could not be read.
    #[error("failed to read at byte {offset}")]
    Io {
        /// Where.
        offset: u64,
        /// The system's reason.
        source: io::Error,
    },
    /// It is none, or no longer whole.
    #[error("page {page}: {what}")]
    Damaged {
        /// Which page.
        page: u64,
        /// What is wrong.
        what: &'static str,
    },
    /// It ends before its last page.
    #[error("it has {found} bytes and its pages need {needed}")]
    Truncated {
        /// Bytes that are there.
        found: u64,
        /// Bytes of all its pages.
        needed: u64,
    },
}

impl BoltError {
    /// What is wrong, without its place.
    pub fn what(&self) -> &'static str {
        match self {
            BoltError::Io { .. } => "it could not be read",
            BoltError::Damaged { what, .. } => what,
            BoltError::Truncated { .. } => "it ends before its last page",
        }
    }

    /// Where, in a database of pages of this size.
    pub(super) fn offset(&self, page_size: u64) -> Option<u64> {
        match self {
            BoltError::Io { offset, .. } => Some(*offset),
            BoltError::Damaged { page, .. } => page.checked_mul(page_size),
            BoltError::Truncated { found, .. } => Some(*found),
        }
    }
}

pub(super) fn damaged(page: u64, what: &'static str) -> BoltError {
    BoltError::Damaged { page, what }
}
