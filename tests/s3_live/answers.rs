//! Answers that are not what they claim to be. The server behind the spoiler is real.

use std::sync::{Arc, Mutex};

use etcd_operator::s3::{Deletion, Object, S3Error, Upload};

use crate::editor::{Editor, Verdict, instead};
use crate::lab::{MIB, Make, Sample, Server, on, on_each};

const LEN: usize = 17 * MIB;
const ERROR: &str = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\n<Error><Code>InternalError</Code>\
                     <Message>We encountered an internal error.</Message></Error>";
const PAGE: &str = "<!DOCTYPE html><html><title>Welcome</title>Please log in</html>";

fn is_complete(asked: &str) -> bool {
    asked.starts_with("POST") && asked.contains("uploadId=")
}

async fn upload(bucket: &mut etcd_operator::s3::Bucket) -> (Result<(), S3Error>, Option<Upload>) {
    let mut kept = None;
    let outcome = bucket
        .upload(
            "x",
            &mut Sample::new(LEN),
            &Sample::sha256(LEN),
            None,
            &mut |it| {
                kept = Some(it.clone());
                Ok(())
            },
            &mut |_| {},
        )
        .await;
    (outcome, kept)
}

#[test]
fn an_error_in_an_answer_of_success_is_an_error() {
    on_each(|server| async move {
        let spoiled = Arc::new(Mutex::new(u32::MAX));
        let left = Arc::clone(&spoiled);
        let editor = Editor::before(server.port(), move |asked| {
            let mut left = left.lock().unwrap();
            if is_complete(asked) && *left > 0 {
                *left -= 1;
                return instead(200, "application/xml", ERROR);
            }
            Verdict::Pass
        })
        .await;
        let mut bucket = server.bucket_by(editor.port);
        let (outcome, kept) = upload(&mut bucket).await;
        let error = outcome.unwrap_err();
        println!("{error}");
        assert!(matches!(&error, S3Error::Server { code, .. } if code == "InternalError"));
        assert!(error.is_temporary());
        assert!(bucket.head("x").await.unwrap().is_none());
        // All parts are there: next time nothing but the end is missing, and one failure is no more.
        *spoiled.lock().unwrap() = 1;
        let before = editor.count("PUT");
        bucket
            .upload(
                "x",
                &mut Sample::new(LEN),
                &Sample::sha256(LEN),
                kept,
                &mut |_| Ok(()),
                &mut |_| {},
            )
            .await
            .unwrap();
        assert_eq!(editor.count("PUT"), before);
        bucket
            .verify("x", LEN as u64, &Sample::sha256(LEN))
            .await
            .unwrap();
    });
}

#[test]
fn an_error_in_the_answer_to_a_put_is_an_error() {
    on(Server::start(Make::S3sFs), |server| async move {
        let editor = Editor::before(server.port(), |asked| match asked {
            put if put.starts_with("PUT") => instead(200, "application/xml", ERROR),
            _ => Verdict::Pass,
        })
        .await;
        let mut bucket = server.bucket_by(editor.port);
        let error = bucket
            .put("a", Sample::bytes(9).into(), "x")
            .await
            .unwrap_err();
        assert!(matches!(error, S3Error::Server { .. }), "{error:?}");
        assert_eq!(
            editor.count("PUT"),
            3,
            "it was tried again, and not for ever"
        );
    });
}

#[test]
fn the_answer_to_the_end_of_an_upload_may_be_lost() {
    on_each(|server| async move {
        let mut left = 1;
        let editor = Editor::before(server.port(), move |asked| {
            if is_complete(asked) && left > 0 {
                left -= 1;
                return Verdict::Lose;
            }
            Verdict::Pass
        })
        .await;
        let mut bucket = server.bucket_by(editor.port);
        upload(&mut bucket).await.0.unwrap();
        bucket
            .verify("x", LEN as u64, &Sample::sha256(LEN))
            .await
            .unwrap();
    });
}

