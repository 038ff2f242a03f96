//! Opens what others may write: a directory of snapshots on a stick, a file that a document names.
//!
//! Whoever may write there can put a link, a FIFO, a device or a file without an end in the place of what is looked
//! for, at any time. So a name is opened once, relative to a directory that is open, through no link and without
//! waiting; what was opened is looked at and must be a regular file with one name; and whoever proves its content
//! goes on with the same open file. What a person names may be reached through links: they are that person's word.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, fstat, openat, openat2, statat,
};
use rustix::io::Errno;

/// More names than any destination holds: retention keeps some dozens, and each has two files.
pub const NAMES_MAX: usize = 20_000;

/// A directory that is open.
#[derive(Debug)]
pub struct Folder(OwnedFd);

impl Folder {
    /// The directory that a person names. It need not be readable: only what lies below it is read.
    pub fn named(path: &Path) -> io::Result<Folder> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Folder(openat(CWD, path, flags, Mode::empty())?))
    }

    /// The same by a path without a link in it.
    pub fn without_links(path: &Path) -> io::Result<Folder> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS);
        opened.map(Folder).map_err(|error| match error {
            Errno::LOOP => {
                io::Error::other("there is a link in its path: name the directory itself")
            }
            other => other.into(),
        })
    }

    /// The directory of this name in it; no link to one.
    pub fn below(&self, name: &str) -> io::Result<Folder> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = openat(&self.0, one_name(name)?, flags, Mode::empty());
        Ok(Folder(opened.map_err(refused)?))
    }

    /// The regular file of this name in it, which has no other name.
    ///
    /// While a hard link's own name is being exchanged, Linux may not count it for an instant. What keeps others
    /// from a link to a file that they may not write to is `fs.protected_hardlinks`, which distributions set.
    pub fn open(&self, name: &str) -> io::Result<File> {
        let name = one_name(name)?;
        for _ in 0..TURNS {
            let opened = openat(&self.0, name, PLAIN | OFlags::NOFOLLOW, Mode::empty());
            let file = regular(opened.map_err(refused)?)?;
            // Asked of the name: a file of somebody else that had a second name here has one again once that is gone.
            let (seen, there) = (
                fstat(&file)?,
                statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW),
            );
            let there = there
                .ok()
                .filter(|it| (it.st_dev, it.st_ino) == (seen.st_dev, seen.st_ino));
            match there {
                Some(it) if it.st_nlink == 1 => return Ok(file),
                Some(_) => {
                    return Err(io::Error::other(
                        "it has another name elsewhere (a hard link)",
                    ));
                }
                None => {} // another one took its place: a newer manifest does
            }
        }
        Err(io::Error::other("it is replaced again and again"))
    }

    /// The content of the regular file of this name, of at most so many bytes.
    pub fn read(&self, name: &str, most: u64) -> io::Result<Vec<u8>> {
        content(&self.open(name)?, most)
    }

    /// The size of the regular file of this name, which has no other name.
    pub fn size(&self, name: &str) -> Option<u64> {
        let it = statat(&self.0, one_name(name).ok()?, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        let plain =
            FileType::from_raw_mode(it.st_mode) == FileType::RegularFile && it.st_nlink == 1;
        plain.then(|| u64::try_from(it.st_size).unwrap_or(0))
    }

    /// The names in it for which there is a use, [`NAMES_MAX`] of them at most.
    pub fn names<T>(&self, mut wanted: impl FnMut(&str) -> Option<T>) -> io::Result<Vec<T>> {
        let mut found = Vec::new();
        for entry in Dir::read_from(&self.0)? {
            let entry = entry?;
            found.extend(entry.file_name().to_str().ok().and_then(&mut wanted));
            if found.len() > NAMES_MAX {
                return Err(io::Error::other(format!(
                    "it holds more than {NAMES_MAX} files"
                )));
            }
        }
        Ok(found)
    }
}

/// So often a name may be given to another file between two looks.
const TURNS: u32 = 16;

/// Without waiting for whoever else opens it.
const PLAIN: OFlags = OFlags::RDONLY
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY)
    .union(OFlags::CLOEXEC);

/// The regular file at a path that a person names.
pub fn open(path: &Path) -> io::Result<File> {
    regular(openat(CWD, path, PLAIN, Mode::empty())?)
}

/// The content of the regular file at a path that a person names, of at most so many bytes.
pub fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    content(&open(path)?, most)
}

/// What a person gives at the command line, through a pipe as well, of at most so many bytes.
pub fn read_given(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    content(&File::open(path)?, most)
}

/// The content of the regular file at a path of this operator's own, of at most so many bytes: what it wrote is no
/// link. Its generation of before is another name of it for a moment.
pub fn read_own(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let opened = openat(CWD, path, PLAIN | OFlags::NOFOLLOW, Mode::empty());
    content(&regular(opened.map_err(refused)?)?, most)
}

/// The whole of an open file, of at most so many bytes.
pub fn content(file: &File, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        let why = format!("it is larger than the {most} bytes that such a file may have");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
    }
    Ok(bytes)
}

