//! `init`: the first document, from what this host shows.

use std::fmt::Write as _;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use super::print;
use super::print::bytes;
use super::{Context, DONE, FAILED, Failure, HELD, InitArgs, Outcome, USAGE};
use crate::accounts::USER;
use crate::cluster::is_dns_label;
use crate::disk;
use crate::document;
use crate::error::shell_word;
use crate::etcd::store;
use crate::member::{place, records};
use crate::process;
use crate::start::Filesystem;
use crate::state;
use crate::systemd;
use crate::version::Version;

/// Where the host says nothing better.
const NAME: &str = "edge";
/// Longer names leave no room for the member's number in a certificate.
const NAME_MAX: usize = 50;
/// Where disks are mounted that may hold snapshots.
const MOUNTS: &[&str] = &["/mnt/", "/media/", "/srv/"];
/// etcd's usual ports, and how far away those lie that are taken where another program has one of them.
const PORTS: [u16; 3] = [2379, 2380, 2381];
const PORTS_APART: u16 = 100;
/// Words that YAML takes for something else than text.
const NOT_TEXT: &[&str] = &[
    "true", "false", "null", "yes", "no", "on", "off", "y", "n", "nan", "inf",
];

/// What the host shows.
struct Shown {
    name: String,
    /// Why it is called so.
    named: &'static str,
    version: Option<Version>,
    address: Option<IpAddr>,
    data_dir: PathBuf,
    free: Option<u64>,
    filesystem: Filesystem,
    /// The first further disk that is mounted, and its free bytes.
    disk: Option<(PathBuf, Option<u64>)>,
    systemd: bool,
    /// The first of etcd's usual ports that another program listens on, and which one.
    taken: Option<(u16, String)>,
}

pub(super) fn init(context: &Context, arguments: &InitArgs) -> Outcome {
    let path = &context.config;
    if path.exists() && !arguments.force {
        let text = format!(
            "{} is there already, and nothing was written: edit it; --force writes a new one and keeps this one beside it",
            path.display()
        );
        return Err(Failure::new(HELD, text));
    }
    let shown = look(context, arguments)?;
    let text = text(&shown);
    document::parse(text.as_bytes()).map_err(|problems| {
        let text = format!("the document that init made is refused: {problems}");
        Failure::new(FAILED, text)
    })?;
    let kept = write(path, &text)?;
    print::text(&next_steps(path, kept.as_deref(), &shown))?;
    Ok(DONE)
}

fn look(context: &Context, arguments: &InitArgs) -> Result<Shown, Failure> {
    let paths = &context.paths;
    // A cluster that lives here already says more than the host's name.
    let lives: Option<records::IdentityFile> = state::load(&paths.identity()).unwrap_or_default();
    let (name, named) = match (&arguments.name, &lives) {
        (Some(name), _) => (name.clone(), "fixed once the cluster is created"),
        (None, Some(it)) => (it.cluster.name.clone(), "the cluster on this host"),
        (None, None) => (
            name_of(&place::hostname().unwrap_or_default()),
            "from this host's name; fixed once the cluster is created",
        ),
    };
    if name.len() > NAME_MAX || !is_dns_label(&name) {
        let text = format!(
            "--name {name}: allowed are lower-case letters, digits and '-', at most {NAME_MAX}"
        );
        return Err(Failure::new(USAGE, text));
    }
    let asked = match &arguments.etcd_version {
        Some(text) => Some(text.parse::<Version>().map_err(|_| {
            Failure::new(USAGE, format!("'{text}' is not a version such as 3.6.16"))
        })?),
        None => None,
    };
    let born = lives.as_ref().and_then(|it| it.member.version.parse().ok());
    let data_dir = records::data_dir(&paths.member());
    Ok(Shown {
        name,
        named,
        version: asked
            .or(born)
            .or_else(|| store::newest_supported(&paths.store())),
        address: place::host_address(),
        free: disk::free_bytes(&data_dir),
        filesystem: disk::filesystem(&data_dir),
        disk: fs::read_to_string("/proc/self/mounts")
            .ok()
            .and_then(|it| further_disk(&it))
            .map(|it| (it.clone(), disk::free_bytes(&it))),
        data_dir,
        systemd: systemd::runs(paths),
        // An etcd of ours that runs has its ports.
        taken: lives.is_none().then(taken).flatten(),
    })
}

fn taken() -> Option<(u16, String)> {
    let free = |port: u16| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok();
    let port = PORTS.into_iter().find(|it| !free(*it))?;
    let who = process::listener(port, |_| true).unwrap_or_else(|| "another program".to_owned());
    Some((port, who))
}

/// A host's name as the name of a cluster: its first label, in the letters that are allowed.
fn name_of(hostname: &str) -> String {
    let label = hostname.split('.').next().unwrap_or_default();
    let letter = |it: char| match it.to_ascii_lowercase() {
        it if it.is_ascii_lowercase() || it.is_ascii_digit() => it,
        _ => '-',
    };
    let name: String = label.chars().map(letter).take(NAME_MAX).collect();
    let name = name.trim_matches('-');
    if name.is_empty() || name == "localhost" {
        return NAME.to_owned();
    }
    name.to_owned()
}