#[test]
fn a_page_for_people_is_no_store_whatever_its_status() {
    on(Server::start(Make::S3sFs), |server| async move {
        for (status, kind) in [
            (200, "text/html; charset=utf-8"),
            (200, "application/octet-stream"),
            (302, "text/html"),
            (403, "text/html"),
            (404, "text/html"),
            (502, "text/html"),
            (302, "text/plain"),
        ] {
            let editor = Editor::before(server.port(), move |_| {
                instead(status, kind, if kind == "text/plain" { "" } else { PAGE })
            })
            .await;
            let mut bucket = server.bucket_by(editor.port);
            let sha256 = Sample::sha256(9);
            let errors = [
                bucket
                    .put("a", Sample::bytes(9).into(), &sha256)
                    .await
                    .unwrap_err(),
                bucket.list("", &mut |_| {}).await.unwrap_err(),
                bucket.delete("a").await.unwrap_err(),
                upload(&mut bucket).await.0.unwrap_err(),
            ];
            for error in errors {
                // The answer to HEAD has no body, so only its status tells.
                if status == 502 && matches!(error, S3Error::Server { .. }) {
                    assert!(error.is_temporary());
                    continue;
                }
                assert!(
                    matches!(error, S3Error::NotS3 { .. }),
                    "{status} {kind}: {error:?}"
                );
                assert!(error.is_temporary());
                assert!(error.to_string().contains("check the endpoint"), "{error}");
            }
            assert!(bucket.verify("a", 9, &sha256).await.is_err());
            if kind != "text/plain" {
                let read = bucket.get("a", 1000).await;
                assert!(
                    matches!(read, Err(S3Error::NotS3 { .. })),
                    "{status}: {read:?}"
                );
            }
        }
        assert!(server.bucket().head("a").await.unwrap().is_none());
    });
}

#[test]
fn a_store_may_label_its_answers_as_it_likes() {
    on_each(|server| async move {
        let label = |_: &str| Verdict::Add("content-type", "text/html");
        let editor = Editor::before(server.port(), label).await;
        let mut bucket = server.bucket_by(editor.port);
        upload(&mut bucket).await.0.unwrap();
        let sha256 = Sample::sha256(9);
        let small = Sample::bytes(9);
        bucket
            .put("a", small.clone().into(), &sha256)
            .await
            .unwrap();
        bucket.verify("a", 9, &sha256).await.unwrap();
        assert_eq!(bucket.get("a", 9).await.unwrap(), small);
        let mut names = Vec::new();
        let mut keep = |it: Object| names.push(it.key);
        bucket.list("", &mut keep).await.unwrap();
        assert!(names.contains(&"a".to_owned()), "{names:?}");
        bucket.delete("a").await.unwrap();
        assert!(bucket.head("a").await.unwrap().is_none());
    });
}

/// What something between here and there says of everything: that all is well.
#[test]
fn success_without_an_etag_is_no_success() {
    on(Server::start(Make::S3sFs), |server| async move {
        for body in ["", "welcome"] {
            let editor =
                Editor::before(server.port(), move |_| instead(200, "text/plain", body)).await;
            let mut bucket = server.bucket_by(editor.port);
            let sha256 = Sample::sha256(9);
            let put = bucket.put("a", Sample::bytes(9).into(), &sha256).await;
            let refused = [
                put.unwrap_err(),
                bucket.head("a").await.unwrap_err(),
                bucket.get("a", 1000).await.unwrap_err(),
                bucket.delete("a").await.unwrap_err(),
            ];
            for error in refused {
                assert!(matches!(error, S3Error::NotS3 { .. }), "{body}: {error:?}");
            }
        }
        assert!(server.bucket().head("a").await.unwrap().is_none());
    });
}

#[test]
fn a_store_that_fails_for_a_while_is_tried_again() {
    on_each(|server| async move {
        let mut number = 0;
        let editor = Editor::before(server.port(), move |_| {
            number += 1;
            match number % 3 {
                0 => Verdict::Pass,
                1 => instead(
                    503,
                    "application/xml",
                    "<Error><Code>SlowDown</Code></Error>",
                ),
                _ => instead(500, "text/plain", ""),
            }
        })
        .await;
        let mut bucket = server.bucket_by(editor.port);
        upload(&mut bucket).await.0.unwrap();
        bucket
            .verify("x", LEN as u64, &Sample::sha256(LEN))
            .await
            .unwrap();
    });
}

