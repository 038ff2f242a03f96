//! `etcd install --download` from a mirror of the test's own, which breaks off, lies and leads elsewhere. The
//! project's own place cannot be had here, and neither can an archive whose checksum is in the operator's list.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};
use std::thread;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use etcd_operator::etcd::download::Part;
use etcd_operator::etcd::store;

use crate::lab::{Lab, program, text};

/// What was asked for: the path, and where it begins.
type Asked = (String, usize);
type Answer = dyn Fn(&Asked) -> Vec<u8> + Send + Sync;

/// A web server that gives one answer to each connection.
struct Mirror {
    address: SocketAddr,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Mirror {
    fn start(
        tls: Option<Arc<ServerConfig>>,
        answer: impl Fn(&Asked) -> Vec<u8> + Send + Sync + 'static,
    ) -> Mirror {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let asked: Arc<Mutex<Vec<Asked>>> = Arc::default();
        let (answer, seen): (Arc<Answer>, _) = (Arc::new(answer), Arc::clone(&asked));
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                match &tls {
                    None => serve(stream, &seen, &*answer),
                    Some(config) => {
                        let session = ServerConnection::new(Arc::clone(config)).unwrap();
                        serve(StreamOwned::new(session, stream), &seen, &*answer);
                    }
                }
            }
        });
        Mirror { address, asked }
    }

    fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }
}

/// One request; whoever does not finish it gets nothing.
fn serve(mut stream: impl Read + Write, seen: &Mutex<Vec<Asked>>, answer: &Answer) {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read(&mut byte) {
            Ok(1) => head.push(byte[0]),
            _ => return,
        }
    }
    let head = text(&head).to_lowercase();
    let path = head.split(' ').nth(1).unwrap().to_owned();
    let from = head
        .split_once("range: bytes=")
        .and_then(|(_, it)| it.split_once('-'));
    let asked = (path, from.map_or(0, |(from, _)| from.parse().unwrap()));
    let bytes = answer(&asked);
    seen.lock().unwrap().push(asked);
    let _ = stream.write_all(&bytes);
    let _ = stream.flush();
}

fn answered(status: &str, more: &str, length: usize, body: &[u8]) -> Vec<u8> {
    let head =
        format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\n{more}connection: close\r\n\r\n");
    [head.as_bytes(), body].concat()
}

/// The rest of a file from where it is asked for, of which no more than so many bytes come.
fn rest(file: &[u8], from: usize, most: usize) -> Vec<u8> {
    let rest = &file[from..];
    let status = if from == 0 {
        "200 OK"
    } else {
        "206 Partial Content"
    };
    let range = format!(
        "content-range: bytes {from}-{}/{}\r\n",
        file.len() - 1,
        file.len()
    );
    answered(status, &range, rest.len(), &rest[..rest.len().min(most)])
}

/// The etcd of the lab as a release is published, and its name.
fn archive(lab: &Lab) -> (String, Vec<u8>) {
    let name = format!("etcd-v{}-linux-{}", lab.version, arch());
    let dir = lab.root.join("release");
    fs::create_dir_all(dir.join(&name)).unwrap();
    fs::copy(lab.etcd.join("etcd"), dir.join(&name).join("etcd")).unwrap();
    let file = dir.join("release.tar.gz");
    let mut command = Command::new("tar");
    command
        .arg("-C")
        .arg(&dir)
        .arg("-czf")
        .arg(&file)
        .arg(&name);
    assert!(command.status().unwrap().success());
    (format!("{name}.tar.gz"), fs::read(file).unwrap())
}

fn arch() -> &'static str {
    if cfg!(target_arch = "aarch64") {
        "arm64"
    } else {
        "amd64"
    }
}

fn install(lab: &Lab, ca: Option<&Path>, arguments: &[&str]) -> Output {
    let mut command = Command::new(program());
    command.arg("--root").arg(&lab.root);
    command
        .args(["etcd", "install", "--download"])
        .args(arguments);
    if let Some(ca) = ca {
        command.env("SSL_CERT_FILE", ca).env_remove("SSL_CERT_DIR");
    }
    command.output().unwrap()
}

