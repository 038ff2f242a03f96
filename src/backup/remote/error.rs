//! Why a copy was not made, or not found whole.

use std::io;
use std::path::PathBuf;

use crate::backup::encrypt::DecryptError;
use crate::backup::local::LocalError;
use crate::backup::verify::VerifyError;
use crate::s3::S3Error;
use crate::state::StateError;
use crate::tls::TlsError;

/// Why a copy was not made.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// The place.
    #[error(transparent)]
    Local(#[from] LocalError),
    /// A record.
    #[error(transparent)]
    State(#[from] StateError),
    /// The snapshot to be copied, or its copy.
    #[error(transparent)]
    Verify(#[from] VerifyError),
    /// A file could not be copied.
    #[error("failed to copy to {}", path.display())]
    Io {
        /// The copy.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The bucket.
    #[error(transparent)]
    S3(#[from] S3Error),
    /// The CAs to be kept with the snapshots.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// An encrypted snapshot that cannot be read.
    #[error(transparent)]
    Decrypt(#[from] DecryptError),
    /// What lies in a bucket in their place is something else.
    #[error(
        "the copy of the cluster's CAs in the bucket (authorities.age) cannot be read: remove it, and issue the clients' certificates again after the restore"
    )]
    AuthoritiesDamaged,
    /// A snapshot in a bucket without its manifest.
    #[error(
        "the manifest of {0} in the bucket is damaged: take another snapshot; or fetch the file yourself and name it with --from"
    )]
    ManifestDamaged(String),
    /// A copy that was made, and is not whole any more.
    #[error(
        "the copy of {name} in {place} is damaged: {why}; the operator copies it again while the first destination has it"
    )]
    CopyDamaged {
        /// Which snapshot.
        name: String,
        /// Where.
        place: String,
        /// What is wrong with it.
        why: String,
    },
    /// A damaged copy is never made.
    #[error("{name} is not copied")]
    SourceDamaged {
        /// Which snapshot.
        name: String,
        /// What is wrong with it.
        source: VerifyError,
    },
}

impl CopyError {
    /// It goes when the link comes back.
    pub fn is_of_the_link(&self) -> bool {
        matches!(self, CopyError::S3(it) if it.is_of_the_link())
    }
}
