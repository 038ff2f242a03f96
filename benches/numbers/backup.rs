//! Taking and proving a snapshot, beside the bare stream and etcd's own tools.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use etcd_operator::backup::Phase;
use etcd_operator::backup::create::{self, Created};
use etcd_operator::backup::local::LocalStore;
use etcd_operator::backup::manifest::{Class, Manifest};
use etcd_operator::clock;
use etcd_operator::tls::Certificates;
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

use crate::bare::target;
use crate::client::{Target, runtime};
use crate::lab::{Lab, program, text};
use crate::procfs::{counters, memory};
use crate::table::{Row, mib};
use crate::{LINE, median};

/// Turns of everything that is compared.
pub const ROUNDS: usize = 5;
/// Of the bare stream; below it the promise is broken.
const STREAM_MIN: f64 = 0.8;
/// MB of database in a second.
const WALK_MIN: f64 = 200.0;
/// Above the operator at rest.
const ABOVE_IDLE: u64 = 16 << 20;
/// Bytes to disk over those of the file.
const WRITTEN_MAX: f64 = 1.1;
pub const MB: f64 = 1e6;

/// A program that ran to its end.
pub struct Ran {
    output: Output,
    pub took: Duration,
    peak: u64,
    written: u64,
}

/// Runs a program and looks at its memory all the while.
pub fn run(command: &mut Command) -> Ran {
    let begin = Instant::now();
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = Pid::from_child(&child);
    let how = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
    let status = format!("/proc/{}/status", child.id());
    let mut peak = 0;
    while waitid(WaitId::Pid(pid), how).unwrap().is_none() {
        let text = fs::read_to_string(&status).unwrap_or_default();
        let line = text.lines().find_map(|it| it.strip_prefix("VmHWM:"));
        let kib = line.and_then(|it| it.trim().strip_suffix(" kB"));
        peak = peak.max(kib.map_or(0, |it| it.parse::<u64>().unwrap()) << 10);
        thread::sleep(Duration::from_millis(2));
    }
    let took = begin.elapsed();
    // The counters of a process stay until somebody has waited for it.
    let written = counters(child.id()).written;
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    Ran {
        output,
        took,
        peak,
        written,
    }
}

/// A host with data, and a place for snapshots.
pub struct Place {
    pub lab: Lab,
    pub target: Target,
    store: LocalStore,
    pub scratch: PathBuf,
    puts: u64,
}

impl Place {
    /// With more of a document.
    pub fn new(spec: &str) -> Self {
        let mut lab = Lab::new(LINE);
        lab.spec.push_str(spec);
        let place = lab.root.join("snapshots");
        fs::create_dir(&place).unwrap();
        lab.add(&format!(
            "backup: {{destinations: [{{local: {{path: {}}}}}]}}",
            place.display()
        ));
        lab.start_agent();
        lab.wait_available();
        let target = target(&lab);
        Place {
            target,
            store: LocalStore::at(&place, &lab.name),
            scratch: lab.root.join("scratch.db"),
            lab,
            puts: 0,
        }
    }

    /// A new revision.
    pub fn put(&mut self) {
        self.puts += 1;
        assert!(self.lab.put("bench/round", &self.puts.to_string()));
    }

    pub fn operator(&self, arguments: &[&str]) -> Ran {
        run(Command::new(program())
            .args(arguments)
            .arg("--root")
            .arg(&self.lab.root))
    }

    /// The newest snapshot; the ones before it go.
    pub fn newest(&self) -> (PathBuf, Manifest) {
        let mut entries = self.store.list().unwrap().into_iter();
        let newest = entries.next().unwrap();
        for older in entries {
            self.store.remove(&older.name).unwrap();
        }
        (self.store.snapshot(&newest.name), newest.manifest.unwrap())
    }

    /// Time and bytes of a connection and the stream alone.
    fn stream(&self) -> (Duration, u64) {
        runtime().block_on(async {
            let begin = Instant::now();
            let mut client = self.target.connect().await;
            let mut stream = client.snapshot().await.unwrap();
            let mut bytes = 0;
            while let Some(message) = stream.message().await.unwrap() {
                bytes += message.blob().len() as u64;
            }
            (begin.elapsed(), bytes)
        })
    }