fn one_name(name: &str) -> io::Result<&str> {
    if name.is_empty() || name.contains('/') || name == "." || name == ".." {
        return Err(io::ErrorKind::InvalidFilename.into());
    }
    Ok(name)
}

fn regular(opened: OwnedFd) -> io::Result<File> {
    if FileType::from_raw_mode(fstat(&opened)?.st_mode) != FileType::RegularFile {
        return Err(io::Error::other("it is no regular file"));
    }
    Ok(File::from(opened))
}

/// In the words of who looks for the cause.
fn refused(errno: Errno) -> io::Error {
    match errno {
        Errno::LOOP | Errno::MLINK => io::Error::other("it is a link"),
        // A socket, or a device without a driver.
        Errno::NXIO | Errno::NODEV => io::Error::other("it is no regular file"),
        other => other.into(),
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "plays those who may write there")]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicBool, Ordering};

    use rustix::fs::{CWD, makedev, mkfifoat, mknodat};

    use super::*;

    const GOOD: &[u8] = b"what belongs there";
    const SECRET: &[u8] = b"of somebody else";
    const MOST: u64 = 1024;

    struct Room(PathBuf);

    impl Room {
        fn new(name: &str) -> Room {
            let dir = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&dir);
            fs::create_dir_all(dir.join("ours")).unwrap();
            fs::write(dir.join("secret"), SECRET).unwrap();
            fs::hard_link(dir.join("secret"), dir.join("name of its own")).unwrap();
            Room(dir)
        }

        /// Puts one of the kinds in the place of the file, at once.
        fn exchange(&self, kind: usize) {
            let fresh = self.0.join("fresh");
            match kind % 7 {
                0 => fs::write(&fresh, GOOD).unwrap(),
                1 => symlink(self.0.join("secret"), &fresh).unwrap(),
                2 => fs::hard_link(self.0.join("secret"), &fresh).unwrap(),
                3 => mkfifoat(CWD, &fresh, Mode::RWXU).unwrap(),
                4 => fs::File::create(&fresh).unwrap().set_len(3 << 30).unwrap(),
                // Only root makes a device.
                6 if rustix::process::geteuid().is_root() => {
                    let zero = makedev(1, 5);
                    mknodat(CWD, &fresh, FileType::CharacterDevice, Mode::RWXU, zero).unwrap();
                }
                _ => fs::create_dir(&fresh).unwrap(),
            }
            let place = self.0.join("ours/file");
            if fs::rename(&fresh, &place).is_err() {
                // A directory takes the place of nothing else, and nothing else that of a directory.
                let _ = fs::remove_dir(&place);
                let _ = fs::remove_file(&place);
                fs::rename(&fresh, &place).unwrap();
            }
        }
    }

    impl Drop for Room {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn only_a_regular_file_of_its_own_is_read_whatever_takes_its_place_meanwhile() {
        let room = Room::new("exchanged");
        let folder = Folder::named(&room.0).unwrap().below("ours").unwrap();
        let over = AtomicBool::new(false);
        let (mut good, mut refused, mut wrong) = (0_u32, 0_u32, 0_u32);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for kind in 0.. {
                    room.exchange(kind);
                    if over.load(Ordering::Relaxed) {
                        return;
                    }
                }
            });
            let end = crate::clock::since_boot() + std::time::Duration::from_secs(60);
            while (good < 1000 || refused < 20_000) && crate::clock::since_boot() < end {
                match folder.read("file", MOST) {
                    Ok(bytes) if bytes == GOOD => good += 1,
                    Ok(_) => wrong += 1,
                    Err(_) => refused += 1,
                }
            }
            over.store(true, Ordering::Relaxed);
        });
        assert!(
            wrong == 0 && good >= 1000 && refused >= 1000,
            "{wrong} {good} {refused}"
        );
    }

    #[test]
    fn each_refusal_names_its_cause() {
        let room = Room::new("refused");
        let folder = Folder::named(&room.0).unwrap().below("ours").unwrap();
        let why = |kind: usize| {
            room.exchange(kind);
            folder.read("file", MOST).unwrap_err().to_string()
        };
        assert_eq!(why(1), "it is a link");
        assert!(why(2).contains("hard link"));
        assert_eq!(why(3), "it is no regular file");
        assert!(why(4).contains("larger than the 1024 bytes"));
        assert_eq!(why(5), "it is no regular file");
        assert_eq!(why(6), "it is no regular file");
        room.exchange(0);
        assert_eq!(folder.read("file", MOST).unwrap(), GOOD);
        for name in ["", ".", "..", "../secret", "a/b"] {
            assert!(folder.open(name).is_err());
        }
        symlink(room.0.join("ours"), room.0.join("link")).unwrap();
        let linked = Folder::named(&room.0).unwrap().below("link");
        assert!(linked.is_err());
        // A person's own word is followed, and no FIFO is waited for.
        assert_eq!(read(&room.0.join("link/file"), MOST).unwrap(), GOOD);
        room.exchange(3);
        assert!(read(&room.0.join("ours/file"), MOST).is_err());
        assert!(read_own(&room.0.join("ours/file"), MOST).is_err());
    }
}