/// The mount point of the first disk that is mounted where people mount disks.
fn further_disk(mounts: &str) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let mut fields = line.split(' ');
        let (device, point) = (fields.next()?, fields.next()?);
        let there = MOUNTS.iter().any(|it| point.starts_with(it));
        (device.starts_with("/dev/") && there).then(|| disk::unescaped(point).into())
    })
}

/// A path within a map of one line.
fn quoted_path(path: &str) -> String {
    let plain = |it: u8| it.is_ascii_alphanumeric() || b"-_./".contains(&it);
    if path.bytes().all(plain) {
        return path.to_owned();
    }
    format!("'{}'", path.replace('\'', "''"))
}

fn quoted(name: &str) -> String {
    let text = name.starts_with(|it: char| it.is_ascii_lowercase()) && !NOT_TEXT.contains(&name);
    if text {
        name.to_owned()
    } else {
        format!("'{name}'")
    }
}

/// Other ports, where another program has one of etcd's.
fn network(shown: &Shown) -> String {
    match &shown.taken {
        None => "  # network: {listenAddresses: [127.0.0.1]}  # for clients on this host alone"
            .to_owned(),
        Some((port, who)) => {
            let [client, peer, metrics] = PORTS.map(|it| it + PORTS_APART);
            format!(
                "  # {port} is taken by {who}: these ports differ from etcd's usual ones.\n  \
                 network: {{clientPort: {client}, peerPort: {peer}, metricsPort: {metrics}}}"
            )
        }
    }
}

fn text(shown: &Shown) -> String {
    let Shown { name, named, .. } = shown;
    let version = match shown.version {
        Some(it) => format!("version: {it}"),
        None => "# version: 3.6.16  # left out: the newest in the store when etcd first starts"
            .to_owned(),
    };
    let address = match shown.address {
        Some(it) => {
            format!("127.0.0.1 and this host's address (now {it}, followed when it changes)")
        }
        None => "127.0.0.1 and this host's address (it has none now)".to_owned(),
    };
    let free = shown
        .free
        .map_or_else(String::new, |it| format!(", {} free", bytes(it)));
    let unsafe_filesystem = match shown.filesystem {
        Filesystem::Unsafe(name) => {
            format!("\n  # {name} can lose acknowledged writes: choose another disk.")
        }
        Filesystem::Disk | Filesystem::Unknown => String::new(),
    };
    let (backup, found) = match &shown.disk {
        Some((it, free)) => {
            let free = free.map_or_else(String::new, |it| format!(", {} free", bytes(it)));
            (
                it.join("etcd"),
                format!(" {} is mounted here{free}.", it.display()),
            )
        }
        None => (PathBuf::from("/mnt/usb/etcd"), String::new()),
    };
    let backup = backup.to_string_lossy();
    let (word, backup) = (shell_word(&backup), quoted_path(&backup));
    let network = network(shown);
    format!(
        "\
# Written by etcd-operator init. Every field has a default; etcd-operator crd explains them all.
# After an edit: etcd-operator plan, then systemctl reload etcd-operator.
apiVersion: etcd.edge-operator.io/v1alpha1
kind: EtcdCluster
metadata:
  name: {name}  # {named}
spec:
  size: 1              # 0 stops etcd and keeps everything
  {version}
  profile: edge        # spares flash; standard: etcd's own defaults
  # Clients that get a certificate, such as k3s; admin always has one.
  clients: []
  # etcd listens on {address}.
{network}
  # The data lies in {data}{free}.{unsafe_filesystem}
  # storage: {{path: /mnt/ssd/etcd}}  # another disk; fixed once the cluster is created
  # Snapshots, best on another disk.{found} The directory belongs to the operator's user:
  #   sudo install -d -o {USER} -g {USER} -m 700 {word}
  # backup:
  #   interval: 6h
  #   destinations:
  #     - local: {{path: {backup}, keep: 5, keepDaily: 7}}
",
        name = quoted(name),
        data = shown.data_dir.display(),
    )
}

/// Writes the document, readable for everybody; where the one before it is kept.
fn write(path: &Path, text: &str) -> Result<Option<PathBuf>, Failure> {
    let failed = |what: &str, error: &dyn std::error::Error| {
        let root = rustix::process::geteuid().is_root();
        let next = if root {
            ""
        } else {
            ": sudo etcd-operator init"
        };
        let text = format!("failed to {what} {}: {error}{next}", path.display());
        Failure::new(FAILED, text)
    };
    if let Some(dir) = path.parent().filter(|it| !it.exists()) {
        fs::create_dir_all(dir).map_err(|it| failed("create the directory of", &it))?;
        let open = fs::Permissions::from_mode(0o755);
        fs::set_permissions(dir, open).map_err(|it| failed("set the mode of", &it))?;
    }
    let kept = path
        .exists()
        .then(|| path.with_extension("yaml.before-init"));
    if let Some(kept) = &kept {
        fs::rename(path, kept).map_err(|it| failed("keep", &it))?;
    }
    state::write_file(path, text.as_bytes()).map_err(|it| failed("write", &it))?;
    let open = fs::Permissions::from_mode(0o644);
    fs::set_permissions(path, open).map_err(|it| failed("set the mode of", &it))?;
    Ok(kept)
}

