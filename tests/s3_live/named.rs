//! A bucket in the host's name, with versions and object lock, as large stores have them.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use etcd_operator::clock::{self, rfc3339};
use etcd_operator::cluster::Timestamp;
use etcd_operator::s3::{Deletion, Location};
use rusty_s3::actions::{CreateBucket, PutObject, S3Action};

use crate::lab::{Around, KEY, MIB, Make, SECRET, Sample, Server, bucket, on, skip};

/// Set where this test runs a second time, among mounts in which the bucket's name stands for loopback.
const WITHIN: &str = "ETCD_OPERATOR_TEST_HOSTS";
const DOMAIN: &str = "s3.test";
const LOCKED: &str = "locked";

fn locked(port: u16) -> (rusty_s3::Bucket, rusty_s3::Credentials) {
    let endpoint = format!("http://{DOMAIN}:{port}").parse().unwrap();
    let style = rusty_s3::UrlStyle::VirtualHost;
    let bucket = rusty_s3::Bucket::new(endpoint, style, LOCKED, "us-east-1").unwrap();
    (bucket, rusty_s3::Credentials::new(KEY, SECRET))
}

/// What our own client never asks for: a request with headers of its own.
fn put<'a>(
    port: u16,
    mut action: impl S3Action<'a>,
    headers: &[(&'static str, String)],
    body: &str,
) {
    for (name, value) in headers {
        action.headers_mut().insert(*name, value.clone());
    }
    let url = action.sign(Duration::from_secs(60));
    let host = format!("{}:{port}", url.host_str().unwrap());
    let mut stream = TcpStream::connect(&host).unwrap();
    let (path, query) = (url.path(), url.query().unwrap());
    let headers: Vec<String> = headers
        .iter()
        .map(|it| format!("{}: {}\r\n", it.0, it.1))
        .collect();
    let headers = headers.concat();
    write!(
        stream,
        "PUT {path}?{query} HTTP/1.1\r\nHost: {host}\r\n{headers}Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

/// Made by the server, whose buckets have object lock from their birth or never.
fn create_locked(port: u16) {
    let (bucket, keys) = locked(port);
    let lock = ("x-amz-bucket-object-lock-enabled", "true".to_owned());
    put(port, CreateBucket::new(&bucket, &keys), &[lock], "");
}

/// An object that nobody removes before tomorrow.
fn put_retained(port: u16, key: &str) {
    let (bucket, keys) = locked(port);
    let tomorrow = Timestamp(clock::now().0 + 86_400);
    let retention = [
        ("x-amz-object-lock-mode", "COMPLIANCE".to_owned()),
        ("x-amz-object-lock-retain-until-date", rfc3339(tomorrow)),
    ];
    put(
        port,
        PutObject::new(&bucket, Some(&keys), key),
        &retention,
        "kept",
    );
}

async fn objects_come_and_go(server: Server) {
    create_locked(server.port());
    let mut bucket = bucket(&Location {
        bucket: LOCKED.to_owned(),
        endpoint: Some(format!("http://{DOMAIN}:{}", server.port())),
        path_style: false,
        ..server.location()
    });
    // Such a store refuses objects and parts whose request does not name their checksum.
    for len in [300_000, 40 * MIB] {
        let (key, sha256) = (format!("of {len}.zst"), Sample::sha256(len));
        let mut source = Sample::new(len);
        let (save, progress) = (&mut |_: &_| Ok(()), &mut |_| {});
        bucket
            .upload(&key, &mut source, &sha256, None, save, progress)
            .await
            .unwrap();
        bucket.verify(&key, len as u64, &sha256).await.unwrap();
        // A second version of the same key, which is the one that counts.
        let newer = Sample::sha256(len - 1);
        let body = Sample::bytes(len - 1);
        bucket.put(&key, body.into(), &newer).await.unwrap();
        bucket.verify(&key, len as u64 - 1, &newer).await.unwrap();
        let mut listed = Vec::new();
        bucket
            .list("", &mut |it| listed.push(it.key))
            .await
            .unwrap();
        assert_eq!(listed, std::slice::from_ref(&key));
        // The version itself goes, and its bytes with it: the one before counts again, until it goes, too.
        assert_eq!(bucket.delete(&key).await.unwrap(), Deletion::Deleted);
        bucket.verify(&key, len as u64, &sha256).await.unwrap();
        assert_eq!(bucket.delete(&key).await.unwrap(), Deletion::Deleted);
        assert_eq!(bucket.head(&key).await.unwrap(), None);
        bucket
            .list("", &mut |it| panic!("{}", it.key))
            .await
            .unwrap();
    }
    // What is under retention stays, and that is no failure.
    let prefix = server.location().prefix;
    put_retained(server.port(), &format!("{prefix}/retained"));
    let kept = bucket.delete("retained").await.unwrap();
    assert!(matches!(kept, Deletion::Kept(_)), "{kept:?}");
    assert!(bucket.head("retained").await.unwrap().is_some());
}

#[test]
fn a_bucket_in_the_host_name_with_versions_and_object_lock() {
    if !Make::all().contains(&Make::Versity) {
        return skip("only versitygw has object lock here");
    }
    if std::env::var_os(WITHIN).is_some() {
        let around = Around::Versions(DOMAIN);
        return on(Server::start_in(Make::Versity, around), objects_come_and_go);
    }
    let hosts = std::env::temp_dir().join(format!("hosts-{}", std::process::id()));
    fs::write(
        &hosts,
        format!("127.0.0.1 localhost {DOMAIN} {LOCKED}.{DOMAIN}\n"),
    )
    .unwrap();
    let name = "named::a_bucket_in_the_host_name_with_versions_and_object_lock";
    let script = "mount --bind \"$1\" /etc/hosts && shift && exec \"$@\"";
    let ran = Command::new("unshare")
        .args([
            "--mount",
            "--propagation",
            "private",
            "sh",
            "-c",
            script,
            "sh",
        ])
        .arg(&hosts)
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(WITHIN, "yes")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ran.stdout);
    let why = String::from_utf8_lossy(&ran.stderr);
    fs::remove_file(hosts).unwrap();
    assert!(
        ran.status.success() && said.contains("1 passed"),
        "{said}\n{why}"
    );
}
