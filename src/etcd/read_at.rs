//! Reading at an offset: files, slices, and content that is at hand piece by piece.

use std::io;

/// Bytes that can be read anywhere.
pub trait ReadAt {
    /// How many there are.
    fn size(&self) -> u64;
    /// Fills the buffer from `offset` on; an end before that is an error.
    fn read_at(&mut self, offset: u64, buffer: &mut [u8]) -> io::Result<()>;
}

/// Content that is at hand piece by piece.
pub trait Pieces {
    /// How many bytes all pieces have.
    fn total(&self) -> u64;
    /// The rest of the piece that holds this byte; empty behind the last one.
    fn rest_at(&mut self, offset: u64) -> io::Result<&[u8]>;
}

impl<P: Pieces> ReadAt for P {
    fn size(&self) -> u64 {
        self.total()
    }

    fn read_at(&mut self, mut offset: u64, mut buffer: &mut [u8]) -> io::Result<()> {
        while !buffer.is_empty() {
            let rest = self.rest_at(offset)?;
            let count = rest.len().min(buffer.len());
            if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            buffer[..count].copy_from_slice(&rest[..count]);
            buffer = &mut buffer[count..];
            offset += count as u64;
        }
        Ok(())
    }
}

impl ReadAt for std::fs::File {
    fn size(&self) -> u64 {
        self.metadata().map_or(0, |it| it.len())
    }

    fn read_at(&mut self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        std::os::unix::fs::FileExt::read_exact_at(self, buffer, offset)
    }
}

impl ReadAt for &[u8] {
    fn size(&self) -> u64 {
        self.len() as u64
    }

    fn read_at(&mut self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let end = start.saturating_add(buffer.len());
        let bytes = self.get(start..end);
        buffer.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}
