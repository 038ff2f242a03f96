//! The keys to a bucket: where they are looked for, and that nobody else can read them (rule E11).

use std::fmt;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::S3Error;
use crate::untrusted;

/// Name of the credential that systemd hands to the unit (`LoadCredential=etcd-operator.s3:FILE`).
pub const SYSTEMD_CREDENTIAL: &str = "etcd-operator.s3";

/// Where systemd keeps those of the agent's unit, for root and the unit.
const OF_THE_UNIT: &str = "/run/credentials/etcd-operator.service/etcd-operator.s3";

/// The text of a file of keys that root has read for this process, and the file.
static OFFERED: OnceLock<(PathBuf, String)> = OnceLock::new();

/// Keys to a bucket. `Debug` shows none of them.
#[derive(Clone)]
pub struct Credentials {
    pub(super) key: String,
    pub(super) secret: String,
    pub(super) token: Option<String>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Credentials(..)")
    }
}

impl Credentials {
    /// Keys that are known already; `token` for those that end by themselves.
    pub fn new(key: &str, secret: &str, token: Option<&str>) -> Credentials {
        Credentials {
            key: key.to_owned(),
            secret: secret.to_owned(),
            token: token.filter(|it| !it.is_empty()).map(str::to_owned),
        }
    }

    /// Keys of the unit, for a command of root's that goes on as another user.
    pub fn offer(path: PathBuf, text: String) {
        let _ = OFFERED.set((path, text));
    }

    /// Reads them anew (rule B15): from this file, else from systemd's credential, else from the
    /// environment. Metadata services of clouds are not asked.
    pub fn read(file: Option<&Path>) -> Result<Credentials, S3Error> {
        Credentials::find(
            file,
            |name| std::env::var(name).ok(),
            OFFERED.get(),
            Path::new(OF_THE_UNIT),
        )
    }

    fn find(
        file: Option<&Path>,
        environment: impl Fn(&str) -> Option<String>,
        offered: Option<&(PathBuf, String)>,
        of_the_unit: &Path,
    ) -> Result<Credentials, S3Error> {
        if let Some(file) = file {
            return read_file(file, true);
        }
        if let Some(dir) = environment("CREDENTIALS_DIRECTORY") {
            let file = PathBuf::from(dir).join(SYSTEMD_CREDENTIAL);
            if file.exists() {
                // systemd keeps these in a directory that only the unit can enter.
                return read_file(&file, false);
            }
        }
        if let Some((path, text)) = offered {
            return parse(path, text);
        }
        from_names(environment).ok_or_else(|| {
            // Without the right to look there the answer is the same.
            if of_the_unit.exists() {
                S3Error::CredentialsOfTheUnit
            } else {
                S3Error::NoCredentials
            }
        })
    }

    /// Reads the text of such a file.
    pub fn parse(text: &str) -> Option<Credentials> {
        let mut found: [Option<&str>; 3] = [None; 3];
        // Another section than [default] is another person's.
        let mut ours = true;
        for line in text.lines().map(str::trim) {
            if line.is_empty() || line.starts_with(['#', ';']) {
                continue;
            }
            if let Some(section) = line.strip_prefix('[').and_then(|it| it.strip_suffix(']')) {
                ours = section.trim() == "default";
                continue;
            }
            let Some((name, value)) = line.split_once('=') else {
                continue;
            };
            let name = name.trim();
            let name = name.strip_prefix("export ").unwrap_or(name).trim();
            let place = NAMES
                .iter()
                .position(|it| it.eq_ignore_ascii_case(name))
                .filter(|_| ours);
            if let Some(place) = place {
                found[place] = Some(unquoted(value.trim()));
            }
        }
        from_names(|name| {
            let place = NAMES.iter().position(|it| *it == name)?;
            found[place].map(str::to_owned)
        })
    }
}

/// Keys and a token that is valid for a while.
const FILE_MAX: u64 = 64 * 1024;
const NAMES: [&str; 3] = [
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
];

fn from_names(value: impl Fn(&str) -> Option<String>) -> Option<Credentials> {
    let [key, secret, token] = NAMES.map(|it| value(it).filter(|it| !it.is_empty()));
    Some(Credentials {
        key: key?,
        secret: secret?,
        token,
    })
}

fn unquoted(value: &str) -> &str {
    ['"', '\'']
        .into_iter()
        .find_map(|it| value.strip_prefix(it)?.strip_suffix(it))
        .unwrap_or(value)
}

fn read_file(path: &Path, check_mode: bool) -> Result<Credentials, S3Error> {
    let unreadable = |source: io::Error| S3Error::CredentialsUnreadable {
        path: path.to_owned(),
        source,
    };
    let file = untrusted::open(path).map_err(unreadable)?;
    let mode = file.metadata().map_err(unreadable)?.mode();
    if check_mode && mode & 0o077 != 0 {
        return Err(S3Error::CredentialsOpen {
            path: path.to_owned(),
            mode: mode & 0o777,
        });
    }
    let text = untrusted::content(&file, FILE_MAX).map_err(unreadable)?;
    parse(path, &String::from_utf8_lossy(&text))
}

