//! What answers over a connection: etcd's metrics, and listings of a bucket.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use etcd_operator::etcd::metrics;
use etcd_operator::s3::{Bucket, Credentials, Location};

use crate::{MIB, feed, found};

/// Answers each request with what lies in the cell.
fn server(answer: Arc<Mutex<Vec<u8>>>, kind: &'static str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut head = Vec::new();
            let mut byte = [0];
            while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).unwrap_or(0) == 1 {
                head.push(byte[0]);
            }
            let body = answer.lock().unwrap().clone();
            let head = format!(
                "HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
                body.len()
            );
            let _ = stream.write_all(head.as_bytes());
            let _ = stream.write_all(&body);
        }
    });
    address
}

fn runtime() -> tokio::runtime::Runtime {
    let builder = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    builder.unwrap()
}

#[test]
fn pages_of_metrics() {
    let answer = Arc::<Mutex<Vec<u8>>>::default();
    let address = server(answer.clone(), "text/plain");
    let inputs = [
        include_bytes!("metrics.txt").to_vec(),
        vec![b'x'; 3 << 20],
        b"etcd_server_proposals_pending ".repeat(100_000),
    ];
    let runtime = runtime();
    feed("metrics", &inputs, 1500, MIB, &mut |bytes| {
        allocation_counter::opt_out(|| *answer.lock().unwrap() = bytes.to_vec());
        let _ = runtime.block_on(metrics::read(address));
    });
}

#[test]
fn listings_of_a_bucket() {
    let answer = Arc::<Mutex<Vec<u8>>>::default();
    let address = server(answer.clone(), "application/xml");
    let listing: &[u8] = br#"<?xml version="1.0" encoding="UTF-8"?>
<ListBucketResult><Name>backup</Name><Prefix>shops/</Prefix><KeyCount>2</KeyCount><MaxKeys>500</MaxKeys>
<IsTruncated>false</IsTruncated>
<Contents><Key>shops/lab/lab-0-20261121T131500Z-r12-0000000a.db.zst</Key><LastModified>2026-11-21T13:15:00.000Z</LastModified><ETag>&quot;a&quot;</ETag><Size>900</Size><StorageClass>STANDARD</StorageClass></Contents>
<Contents><Key>shops/lab/lab-0-20261121T131500Z-r12-0000000a.json</Key><LastModified>2026-11-21T13:15:00.000Z</LastModified><ETag>&quot;b&quot;</ETag><Size>900</Size></Contents>
</ListBucketResult>"#;
    let error =
        br#"<?xml version="1.0"?><Error><Code>AccessDenied</Code><Message>no</Message></Error>"#;
    let inputs = [vec![listing.to_vec(), error.to_vec()], found()].concat();
    let location = Location {
        bucket: "backup".to_owned(),
        prefix: "shops".to_owned(),
        endpoint: Some(format!("http://{address}")),
        region: None,
        path_style: true,
        ca_file: None,
        bandwidth: None,
    };
    let runtime = runtime();
    feed("listing", &inputs, 300, 16 * MIB, &mut |bytes| {
        allocation_counter::opt_out(|| *answer.lock().unwrap() = bytes.to_vec());
        let keys = Credentials::new("key", "secret", None);
        let mut bucket = Bucket::new(&location, keys).unwrap();
        let _ = runtime.block_on(async {
            let mut each = |_| ();
            let listed = bucket.list("lab/", &mut each);
            tokio::time::timeout(Duration::from_secs(5), listed).await
        });
    });
}
