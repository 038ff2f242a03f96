//! Long objects: in parts, over links that break, to servers that die, in little memory.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use etcd_operator::s3::{Bucket, Patience, S3Error, Upload};

use crate::lab::{MIB, Make, Sample, Server, on, on_each, patience};
use crate::wire::Wire;

const LEN: usize = 40 * MIB;
/// What is sent besides payload: heads of requests.
const TALK: u64 = 256 * 1024;

/// Uploads 40 MiB; gives the state as it was kept last.
async fn upload(
    bucket: &mut Bucket,
    resume: Option<Upload>,
    kept: &Arc<Mutex<Vec<Upload>>>,
) -> Result<(), S3Error> {
    let mut source = Sample::new(LEN);
    let keep = Arc::clone(kept);
    bucket
        .upload(
            "long",
            &mut source,
            &Sample::sha256(LEN),
            resume,
            &mut |it| {
                // As on disk: what cannot be read back is not kept.
                let text = serde_json::to_string(it).unwrap();
                keep.lock()
                    .unwrap()
                    .push(serde_json::from_str(&text).unwrap());
                Ok(())
            },
            &mut |_| {},
        )
        .await
}

async fn assert_whole(bucket: &mut Bucket) {
    bucket
        .verify("long", LEN as u64, &Sample::sha256(LEN))
        .await
        .unwrap();
    let mut read = ring::digest::Context::new(&ring::digest::SHA256);
    let passed = bucket
        .download("long", 0, &mut |data| {
            read.update(data);
            Ok(())
        })
        .await
        .unwrap();
    assert_eq!(passed, LEN as u64);
    let read = etcd_operator::state::hex(read.finish().as_ref());
    assert_eq!(read, Sample::sha256(LEN));
}

#[test]
fn forty_mebibytes_go_in_five_parts_and_come_back() {
    on_each(|server| async move {
        let wire = Wire::to(server.port());
        let mut bucket = server.bucket_by(wire.port);
        let kept = Arc::default();
        upload(&mut bucket, None, &kept).await.unwrap();
        assert!(wire.sent() > LEN as u64 && wire.sent() < LEN as u64 + TALK);
        assert_eq!(wire.connections(), 1);
        let states: Vec<usize> = kept
            .lock()
            .unwrap()
            .iter()
            .map(|it| it.parts.len())
            .collect();
        assert_eq!(states, [0, 1, 2, 3, 4, 5]);
        assert_whole(&mut bucket).await;
    });
}

/// The server is killed in the middle of the fourth part.
async fn killed_in_a_part(server: Server) -> (Server, Wire, Upload) {
    let wire = Wire::to(server.port());
    let mut bucket = server.bucket_by(wire.port).with_patience(Patience {
        tries: 2,
        ..patience()
    });
    let server = Arc::new(Mutex::new(server));
    let doomed = Arc::clone(&server);
    wire.when_sent(28 * MIB as u64, move || doomed.lock().unwrap().kill());
    let kept = Arc::default();
    let error = upload(&mut bucket, None, &kept).await.unwrap_err();
    assert!(error.is_temporary(), "{error}");
    // The wire let go of it when it sprang.
    let mut server = Arc::into_inner(server).unwrap().into_inner().unwrap();
    server.start_again();
    let last = kept.lock().unwrap().last().unwrap().clone();
    assert_eq!(last.parts.len(), 3);
    assert_eq!(last.confirmed(), 24 * MIB as u64);
    (server, wire, last)
}

#[test]
fn a_server_killed_in_a_part_is_sent_the_rest_and_no_more() {
    on_each(|server| async move {
        let (server, wire, last) = killed_in_a_part(server).await;
        let before = wire.sent();
        let mut bucket = server.bucket_by(wire.port);
        let kept = Arc::default();
        upload(&mut bucket, Some(last.clone()), &kept)
            .await
            .unwrap();
        let sent = wire.sent() - before;
        println!(
            "{:?}: {sent} bytes for the 16 MiB that were missing",
            server.make()
        );
        assert!(
            sent > 16 * MIB as u64 && sent < 16 * MIB as u64 + TALK,
            "{sent}"
        );
        assert!(
            kept.lock()
                .unwrap()
                .iter()
                .all(|it| it.upload_id == last.upload_id)
        );
        assert_whole(&mut bucket).await;
    });
}

