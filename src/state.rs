//! State files that survive a power cut at any instruction (rule G6): written beside, synced,
//! renamed, the directory synced; a checksum inside; the previous generation kept.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::untrusted;

/// Why a state file could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// The file system refused.
    #[error("failed to {what} {}", path.display())]
    Io {
        /// The step.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// Neither the file nor its previous generation is whole.
    #[error("{} is damaged, and so is its previous generation", .0.display())]
    Damaged(PathBuf),
    /// A newer version of this operator wrote it.
    #[error("{} was written by a newer version of this operator (format {found}, known is {known})", path.display())]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: u32,
        /// The newest that this version knows.
        known: u32,
    },
}

fn io_error<'a>(what: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> StateError + 'a {
    move |source| StateError::Io {
        what,
        path: path.to_owned(),
        source,
    }
}

/// The format of every state file that this version writes. A change that an older version cannot
/// read raises it.
pub const FORMAT: u32 = 1;

/// Creates a directory, and its parents, for this user alone.
pub fn create_private_dir(path: &Path) -> Result<(), StateError> {
    let missing: Vec<&Path> = path.ancestors().take_while(|it| !it.exists()).collect();
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(io_error("create", path))?;
    for path in missing.iter().rev() {
        inherit_owner(path).map_err(io_error("set the owner of", path))?;
    }
    Ok(())
}

/// It is a link itself, whatever it leads to.
pub fn is_link(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|it| it.is_symlink())
}

/// What root makes in a directory of another user belongs to that user: etcd, which runs as that
/// user, could not read it otherwise. Only for what this process has just made itself: a name of
/// something older could be a link to a file of the system.
pub fn inherit_owner(path: &Path) -> io::Result<()> {
    match foreign_owner(path)? {
        Some((uid, gid)) => std::os::unix::fs::lchown(path, Some(uid), Some(gid)),
        None => Ok(()),
    }
}

/// The same for an open file, whose name the other user could exchange meanwhile.
pub fn inherit_owner_open(file: &File, path: &Path) -> io::Result<()> {
    match foreign_owner(path)? {
        Some((uid, gid)) => std::os::unix::fs::fchown(file, Some(uid), Some(gid)),
        None => Ok(()),
    }
}

/// To whom root leaves what it makes here, if not to itself.
fn foreign_owner(path: &Path) -> io::Result<Option<(u32, u32)>> {
    if !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    let parent = fs::metadata(path.parent().unwrap_or_else(|| Path::new("/")))?;
    Ok((parent.uid() != 0).then(|| (parent.uid(), parent.gid())))
}

/// Makes the names in a directory durable.
pub fn sync_dir(path: &Path) -> Result<(), StateError> {
    File::open(path)
        .and_then(|it| it.sync_all())
        .map_err(io_error("sync", path))
}

/// Creates or replaces a file at once and durably, readable for this user alone.
pub fn write_file(path: &Path, bytes: &[u8]) -> Result<(), StateError> {
    let part = with_suffix(path, ".part");
    write_synced(&part, bytes)?;
    fs::rename(&part, path).map_err(io_error("rename", &part))?;
    sync_dir(path.parent().unwrap_or_else(|| Path::new("/")))
}

/// The same where the file says something else: flash is written only for a change.
pub fn write_changed(path: &Path, bytes: &[u8]) -> Result<(), StateError> {
    if fs::read(path).is_ok_and(|it| it == bytes) {
        return Ok(());
    }
    write_file(path, bytes)
}

/// Writes a new file and syncs it. Whatever an interrupted attempt left there is replaced.
pub fn write_synced(path: &Path, bytes: &[u8]) -> Result<(), StateError> {
    write_new(path, bytes)?
        .sync_all()
        .map_err(io_error("write", path))
}

/// Writes new files into a directory and syncs it and them. All are written before the first is
/// synced: its sync carries the others along, where one after the other would each wait for the
/// flash.
pub fn write_all_synced(dir: &Path, files: &[(&str, &[u8])]) -> Result<(), StateError> {
    let mut open = Vec::with_capacity(files.len());
    for (name, bytes) in files {
        let path = dir.join(name);
        open.push((write_new(&path, bytes)?, path));
    }
    for (file, path) in open {
        file.sync_all().map_err(io_error("write", &path))?;
    }
    sync_dir(dir)
}

fn write_new(path: &Path, bytes: &[u8]) -> Result<File, StateError> {
    let _ = fs::remove_file(path);
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .map_err(io_error("create", path))?;
    inherit_owner_open(&file, path).map_err(io_error("set the owner of", path))?;
    file.write_all(bytes).map_err(io_error("write", path))?;
    Ok(file)
}

