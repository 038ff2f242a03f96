//! What servers refuse, in plain words with the next step; each server in its own words behind.

use etcd_operator::s3::{Bucket, Credentials, Deletion, Location, S3Error};

use crate::editor::{Editor, Verdict};
use crate::lab::{
    Around, BUCKET, MIB, Make, Sample, Server, bucket, fake_clock, on, on_each, patience, skip,
    unknown_key, wrong_secret,
};

/// The error of each thing that can be done with a bucket.
async fn each_error(bucket: &mut Bucket) -> Vec<S3Error> {
    let mut errors = each_error_with_words(bucket).await;
    errors.push(bucket.head("a").await.unwrap_err());
    errors
}

/// The same but for HEAD, whose answer has no body and so no words.
async fn each_error_with_words(bucket: &mut Bucket) -> Vec<S3Error> {
    vec![
        upload(bucket, 17 * MIB).await.unwrap_err(),
        upload(bucket, 12 * MIB).await.unwrap_err(),
        upload(bucket, 10).await.unwrap_err(),
        bucket.get("a", 10).await.unwrap_err(),
        bucket.list("", &mut |_| {}).await.unwrap_err(),
    ]
}

async fn upload(bucket: &mut Bucket, len: usize) -> Result<(), S3Error> {
    let sha256 = Sample::sha256(len);
    let mut source = Sample::new(len);
    bucket
        .upload(
            "a",
            &mut source,
            &sha256,
            None,
            &mut |_| Ok(()),
            &mut |_| {},
        )
        .await
}

fn told(errors: &[S3Error], wanted: fn(&S3Error) -> bool, next_step: &str) {
    for error in errors {
        let text = error.to_string();
        println!("  {text}");
        assert!(wanted(error), "{error:?}");
        assert!(text.contains(next_step), "{text}");
        assert!(!error.is_temporary());
        for secret in ["Signature=", "0011223344", "ffffffff", "AWS4-HMAC"] {
            assert!(!text.contains(secret) && !format!("{error:?}").contains(secret));
        }
    }
}

fn with(server: &Server, credentials: Credentials) -> Bucket {
    Bucket::new(&server.location(), credentials)
        .unwrap()
        .with_patience(patience())
}

#[test]
fn an_unknown_key_and_a_wrong_secret_are_called_that() {
    on_each(|server| async move {
        for (credentials, is_known) in [(unknown_key(), false), (wrong_secret(), true)] {
            let mut bucket = with(&server, credentials);
            // To an unknown key versitygw answers 404, which without words means "no such object".
            let errors = if server.make() == Make::Versity && !is_known {
                each_error_with_words(&mut bucket).await
            } else {
                each_error(&mut bucket).await
            };
            told(
                &errors,
                |it| matches!(it, S3Error::WrongKey { .. }),
                "check the access key",
            );
        }
    });
}

#[test]
fn a_bucket_that_is_not_there_is_not_created() {
    on_each(|server| async move {
        let mut other = bucket(&Location {
            bucket: "other".to_owned(),
            ..server.location()
        });
        let mut errors = vec![other.list("", &mut |_| {}).await.unwrap_err()];
        // s3s-fs looks at no bucket but when it lists one.
        if server.make() != Make::S3sFs {
            errors.push(other.head("a").await.unwrap_err());
            errors.push(other.get("a", 10).await.unwrap_err());
            errors.push(other.delete("a").await.unwrap_err());
            errors.push(upload(&mut other, 10).await.unwrap_err());
            errors.push(upload(&mut other, 17 * MIB).await.unwrap_err());
            errors.push(upload(&mut other, 12 * MIB).await.unwrap_err());
        }
        told(
            &errors,
            |it| matches!(it, S3Error::NoBucket(name) if name == "other"),
            "create it",
        );
        assert!(!server.data().join("other").exists());
    });
}

/// s3s-fs takes any region.
#[test]
fn a_wrong_region_is_told_with_the_right_one() {
    on(Server::start(Make::Versity), |server| async move {
        let mut elsewhere = bucket(&Location {
            region: Some("eu-west-1".to_owned()),
            ..server.location()
        });
        let mut errors = each_error(&mut elsewhere).await;
        // versitygw answers, and closes, while the body is on its way.
        for _ in 0..30 {
            errors.push(upload(&mut elsewhere, 12 * MIB).await.unwrap_err());
        }
        told(
            &errors,
            |it| matches!(it, S3Error::WrongRegion { theirs: Some(it), .. } if it == "us-east-1"),
            "set region to us-east-1",
        );
    });
}

