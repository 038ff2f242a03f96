//! AWS Signature Version 4 in the `Authorization` header, with the payload's sha256 in it.
//!
//! Why not rusty-s3's signer: it makes URLs only, and signs `UNSIGNED-PAYLOAD` only. A URL that is
//! itself the right to a request ends in the logs of servers and proxies, and over `http` nothing
//! would bind what arrives to what was sent (rule E1). The rest of the crate is used: addresses,
//! and the reading of answers. The tests compare with it, and with AWS' published example.

use std::fmt::Write as _;

use jiff::Timestamp;
use ring::hmac;
use url::Url;

use super::credentials::Credentials;
use crate::state::{hex, sha256};

/// What is signed of a request, besides its time.
pub(super) struct Signable<'a> {
    pub(super) method: &'a str,
    /// Its path is percent-encoded already; its query is not looked at.
    pub(super) url: &'a Url,
    /// As [`query_string`] made it.
    pub(super) query: &'a str,
    /// Headers to be signed besides our own, names in lower case.
    pub(super) headers: &'a [(&'static str, String)],
    pub(super) payload_sha256: &'a str,
}

/// The headers to send, `host` among them: each must go out exactly so.
pub(super) fn headers(
    request: &Signable<'_>,
    credentials: &Credentials,
    region: &str,
    at: i64,
) -> Vec<(&'static str, String)> {
    let (date, time) = dates(at);
    let mut headers = request.headers.to_vec();
    headers.push(("host", host(request.url)));
    headers.push(("x-amz-content-sha256", request.payload_sha256.to_owned()));
    headers.push(("x-amz-date", time.clone()));
    if let Some(token) = &credentials.token {
        headers.push(("x-amz-security-token", token.clone()));
    }
    headers.sort();
    let names: Vec<&str> = headers.iter().map(|it| it.0).collect();
    let names = names.join(";");
    let mut canonical = format!(
        "{}\n{}\n{}\n",
        request.method,
        request.url.path(),
        request.query
    );
    for (name, value) in &headers {
        let words: Vec<&str> = value.split_whitespace().collect();
        let _ = writeln!(canonical, "{name}:{}", words.join(" "));
    }
    let _ = write!(canonical, "\n{names}\n{}", request.payload_sha256);

    let scope = format!("{date}/{region}/s3/aws4_request");
    let to_sign = format!(
        "AWS4-HMAC-SHA256\n{time}\n{scope}\n{}",
        sha256(canonical.as_bytes())
    );
    let signature = signature(&credentials.secret, &date, region, &to_sign);
    headers.push((
        "authorization",
        format!(
            "AWS4-HMAC-SHA256 Credential={}/{scope}, SignedHeaders={names}, Signature={signature}",
            credentials.key
        ),
    ));
    headers
}

/// Day and time as signatures have them; the epoch for what no calendar holds.
fn dates(at: i64) -> (String, String) {
    let at = Timestamp::from_second(at).unwrap_or(Timestamp::UNIX_EPOCH);
    (
        at.strftime("%Y%m%d").to_string(),
        at.strftime("%Y%m%dT%H%M%SZ").to_string(),
    )
}

/// The Host header: with the port where it is not the scheme's own.
pub(super) fn host(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    url.port()
        .map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
}

fn signature(secret: &str, date: &str, region: &str, to_sign: &str) -> String {
    let mac = |key: &[u8], text: &str| {
        let key = hmac::Key::new(hmac::HMAC_SHA256, key);
        hmac::sign(&key, text.as_bytes())
    };
    let mut key = mac(format!("AWS4{secret}").as_bytes(), date);
    for step in [region, "s3", "aws4_request"] {
        key = mac(key.as_ref(), step);
    }
    hex(mac(key.as_ref(), to_sign).as_ref())
}