#[test]
fn a_part_that_the_server_lost_is_sent_again() {
    on_each(|server| async move {
        let (server, wire, mut last) = killed_in_a_part(server).await;
        match server.make() {
            Make::S3sFs => {
                let name = format!(".upload_id-{}.part-2", last.upload_id);
                std::fs::remove_file(server.data().join(name)).unwrap();
            }
            // It hides its parts: what we believe of the second is not what it says.
            Make::Versity | Make::Garage | Make::Minio => last.parts[1] = format!("\"{:032x}\"", 0),
        }
        let before = wire.sent();
        let mut bucket = server.bucket_by(wire.port);
        upload(&mut bucket, Some(last), &Arc::default())
            .await
            .unwrap();
        let sent = wire.sent() - before;
        assert!(
            sent > 32 * MIB as u64 && sent < 32 * MIB as u64 + TALK,
            "{sent}"
        );
        assert_whole(&mut bucket).await;
    });
}

#[test]
fn an_upload_of_another_file_or_one_that_the_server_forgot_begins_anew() {
    on_each(|server| async move {
        let (server, wire, last) = killed_in_a_part(server).await;
        let mut bucket = server.bucket_by(wire.port);
        // Of a file with other content nothing is taken over, and the server may free it.
        let stale = Upload {
            sha256: Sample::sha256(1),
            ..last.clone()
        };
        let before = wire.sent();
        upload(&mut bucket, Some(stale), &Arc::default())
            .await
            .unwrap();
        assert!(wire.sent() - before > LEN as u64);
        assert_whole(&mut bucket).await;
        match (server.make(), bucket.abort(&last).await) {
            (Make::Versity | Make::Garage | Make::Minio, Ok(())) => {}
            // Its word for what it does not know.
            (Make::S3sFs, Err(S3Error::Denied { .. })) => {}
            (make, other) => panic!("{make:?}: {other:?}"),
        }
        let kept: Arc<Mutex<Vec<Upload>>> = Arc::default();
        upload(&mut bucket, Some(last.clone()), &kept)
            .await
            .unwrap();
        assert_ne!(
            kept.lock().unwrap().last().unwrap().upload_id,
            last.upload_id
        );
        assert_whole(&mut bucket).await;
    });
}

#[test]
fn a_link_that_breaks_in_a_part_costs_that_part_only() {
    on_each(|server| async move {
        let wire = Arc::new(Wire::to(server.port()));
        let mut bucket = server.bucket_by(wire.port);
        let inner = Arc::downgrade(&wire);
        wire.when_sent(20 * MIB as u64, move || inner.upgrade().unwrap().cut());
        upload(&mut bucket, None, &Arc::default()).await.unwrap();
        let most = LEN as u64 + 5 * MIB as u64;
        assert!(wire.sent() < most, "{}", wire.sent());
        assert!(wire.connections() >= 2);
        assert_whole(&mut bucket).await;
        // And a download goes on where it was.
        let before = wire.received();
        let (mut read, mut cut) = (0, false);
        let (passing, link) = (&mut read, &wire);
        let passed = bucket
            .download("long", 0, &mut |data| {
                *passing += data.len();
                if *passing > 20 * MIB && !cut {
                    cut = true;
                    link.cut();
                }
                Ok(())
            })
            .await
            .unwrap();
        assert_eq!((passed, read), (LEN as u64, LEN));
        let again = wire.received() - before - LEN as u64;
        assert!(again < 8 * MIB as u64, "{again} bytes twice");
    });
}

