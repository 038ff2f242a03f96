//! A real S3 server on loopback with an empty bucket, and what a test needs beside it.
//!
//! Everything that a server started ends with it, by the id that was recorded.

use std::fs;
use std::future::Future;
use std::io::{self, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use etcd_operator::s3::{Bucket, Credentials, Location, Patience, Source};

pub const BUCKET: &str = "backup";
/// Garage takes keys of this form only.
pub const KEY: &str = "GK0123456789abcdef01234567";
pub const SECRET: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
const START_DEADLINE: Duration = Duration::from_secs(30);
const TEST_DEADLINE: Duration = Duration::from_secs(300);
pub const MIB: usize = 1024 * 1024;

/// Who made the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Make {
    S3sFs,
    Versity,
    /// These are built from source in many minutes, so that only `make s3-makes` has them.
    Garage,
    /// As above.
    Minio,
}

impl Make {
    fn program(self) -> PathBuf {
        let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools");
        match self {
            Make::S3sFs => tools.join("s3s-fs"),
            Make::Versity => tools.join("versitygw"),
            Make::Garage => tools.join("garage"),
            Make::Minio => tools.join("minio"),
        }
    }

    /// Those that are here; one of the quick ones must be.
    pub fn all() -> Vec<Make> {
        let here = |it: &Make| it.program().exists();
        let makes = [Make::S3sFs, Make::Versity, Make::Garage, Make::Minio];
        let makes: Vec<Make> = makes.into_iter().filter(here).collect();
        assert!(
            makes
                .iter()
                .any(|it| matches!(it, Make::S3sFs | Make::Versity)),
            "no S3 server: run tests/tools/s3s-fs.sh target/tools/s3s-fs"
        );
        makes
    }
}

pub use crate::skip::skip;

/// Runs a test on each make of server, freshly started.
pub fn on_each<F: Future<Output = ()>>(test: impl Fn(Server) -> F) {
    for make in Make::all() {
        println!("on {make:?}");
        on(Server::start(make), &test);
    }
}

/// Runs a test on one server.
pub fn on<F: Future<Output = ()>>(server: Server, test: impl Fn(Server) -> F) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        tokio::time::timeout(TEST_DEADLINE, test(server))
            .await
            .expect("the test takes too long");
    });
}

/// Ports stay claimed for as long as the file is open, whoever else runs these tests.
pub fn free_port() -> (u16, fs::File) {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let claims = std::env::temp_dir().join("etcd-operator-test-ports");
    fs::create_dir_all(&claims).unwrap();
    let first = std::process::id().wrapping_mul(61);
    loop {
        let number = first.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        let port = u16::try_from(10_240 + number % 20_000).unwrap();
        let claim = fs::File::create(claims.join(port.to_string())).unwrap();
        if claim.try_lock().is_ok() && TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return (port, claim);
        }
    }
}

/// A directory of a test's own, gone with it.
pub struct Scratch(pub PathBuf);