/// A record of thousands of snapshots in a bucket takes a tenth of this.
const STATE_MAX: u64 = 4 << 20;
/// No name is followed to somewhere else.
const NO_LINK: i32 = rustix::fs::OFlags::NOFOLLOW.bits().cast_signed();

/// Opens a file to hold a lock on it. A disk that turned read-only keeps nobody from locking what
/// is there, and from saying why nothing else is done.
pub fn open_lock(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let new = !path.exists();
    let opened = options
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(NO_LINK)
        .open(path);
    if new && let Ok(file) = &opened {
        inherit_owner_open(file, path)?;
    }
    match opened {
        Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => File::open(path),
        other => other,
    }
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

#[derive(serde::Deserialize, serde::Serialize)]
struct Envelope {
    format: u32,
    sha256: String,
    /// The payload as text, so that the checksum is over exactly these bytes.
    payload: String,
}

/// The sha256 of some bytes, in hexadecimal.
pub fn sha256(bytes: &[u8]) -> String {
    hex(ring::digest::digest(&ring::digest::SHA256, bytes).as_ref())
}

/// Copies everything, and returns its sha256 in hexadecimal.
pub fn copy_hashed(from: &mut dyn io::Read, to: &mut dyn io::Write) -> io::Result<String> {
    let mut sum = ring::digest::Context::new(&ring::digest::SHA256);
    let mut buffer = vec![0; 256 * 1024];
    loop {
        match from.read(&mut buffer)? {
            0 => return Ok(hex(sum.finish().as_ref())),
            count => {
                sum.update(&buffer[..count]);
                to.write_all(&buffer[..count])?;
            }
        }
    }
}

/// Bytes in hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, it| {
        use std::fmt::Write as _;
        let _ = write!(text, "{it:02x}");
        text
    })
}

/// Writes a state file; the one that was there stays as the previous generation.
pub fn save<T: Serialize>(path: &Path, value: &T) -> Result<(), StateError> {
    let payload = serde_json::to_string(value)
        .map_err(|error| io_error("encode", path)(io::Error::other(error)))?;
    let envelope = Envelope {
        format: FORMAT,
        sha256: sha256(payload.as_bytes()),
        payload,
    };
    let text = serde_json::to_string(&envelope)
        .map_err(|error| io_error("encode", path)(io::Error::other(error)))?;
    if path.exists() {
        let link = with_suffix(path, ".link");
        let _ = fs::remove_file(&link);
        fs::hard_link(path, &link).map_err(io_error("link", &link))?;
        let previous = with_suffix(path, ".previous");
        fs::rename(&link, &previous).map_err(io_error("rename", &link))?;
    }
    write_file(path, text.as_bytes())
}

/// Writes a state file where there is none yet; `false`: there is one, and it stays. Of two processes one
/// is the first.
pub fn save_new<T: Serialize>(path: &Path, value: &T) -> Result<bool, StateError> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let fresh = with_suffix(path, &format!(".new-{}-{number}", std::process::id()));
    let _ = fs::remove_file(&fresh);
    save(&fresh, value)?;
    match renameat_with(CWD, &fresh, CWD, path, RenameFlags::NOREPLACE) {
        Ok(()) => {
            sync_dir(path.parent().unwrap_or(path))?;
            Ok(true)
        }
        Err(rustix::io::Errno::EXIST) => {
            let _ = fs::remove_file(&fresh);
            Ok(false)
        }
        Err(error) => Err(io_error("rename", &fresh)(error.into())),
    }
}