#[test]
fn a_clock_that_differs_by_20_minutes_is_signed_around_and_told() {
    if fake_clock().is_none() {
        skip("libfaketime is not installed: tests/tools/apt.sh libfaketime");
        return;
    }
    // Garage lets a day pass, and is told of all the same.
    let cases = [
        (Make::S3sFs, 20, true),
        (Make::S3sFs, -20, true),
        (Make::Garage, 20, false),
        (Make::Garage, 25 * 60, true),
    ];
    let here = Make::all();
    for (make, minutes, refused) in cases.into_iter().filter(|it| here.contains(&it.0)) {
        on(
            Server::start_in(make, Around::Ahead(minutes)),
            |server| async move {
                let editor = Editor::before(server.port(), |_| Verdict::Pass).await;
                let mut bucket = server.bucket_by(editor.port);
                let sha256 = Sample::sha256(17 * MIB);
                assert_eq!(bucket.clock_skew(), None);
                let mut source = Sample::new(17 * MIB);
                bucket
                    .upload(
                        "l",
                        &mut source,
                        &sha256,
                        None,
                        &mut |_| Ok(()),
                        &mut |_| {},
                    )
                    .await
                    .unwrap();
                bucket.verify("l", 17 * MIB as u64, &sha256).await.unwrap();
                let skew = bucket.clock_skew();
                println!("{make:?}, {minutes} minutes ahead: {skew:?}");
                assert!((skew.unwrap() - i64::from(minutes) * 60).abs() < 30);
                // The first request was refused and signed anew, and no other.
                assert_eq!(editor.count("POST"), 2 + usize::from(refused));
                assert_eq!(editor.count("PUT"), 3);
                assert_eq!(bucket.delete("l").await.unwrap(), Deletion::Deleted);
            },
        );
    }
}

/// A clock that is right is never called wrong, whatever is refused.
#[test]
fn a_refusal_for_another_reason_says_nothing_of_the_clock() {
    on_each(|server| async move {
        let mut wrong = with(&server, wrong_secret());
        assert!(wrong.list("", &mut |_| {}).await.is_err());
        assert_eq!(wrong.clock_skew(), None);
    });
}

#[test]
fn a_full_store_is_called_full_or_failing_and_what_fits_goes_on() {
    if !rustix::process::geteuid().is_root() {
        skip("a disk of 24 MiB needs root");
        return;
    }
    on(
        Server::start_in(Make::S3sFs, Around::Disk(24)),
        |server| async move {
            let mut bucket = server.bucket();
            let sha256 = Sample::sha256(40 * MIB);
            let mut confirmed = Vec::new();
            let error = bucket
                .upload(
                    "l",
                    &mut Sample::new(40 * MIB),
                    &sha256,
                    None,
                    &mut |it| {
                        confirmed.push(it.clone());
                        Ok(())
                    },
                    &mut |_| {},
                )
                .await
                .unwrap_err();
            println!("{error}");
            assert!(
                matches!(error, S3Error::Full { .. } | S3Error::Server { .. }),
                "{error:?}"
            );
            assert!(error.is_temporary() && error.to_string().contains("the operator retries"));
            let last = confirmed.pop().unwrap();
            assert_eq!(last.parts.len(), 2);
            assert!(bucket.head("l").await.unwrap().is_none());
            bucket.abort(&last).await.unwrap();
            bucket
                .put("small", Sample::bytes(MIB).into(), &Sample::sha256(MIB))
                .await
                .unwrap();
        },
    );
}

#[test]
fn an_address_that_is_none_is_told_before_anything_is_sent() {
    let place = |endpoint: &str| Location {
        bucket: BUCKET.to_owned(),
        endpoint: Some(endpoint.to_owned()),
        path_style: true,
        ..Location::default()
    };
    let refused = |location: &Location| {
        let outcome = Bucket::new(location, crate::lab::credentials());
        outcome.err().map(|it| it.to_string()).unwrap_or_default()
    };
    for endpoint in [
        "garage.lan:3900",
        "s3.lan",
        "",
        "ftp://s3.lan",
        "http://a b",
    ] {
        assert!(
            refused(&place(endpoint)).contains("write https://HOST"),
            "{endpoint}"
        );
    }
    let text = refused(&place("https://user:geheim@s3.lan"));
    assert!(
        text.contains("credentials") && !text.contains("geheim"),
        "{text}"
    );
    assert!(refused(&place("https://s3.lan?x=1")).contains("leave out"));
    let mut virtual_host = place("http://127.0.0.1:9");
    virtual_host.path_style = false;
    assert!(refused(&virtual_host).contains("pathStyle"));
    let mut ca = place("https://s3.lan");
    ca.ca_file = Some("/nowhere/ca.pem".into());
    assert!(refused(&ca).contains("/nowhere/ca.pem"));
    ca.ca_file = Some(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml").into());
    assert!(refused(&ca).contains("no certificate in PEM"));
    assert_eq!(refused(&place("http://[::1]:3900")), "");
}