impl Scratch {
    pub fn new(name: &str) -> Scratch {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let base = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let path = base.join(format!("s3-{name}-{}-{number}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

pub struct Server {
    make: Make,
    port: u16,
    scratch: Scratch,
    _claims: Vec<fs::File>,
    rpc_port: u16,
    around: Around,
    /// Its key and bucket were made.
    prepared: bool,
    child: Option<Child>,
}

/// What a server is started in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Around {
    Nothing,
    /// Its clock is this many minutes ahead.
    Ahead(i32),
    /// Its disk has this many MiB.
    Disk(u32),
    /// Buckets below this domain, by their names, may have versions. versitygw's alone.
    Versions(&'static str),
}

impl Server {
    pub fn start(make: Make) -> Server {
        Server::start_in(make, Around::Nothing)
    }

    pub fn start_in(make: Make, around: Around) -> Server {
        let (port, claim) = free_port();
        let (rpc_port, rpc_claim) = free_port();
        let mut server = Server {
            make,
            port,
            scratch: Scratch::new("server"),
            _claims: vec![claim, rpc_claim],
            rpc_port,
            around,
            prepared: false,
            child: None,
        };
        server.start_again();
        server
    }

    // Not fields: an async block that names a field takes the field, and the server ends.
    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn make(&self) -> Make {
        self.make
    }

    pub fn data(&self) -> PathBuf {
        self.scratch.0.join("data")
    }

    fn command(&self) -> Command {
        let program = self.make.program();
        let data = self.data();
        fs::create_dir_all(data.join(BUCKET)).unwrap();
        let mut command = match self.around {
            Around::Nothing | Around::Versions(_) => Command::new(&program),
            Around::Ahead(minutes) => {
                let mut command = Command::new(&program);
                command
                    .env("LD_PRELOAD", fake_clock().unwrap())
                    .env("FAKETIME", format!("{minutes:+}m"))
                    .env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
                command
            }
            // The mount lives as long as the server, in a namespace of its own.
            Around::Disk(mib) => {
                let mut command = Command::new("unshare");
                let script = format!(
                    "mount -t tmpfs -o size={mib}m tmpfs '{0}' && mkdir '{0}/{BUCKET}' && exec \"$@\"",
                    data.display()
                );
                command
                    .args([
                        "--mount",
                        "--propagation",
                        "private",
                        "sh",
                        "-c",
                        &script,
                        "sh",
                    ])
                    .arg(&program);
                command
            }
        };
        self.tell(&mut command);
        command
    }

    /// Its arguments and environment.
    fn tell(&self, command: &mut Command) {
        let data = self.data();
        match self.make {
            Make::S3sFs => {
                command.args(["--host", "127.0.0.1", "--port", &self.port.to_string()]);
                command.args(["--access-key", KEY, "--secret-key", SECRET]);
                command.arg(&data);
            }
            Make::Versity => {
                let port = format!("127.0.0.1:{}", self.port);
                command.env("ROOT_ACCESS_KEY", KEY);
                command.env("ROOT_SECRET_KEY", SECRET);
                command.args(["--port", &port, "--quiet", "--keep-alive"]);
                let versions = self.scratch.0.join("versions");
                if let Around::Versions(domain) = self.around {
                    fs::create_dir_all(&versions).unwrap();
                    command.args(["--virtual-domain", domain, "posix", "--versioning-dir"]);
                    command.arg(versions);
                } else {
                    command.arg("posix");
                }
                command.arg(&data);
            }
            Make::Minio => {
                command.env("MINIO_ROOT_USER", KEY);
                command.env("MINIO_ROOT_PASSWORD", SECRET);
                // No page for people, and nobody is asked for a newer one.
                command
                    .env("MINIO_BROWSER", "off")
                    .env("MINIO_UPDATE", "off");
                let address = format!("127.0.0.1:{}", self.port);
                command.args(["server", "--address", &address]).arg(&data);
            }
            Make::Garage => {
                let config = self.scratch.0.join("garage.toml");
                fs::write(&config, self.garage_toml()).unwrap();
                command.env("GARAGE_DEFAULT_ACCESS_KEY", KEY);
                command.env("GARAGE_DEFAULT_SECRET_KEY", SECRET);
                command.env("GARAGE_DEFAULT_BUCKET", BUCKET);
                command.arg("-c").arg(config);
                command.args(["server", "--single-node", "--default-bucket"]);
            }
        }
    }

    fn garage_toml(&self) -> String {
        let dir = self.scratch.0.display();
        format!(
            "metadata_dir = \"{dir}/meta\"\ndata_dir = \"{dir}/data\"\ndb_engine = \"sqlite\"\n\
             replication_factor = 1\nrpc_bind_addr = \"127.0.0.1:{0}\"\nrpc_public_addr = \"127.0.0.1:{0}\"\n\
             rpc_secret = \"{SECRET}\"\n[s3_api]\ns3_region = \"garage\"\napi_bind_addr = \"127.0.0.1:{1}\"\n\
             root_domain = \".s3.local\"\n",
            self.rpc_port, self.port
        )
    }

    /// Starts it on what it had, and waits until it answers.
    pub fn start_again(&mut self) {
        let log = fs::File::create(self.scratch.0.join("log")).unwrap();
        let child = self
            .command()
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        self.child = Some(child);
        let since = Instant::now();
        while !self.answers() {
            assert!(
                since.elapsed() < START_DEADLINE,
                "no answer: {}",
                self.log()
            );
            std::thread::sleep(Duration::from_millis(50));
        }
        self.prepared = true;
    }

    /// Garage answers 5xx until it has its layout, its key and its bucket.
    fn answers(&self) -> bool {
        let ask = || -> io::Result<String> {
            let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
            stream.set_read_timeout(Some(Duration::from_secs(2)))?;
            stream.write_all(b"GET / HTTP/1.0\r\nHost: localhost\r\n\r\n")?;
            let mut text = String::new();
            stream.read_to_string(&mut text)?;
            Ok(text)
        };
        let ready = ask().is_ok_and(|it| !it.is_empty() && !it.contains(" 50"));
        ready
            && (self.make != Make::Garage || self.prepared || self.log().contains("efault bucket"))
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.scratch.0.join("log")).unwrap_or_default()
    }

    /// SIGKILL, to the process that was started.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    pub fn region(&self) -> &'static str {
        match self.make {
            Make::S3sFs | Make::Versity | Make::Minio => "us-east-1",
            Make::Garage => "garage",
        }
    }

    /// Where it is, seen through this port.
    pub fn location_by(&self, port: u16) -> Location {
        Location {
            bucket: BUCKET.to_owned(),
            prefix: "edge/one".to_owned(),
            endpoint: Some(format!("http://127.0.0.1:{port}")),
            region: Some(self.region().to_owned()),
            path_style: true,
            ca_file: None,
            bandwidth: None,
        }
    }

    pub fn location(&self) -> Location {
        self.location_by(self.port)
    }

    pub fn bucket(&self) -> Bucket {
        self.bucket_by(self.port)
    }

    pub fn bucket_by(&self, port: u16) -> Bucket {
        bucket(&self.location_by(port))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.log();
            let from = log.len().saturating_sub(2_000);
            println!("{:?}: {}", self.make, log.get(from..).unwrap_or_default());
        }
        self.kill();
    }
}

pub fn credentials() -> Credentials {
    Credentials::new(KEY, SECRET, None)
}

pub fn wrong_secret() -> Credentials {
    Credentials::new(KEY, &"f".repeat(64), None)
}

pub fn unknown_key() -> Credentials {
    Credentials::new("GKdeadbeefdeadbeefdeadbeef", SECRET, None)
}

/// With the right keys, and a test's patience.
pub fn bucket(location: &Location) -> Bucket {
    Bucket::new(location, credentials())
        .unwrap()
        .with_patience(patience())
}

pub fn patience() -> Patience {
    Patience {
        connect: Duration::from_secs(5),
        stall: Duration::from_secs(10),
        back_off: Duration::from_millis(50),
        ..Patience::default()
    }
}

/// The library that fakes clocks, where it is installed.
pub fn fake_clock() -> Option<PathBuf> {
    let folders = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu"];
    folders
        .iter()
        .map(|it| Path::new(it).join("faketime/libfaketime.so.1"))
        .find(|it| it.exists())
}

/// Bytes that no two places have in common, and that cost no memory.
pub struct Sample {
    pub len: u64,
    /// How much was read of it.
    pub read: u64,
}

impl Sample {
    pub fn new(len: usize) -> Sample {
        Sample {
            len: len as u64,
            read: 0,
        }
    }

    pub fn fill(offset: u64, buffer: &mut [u8]) {
        for (place, byte) in (offset..).zip(buffer) {
            let word = (place / 8)
                .wrapping_mul(0x9E37_79B9_7F4A_7C15)
                .rotate_left(29);
            *byte = word.to_le_bytes()[usize::try_from(place % 8).unwrap()];
        }
    }

    pub fn bytes(len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        Sample::fill(0, &mut bytes);
        bytes
    }

    pub fn sha256(len: usize) -> String {
        let mut context = ring::digest::Context::new(&ring::digest::SHA256);
        let mut buffer = vec![0; MIB.min(len)];
        for offset in (0..len).step_by(MIB) {
            let most = MIB.min(len - offset);
            Sample::fill(offset as u64, &mut buffer[..most]);
            context.update(&buffer[..most]);
        }
        etcd_operator::state::hex(context.finish().as_ref())
    }
}

impl Source for Sample {
    fn read_at(&mut self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.len.saturating_sub(offset)).unwrap();
        let most = left.min(buffer.len());
        Sample::fill(offset, &mut buffer[..most]);
        self.read += most as u64;
        Ok(most)
    }

    fn len(&self) -> u64 {
        self.len
    }
}
