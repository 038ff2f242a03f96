//! The snapshot as etcd sent it, proven while it is unpacked: the bytes that are hashed are the bytes
//! that are used, whatever happens to the file meanwhile.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};

use ring::digest::{Context, SHA256};

use super::{RestoreError, io_error};
use crate::backup::frames::{FRAME, FrameReader};
use crate::backup::verify::{self, TRAILER, VerifyError};
use crate::backup::{Phase, Progress, new_file};
use crate::etcd::read_at::ReadAt;
use crate::member::restore_record::SourceFile;
use crate::state::hex;
use crate::untrusted;

/// Unpacks a snapshot. Its file is opened for reading only; its bytes are those that its manifest
/// says, or where there is none those that etcd's checksum says. The structure is left to a walk.
pub(super) fn unpack(
    source: &SourceFile,
    to: &Path,
    progress: &mut dyn FnMut(Progress),
) -> Result<(), RestoreError> {
    let from = &source.path;
    let failed = || {
        // Damage on the way is what the hash of the whole would tell.
        |error: io::Error| match (&source.sha256, error.kind()) {
            (Some(_), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof) => {
                VerifyError::Hash(from.clone()).into()
            }
            _ => io_error("read", from)(error),
        }
    };
    let file = untrusted::open(from).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => VerifyError::Missing(from.clone()).into(),
        _ => failed()(error),
    })?;
    let mut file = Hashed::new(file);
    let packed = verify::is_packed(from, &mut file.file)?;
    let into = new_file(to).map_err(io_error("create", to))?;
    let (mut trailer, mut done) = (Trailer::default(), 0);
    let with_trailer = source.sha256.is_none() && source.checksummed;
    let wanted = source
        .database
        .saturating_add(if source.checksummed { TRAILER } else { 0 });
    let sum = std::thread::scope(|scope| {
        let (mut writer, work) = Writer::new();
        let written = scope.spawn(move || write(into, &work));
        let mut sink = |bytes: &[u8], total: u64| {
            // What a file lets follow its database is not written: it has no bound.
            if source.checksummed && total != wanted {
                return Err(io::Error::new(io::ErrorKind::InvalidData, OTHER_SIZE));
            }
            if with_trailer {
                trailer.take(bytes, done, total);
            }
            let rest = usize::try_from(wanted.saturating_sub(done)).unwrap_or(usize::MAX);
            writer.send(&bytes[..rest.min(bytes.len())])?;
            done += bytes.len() as u64;
            progress(Progress {
                phase: Phase::Unpacking,
                done,
                total,
            });
            Ok(())
        };
        let read = (|| {
            let file = if packed {
                let mut frames = FrameReader::open(file)?;
                let total = frames.size();
                frames.copy_to(&mut |bytes| sink(bytes, total))?;
                frames.into_source()
            } else {
                let total = file.size();
                file.rest(&mut |bytes| sink(bytes, total))?;
                file
            };
            file.finish()
        })();
        drop(writer);
        match written.join() {
            Ok(written) => written.map_err(io_error("write", to))?,
            Err(panic) => std::panic::resume_unwind(panic),
        }
        read.map_err(failed())
    })?;
    if source.sha256.as_ref().is_some_and(|it| *it != sum) {
        return Err(VerifyError::Hash(from.clone()).into());
    }
    if with_trailer && !trailer.fits() {
        return Err(verify::trailer_differs(from).into());
    }
    Ok(())
}

/// Somebody changed it since it was looked at.
const OTHER_SIZE: &str = "it does not have the size that its database needs";

/// Pieces that wait to be written.
const AHEAD: usize = 4;

/// Pieces to be written, and where they go then.
type Work = (Receiver<Vec<u8>>, Sender<Vec<u8>>);

/// Hands pieces to the thread that writes them, while the next ones are unpacked.
struct Writer {
    full: SyncSender<Vec<u8>>,
    empty: Receiver<Vec<u8>>,
}

