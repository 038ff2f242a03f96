//! Objects are stored, told, read, listed and deleted, below the prefix only.

use etcd_operator::s3::{Deletion, Location, Patience, S3Error};

use crate::lab::{MIB, Sample, bucket, on_each, patience};

#[test]
fn an_object_is_stored_told_read_and_deleted() {
    on_each(|server| async move {
        let mut bucket = server.bucket();
        let body = Sample::bytes(300_000);
        let sha256 = Sample::sha256(300_000);
        let key = "snapshots/2026-11-21 12:00:00+01 ü.zst";
        assert_eq!(bucket.head(key).await.unwrap(), None);
        bucket.put(key, body.clone().into(), &sha256).await.unwrap();
        let told = bucket.head(key).await.unwrap().unwrap();
        assert_eq!((told.key.as_str(), told.len), (key, 300_000));
        assert_eq!(told.sha256.as_ref(), Some(&sha256));
        let now = etcd_operator::clock::now();
        assert!(told.modified.unwrap().seconds_since(now).abs() < 60);
        bucket.verify(key, 300_000, &sha256).await.unwrap();
        assert_eq!(bucket.get(key, 300_000).await.unwrap(), body);
        assert!(matches!(
            bucket.get(key, 299_999).await,
            Err(S3Error::TooLarge { most: 299_999, .. })
        ));
        let mut tail = Vec::new();
        let passed = bucket
            .download(key, 299_000, &mut |data| {
                tail.extend_from_slice(data);
                Ok(())
            })
            .await
            .unwrap();
        assert_eq!((passed, tail.as_slice()), (1_000, &body[299_000..]));
        for _ in 0..2 {
            assert_eq!(bucket.delete(key).await.unwrap(), Deletion::Deleted);
        }
        assert_eq!(bucket.head(key).await.unwrap(), None);
        assert!(matches!(bucket.get(key, 1).await, Err(S3Error::Missing(_))));
        let differs = bucket.verify(key, 1, &sha256).await;
        assert!(matches!(differs, Err(S3Error::Missing(_))));
    });
}

#[test]
fn what_differs_from_what_was_sent_is_found() {
    on_each(|server| async move {
        let mut bucket = server.bucket();
        let sha256 = Sample::sha256(10);
        bucket
            .put("a", Sample::bytes(10).into(), &sha256)
            .await
            .unwrap();
        bucket.verify("a", 10, &sha256).await.unwrap();
        let other = Sample::sha256(11);
        for (len, sha256) in [(11, &sha256), (10, &other)] {
            let error = bucket.verify("a", len, sha256).await.unwrap_err();
            assert!(matches!(error, S3Error::Differs { .. }), "{error}");
            assert!(error.is_temporary());
        }
    });
}

#[test]
fn a_listing_of_many_pages_holds_every_key_once_and_none_beside_the_prefix() {
    on_each(|server| async move {
        let sha256 = Sample::sha256(1);
        // Neighbours: the prefix begins with theirs, theirs with it, and one beside.
        for prefix in ["edge", "edge/one-b", "edge/two", ""] {
            let mut beside = bucket(&Location {
                prefix: prefix.to_owned(),
                ..server.location()
            });
            beside
                .put("beside", Sample::bytes(1).into(), &sha256)
                .await
                .unwrap();
        }
        let mut ours = server.bucket().with_patience(Patience {
            page: 4,
            ..patience()
        });
        let mut empty = 0;
        ours.list("", &mut |_| empty += 1).await.unwrap();
        assert_eq!(empty, 0);
        let mut expected = Vec::new();
        for number in 0..10 {
            for folder in ["snap", "trial & error"] {
                let key = format!("{folder}/{number:02} +%&<ü>.zst");
                ours.put(&key, Sample::bytes(number).into(), &sha256)
                    .await
                    .unwrap();
                expected.push((key, number as u64));
            }
        }
        expected.sort();
        let mut found = Vec::new();
        ours.list("", &mut |it| found.push((it.key, it.len)))
            .await
            .unwrap();
        found.sort();
        assert_eq!(found, expected);
        found.clear();
        ours.list("snap/0", &mut |it| found.push((it.key, it.len)))
            .await
            .unwrap();
        assert_eq!(found.len(), 10);
        assert!(found.iter().all(|it| it.0.starts_with("snap/0")));
    });
}

#[test]
fn no_key_leaves_the_prefix() {
    on_each(|server| async move {
        let mut bucket = server.bucket();
        for key in ["../two/a", "a/../../b", "/a", "a//b", "a/", "", ".", "a\nb"] {
            let outcome = bucket.put(key, Sample::bytes(1).into(), "x").await;
            assert!(matches!(outcome, Err(S3Error::Key(_))), "{key}");
            assert!(
                matches!(bucket.delete(key).await, Err(S3Error::Key(_))),
                "{key}"
            );
        }
        let mut beside = crate::lab::bucket(&Location {
            prefix: String::new(),
            ..server.location()
        });
        let mut any = 0;
        beside.list("", &mut |_| any += 1).await.unwrap();
        assert_eq!(any, 0);
    });
}

#[test]
fn an_object_below_16_mib_is_sent_in_one_stream() {
    on_each(|server| async move {
        let mut bucket = server.bucket();
        let len = 16 * MIB - 1;
        let sha256 = Sample::sha256(len);
        let mut source = Sample::new(len);
        let mut seen = Vec::new();
        let mut saved = 0;
        bucket
            .upload(
                "whole",
                &mut source,
                &sha256,
                None,
                &mut |_| {
                    saved += 1;
                    Ok(())
                },
                &mut |it| seen.push(it),
            )
            .await
            .unwrap();
        bucket.verify("whole", len as u64, &sha256).await.unwrap();
        assert_eq!(saved, 0);
        assert!(seen.is_sorted() && seen.last() == Some(&(len as u64)));
        assert_eq!(
            bucket.get("whole", len as u64).await.unwrap(),
            Sample::bytes(len)
        );
    });
}
