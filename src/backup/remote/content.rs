//! What is sent to a bucket: a file, or bytes in memory.

use std::fs;
use std::io;
use std::path::Path;

use crate::s3::Source;
use crate::state;
use crate::untrusted;

/// Bytes that are sent, and their hash.
pub(super) struct Content {
    pub(super) source: Box<dyn Source>,
    pub(super) sha256: String,
}

pub(super) struct FileSource {
    file: fs::File,
    len: u64,
}

impl FileSource {
    pub(super) fn of(file: fs::File) -> Self {
        let len = file.metadata().map_or(0, |it| it.len());
        FileSource { file, len }
    }

    /// A file that this operator wrote.
    pub(super) fn own(path: &Path) -> io::Result<Self> {
        Ok(FileSource::of(untrusted::open(path)?))
    }
}

impl Source for FileSource {
    fn read_at(&mut self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        std::os::unix::fs::FileExt::read_at(&self.file, buffer, offset)
    }

    fn len(&self) -> u64 {
        self.len
    }
}

pub(super) struct BytesSource(pub(super) Vec<u8>);

impl Source for BytesSource {
    fn read_at(&mut self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let from = usize::try_from(offset).map_or(self.0.len(), |it| it.min(self.0.len()));
        let count = (self.0.len() - from).min(buffer.len());
        buffer[..count].copy_from_slice(&self.0[from..from + count]);
        Ok(count)
    }

    fn len(&self) -> u64 {
        self.0.len() as u64
    }
}

/// A file, and the hash of what is written to it.
pub(super) struct Hashing {
    file: fs::File,
    sum: ring::digest::Context,
}

impl Hashing {
    pub(super) fn new(file: fs::File) -> Self {
        Hashing {
            file,
            sum: ring::digest::Context::new(&ring::digest::SHA256),
        }
    }

    pub(super) fn finish(self) -> (fs::File, String) {
        (self.file, state::hex(self.sum.finish().as_ref()))
    }
}

impl io::Write for Hashing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.file.write(bytes)?;
        self.sum.update(&bytes[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}