#[test]
fn uploads_that_nobody_finished_are_swept_where_the_server_can_list_them() {
    on_each(|server| async move {
        let (server, _wire, last) = killed_in_a_part(server).await;
        let mut bucket = server.bucket();
        let all = ("", &(|_: &str| true) as &(dyn Fn(&str) -> bool + Sync));
        // Another's, too young, and kept: all stay.
        let none = ("", &(|_: &str| false) as &(dyn Fn(&str) -> bool + Sync));
        for other in [none, ("another/", all.1)] {
            assert_eq!(bucket.sweep(other, Duration::ZERO, &[]).await.unwrap(), 0);
        }
        assert_eq!(
            bucket
                .sweep(all, Duration::from_secs(3600), &[])
                .await
                .unwrap(),
            0
        );
        let keep = [last.upload_id.clone()];
        assert_eq!(bucket.sweep(all, Duration::ZERO, &keep).await.unwrap(), 0);
        let mut beside = crate::lab::bucket(&etcd_operator::s3::Location {
            prefix: "edge/other".to_owned(),
            ..server.location()
        });
        assert_eq!(beside.sweep(all, Duration::ZERO, &[]).await.unwrap(), 0);
        let swept = bucket.sweep(all, Duration::ZERO, &[]).await.unwrap();
        // MinIO lists those of one key only, and sweeps by itself after a day.
        let lists = !matches!(server.make(), Make::S3sFs | Make::Minio);
        assert_eq!(swept, u64::from(lists));
        let kept: Arc<Mutex<Vec<Upload>>> = Arc::default();
        upload(&mut bucket, Some(last.clone()), &kept)
            .await
            .unwrap();
        let anew = kept.lock().unwrap().last().unwrap().upload_id != last.upload_id;
        assert_eq!(anew, lists);
    });
}

#[test]
fn a_source_that_shrinks_or_fails_ends_the_upload_with_its_reason() {
    on(Server::start(Make::S3sFs), |server| async move {
        struct Failing(Sample, u64);
        impl etcd_operator::s3::Source for Failing {
            fn read_at(&mut self, offset: u64, buffer: &mut [u8]) -> std::io::Result<usize> {
                if offset >= self.1 {
                    return Err(std::io::Error::other("the card is gone"));
                }
                self.0.read_at(offset, buffer)
            }
            fn len(&self) -> u64 {
                self.0.len()
            }
        }
        let mut bucket = server.bucket();
        let mut failing = Failing(Sample::new(LEN), 20 * MIB as u64);
        let outcome = bucket
            .upload("x", &mut failing, "0", None, &mut |_| Ok(()), &mut |_| {})
            .await;
        let error = outcome.unwrap_err();
        assert!(
            matches!(error, S3Error::Local(_)) && error.to_string().contains("the card is gone")
        );
        assert!(bucket.head("x").await.unwrap().is_none());
        // And where the state cannot be kept, nothing goes on behind the caller's back.
        let outcome = bucket
            .upload(
                "x",
                &mut Sample::new(LEN),
                "0",
                None,
                &mut |_| Err(std::io::Error::other("no space")),
                &mut |_| {},
            )
            .await;
        assert!(matches!(outcome, Err(S3Error::Local(_))));
    });
}

/// As the allocator is asked for it, on the thread that everything runs on.
#[test]
fn memory_does_not_grow_with_the_object() {
    let peaks = [24 * MIB, 96 * MIB].map(|len| {
        let server = Server::start(Make::S3sFs);
        let measured = allocation_counter::measure(|| {
            on(server, |server| async move {
                let mut bucket = server.bucket();
                let mut source = Sample::new(len);
                bucket
                    .upload("big", &mut source, "0", None, &mut |_| Ok(()), &mut |_| {})
                    .await
                    .unwrap();
                assert_eq!(source.read, 2 * len as u64, "each part is read twice");
                let passed = bucket.download("big", 0, &mut |_| Ok(())).await.unwrap();
                assert_eq!(passed, len as u64);
            });
        });
        measured.bytes_max / 1024
    });
    println!("peak of a copy and its way back, for 24 and 96 MiB: {peaks:?} KiB");
    assert!(peaks.iter().all(|it| *it < 1024), "{peaks:?} KiB");
    assert!(peaks[1] < peaks[0] + 256, "{peaks:?} KiB");
}