/// From a mirror that nobody vouches for.
fn unverified(lab: &Lab, ca: Option<&Path>, place: &str) -> Output {
    install(lab, ca, &["--mirror", place, "--unverified", &lab.version])
}

#[track_caller]
fn assert_installed(output: &Output) {
    assert!(output.status.success(), "{}", text(&output.stderr));
}

/// It ends with 1 for this reason, and nothing is installed.
#[track_caller]
fn assert_refused(lab: &Lab, output: &Output, words: &str) {
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains(words), "{said}");
    assert!(
        !lab.lib("store")
            .join(format!("etcd-{}", lab.version))
            .exists()
    );
}

/// What lies beside the state: parts of downloads.
fn parts(lab: &Lab) -> Vec<String> {
    let entries = fs::read_dir(lab.lib("").parent().unwrap()).unwrap();
    let names = entries.map(|it| it.unwrap().file_name().into_string().unwrap());
    names.filter(|it| it != "etcd-operator").collect()
}

/// A lab without an etcd in its store.
fn lab() -> Lab {
    let lab = Lab::new("3.6");
    fs::remove_dir_all(lab.lib("store")).unwrap();
    lab
}

#[test]
fn a_download_goes_on_where_the_link_broke() {
    let lab = lab();
    let (name, file) = archive(&lab);
    let (served, most) = (file.clone(), file.len() / 3 + 1);
    let mirror = Mirror::start(None, move |(_, from)| rest(&served, *from, most));
    let place = format!("http://{}/etcd", mirror.address);
    // Nobody vouches for what comes without TLS, and has no checksum here.
    let bare = install(&lab, None, &["--mirror", &place, &lab.version]);
    assert_refused(&lab, &bare, "does not prove who it is");
    assert!(mirror.asked().is_empty());

    let installed = unverified(&lab, None, &place);
    assert_installed(&installed);
    let path = format!("/etcd/v{}/{name}", lab.version);
    let from = |it: usize| (path.clone(), it);
    assert_eq!(mirror.asked(), [from(0), from(most), from(2 * most)]);
    assert_eq!(parts(&lab), Vec::<String>::new());
    let listed = text(&lab.operator(&["etcd", "list", "-o", "json"]).stdout);
    assert!(listed.contains("\"verified\": false"), "{listed}");
}

#[test]
fn a_download_that_was_given_up_is_gone_on_with_by_the_next() {
    let lab = lab();
    let (_, file) = archive(&lab);
    let (served, half) = (file.clone(), file.len() / 2);
    // The rest is no more for whoever asks.
    let mirror = Mirror::start(None, move |(_, from)| {
        if *from == 0 {
            rest(&served, 0, half)
        } else {
            answered("403 Forbidden", "", 0, b"")
        }
    });
    let place = format!("http://{}", mirror.address);
    let arguments = ["--mirror", &place, "--unverified", &lab.version];
    let given_up = install(&lab, None, &arguments);
    assert_refused(&lab, &given_up, "the same command goes on from there");
    let said = text(&given_up.stderr);
    assert!(
        said.contains("broke: ") && said.contains("trying again after"),
        "{said}"
    );
    assert_eq!(parts(&lab).len(), 1, "{:?}", parts(&lab));
    let served = file.clone();
    let mirror = Mirror::start(None, move |(_, from)| rest(&served, *from, usize::MAX));
    let place = format!("http://{}", mirror.address);
    let installed = unverified(&lab, None, &place);
    assert_installed(&installed);
    let from: Vec<usize> = mirror.asked().iter().map(|it| it.1).collect();
    assert_eq!(from, [half]);
    assert_eq!(parts(&lab), Vec::<String>::new());
}