/// A query as it is sent and signed: sorted, and everything percent-encoded that is not unreserved
/// in RFC 3986.
pub(super) fn query_string(pairs: &[(&'static str, String)]) -> String {
    let mut pairs: Vec<String> = pairs
        .iter()
        .map(|(name, value)| format!("{name}={}", encoded(value)))
        .collect();
    pairs.sort();
    pairs.join("&")
}

fn encoded(text: &str) -> String {
    text.bytes().fold(String::new(), |mut out, it| {
        if it.is_ascii_alphanumeric() || b"-._~".contains(&it) {
            out.push(char::from(it));
        } else {
            let _ = write!(out, "%{it:02X}");
        }
        out
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn credentials() -> Credentials {
        let secret = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY";
        Credentials::new("AKIAIOSFODNN7EXAMPLE", secret, None)
    }

    const EMPTY_SHA256: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    /// 2013-05-24, AWS' examples ("Authorization Header: signature calculations").
    const EXAMPLE_TIME: i64 = 1_369_353_600;

    fn authorization(request: &Signable<'_>) -> String {
        let all = headers(request, &credentials(), "us-east-1", EXAMPLE_TIME);
        let last = all.last().unwrap().clone();
        assert_eq!(last.0, "authorization");
        last.1
    }

    #[test]
    fn the_examples_of_aws_give_their_signatures() {
        let get = authorization(&Signable {
            method: "GET",
            url: &"https://examplebucket.s3.amazonaws.com/test.txt"
                .parse()
                .unwrap(),
            query: "",
            headers: &[("range", "bytes=0-9".to_owned())],
            payload_sha256: EMPTY_SHA256,
        });
        assert_eq!(
            get,
            "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request, \
             SignedHeaders=host;range;x-amz-content-sha256;x-amz-date, \
             Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"
        );
        let list = authorization(&Signable {
            method: "GET",
            url: &"https://examplebucket.s3.amazonaws.com/".parse().unwrap(),
            query: &query_string(&[("prefix", "J".to_owned()), ("max-keys", "2".to_owned())]),
            headers: &[],
            payload_sha256: EMPTY_SHA256,
        });
        assert!(list.ends_with(
            "Signature=34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"
        ));
        let put = authorization(&Signable {
            method: "PUT",
            url: &"https://examplebucket.s3.amazonaws.com/test%24file.text"
                .parse()
                .unwrap(),
            query: "",
            headers: &[
                ("date", "Fri, 24 May 2013 00:00:00 GMT".to_owned()),
                ("x-amz-storage-class", "REDUCED_REDUNDANCY".to_owned()),
            ],
            payload_sha256: "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072",
        });
        assert!(put.ends_with(
            "Signature=98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd"
        ));
    }

    /// The same steps, made into a URL as rusty-s3 makes it.
    #[test]
    fn keys_and_queries_are_encoded_and_signed_as_by_rusty_s3() {
        let bucket = rusty_s3::Bucket::new(
            "http://127.0.0.1:3900".parse().unwrap(),
            rusty_s3::UrlStyle::Path,
            "backup",
            "garage",
        )
        .unwrap();
        for text in [
            "plain",
            "with space",
            "ümläut/☃",
            "a+b&c=d?e#f%g",
            "~!*'()@:,;$[]{}|^`\"<>\\",
        ] {
            let url = bucket.object_url(text);
            let theirs = rusty_s3::signing::sign(
                &Timestamp::from_second(EXAMPLE_TIME).unwrap(),
                rusty_s3::Method::Get,
                url.clone(),
                "key",
                "secret",
                None,
                "garage",
                60,
                [("prefix", text)].into_iter(),
                std::iter::empty(),
            );
            let query = query_string(&[
                ("X-Amz-Algorithm", "AWS4-HMAC-SHA256".to_owned()),
                (
                    "X-Amz-Credential",
                    "key/20130524/garage/s3/aws4_request".to_owned(),
                ),
                ("X-Amz-Date", "20130524T000000Z".to_owned()),
                ("X-Amz-Expires", "60".to_owned()),
                ("X-Amz-SignedHeaders", "host".to_owned()),
                ("prefix", text.to_owned()),
            ]);
            let canonical = format!(
                "GET\n{}\n{query}\nhost:127.0.0.1:3900\n\nhost\nUNSIGNED-PAYLOAD",
                url.path()
            );
            let to_sign = format!(
                "AWS4-HMAC-SHA256\n20130524T000000Z\n20130524/garage/s3/aws4_request\n{}",
                sha256(canonical.as_bytes())
            );
            let ours = signature("secret", "20130524", "garage", &to_sign);
            assert_eq!(
                theirs.query(),
                Some(format!("{query}&X-Amz-Signature={ours}").as_str())
            );
        }
    }
}