    /// The code of the command in this process: time until all is on the disk, and until it is proven.
    fn pipeline(&self) -> (Duration, Duration) {
        let certificates = Certificates::at(self.lab.lib("tls"));
        let files = certificates.operator_files();
        let url = format!("https://127.0.0.1:{}", self.lab.ports[0]);
        let entries = self.store.list().unwrap();
        let request = create::Request {
            url: &url,
            files: &files,
            signer: certificates.signer(),
            cluster: &self.lab.name,
            member: "lab-0",
            store: &self.store,
            class: Class::OnDemand,
            ttl: None,
            now: Some(clock::now()),
            quota: u64::MAX,
            entries: &entries,
        };
        let begin = Instant::now();
        let mut taken = None;
        let created = runtime().block_on(create::create(&request, &mut |it| {
            if it.phase == Phase::Hashing {
                taken.get_or_insert_with(|| begin.elapsed());
            }
        }));
        assert!(matches!(created, Ok(Created::Saved(_))), "{created:?}");
        (taken.unwrap(), begin.elapsed())
    }

    fn etcdctl(&self, arguments: &[&str]) -> Ran {
        let files = &self.target.files;
        run(Command::new(self.lab.etcd.join("etcdctl"))
            .arg("--endpoints")
            .arg(format!("https://127.0.0.1:{}", self.target.port))
            .arg("--cacert")
            .arg(files.join("ca.crt"))
            .arg("--cert")
            .arg(files.join("client.crt"))
            .arg("--key")
            .arg(files.join("client.key"))
            .args(arguments))
    }
}

fn rate(bytes: u64, took: Duration) -> f64 {
    bytes as f64 / MB / took.as_secs_f64()
}

pub fn seconds(took: Duration) -> String {
    format!("{:.2} s", took.as_secs_f64())
}

pub fn unpack(packed: &Path, to: &Path) {
    let from = fs::File::open(packed).unwrap();
    zstd::stream::copy_decode(from, fs::File::create(to).unwrap()).unwrap();
}

/// Everything of 100 MB in turns, then memory at 10 and at 500 MB.
pub fn rows() -> Vec<Row> {
    let mut place = Place::new("");
    let idle = memory(place.lab.agent_pid()).resident;
    let mut rows = Vec::new();
    place.target.load(8_000, 1024);
    place.put();
    let small = peaks(&mut place);
    place.target.load(100_000, 1024);
    rows.extend(turns(&mut place, idle));
    place.target.load(6_000, 64 << 10);
    let large = peaks(&mut place);
    rows.push(memory_row("backup create", idle, small, large, |it| {
        it.create
    }));
    rows.push(memory_row("verify-snapshot", idle, small, large, |it| {
        it.verify
    }));
    rows
}

/// The most memory of a command, for a database of such a size.
#[derive(Clone, Copy)]
struct Peaks {
    size: u64,
    create: u64,
    verify: u64,
}

fn peaks(place: &mut Place) -> Peaks {
    place.put();
    let create = place.operator(&["backup", "create"]).peak;
    let (packed, manifest) = place.newest();
    unpack(&packed, &place.scratch);
    let raw = place.operator(&["verify-snapshot", place.scratch.to_str().unwrap()]);
    let packed = place.operator(&["verify-snapshot", packed.to_str().unwrap()]);
    Peaks {
        size: manifest.database.size,
        create,
        verify: raw.peak.max(packed.peak),
    }
}

fn memory_row(what: &str, idle: u64, small: Peaks, large: Peaks, of: impl Fn(Peaks) -> u64) -> Row {
    let megabytes = |it: Peaks| (it.size as f64 / MB).round();
    Row::new(
        format!(
            "{what}: peak RSS at {} and {} MB",
            megabytes(small),
            megabytes(large)
        ),
        format!("{}, {}", mib(of(small)), mib(of(large))),
    )
    .compared(format!("operator idle {}", mib(idle)))
    .promised(
        "<= idle + 16 MiB",
        of(small).max(of(large)) <= idle + ABOVE_IDLE,
    )
}

/// One turn of everything that is compared.
struct Turn {
    /// Bytes of the stream, and of the database in it.
    streamed: u64,
    size: u64,
    bare: Duration,
    taken: Duration,
    proven: Duration,
    create: Ran,
    /// Bytes to disk over those of the file.
    written: f64,
    verify: Ran,
    save: Ran,
    pack: Option<Ran>,
    status: Ran,
}

