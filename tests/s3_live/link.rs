//! Links: slow, stalled, absent, behind TLS, behind a proxy.

use std::process::Command;
use std::time::{Duration, Instant};

use etcd_operator::s3::{Bucket, Location, Patience, S3Error};

use crate::lab::{
    MIB, Make, Sample, Scratch, Server, bucket, credentials, free_port, on, on_each, patience,
};
use crate::wire::{Proxy, Wire, private_ca};

async fn send(bucket: &mut Bucket, len: usize) -> Result<(), S3Error> {
    let sha256 = Sample::sha256(len);
    let mut source = Sample::new(len);
    bucket
        .upload(
            "x",
            &mut source,
            &sha256,
            None,
            &mut |_| Ok(()),
            &mut |_| {},
        )
        .await?;
    bucket.verify("x", len as u64, &sha256).await
}

#[test]
fn the_bandwidth_is_kept_within_both_ways_and_used() {
    on(Server::start(Make::S3sFs), |server| async move {
        let mut bucket = bucket(&Location {
            bandwidth: Some(MIB as u64),
            ..server.location()
        });
        let since = Instant::now();
        send(&mut bucket, 4 * MIB).await.unwrap();
        let sent = since.elapsed().as_secs_f64();
        let since = Instant::now();
        bucket.download("x", 0, &mut |_| Ok(())).await.unwrap();
        let received = since.elapsed().as_secs_f64();
        println!("4 MiB at 1 MiB/s: {sent:.2} s there, {received:.2} s back");
        for took in [sent, received] {
            // A quarter of a second may go at once.
            assert!(took > 3.7 && took < 6.0, "{took}");
        }
    });
}

/// Slower than the stall timeout for all of it, and never without a byte for so long.
#[test]
fn a_slow_link_is_not_a_stalled_one() {
    on_each(|server| async move {
        let wire = Wire::to(server.port());
        wire.slow_down(MIB as u64);
        let mut bucket = server.bucket_by(wire.port).with_patience(Patience {
            stall: Duration::from_secs(2),
            tries: 1,
            ..patience()
        });
        let since = Instant::now();
        send(&mut bucket, 6 * MIB).await.unwrap();
        assert!(since.elapsed() > Duration::from_secs(5));
        // Nor is one that is slow because we want it so.
        let mut modest = Bucket::new(
            &Location {
                bandwidth: Some(2_000),
                ..server.location()
            },
            credentials(),
        )
        .unwrap()
        .with_patience(Patience {
            stall: Duration::from_secs(1),
            tries: 1,
            ..patience()
        });
        let body = Sample::bytes(6_000);
        modest
            .put("y", body.into(), &Sample::sha256(6_000))
            .await
            .unwrap();
    });
}

#[test]
fn a_stalled_link_is_given_up_in_time_and_the_upload_goes_on_later() {
    on_each(|server| async move {
        let wire = Wire::to(server.port());
        let mut bucket = server.bucket_by(wire.port).with_patience(Patience {
            stall: Duration::from_secs(1),
            tries: 1,
            ..patience()
        });
        wire.stall_at(12 * MIB as u64);
        let len = 24 * MIB;
        let sha256 = Sample::sha256(len);
        let mut kept = None;
        let mut upload = async |resume| {
            let mut source = Sample::new(len);
            let mut keep = |it: &etcd_operator::s3::Upload| {
                kept = Some(it.clone());
                Ok(())
            };
            let since = Instant::now();
            let outcome = bucket
                .upload("x", &mut source, &sha256, resume, &mut keep, &mut |_| {})
                .await;
            (outcome, since.elapsed(), kept.clone())
        };
        let (outcome, took, last) = upload(None).await;
        let error = outcome.unwrap_err();
        assert!(matches!(error, S3Error::Stalled { .. }), "{error}");
        assert!(error.is_temporary());
        assert!(took < Duration::from_secs(8), "{took:?}");
        let last = last.unwrap();
        assert_eq!(last.parts.len(), 1);
        // A server that takes a request and never answers, too.
        let (outcome, ..) = upload(Some(last.clone())).await;
        assert!(matches!(outcome, Err(S3Error::Stalled { .. })));
        wire.cut();
        wire.flow();
        let before = wire.sent();
        let (outcome, ..) = upload(Some(last)).await;
        outcome.unwrap();
        let sent = wire.sent() - before;
        assert!(sent < 17 * MIB as u64, "{sent}");
        bucket.verify("x", len as u64, &sha256).await.unwrap();
    });
}

#[test]
fn nobody_there_is_told_at_once_and_it_works_when_somebody_is() {
    on(Server::start(Make::S3sFs), |mut server| async move {
        let mut bucket = server.bucket();
        send(&mut bucket, 1000).await.unwrap();
        server.kill();
        let error = send(&mut bucket, 1000).await.unwrap_err();
        println!("{error}");
        assert!(matches!(error, S3Error::Unreachable { .. }), "{error:?}");
        assert!(error.is_temporary() && error.to_string().contains("refused"));
        server.start_again();
        // The kept connection is gone with the old server.
        send(&mut bucket, 1000).await.unwrap();
        server.kill();
        server.start_again();
        send(&mut bucket, 1000).await.unwrap();
        let mut nameless = crate::lab::bucket(&Location {
            endpoint: Some("http://no-such-host.invalid:9000".to_owned()),
            ..server.location()
        });
        let error = nameless.head("x").await.unwrap_err();
        assert!(error.to_string().contains("name is not known"), "{error}");
    });
}

