//! A real S3 server beside the first node, where its Pods reach it.

use std::fs;
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::lab::{SOON, root, tools};
use crate::operated::Operated;

pub const KEY: &str = "GK0123456789abcdef01234567";
pub const SECRET: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
/// Of the form that keys have, and nobody's.
pub const WRONG: &str = "ffeeddccbbaa99887766554433221100ffeeddccbbaa99887766554433221100";
const BUCKET: &str = "backups";
const PORT: u16 = 9000;

pub struct Server {
    children: Vec<Child>,
    dir: PathBuf,
    address: String,
}

impl Server {
    /// On the first node's network, with an empty bucket.
    pub fn start(it: &Operated) -> Server {
        let program = tools().join("s3s-fs");
        assert!(
            program.exists(),
            "no s3s-fs: run tests/tools/s3s-fs.sh target/tools/s3s-fs"
        );
        let dir = it.dir.join("s3");
        fs::create_dir_all(dir.join(BUCKET)).unwrap();
        let address = format!("{}.1", it.settings["NET"]);
        let log = fs::File::create(it.dir.join("log/s3.log")).unwrap();
        let child = Command::new("nsenter")
            .arg(it.network())
            .arg(program)
            .args(["--host", &address, "--port", &PORT.to_string()])
            .args(["--access-key", KEY, "--secret-key", SECRET])
            .arg(&dir)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let server = Server {
            children: vec![child],
            dir,
            address,
        };
        it.eventually("the S3 server", SOON, || {
            TcpStream::connect((server.address.as_str(), PORT)).ok()
        });
        server
    }

    /// The destination in a document, with the keys of this Secret.
    pub fn destination(&self, secret: &str) -> String {
        format!(
            "{{s3: {{bucket: {BUCKET}, prefix: edge, endpoint: 'http://{}:{PORT}', pathStyle: true, credentialsSecret: {secret}}}}}",
            self.address
        )
    }

    /// The same behind TLS, with a certificate of a CA that nobody knows: the destination, and that CA.
    pub fn behind_tls(&mut self, it: &Operated, secret: &str) -> (String, String) {
        let address = &self.address;
        let dir = it.dir.join("s3-tls");
        fs::create_dir_all(&dir).unwrap();
        let make = format!(
            "set -e; cd {}; new='openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1'; \
             $new -x509 -keyout ca.key -out ca.crt -subj /CN=shop 2> /dev/null; \
             $new -x509 -CA ca.crt -CAkey ca.key -keyout key -out crt -subj /CN=s3 \
                 -addext subjectAltName=IP:{address} -addext basicConstraints=critical,CA:FALSE 2> /dev/null",
            dir.display()
        );
        it.run_in_node(&["sh", "-c", &make]).good();
        let (plain, port) = (PORT.to_string(), (PORT + 443).to_string());
        let child = Command::new("nsenter")
            .arg(it.network())
            .arg(root().join("tests/tools/kube/tls.py"))
            .args([address, &port, &plain])
            .args([dir.join("crt"), dir.join("key")])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        self.children.push(child);
        it.eventually("TLS before the S3 server", SOON, || {
            TcpStream::connect((address.as_str(), PORT + 443)).ok()
        });
        let plain = format!("http://{address}:{PORT}");
        let tls = format!("https://{address}:{port}");
        let ca = fs::read_to_string(dir.join("ca.crt")).unwrap();
        (self.destination(secret).replace(&plain, &tls), ca)
    }

    /// Paths of what the bucket holds.
    pub fn holds(&self) -> Vec<String> {
        let mut found = Vec::new();
        let mut dirs = vec![self.dir.join(BUCKET)];
        while let Some(dir) = dirs.pop() {
            for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
                if entry.path().is_dir() {
                    dirs.push(entry.path());
                } else {
                    found.push(entry.path().to_string_lossy().into_owned());
                }
            }
        }
        found
    }

    /// Waits until a snapshot has arrived.
    #[track_caller]
    pub fn gets(&self, it: &Operated, snapshot: &str) {
        assert!(!snapshot.is_empty());
        it.eventually(&format!("{snapshot} in the bucket"), SOON, || {
            let all = self.holds();
            all.iter().any(|it| it.contains(snapshot)).then_some(())
        });
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A Secret with access keys, as a person would write it.
pub fn secret(name: &str, key: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Secret\nmetadata: {{name: {name}, namespace: default}}\nstringData:\n  credentials: |\n    [default]\n    aws_access_key_id = {KEY}\n    aws_secret_access_key = {key}\n"
    )
}

/// Whether a text has one of the keys in it, plain or as the API writes what a Secret holds.
pub fn tells_a_key(text: &str) -> bool {
    let plain = [KEY, SECRET, WRONG];
    // Of a longer text in base64, by where the key begins in it.
    let coded = plain.into_iter().flat_map(|key| {
        ["", " ", "  "].map(|before| {
            let coded = STANDARD.encode([before, key].concat());
            coded[4..coded.len() - 4].to_owned()
        })
    });
    let all = coded.chain(plain.map(str::to_owned));
    all.into_iter().any(|it| text.contains(&it))
}