#[test]
fn words_of_other_makers_are_understood() {
    type Judge = fn(&S3Error) -> bool;
    let cases: [(u16, &str, Judge); 11] = [
        (403, "<Code>InvalidAccessKeyId</Code>", |it| {
            matches!(it, S3Error::WrongKey { .. })
        }),
        (
            403,
            "<Code>AccessDenied</Code><Message>no</Message>",
            |it| matches!(it, S3Error::Denied { .. }),
        ),
        (
            400,
            "<Code>AuthorizationHeaderMalformed</Code><Message>the region 'us-east-1' is wrong; expecting 'eu-west-1'</Message><Region>eu-west-1</Region>",
            |it| matches!(it, S3Error::WrongRegion { theirs: Some(it), .. } if it == "eu-west-1"),
        ),
        (
            400,
            "<Code>AuthorizationHeaderMalformed</Code><Message>the region is wrong; expecting 'fsn1'</Message>",
            |it| matches!(it, S3Error::WrongRegion { theirs: Some(it), .. } if it == "fsn1"),
        ),
        (
            400,
            "<Code>AuthorizationHeaderMalformed</Code><Message>unexpected scope: a, expected: 20261121/lan/s3/aws4_request</Message>",
            |it| matches!(it, S3Error::WrongRegion { theirs: Some(it), .. } if it == "lan"),
        ),
        (
            301,
            "<Code>PermanentRedirect</Code><Endpoint>x</Endpoint>",
            |it| matches!(it, S3Error::WrongRegion { .. }),
        ),
        (507, "<Code>InsufficientStorage</Code>", |it| {
            matches!(it, S3Error::Full { .. })
        }),
        (507, "<Code>XMinioStorageFull</Code>", |it| {
            matches!(it, S3Error::Full { .. })
        }),
        (403, "<Code>RequestTimeTooSkewed</Code>", |it| {
            matches!(it, S3Error::ClockSkew { .. })
        }),
        (400, "<Code>EntityTooLarge</Code>", |it| {
            matches!(it, S3Error::Refused { .. })
        }),
        (429, "<Code>TooManyRequests</Code>", |it| {
            matches!(it, S3Error::Server { .. })
        }),
    ];
    on(Server::start(Make::S3sFs), |server| async move {
        for (status, words, wanted) in cases {
            let body = format!("<?xml version=\"1.0\"?><Error>{words}<HostId>x</HostId></Error>");
            let editor = Editor::before(server.port(), move |_| {
                instead(status, "application/xml", &body)
            })
            .await;
            let error = server
                .bucket_by(editor.port)
                .put("a", Sample::bytes(1).into(), "x")
                .await
                .unwrap_err();
            println!("{error}");
            assert!(wanted(&error), "{status} {words}: {error:?}");
        }
    });
}

#[test]
fn what_the_store_does_not_let_go_is_kept() {
    on_each(|server| async move {
        let editor = Editor::before(server.port(), |asked| {
            if asked.starts_with("DELETE") {
                let body = "<Error><Code>AccessDenied</Code><Message>object is WORM protected</Message></Error>";
                return instead(403, "application/xml", body);
            }
            Verdict::Pass
        })
        .await;
        let mut bucket = server.bucket_by(editor.port);
        bucket.put("a", Sample::bytes(1).into(), "x").await.unwrap();
        let kept = bucket.delete("a").await.unwrap();
        assert!(
            matches!(&kept, Deletion::Kept(why) if why.contains("WORM")),
            "{kept:?}"
        );
        assert!(bucket.head("a").await.unwrap().is_some());
    });
}

#[test]
fn where_versions_are_kept_ours_is_deleted_and_not_hidden() {
    on(Server::start(Make::S3sFs), |server| async move {
        let editor = Editor::before(server.port(), |asked| match asked {
            head if head.starts_with("HEAD") => Verdict::Add("x-amz-version-id", "3/L4 kqtJ"),
            _ => Verdict::Pass,
        })
        .await;
        let mut bucket = server.bucket_by(editor.port);
        bucket.put("a", Sample::bytes(1).into(), "x").await.unwrap();
        assert_eq!(bucket.delete("a").await.unwrap(), Deletion::Deleted);
        let seen = editor.seen.lock().unwrap();
        let last = seen.last().unwrap();
        assert_eq!(last, "DELETE /backup/edge/one/a?versionId=3%2FL4%20kqtJ");
    });
}