fn next_steps(path: &Path, kept: Option<&Path>, shown: &Shown) -> String {
    let mut text = format!("wrote {}: cluster {}", path.display(), shown.name);
    text += &shown
        .version
        .map_or_else(String::new, |it| format!(", etcd {it}"));
    if let Some((port, who)) = &shown.taken {
        let _ = write!(
            text,
            "\n{port} is taken by {who}: the document names other ports"
        );
    }
    if let Some(kept) = kept {
        let _ = write!(text, "\nthe one before it is {}", kept.display());
    }
    text += "\n\nnext:\n";
    if shown.version.is_none() {
        let arch = if cfg!(target_arch = "x86_64") {
            "amd64"
        } else {
            "arm64"
        };
        let file = format!("./etcd-v3.6.16-linux-{arch}.tar.gz");
        let _ = writeln!(
            text,
            "  sudo etcd-operator etcd install --from {file} 3.6.16"
        );
    }
    let start = if shown.systemd {
        "  sudo etcd-operator preflight                   # is this host fit?\n  sudo systemctl enable --now etcd-operator      # starts etcd, now and at every boot\n  sudo etcd-operator status\n"
    } else {
        "  etcd-operator agent                            # starts etcd and keeps it alive\n  etcd-operator status\n"
    };
    text + start
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(name: &str) -> Shown {
        Shown {
            name: name.to_owned(),
            named: "as told",
            version: "3.6.16".parse().ok(),
            address: Some("10.20.0.1".parse().unwrap()),
            data_dir: PathBuf::from("/var/lib/etcd-operator/member/data"),
            free: Some(5 << 30),
            filesystem: Filesystem::Disk,
            disk: Some((PathBuf::from("/mnt/usb"), Some(60 << 30))),
            systemd: true,
            taken: None,
        }
    }

    #[test]
    fn whatever_a_host_is_called_its_document_is_a_good_one() {
        for (hostname, name) in [
            ("kiosk-17", "kiosk-17"),
            ("Kiosk_17.shop.example", "kiosk-17"),
            ("2024", "2024"),
            ("no", "no"),
            ("1e3", "1e3"),
            ("localhost", "edge"),
            ("", "edge"),
            ("---", "edge"),
            ("-pi-", "pi"),
            ("é", "edge"),
            (&"a".repeat(63), &"a".repeat(50)),
        ] {
            assert_eq!(name_of(hostname), name);
            let spec = document::parse(text(&shown(name)).as_bytes()).unwrap();
            assert_eq!(spec.name.as_str(), name);
            assert_eq!(spec.version, "3.6.16".parse().ok());
        }
        let beside = Shown {
            taken: Some((2379, "etcd (pid 91)".to_owned())),
            ..shown("edge")
        };
        let spec = document::parse(text(&beside).as_bytes()).unwrap();
        assert_eq!(
            (spec.network.client_port, spec.network.metrics_port),
            (2479, 2481)
        );
        let bare = Shown {
            version: None,
            address: None,
            free: None,
            filesystem: Filesystem::Unsafe("tmpfs"),
            disk: None,
            ..shown("edge")
        };
        assert_eq!(
            document::parse(text(&bare).as_bytes()).unwrap().version,
            None
        );
    }

    /// What stands behind a `#` works once the `#` is taken away.
    #[test]
    fn what_is_commented_out_is_good_too() {
        for disk in ["/mnt/usb", "/media/pi/USB DISK", "/mnt/Sicherung 'ä', {1}"] {
            let text = text(&Shown {
                disk: Some((PathBuf::from(disk), None)),
                ..shown("edge")
            });
            let lines = text.lines().map(|line| match line.strip_prefix("  # ") {
                Some(it) if it.starts_with(['n', 's', 'b', ' ']) && it.contains([':', '-']) => {
                    format!("  {it}")
                }
                _ => line.to_owned(),
            });
            let lines: Vec<String> = lines.filter(|it| !it.contains("sudo")).collect();
            let spec = document::parse(lines.join("\n").as_bytes()).unwrap();
            assert_eq!(spec.network.listen.len(), 1);
            assert_eq!(spec.storage_path.as_deref(), Some("/mnt/ssd/etcd"));
            let backup = spec.backup.unwrap();
            let place = format!("{disk}/etcd");
            assert_eq!(backup.destinations[0].local_path(), Some(&*place));
        }
    }

    #[test]
    fn a_further_disk_is_a_device_where_people_mount_disks() {
        let mounts = "/dev/mmcblk0p2 / ext4 rw 0 0\ntmpfs /mnt/ram tmpfs rw 0 0\n\
                      /dev/sdb1 /media/my\\040stick vfat rw 0 0\n/dev/sda1 /mnt/usb ext4 rw 0 0\n";
        let stick = PathBuf::from("/media/my stick");
        assert_eq!(further_disk(mounts), Some(stick));
        assert_eq!(further_disk("proc /proc proc rw 0 0\n"), None);
    }
}