impl Writer {
    fn new() -> (Writer, Work) {
        let (full, work) = sync_channel(AHEAD);
        let (done, empty) = channel();
        (Writer { full, empty }, (work, done))
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut piece = self.empty.try_recv().unwrap_or_default();
        piece.clear();
        piece.extend_from_slice(bytes);
        // The other side ends early only with an error, which is the one to be told.
        let sent = self.full.send(piece);
        sent.map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

fn write(mut into: File, (work, done): &Work) -> io::Result<()> {
    for piece in work {
        into.write_all(&piece)?;
        let _ = done.send(piece);
    }
    Ok(())
}

/// A file, and the hash of what is read of it in order.
struct Hashed {
    file: File,
    sum: Context,
    next: u64,
}

impl Hashed {
    fn new(file: File) -> Self {
        Hashed {
            file,
            sum: Context::new(&SHA256),
            next: 0,
        }
    }

    /// Reads what was not read yet.
    fn rest(&mut self, sink: &mut dyn FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        let mut buffer = vec![0; FRAME];
        while self.next < self.size() {
            let rest = usize::try_from(self.size() - self.next).unwrap_or(FRAME);
            let part = &mut buffer[..rest.min(FRAME)];
            self.read_at(self.next, part)?;
            sink(part)?;
        }
        Ok(())
    }

    /// The hash of the whole file.
    fn finish(mut self) -> io::Result<String> {
        self.rest(&mut |_| Ok(()))?;
        Ok(hex(self.sum.finish().as_ref()))
    }
}

impl ReadAt for Hashed {
    fn size(&self) -> u64 {
        self.file.size()
    }

    fn read_at(&mut self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.file.read_at(offset, buffer)?;
        if offset == self.next {
            self.sum.update(buffer);
            self.next += buffer.len() as u64;
        }
        Ok(())
    }
}

/// etcd's checksum at the end of what it sent.
struct Trailer {
    sum: Context,
    said: Vec<u8>,
}

impl Default for Trailer {
    fn default() -> Self {
        Trailer {
            sum: Context::new(&SHA256),
            said: Vec::new(),
        }
    }
}

impl Trailer {
    /// The content from byte `at` on, of `total`.
    fn take(&mut self, bytes: &[u8], at: u64, total: u64) {
        let database = total.saturating_sub(TRAILER).saturating_sub(at);
        let count = usize::try_from(database).unwrap_or(usize::MAX);
        let (database, said) = bytes.split_at(count.min(bytes.len()));
        self.sum.update(database);
        self.said.extend_from_slice(said);
    }

    fn fits(self) -> bool {
        self.sum.finish().as_ref() == self.said
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "a test writes files")]
mod tests {
    use super::*;
    use crate::backup::frames::FrameWriter;

    fn packed(content: &[u8]) -> Vec<u8> {
        let mut file = Vec::new();
        let mut sink = |bytes: &[u8]| {
            file.extend_from_slice(bytes);
            Ok(())
        };
        let mut writer = FrameWriter::new().unwrap();
        writer.write(content, &mut sink).unwrap();
        writer.finish(&mut sink).unwrap();
        file
    }

    fn sent() -> Vec<u8> {
        let mut content: Vec<u8> = (0..FRAME + 4096).map(|it| it.to_le_bytes()[0]).collect();
        let sum = ring::digest::digest(&SHA256, &content);
        content.extend_from_slice(sum.as_ref());
        content
    }

    #[test]
    fn what_is_unpacked_is_what_was_proven_or_it_is_refused() {
        let dir = std::env::temp_dir().join(format!("unpack-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let (from, to) = (dir.join("from"), dir.join("to"));
        let unpacked = |stored: &[u8], sha256: Option<String>| {
            let _ = std::fs::remove_file(&to);
            std::fs::write(&from, stored).unwrap();
            let source = SourceFile {
                path: from.clone(),
                name: String::new(),
                revision: 1,
                cluster_id: None,
                database: (FRAME + 4096) as u64,
                checksummed: true,
                sha256,
                hash: None,
            };
            unpack(&source, &to, &mut |_| ())?;
            Ok::<_, RestoreError>(std::fs::read(&to).unwrap())
        };
        let sum = |it: &[u8]| hex(ring::digest::digest(&SHA256, it).as_ref());
        for stored in [sent(), packed(&sent())] {
            for sha256 in [Some(sum(&stored)), None] {
                assert_eq!(unpacked(&stored, sha256.clone()).unwrap(), sent());
                let other = sum(b"another");
                assert!(
                    unpacked(&stored, sha256.as_ref().map(|_| other)).is_ok() == sha256.is_none()
                );
                for at in [100, FRAME + 8, stored.len() - 33, stored.len() - 1] {
                    let mut changed = stored.clone();
                    let at = at.min(stored.len() - 1);
                    changed[at] ^= 1;
                    assert!(unpacked(&changed, sha256.clone()).is_err(), "byte {at}");
                }
            }
        }
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn what_follows_a_database_takes_no_room() {
        let dir = std::env::temp_dir().join(format!("tail-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let (from, to) = (dir.join("from"), dir.join("to"));
        let database = &sent()[..FRAME + 4096];
        let unpacked = |stored: &[u8], checksummed| {
            let _ = std::fs::remove_file(&to);
            std::fs::write(&from, stored).unwrap();
            let source = SourceFile {
                path: from.clone(),
                name: String::new(),
                revision: 1,
                cluster_id: None,
                database: database.len() as u64,
                checksummed,
                sha256: None,
                hash: None,
            };
            unpack(&source, &to, &mut |_| ()).map(|()| std::fs::read(&to).unwrap())
        };
        // A copy of a data directory, whose file etcd let grow ahead of its pages.
        let mut grown = database.to_vec();
        grown.resize(database.len() + 3 * FRAME, 0);
        for stored in [grown.clone(), packed(&grown), database.to_vec()] {
            assert_eq!(unpacked(&stored, false).unwrap(), database);
        }
        // What ends with a checksum ends there.
        let sum = ring::digest::digest(&SHA256, &grown);
        grown.extend_from_slice(sum.as_ref());
        for stored in [grown.clone(), packed(&grown)] {
            assert!(unpacked(&stored, true).is_err());
        }
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