fn parse(path: &Path, text: &str) -> Result<Credentials, S3Error> {
    Credentials::parse(text).ok_or_else(|| S3Error::CredentialsIncomplete {
        path: path.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn both_ways_of_writing_them_are_read() {
        for text in [
            "[default]\naws_access_key_id = KEY\naws_secret_access_key = se=cret/+\n",
            "[other]\naws_access_key_id=NO\naws_secret_access_key=NO\n[default]\naws_access_key_id=KEY\naws_secret_access_key=se=cret/+",
            "# keys\nAWS_ACCESS_KEY_ID=KEY\nexport AWS_SECRET_ACCESS_KEY='se=cret/+'\n",
        ] {
            let read = Credentials::parse(text).unwrap();
            assert_eq!(
                (read.key.as_str(), read.secret.as_str()),
                ("KEY", "se=cret/+")
            );
            assert!(read.token.is_none());
            assert_eq!(format!("{read:?}"), "Credentials(..)");
        }
        let with = Credentials::parse(
            "AWS_ACCESS_KEY_ID=a\nAWS_SECRET_ACCESS_KEY=b\nAWS_SESSION_TOKEN=c\n",
        );
        assert_eq!(with.unwrap().token.as_deref(), Some("c"));
        assert!(Credentials::parse("AWS_ACCESS_KEY_ID=a\nAWS_SECRET_ACCESS_KEY=\n").is_none());
        assert!(
            Credentials::parse("[other]\naws_access_key_id=a\naws_secret_access_key=b").is_none()
        );
    }

    #[test]
    fn a_file_comes_before_systemd_and_systemd_before_the_environment() {
        let dir = std::env::temp_dir().join(format!("s3-credentials-order-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let named = dir.join("named");
        let write = |path: &Path, key: &str| {
            let text = format!("AWS_ACCESS_KEY_ID={key}\nAWS_SECRET_ACCESS_KEY=b\n");
            crate::state::write_synced(path, text.as_bytes()).unwrap();
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
        };
        let environment = |name: &str| match name {
            "CREDENTIALS_DIRECTORY" => Some(dir.display().to_string()),
            "AWS_ACCESS_KEY_ID" => Some("environment".to_owned()),
            "AWS_SECRET_ACCESS_KEY" => Some("c".to_owned()),
            _ => None,
        };
        let key = |file| {
            Credentials::find(file, environment, None, Path::new("/nonexistent"))
                .unwrap()
                .key
        };
        assert_eq!(key(None), "environment");
        write(&dir.join(SYSTEMD_CREDENTIAL), "systemd");
        assert_eq!(key(None), "systemd");
        write(&named, "named");
        assert_eq!(key(Some(&named)), "named");
        // They are read anew each time.
        write(&named, "renamed");
        assert_eq!(key(Some(&named)), "renamed");
        std::fs::remove_dir_all(&dir).unwrap();
        let nobody = Path::new("/nonexistent");
        let nothing = Credentials::find(None, |_| None, None, nobody);
        assert!(matches!(nothing, Err(S3Error::NoCredentials)));
        // A unit that loads a credential has the directory, also where there is nothing to load.
        std::fs::create_dir(&dir).unwrap();
        let empty = |name: &str| {
            let directory = dir.display().to_string();
            (name == "CREDENTIALS_DIRECTORY").then_some(directory)
        };
        let words = Credentials::find(None, empty, None, nobody).unwrap_err();
        let words = words.to_string();
        assert!(words.contains("/etc/credstore/etcd-operator.s3"), "{words}");
        // Conditions hold so many bytes: the sentence is not cut in the middle.
        assert!(words.len() < 240, "{}", words.len());
        std::fs::remove_dir(&dir).unwrap();
        // There is the agent's own, which nobody but root can read.
        let units = Credentials::find(None, |_| None, None, Path::new("/"));
        let words = units.unwrap_err().to_string();
        assert!(words.contains("sudo") && words.len() < 240, "{words}");
        // What root has read comes before the environment.
        let text = "AWS_ACCESS_KEY_ID=root\nAWS_SECRET_ACCESS_KEY=b\n".to_owned();
        let offered = (PathBuf::from("/etc/credstore/x"), text);
        let found = Credentials::find(None, environment, Some(&offered), nobody);
        assert_eq!(found.unwrap().key, "root");
    }

    #[test]
    fn a_file_that_others_can_read_is_refused() {
        let path = std::env::temp_dir().join(format!("s3-credentials-{}", std::process::id()));
        crate::state::write_synced(
            &path,
            b"AWS_ACCESS_KEY_ID=a\nAWS_SECRET_ACCESS_KEY=geheim\n",
        )
        .unwrap();
        for (mode, good) in [(0o600, true), (0o400, true), (0o640, false), (0o604, false)] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            let read = Credentials::read(Some(&path));
            assert_eq!(read.is_ok(), good, "mode {mode:o}");
            if let Err(error) = read {
                let text = error.to_string();
                assert!(
                    text.contains("chmod 600") && !text.contains("geheim"),
                    "{text}"
                );
            }
        }
        std::fs::remove_file(&path).unwrap();
        assert!(matches!(
            Credentials::read(Some(&path)),
            Err(S3Error::CredentialsUnreadable { .. })
        ));
    }
}
