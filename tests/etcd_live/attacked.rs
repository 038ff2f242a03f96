//! Attacks of every kind, side by side, while the operator works: its memory and its loop.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use etcd_operator::backup::manifest::Manifest;

use crate::lab::{Lab, free_ports};
use crate::restore::{backups, json};

/// Of the operator's own memory while it is attacked: a quarter of what its unit may take (384 MiB), and less than half
/// of what its Pod may (256 MiB). The program of the tests is not optimised, and takes more than the released one.
const OWN_MAX_KIB: u64 = 96 * 1024;
/// The loop passes at least so often: its period is 5 s, and a look at etcd has its own deadlines.
const PASS_MAX: Duration = Duration::from_secs(12);
const ATTACK: Duration = Duration::from_secs(40);

/// Threads that go on until they are dropped.
#[derive(Default)]
struct Attack {
    over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Attack {
    fn by(&mut self, mut round: impl FnMut(u64) + Send + 'static) {
        let over = Arc::clone(&self.over);
        self.threads.push(thread::spawn(move || {
            for number in 0.. {
                if over.load(Ordering::Relaxed) {
                    return;
                }
                round(number);
            }
        }));
    }
}

impl Drop for Attack {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        for it in self.threads.drain(..) {
            let _ = it.join();
        }
    }
}

/// Ways in which the bucket answers, and how often it did so.
type Answered = Arc<[AtomicU64; 6]>;

/// A bucket that answers each request in another bad way.
fn bucket(listener: TcpListener, over: Arc<AtomicBool>, answered: Answered) {
    thread::spawn(move || {
        for (number, stream) in listener.incoming().flatten().enumerate() {
            if over.load(Ordering::Relaxed) {
                return;
            }
            answered[number % 6].fetch_add(1, Ordering::Relaxed);
            let over = Arc::clone(&over);
            thread::spawn(move || answer(stream, number % 6, &over));
        }
    });
}

fn answer(mut stream: TcpStream, how: usize, over: &AtomicBool) -> Option<()> {
    let _ = stream.set_read_timeout(Some(Duration::from_millis(200)));
    let _ = stream.set_write_timeout(Some(Duration::from_secs(2)));
    let _ = stream.read(&mut [0; 8192]);
    let head =
        |length: &str| format!("HTTP/1.1 200 OK\r\nContent-Type: application/xml\r\n{length}\r\n");
    let endless = |stream: &mut TcpStream, piece: &[u8], pause: Duration| {
        while !over.load(Ordering::Relaxed) {
            stream.write_all(piece).ok()?;
            thread::sleep(pause.max(Duration::from_millis(1)));
        }
        Some(())
    };
    match how {
        // A listing, a header and a body without end, and a body that comes by bytes.
        0 => {
            stream.write_all(head("").as_bytes()).ok()?;
            stream.write_all(b"<ListBucketResult>").ok()?;
            let key = format!(
                "<Contents><Key>shops/lab/{}</Key></Contents>",
                "k".repeat(4096)
            );
            endless(&mut stream, key.as_bytes(), Duration::ZERO)
        }
        1 => {
            stream.write_all(b"HTTP/1.1 200 OK\r\n").ok()?;
            endless(&mut stream, &[b'X'; 4096], Duration::ZERO)
        }
        2 => {
            stream
                .write_all(head("Content-Length: 1000000000000000\r\n").as_bytes())
                .ok()?;
            endless(&mut stream, &[0; 8192], Duration::ZERO)
        }
        3 => stream.write_all(b"\x00\xffHTTP?").ok(),
        4 => None,
        _ => {
            stream.write_all(head("").as_bytes()).ok()?;
            endless(&mut stream, b"<", Duration::from_millis(500))
        }
    }
}

/// What a writer of the directory puts there instead of a manifest or a snapshot.
fn exchange(path: &Path, how: u64) {
    thread::sleep(Duration::from_millis(2));
    let _ = fs::remove_file(path);
    let _ = match how % 5 {
        0 => symlink("/dev/zero", path),
        1 => symlink("/etc/shadow", path),
        2 => fs::File::create(path).and_then(|it| it.set_len(64 << 30)),
        3 => fs::write(path, vec![b'['; 60_000]),
        _ => {
            let mode = rustix::fs::Mode::RWXU;
            rustix::fs::mkfifoat(rustix::fs::CWD, path, mode).map_err(Into::into)
        }
    };
}