#[test]
fn what_a_mirror_sends_instead_of_the_release_is_refused_and_not_kept() {
    let mut lab = lab();
    let (_, file) = archive(&lab);
    // Of a version whose checksum is in the list.
    "3.6.14".clone_into(&mut lab.version);
    let answers: [(Vec<u8>, &str); 7] = [
        (answered("200 OK", "", file.len(), &file), "has the sha256"),
        (
            answered("404 Not Found", "", 0, b""),
            "tar.gz (status 404); or download http://",
        ),
        (
            answered("200 OK", "", 1 << 30, b"a"),
            "is larger than 134217728 bytes",
        ),
        (
            answered("302 Found", "location: /around\r\n", 0, b""),
            "without an end",
        ),
        (
            answered("503 Busy", "", 0, b""),
            "does not send etcd-v3.6.14",
        ),
        (
            answered("302 Found", "location: ftp://a/b\r\n", 0, b""),
            "no address of the web",
        ),
        (b"SSH-2.0-OpenSSH\r\n".to_vec(), "broke"),
    ];
    for (answer, words) in answers {
        let mirror = Mirror::start(None, move |_| answer.clone());
        let place = format!("http://{}", mirror.address);
        let refused = install(&lab, None, &["--mirror", &place, &lab.version]);
        assert_refused(&lab, &refused, words);
        for part in parts(&lab) {
            let path = lab.lib("").parent().unwrap().join(part);
            assert_eq!(fs::metadata(path).unwrap().len(), 0, "{words}");
        }
    }
    let free = TcpListener::bind(("127.0.0.1", 0))
        .unwrap()
        .local_addr()
        .unwrap();
    let place = format!("http://{free}");
    let silent = install(&lab, None, &["--mirror", &place, &lab.version]);
    assert_refused(&lab, &silent, "cannot be reached");
    let wrong = install(&lab, None, &["--mirror", "mirror.example", &lab.version]);
    assert_eq!(wrong.status.code(), Some(2), "{}", text(&wrong.stderr));
}

/// Each begins with what lies there, and ends with the whole file.
#[test]
fn what_an_earlier_download_left_is_gone_on_with_or_fetched_anew() {
    let lab = lab();
    let (name, file) = archive(&lab);
    let (ca, config) = authority();
    let pem = lab.root.join("ca.pem");
    fs::write(&pem, ca).unwrap();
    let part = lab.lib("").parent().unwrap().join(format!(".{name}.part"));
    let sums = format!("{}  {name}\n", etcd_operator::state::sha256(&file));
    let half = file.len() / 2;
    let begun = file[..half].to_vec();
    let foreign = [vec![1; half], file[half..].to_vec()].concat();
    let longer = [&file[..], b"more"].concat();
    // What lies there, whether the server sends parts, and where it was asked to begin.
    let cases: [(&[u8], bool, &[usize]); 6] = [
        (&begun, true, &[half]),
        (&begun, false, &[half]),
        (&foreign[..half], true, &[half, 0]),
        (&foreign, true, &[file.len(), 0]),
        (&longer, true, &[longer.len(), 0]),
        (&file, true, &[]),
    ];
    for (there, parts_are_sent, asked) in cases {
        let _ = fs::remove_dir_all(lab.lib("store"));
        fs::create_dir_all(part.parent().unwrap()).unwrap();
        fs::write(&part, there).unwrap();
        let (served, sums) = (file.clone(), sums.clone());
        let mirror = Mirror::start(Some(Arc::clone(&config)), move |(path, from)| {
            if path.ends_with("/sha256sums") {
                answered("200 OK", "", sums.len(), sums.as_bytes())
            } else if *from >= served.len() {
                answered("416 Range Not Satisfiable", "", 0, b"")
            } else {
                let from = if parts_are_sent { *from } else { 0 };
                rest(&served, from, usize::MAX)
            }
        });
        let place = format!("https://{}", mirror.address);
        let output = install(&lab, Some(&pem), &["--mirror", &place, &lab.version]);
        assert!(
            output.status.success(),
            "{asked:?}: {}",
            text(&output.stderr)
        );
        let mut from = mirror.asked();
        from.retain(|it| !it.0.ends_with("/sha256sums"));
        let from: Vec<usize> = from.iter().map(|it| it.1).collect();
        assert_eq!(from, asked);
        assert_eq!(parts(&lab), Vec::<String>::new());
    }
}

/// As the project's own place does it.
#[test]
fn a_redirect_is_followed_with_its_words() {
    let lab = lab();
    let (_, file) = archive(&lab);
    let store = Mirror::start(None, move |(_, from)| rest(&file, *from, usize::MAX));
    let location = format!("location: http://{}/file?sig=a%2fb&x=1\r\n", store.address);
    let mirror = Mirror::start(None, move |_| answered("302 Found", &location, 0, b""));
    let place = format!("http://{}", mirror.address);
    let output = unverified(&lab, None, &place);
    assert_installed(&output);
    assert_eq!(store.asked(), [("/file?sig=a%2fb&x=1".to_owned(), 0)]);
}