/// Reads a state file, or its previous generation where the file is damaged. `None`: there is none.
pub fn load<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, StateError> {
    let mut damaged = false;
    for candidate in [path.to_owned(), with_suffix(path, ".previous")] {
        match untrusted::read_own(&candidate, STATE_MAX) {
            Ok(bytes) => match open(&bytes) {
                Opened::Payload(value) => return Ok(Some(value)),
                Opened::Newer(found) => {
                    return Err(StateError::Newer {
                        path: candidate,
                        found,
                        known: FORMAT,
                    });
                }
                Opened::Damaged => damaged = true,
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(io_error("read", &candidate)(error)),
        }
    }
    if damaged {
        Err(StateError::Damaged(path.to_owned()))
    } else {
        Ok(None)
    }
}

enum Opened<T> {
    Payload(T),
    Newer(u32),
    Damaged,
}

fn open<T: DeserializeOwned>(bytes: &[u8]) -> Opened<T> {
    let Ok(envelope) = serde_json::from_slice::<Envelope>(bytes) else {
        return Opened::Damaged;
    };
    if sha256(envelope.payload.as_bytes()) != envelope.sha256 {
        return Opened::Damaged;
    }
    if envelope.format > FORMAT {
        return Opened::Newer(envelope.format);
    }
    serde_json::from_str(&envelope.payload).map_or(Opened::Damaged, Opened::Payload)
}

/// Writes a file under /run: replaced at once, never synced, gone with a reboot.
pub fn save_volatile<T: Serialize>(path: &Path, value: &T) -> Result<(), StateError> {
    let text = serde_json::to_string(value)
        .map_err(|error| io_error("encode", path)(io::Error::other(error)))?;
    let part = with_suffix(path, ".part");
    write_new(&part, text.as_bytes())?;
    fs::rename(&part, path).map_err(io_error("rename", &part))
}

/// Reads a file under /run. Absent or unreadable is the same: nothing is known.
pub fn load_volatile<T: DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_slice(&untrusted::read_own(path, STATE_MAX).ok()?).ok()
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "damages files on purpose")]
mod tests {
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let dir =
            std::env::temp_dir().join(format!("etcd-operator-state-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        create_private_dir(&dir).unwrap();
        dir
    }

    #[test]
    fn a_damaged_file_gives_its_previous_generation() {
        let dir = scratch("damaged");
        let path = dir.join("it.json");
        assert_eq!(load::<String>(&path).unwrap(), None);
        save(&path, &"first".to_owned()).unwrap();
        save(&path, &"second".to_owned()).unwrap();
        assert_eq!(load::<String>(&path).unwrap().as_deref(), Some("second"));
        let whole = fs::read(&path).unwrap();
        for length in 0..whole.len() {
            fs::write(&path, &whole[..length]).unwrap();
            assert_eq!(
                load::<String>(&path).unwrap().as_deref(),
                Some("first"),
                "cut to {length}"
            );
        }
        for index in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[index] ^= 1;
            fs::write(&path, bytes).unwrap();
            let read = load::<String>(&path);
            assert!(
                matches!(
                    read.as_ref().map(Option::as_deref),
                    Ok(Some("first" | "second")) | Err(StateError::Newer { .. })
                ),
                "bit {index}: {read:?}"
            );
        }
        fs::write(&path, b"").unwrap();
        fs::write(dir.join("it.json.previous"), b"{").unwrap();
        assert!(matches!(load::<String>(&path), Err(StateError::Damaged(_))));
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_file_of_a_newer_version_is_left_alone() {
        let dir = scratch("newer");
        let path = dir.join("it.json");
        save(&path, &"kept".to_owned()).unwrap();
        let newer = fs::read_to_string(&path)
            .unwrap()
            .replace("\"format\":1", "\"format\":2");
        fs::write(&path, &newer).unwrap();
        assert!(matches!(
            load::<String>(&path),
            Err(StateError::Newer { found: 2, .. })
        ));
        assert_eq!(fs::read_to_string(&path).unwrap(), newer);
        fs::remove_dir_all(dir).unwrap();
    }

    /// Each prefix of the steps of [`save`] is a place where the power may go.
    #[test]
    fn a_cut_between_any_two_steps_leaves_the_old_or_the_new() {
        let dir = scratch("cut");
        let path = dir.join("it.json");
        save(&path, &"old".to_owned()).unwrap();
        let leftovers: [(&str, &[u8]); 3] = [(".part", b"{\"for"), (".part", b""), (".link", b"x")];
        for (suffix, bytes) in leftovers {
            fs::write(with_suffix(&path, suffix), bytes).unwrap();
            assert_eq!(load::<String>(&path).unwrap().as_deref(), Some("old"));
            save(&path, &"old".to_owned()).unwrap();
            assert_eq!(load::<String>(&path).unwrap().as_deref(), Some("old"));
        }
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn of_many_who_write_a_new_file_at_once_one_is_the_first_and_none_fails() {
        let dir = scratch("at-once");
        for round in 0..50 {
            let path = dir.join(format!("{round}.json"));
            let first = std::thread::scope(|scope| {
                let all: Vec<_> = (0..8)
                    .map(|it| {
                        let path = &path;
                        scope.spawn(move || save_new(path, &it).unwrap())
                    })
                    .collect();
                all.into_iter()
                    .map(|it| it.join().unwrap())
                    .filter(|it| *it)
                    .count()
            });
            assert_eq!(first, 1);
        }
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 50);
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_new_file_never_takes_the_place_of_another() {
        let dir = std::env::temp_dir().join(format!("new-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).unwrap();
        let path = dir.join("it.json");
        assert!(save_new(&path, &1).unwrap());
        assert!(!save_new(&path, &2).unwrap());
        assert_eq!(load::<i32>(&path).unwrap(), Some(1));
        assert_eq!(
            fs::read_dir(&dir).unwrap().count(),
            1,
            "nothing is left over"
        );
        fs::remove_dir_all(&dir).unwrap();
    }
}