/// A snapshot of this cluster by its manifest, whose 4 GiB of zeros are packed into some hundred KiB.
fn bomb(dir: &Path, real: &Manifest) {
    let mut said = Manifest { ..real.clone() };
    said.revision.before = 9000;
    said.revision.after = 9000;
    said.name = format!("lab-0-20200101T000000Z-r9000-{}", said.hash);
    let file = dir.join(format!("{}.db.zst", said.name));
    let mut packed = zstd::Encoder::new(fs::File::create(&file).unwrap(), 1).unwrap();
    let zeros = vec![0; 1 << 20];
    for _ in 0..4096 {
        packed.write_all(&zeros).unwrap();
    }
    packed.finish().unwrap().sync_all().unwrap();
    said.file.size = fs::metadata(&file).unwrap().len();
    let mut packed = fs::File::open(&file).unwrap();
    said.file.sha256 = etcd_operator::state::copy_hashed(&mut packed, &mut io::sink()).unwrap();
    said.database.size = 4 << 30;
    let said = said.signed_by(None);
    fs::write(dir.join(format!("{}.json", said.name)), said.encode()).unwrap();
}

fn of_status(pid: u32, field: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find_map(|it| it.strip_prefix(field)).unwrap();
    line.split_ascii_whitespace()
        .next()
        .unwrap()
        .parse()
        .unwrap()
}

fn passes(address: &str) -> Option<u64> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
    write!(
        stream,
        "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    )
    .ok()?;
    let mut page = String::new();
    stream.read_to_string(&mut page).ok()?;
    let line = page
        .lines()
        .find_map(|it| it.strip_prefix("etcd_operator_passes_total "));
    line?.parse().ok()
}

/// A bomb, ten thousand names, and one snapshot and one manifest that are never twice the same.
fn in_the_directory(attack: &mut Attack, dir: &Path, real: &Manifest) {
    bomb(dir, real);
    for number in 0..10_000 {
        let name = format!("lab-0-20200101T000000Z-r{number}-00000000.json");
        fs::write(dir.join(name), "{}").unwrap();
    }
    for end in ["json", "db.zst"] {
        let path = dir.join(format!("lab-0-20200102T000000Z-r8000-00000001.{end}"));
        attack.by(move |number| exchange(&path, number));
    }
}

/// Clients of the socket that never end their request; and a document that is 32 MiB long, no UTF-8, or a bomb of
/// anchors, each with a signal to read it.
fn at_socket_and_document(attack: &mut Attack, lab: &Lab) {
    let socket: PathBuf = lab.run("operator.sock");
    assert!(socket.exists(), "{}", socket.display());
    attack.by(move |_| {
        let open = (0..200).flat_map(|_| UnixStream::connect(&socket));
        let mut open: Vec<UnixStream> = open.collect();
        for _ in 0..20 {
            for it in &mut open {
                let _ = it.set_nonblocking(true);
                let _ = it.write_all(b"GET / HTTP/1.1\r\nX: ");
            }
            thread::sleep(Duration::from_millis(100));
        }
    });
    let (document, good, pid) = (lab.document_path(), lab.document(), lab.agent_pid());
    attack.by(move |number| {
        let text = match number % 4 {
            0 => vec![b'a'; 32 << 20],
            1 => vec![0xff; 4096],
            2 => b"a: &a [x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\nc: [*b,*b,*b,*b]\n"
                .to_vec(),
            _ => good.clone().into_bytes(),
        };
        let _ = fs::write(&document, text);
        crate::lab::kill("HUP", pid);
        thread::sleep(Duration::from_millis(500));
    });
}

/// What was seen of the operator meanwhile.
struct Watched {
    rss: u64,
    longest: Duration,
}