fn turn(place: &mut Place) -> Turn {
    let (bare, streamed) = place.stream();
    place.put();
    let (taken, proven) = place.pipeline();
    place.put();
    let create = place.operator(&["backup", "create"]);
    let (packed, manifest) = place.newest();
    let verify = place.operator(&["backup", "verify", "--level", "3", &manifest.name]);
    let saved = place.lab.root.join("by-etcdctl.db");
    let save = place.etcdctl(&["snapshot", "save", saved.to_str().unwrap()]);
    let zstd = Command::new("zstd").arg("--version").output().is_ok();
    let pack = zstd.then(|| {
        run(Command::new("zstd")
            .args(["-q", "-1", "-T1", "-f"])
            .arg(&saved))
    });
    fs::remove_file(&saved).unwrap();
    unpack(&packed, &place.scratch);
    let status = run(Command::new(place.lab.etcd.join("etcdutl"))
        .args(["snapshot", "status"])
        .arg(&place.scratch));
    Turn {
        streamed,
        size: manifest.database.size,
        bare,
        taken,
        proven,
        written: create.written as f64 / manifest.file.size as f64,
        create,
        verify,
        save,
        pack,
        status,
    }
}

fn middle(turns: &[Turn], of: impl Fn(&Turn) -> Duration) -> Duration {
    median(turns.iter().map(of).collect())
}

fn middle_ratio(turns: &[Turn], of: impl Fn(&Turn) -> f64) -> f64 {
    let mut ratios: Vec<f64> = turns.iter().map(of).collect();
    ratios.sort_by(f64::total_cmp);
    ratios[ratios.len() / 2]
}

fn most(turns: &[Turn], of: impl Fn(&Turn) -> &Ran) -> u64 {
    turns.iter().map(|it| of(it).peak).max().unwrap()
}

fn turns(place: &mut Place, idle: u64) -> Vec<Row> {
    let turns: Vec<Turn> = (0..ROUNDS).map(|_| turn(place)).collect();
    let again = place.operator(&["backup", "create"]);
    assert!(text(&again.output.stdout).contains("nothing was written"));
    let written = middle_ratio(&turns, |it| it.written);
    let mut rows = taking(&turns);
    rows.extend([
        proving(&turns, idle),
        Row::new(
            "backup create: bytes to disk over those of the file",
            format!("{written:.3}"),
        )
        .promised("<= 1.1", written <= WRITTEN_MAX),
        Row::new(
            "backup create with no new revision: to disk",
            format!("{} B", again.written),
        )
        .promised("0 B", again.written == 0),
    ]);
    rows
}

fn taking(turns: &[Turn]) -> Vec<Row> {
    let (size, streamed) = (turns[0].size, turns[0].streamed);
    let ratio = middle_ratio(turns, |it| it.bare.as_secs_f64() / it.taken.as_secs_f64());
    let bare = middle(turns, |it| it.bare);
    let megabytes = (size as f64 / MB).round();
    let mut rows = vec![
        Row::new(
            format!("snapshot of {megabytes} MB, hashed, packed and synced: MB/s"),
            format!("{:.0}", rate(streamed, middle(turns, |it| it.taken))),
        )
        .against(
            format!("bare stream {:.0}", rate(streamed, bare)),
            ratio,
            None,
        )
        .promised(">= 0.8", ratio >= STREAM_MIN),
        Row::new(
            "the same, proven by levels 1 to 3",
            seconds(middle(turns, |it| it.proven)),
        )
        .compared(format!("bare stream {}", seconds(bare))),
        Row::new(
            "backup create as a command: time / peak RSS",
            pair(turns, |it| &it.create),
        )
        .compared(format!(
            "etcdctl snapshot save {}",
            pair(turns, |it| &it.save)
        )),
    ];
    if turns.iter().all(|it| it.pack.is_some()) {
        let pack = |it: &Turn| it.pack.as_ref().map_or(Duration::ZERO, |it| it.took);
        let more = seconds(middle(turns, pack));
        rows.push(Row::new("", "").compared(format!("and zstd -1 of it: {more} more")));
    }
    rows
}

fn proving(turns: &[Turn], idle: u64) -> Row {
    let size = turns[0].size;
    let speed = |of: fn(&Turn) -> &Ran| rate(size, middle(turns, |it| of(it).took));
    let (ours, peak) = (speed(|it| &it.verify), most(turns, |it| &it.verify));
    Row::new(
        "backup verify --level 3: MB/s / peak RSS",
        format!("{ours:.0} / {}", mib(peak)),
    )
    .compared(format!(
        "etcdutl snapshot status {:.0} / {}",
        speed(|it| &it.status),
        mib(most(turns, |it| &it.status))
    ))
    .promised(
        ">= 200 MB/s, <= idle + 16 MiB",
        ours >= WALK_MIN && peak <= idle + ABOVE_IDLE,
    )
}

fn pair(turns: &[Turn], of: impl Fn(&Turn) -> &Ran) -> String {
    let took = seconds(middle(turns, |it| of(it).took));
    format!("{took} / {}", mib(most(turns, of)))
}