#[test]
fn a_private_ca_is_trusted_when_it_is_named_and_refused_when_not() {
    on_each(|server| async move {
        let scratch = Scratch::new("ca");
        let ca_file = scratch.0.join("ca.pem");
        let (ca, acceptor) = private_ca("a", &["localhost", "127.0.0.1"]);
        let (other, _) = private_ca("b", &["localhost"]);
        // A bundle: the CAs of several servers.
        std::fs::write(&ca_file, format!("{other}{ca}")).unwrap();
        let wire = Wire::with_tls(server.port(), acceptor);
        for host in ["localhost", "127.0.0.1"] {
            let trusting = Location {
                endpoint: Some(format!("https://{host}:{}", wire.port)),
                ca_file: Some(ca_file.clone()),
                ..server.location()
            };
            send(&mut bucket(&trusting), 20 * MIB).await.unwrap();
        }
        let before = wire.sent();
        // Another CA, and another that bears the right one's name.
        let (namesake, _) = private_ca("a", &["localhost", "127.0.0.1"]);
        std::fs::write(&ca_file, format!("{other}{namesake}")).unwrap();
        let foreign = Location {
            endpoint: Some(format!("https://localhost:{}", wire.port)),
            ca_file: Some(ca_file.clone()),
            ..server.location()
        };
        let error = send(&mut bucket(&foreign), 10).await.unwrap_err();
        println!("{error}");
        assert!(matches!(error, S3Error::Tls { .. }), "{error:?}");
        assert!(error.to_string().contains("caFile"));
        assert_eq!(wire.sent(), before, "something was sent to a stranger");

        let (ca, acceptor) = private_ca("c", &["s3.elsewhere"]);
        std::fs::write(&ca_file, ca).unwrap();
        let misnamed = Wire::with_tls(server.port(), acceptor);
        let error = send(
            &mut bucket(&Location {
                endpoint: Some(format!("https://localhost:{}", misnamed.port)),
                ..foreign.clone()
            }),
            10,
        )
        .await
        .unwrap_err();
        assert!(
            error.to_string().contains("not for the name localhost"),
            "{error}"
        );

        // TLS where there is none.
        let plain = Location {
            endpoint: Some(format!("https://127.0.0.1:{}", server.port())),
            ..foreign
        };
        let error = send(&mut bucket(&plain), 10).await.unwrap_err();
        println!("{error}");
        assert!(error.to_string().contains("http://"), "{error}");
    });
}

/// In a process of its own, whose environment names the proxy. Names are led to the server by the
/// proxy alone: nobody else knows them.
#[test]
fn a_proxy_of_the_environment_leads_to_the_server_by_connect() {
    const PORT: &str = "S3_LIVE_BEHIND_PROXY";
    if let Ok(port) = std::env::var(PORT) {
        behind_proxy(&port);
        return;
    }
    on(Server::start(Make::S3sFs), |server| async move {
        let scratch = Scratch::new("proxy");
        let ca_file = scratch.0.join("ca.pem");
        let (ca, acceptor) = private_ca("c", &["s3.behind.invalid"]);
        std::fs::write(&ca_file, ca).unwrap();
        let wire = Wire::with_tls(server.port(), acceptor);
        let proxy = Proxy::to(wire.port).await;
        let run = |exempt: &str| {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command
                .args([
                    "--exact",
                    "link::a_proxy_of_the_environment_leads_to_the_server_by_connect",
                ])
                .env(PORT, ca_file.display().to_string())
                .env(
                    "HTTPS_PROXY",
                    format!("http://user:p%40ss@127.0.0.1:{}", proxy.port),
                )
                .env("NO_PROXY", exempt);
            let running = tokio::task::spawn_blocking(move || command.output().unwrap());
            async { running.await.unwrap() }
        };
        let output = run("").await;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{text}");
        let asked = proxy.asked.lock().unwrap().clone();
        assert_eq!(asked.len(), 1);
        assert!(
            asked[0].starts_with("CONNECT s3.behind.invalid:443 HTTP/1.1\r\n"),
            "{asked:?}"
        );
        assert!(
            asked[0].contains("Proxy-Authorization: Basic dXNlcjpwQHNz\r\n"),
            "{asked:?}"
        );
        // Exempt: the name is looked up here, and nobody knows it.
        assert!(!run("behind.invalid").await.status.success());
        assert_eq!(proxy.asked.lock().unwrap().len(), 1);
    });
}

fn behind_proxy(ca_file: &str) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let location = Location {
        bucket: crate::lab::BUCKET.to_owned(),
        endpoint: Some("https://s3.behind.invalid".to_owned()),
        path_style: true,
        ca_file: Some(ca_file.into()),
        ..Location::default()
    };
    runtime.block_on(async {
        send(&mut bucket(&location), MIB).await.unwrap();
    });
}

#[test]
fn a_port_where_nobody_answers_costs_the_deadline_only() {
    on(Server::start(Make::S3sFs), |server| async move {
        // A listener whose queue is never emptied: it is connected to, and then silent.
        let (_, _claim) = free_port();
        let silent = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = silent.local_addr().unwrap().port();
        let mut bucket = server.bucket_by(port).with_patience(Patience {
            stall: Duration::from_millis(500),
            tries: 1,
            ..patience()
        });
        let since = Instant::now();
        let error = bucket.head("x").await.unwrap_err();
        assert!(matches!(error, S3Error::Stalled { .. }), "{error:?}");
        assert!(since.elapsed() < Duration::from_secs(3));
        let mut bucket = crate::lab::bucket(&Location {
            endpoint: Some(format!("https://127.0.0.1:{port}")),
            ..server.location()
        })
        .with_patience(Patience {
            connect: Duration::from_millis(500),
            tries: 1,
            ..patience()
        });
        let since = Instant::now();
        let error = bucket.head("x").await.unwrap_err();
        assert!(matches!(error, S3Error::Unreachable { .. }), "{error:?}");
        assert!(since.elapsed() < Duration::from_secs(3));
    });
}