fn watch(lab: &Lab, address: &str) -> Watched {
    let begin = Instant::now();
    let mut seen = Watched {
        rss: 0,
        longest: Duration::ZERO,
    };
    let (mut last, mut at) = (0, begin);
    for round in 0_u32.. {
        if begin.elapsed() > ATTACK {
            break;
        }
        seen.rss = seen.rss.max(of_status(lab.agent_pid(), "RssAnon:"));
        seen.longest = seen.longest.max(at.elapsed());
        if let Some(now) = passes(address).filter(|it| *it != last) {
            (last, at) = (now, Instant::now());
        }
        if round.is_multiple_of(40) {
            assert!(lab.put("a", "2"), "etcd serves");
        }
        thread::sleep(Duration::from_millis(50));
    }
    seen
}

#[test]
fn attacks_of_every_kind_leave_the_loop_its_period_and_the_operator_its_memory() {
    let mut lab = Lab::new("3.6");
    fs::create_dir_all(backups(&lab)).unwrap();
    let credentials = lab.root.join("credentials");
    fs::write(
        &credentials,
        "[default]\naws_access_key_id = edge\naws_secret_access_key = edge\n",
    )
    .unwrap();
    std::process::Command::new("chmod")
        .arg("600")
        .arg(&credentials)
        .status()
        .unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (place, port) = (backups(&lab), listener.local_addr().unwrap().port());
    let address = format!("127.0.0.1:{}", free_ports().0[0]);
    lab.arguments = vec!["--metrics-address".to_owned(), address.clone()];
    lab.start_agent();
    lab.wait_available();
    lab.put("a", "1");
    // No bucket is asked before the first start, which would wait for it.
    lab.add(&format!(
        "backup: {{interval: 5s, verify: {{level: 3, every: 10s}}, destinations: [{{local: {{path: {}, keep: 3}}}}, {{s3: {{bucket: backup, endpoint: 'http://127.0.0.1:{port}', pathStyle: true, credentials: {}}}}}]}}",
        place.display(),
        credentials.display(),
    ));
    lab.signal_agent("HUP");
    json(&lab, &["backup", "create"]);
    let name = json(&lab, &["backup", "list"])[0]["name"]
        .as_str()
        .unwrap()
        .to_owned();
    let real = fs::read(place.join(format!("lab/{name}.json"))).unwrap();
    let real = Manifest::decode(&real, &name).unwrap();
    let pid = lab.agent_pid();
    let (own, before) = (of_status(pid, "RssAnon:"), of_status(pid, "VmHWM:"));

    let mut attack = Attack::default();
    let answered = Answered::default();
    bucket(listener, Arc::clone(&attack.over), Arc::clone(&answered));
    in_the_directory(&mut attack, &place.join("lab"), &real);
    at_socket_and_document(&mut attack, &lab);
    let Watched { rss, longest } = watch(&lab, &address);
    drop(attack);
    let answered = answered.each_ref().map(|it| it.load(Ordering::Relaxed));
    let peak = of_status(pid, "VmHWM:");
    println!(
        "attacked for {ATTACK:?}: at most {rss} KiB of its own memory (at first: {own} KiB), RSS with the unoptimised program's pages at most {peak} KiB (before: {before} KiB), longest time without a pass {longest:?}, {answered:?} answers of the bucket of each kind"
    );
    lab.write_document();
    lab.signal_agent("HUP");
    lab.wait("sound again", |it| {
        crate::lab::condition(it, "DocumentAccepted").0 == "True"
    });
    lab.wait_available();
    assert_eq!(lab.agent_pid(), pid, "the same process");
    assert!(answered.iter().all(|it| *it > 0), "{answered:?}");
    // Nobody has signed the bomb, so that the operator left it alone; a person who asks is told, and no memory is taken.
    let verify = [
        "backup",
        "verify",
        "lab-0-20200101T000000Z-r9000-",
        real.hash.as_str(),
    ];
    let name = verify[2..].concat();
    let told = lab.operator(&["backup", "verify", &name]);
    assert!(!told.status.success(), "{told:?}");
    let newest = lab.wait("a snapshot of what was written meanwhile", |it| {
        it["backups"]["last"]["revision"].as_i64() > Some(5)
    });
    println!("newest snapshot: {}", newest["backups"]["last"]);
    assert!(rss < OWN_MAX_KIB, "{rss} KiB");
    assert!(longest < PASS_MAX, "{longest:?}");
}