#[test]
fn a_download_is_of_one_command_alone_and_a_verified_release_is_not_fetched_again() {
    let lab = lab();
    let (name, _) = archive(&lab);
    let mirror = Mirror::start(None, |_| answered("404 Not Found", "", 0, b""));
    let place = format!("http://{}", mirror.address);
    let arguments = ["--mirror", &place, "--unverified", &lab.version];
    let part = lab.lib("").parent().unwrap().join(format!(".{name}.part"));
    fs::create_dir_all(part.parent().unwrap()).unwrap();
    let held = Part::open(&part).unwrap();
    assert_refused(
        &lab,
        &install(&lab, None, &arguments),
        "another command downloads",
    );
    assert!(Part::open(&part).is_err());
    drop(held);
    assert!(mirror.asked().is_empty());
    assert_refused(&lab, &install(&lab, None, &arguments), "(status 404)");
    assert_eq!(mirror.asked().len(), 1);
    let version = lab.version.parse().unwrap();
    store::install(&lab.lib("store"), version, Some(&lab.etcd), false).unwrap();
    assert_installed(&install(&lab, None, &arguments));
    assert_eq!(mirror.asked().len(), 1);
}

/// A CA of the test's own, and a server that it vouches for.
fn authority() -> (String, Arc<ServerConfig>) {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let leaf = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    let leaf = leaf.signed_by(&key, &ca).unwrap();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![leaf.der().clone()], key)
        .unwrap();
    (ca.pem(), Arc::new(config))
}

#[test]
fn a_release_that_is_newer_than_the_operator_is_compared_with_the_list_beside_it() {
    let lab = lab();
    let (name, file) = archive(&lab);
    let (ca, config) = authority();
    let pem = lab.root.join("ca.pem");
    fs::write(&pem, ca).unwrap();
    let sum = etcd_operator::state::sha256(&file);
    let wrong = "0".repeat(64);
    for (sum, fits) in [(&wrong, false), (&sum, true)] {
        let (served, sums) = (
            file.clone(),
            format!("{wrong}  {name}.asc\n{sum}  {name}\n"),
        );
        let mirror = Mirror::start(Some(Arc::clone(&config)), move |(path, from)| {
            if path.ends_with("/sha256sums") {
                answered("200 OK", "", sums.len(), sums.as_bytes())
            } else {
                rest(&served, *from, usize::MAX)
            }
        });
        let place = format!("https://{}", mirror.address);
        let arguments = ["--mirror", &place, &lab.version];
        let stranger = install(&lab, None, &arguments);
        assert_refused(&lab, &stranger, "no CA that this machine trusts");
        let output = install(&lab, Some(&pem), &arguments);
        if !fits {
            assert_refused(
                &lab,
                &output,
                &format!("has {wrong}: it was changed on the way"),
            );
            assert_eq!(parts(&lab), Vec::<String>::new());
            continue;
        }
        let said = text(&output.stderr);
        assert!(output.status.success(), "{said}");
        assert!(
            said.contains("compared with the SHA256SUMS beside it"),
            "{said}"
        );
        // The mirror vouches for itself alone.
        let listed = text(&lab.operator(&["etcd", "list", "-o", "json"]).stdout);
        assert!(listed.contains("\"verified\": false"), "{listed}");
    }
}

#[test]
fn a_place_with_tls_leads_to_none_without() {
    let lab = lab();
    let (_, file) = archive(&lab);
    let (ca, config) = authority();
    let pem = lab.root.join("ca.pem");
    fs::write(&pem, ca).unwrap();
    let bare = Mirror::start(None, move |(_, from)| rest(&file, *from, usize::MAX));
    let location = format!("location: http://{}/\r\n", bare.address);
    let mirror = Mirror::start(Some(config), move |_| {
        answered("302 Found", &location, 0, b"")
    });
    let place = format!("https://{}", mirror.address);
    let led = unverified(&lab, Some(&pem), &place);
    assert_refused(&lab, &led, "leads to a place without TLS");
    assert!(bare.asked().is_empty());
}
