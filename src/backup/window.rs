//! A file read in large pieces: a page of a database is small, and a call for each is slow.

use std::collections::VecDeque;
use std::fs::File;
use std::io;

use super::frames::FRAME;
use crate::etcd::read_at::{Pieces, ReadAt as _};

/// Pieces that are kept.
const KEPT: usize = 6;

/// A file, with a few pieces of it in memory.
pub(super) struct Windows {
    file: File,
    size: u64,
    /// Number and content; the one used last stands last.
    pieces: VecDeque<(u64, Vec<u8>)>,
}

impl Windows {
    /// A file that does not change.
    pub(super) fn new(file: File) -> Self {
        Windows {
            size: file.size(),
            file,
            pieces: VecDeque::new(),
        }
    }

    fn piece(&mut self, number: u64) -> io::Result<&[u8]> {
        let place = self.pieces.iter().position(|(it, _)| *it == number);
        let known = place.and_then(|it| self.pieces.remove(it));
        let piece = if let Some(piece) = known {
            piece
        } else {
            let reused = (self.pieces.len() == KEPT).then(|| self.pieces.pop_front());
            let mut content = reused.flatten().map(|(_, it)| it).unwrap_or_default();
            let at = number * FRAME as u64;
            let rest = usize::try_from(self.size.saturating_sub(at)).unwrap_or(FRAME);
            content.resize(rest.min(FRAME), 0);
            self.file.read_at(at, &mut content)?;
            (number, content)
        };
        self.pieces.push_back(piece);
        Ok(self.pieces.back().map_or(&[], |(_, it)| it.as_slice()))
    }
}

impl Pieces for Windows {
    fn total(&self) -> u64 {
        self.size
    }

    fn rest_at(&mut self, offset: u64) -> io::Result<&[u8]> {
        let number = offset / FRAME as u64;
        let inside = usize::try_from(offset % FRAME as u64).map_err(io::Error::other)?;
        Ok(self.piece(number)?.get(inside..).unwrap_or_default())
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "a test writes files")]
mod tests {
    use super::*;

    #[test]
    fn every_part_of_a_file_is_read_as_it_is() {
        let path = std::env::temp_dir().join(format!("windows-{}", std::process::id()));
        let content: Vec<u8> = (0..9 * FRAME + 77)
            .map(|it| (it / 251).to_le_bytes()[0])
            .collect();
        std::fs::write(&path, &content).unwrap();
        let mut windows = Windows::new(File::open(&path).unwrap());
        std::fs::remove_file(&path).unwrap();
        let ends = [
            0,
            1,
            FRAME - 1,
            FRAME,
            3 * FRAME + 5,
            8 * FRAME,
            content.len(),
        ];
        for from in ends {
            for to in ends.into_iter().filter(|it| *it >= from) {
                let mut buffer = vec![0; to - from];
                windows.read_at(from as u64, &mut buffer).unwrap();
                assert!(buffer == content[from..to], "{from}..{to}");
                assert!(windows.pieces.len() <= KEPT);
            }
        }
        let beyond = windows.read_at(content.len() as u64, &mut [0]);
        assert_eq!(beyond.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
}