/// It lists what it likes, or lists for ever.
#[test]
fn a_listing_that_heeds_no_prefix_or_has_no_end_is_not_believed() {
    let page = |keys: &[&str], token: &str| {
        let objects = keys.iter().map(|key| {
            format!(
                "<Contents><Key>{key}</Key><LastModified>2026-11-21T12:00:00.000Z</LastModified>\
                 <Size>1</Size></Contents>"
            )
        });
        format!(
            "<?xml version=\"1.0\"?><ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">\
             <Name>backup</Name>{}{token}</ListBucketResult>",
            objects.collect::<String>()
        )
    };
    let keys = [
        "edge/one",
        "edge/one-b/x",
        "edge/one/in",
        "edge/two/x",
        "x",
        "/edge/one/x",
    ];
    let whole = page(&keys, "");
    let endless = page(
        &["edge/one/in"],
        "<NextContinuationToken>a</NextContinuationToken>",
    );
    on(Server::start(Make::S3sFs), |server| {
        let (whole, endless) = (whole.clone(), endless.clone());
        async move {
            let first = whole.clone();
            let editor = Editor::before(server.port(), move |_| {
                instead(200, "application/xml", &first)
            })
            .await;
            let mut found = Vec::new();
            let mut bucket = server.bucket_by(editor.port);
            bucket.list("", &mut |it| found.push(it.key)).await.unwrap();
            assert_eq!(found, ["in"]);
            found.clear();
            bucket
                .list("o", &mut |it| found.push(it.key))
                .await
                .unwrap();
            assert!(found.is_empty(), "{found:?}");
            let editor = Editor::before(server.port(), move |_| {
                instead(200, "application/xml", &endless)
            })
            .await;
            let outcome = server.bucket_by(editor.port).list("", &mut |_| {}).await;
            assert!(matches!(outcome, Err(S3Error::NotS3 { .. })), "{outcome:?}");
            // The same keys, and each time another word for where to go on.
            let mut asked = 0;
            let editor = Editor::before(server.port(), move |_| {
                asked += 1;
                let token = format!("<NextContinuationToken>{asked}</NextContinuationToken>");
                let next = if asked < 50 { token.as_str() } else { "" };
                instead(
                    200,
                    "application/xml",
                    &whole.replace("</ListB", &format!("{next}</ListB")),
                )
            })
            .await;
            let outcome = server.bucket_by(editor.port).list("", &mut |_| {}).await;
            assert!(matches!(outcome, Err(S3Error::NotS3 { .. })), "{outcome:?}");
        }
    });
}

#[test]
fn where_parts_cannot_be_listed_ours_count_until_the_server_says_otherwise() {
    on_each(|server| async move {
        for (status, code) in [(501, "NotImplemented"), (403, "AccessDenied")] {
            let mut failures = 3;
            let editor = Editor::before(server.port(), move |asked| {
                if asked.starts_with("GET") && asked.contains("uploadId=") {
                    let body = format!("<Error><Code>{code}</Code></Error>");
                    return instead(status, "application/xml", &body);
                }
                if is_complete(asked) && failures > 0 {
                    failures -= 1;
                    return instead(500, "application/xml", ERROR);
                }
                Verdict::Pass
            })
            .await;
            let mut bucket = server.bucket_by(editor.port);
            let (outcome, kept) = upload(&mut bucket).await;
            assert!(outcome.is_err());
            let sent = editor.count("PUT");
            resume(&mut bucket, kept.clone().unwrap()).await.unwrap();
            assert_eq!(
                editor.count("PUT"),
                sent,
                "{code}: confirmed parts were sent again"
            );
            bucket
                .verify("x", LEN as u64, &Sample::sha256(LEN))
                .await
                .unwrap();
            bucket.delete("x").await.unwrap();
            // Of an upload that is long done: from the beginning.
            resume(&mut bucket, kept.unwrap()).await.unwrap();
            bucket
                .verify("x", LEN as u64, &Sample::sha256(LEN))
                .await
                .unwrap();
            bucket.delete("x").await.unwrap();
        }
    });
}

async fn resume(bucket: &mut etcd_operator::s3::Bucket, kept: Upload) -> Result<(), S3Error> {
    let mut source = Sample::new(LEN);
    let sha256 = Sample::sha256(LEN);
    bucket
        .upload(
            "x",
            &mut source,
            &sha256,
            Some(kept),
            &mut |_| Ok(()),
            &mut |_| {},
        )
        .await
}
