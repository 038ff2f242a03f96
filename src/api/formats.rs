//! Formats of single strings: the pattern that stands in the CRD, the check that the host's parser
//! runs, and the words for people, in one row each.
//!
//! There is no regular-expression engine in the binary; a test holds each check against its
//! pattern.

mod fault;

/// Parts of one value: these, ranges and lists of them, steps.
macro_rules! each {
    ($value:literal) => {
        concat!(
            r"(\*|",
            $value,
            "(-",
            $value,
            r")?)(/[1-9][0-9]?)?",
            r"(,(\*|",
            $value,
            "(-",
            $value,
            r")?)(/[1-9][0-9]?)?)*"
        )
    };
}

/// A path below the root, of any characters but control characters, without `.` and `..`.
macro_rules! path {
    () => {
        r"(/([^./\p{Cc}]|\.[^./\p{Cc}]|\.\.[^/\p{Cc}])[^/\p{Cc}]*)+"
    };
}

/// `MAJOR.MINOR.PATCH`.
pub const VERSION: &str = r"^v?[0-9]{1,4}\.[0-9]{1,4}\.[0-9]{1,4}$";
/// A path from the root, without `..` and control characters.
pub const ABSOLUTE_PATH: &str = concat!("^", path!(), "$");
/// A number of bytes as Kubernetes writes it; each fits 63 bits.
pub const QUANTITY: &str =
    r"^([1-9][0-9]{0,14}(k|Ki)?|[1-9][0-9]{0,11}Mi?|[1-9][0-9]{0,8}Gi?|[1-9][0-9]{0,5}Ti?)$";
/// An amount of CPU as Kubernetes writes it: cores, or thousandths of one.
pub const CORES: &str = r"^[1-9][0-9]{0,5}m?$";
/// A time span.
pub const DURATION: &str = r"^[1-9][0-9]{0,5}(s|m|h|d)$";
/// One DNS label (RFC 1123).
pub const DNS_LABEL: &str = r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$";
/// An IPv4 address, or groups as in an IPv6 address; whether these are one, [`super::convert`] sees.
pub const IP_ADDRESS: &str = r"^(((25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])\.){3}(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])|[0-9a-f]{0,4}(:[0-9a-f]{0,4}){2,8})$";
/// A DNS name or an IP address.
pub const HOST: &str = r"^[A-Za-z0-9]([A-Za-z0-9.:-]*[A-Za-z0-9])?$";
/// Five fields of cron, with the names of months and days; or a word for one of them.
pub const SCHEDULE: &str = concat!(
    "^(@hourly|@daily|@weekly|@monthly|",
    "(",
    each!("[0-9]{1,2}"),
    " ){3}",
    each!("([0-9]{1,2}|JAN|FEB|MAR|APR|MAY|JUN|JUL|AUG|SEP|OCT|NOV|DEC)"),
    " ",
    each!("([0-9]{1,2}|SUN|MON|TUE|WED|THU|FRI|SAT)"),
    ")$"
);
/// What stands for five fields.
const SCHEDULE_MACROS: [&str; 4] = ["@hourly", "@daily", "@weekly", "@monthly"];
/// The name of a bucket.
pub const BUCKET: &str = r"^[a-z0-9][a-z0-9.-]*[a-z0-9]$";
/// The beginning of keys in a bucket, without a slash at either end.
pub const PREFIX: &str = r"^[A-Za-z0-9_][A-Za-z0-9._=-]*(/[A-Za-z0-9_][A-Za-z0-9._=-]*)*$";
/// The URL of an S3-compatible store.
pub const ENDPOINT: &str = r"^https?://[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:[0-9]{1,5})?$";
/// The region of an S3-compatible store.
pub const REGION: &str = r"^[A-Za-z0-9-]+$";
/// A public key of age.
pub const RECIPIENT: &str = r"^age1[02-9ac-hj-np-z]{58}$";
/// A public key with which a cluster signs its snapshots.
pub const SIGNER: &str = r"^ed25519:[A-Za-z0-9+/]{43}=$";
/// `latest`, the name of a snapshot, either of them of another cluster, or a file.
pub const SNAPSHOT_SOURCE: &str = concat!(
    r"^([a-z0-9]([A-Za-z0-9-]*[a-z0-9])?(/[a-z0-9]([A-Za-z0-9-]*[a-z0-9])?)?|",
    path!(),
    ")$"
);

/// `latest`, or the name of a snapshot.
pub const SNAPSHOT_NAME: &str = r"^[a-z0-9]([A-Za-z0-9-]*[a-z0-9])?$";

/// A format: its pattern, its check and how a message names it.
pub struct Format {
    /// The pattern in the CRD.
    pub pattern: &'static str,
    /// The same as code.
    pub accepts: fn(&str) -> bool,
    /// What is allowed, for a message.
    pub allowed: &'static str,
    /// The first character or part that is not allowed.
    fault: fn(&str) -> String,
}

impl Format {
    /// What is wrong with a text that the format does not accept: the first character or part that is not allowed.
    pub fn fault(&self, text: &str) -> String {
        (self.fault)(text)
    }
}

/// Every pattern that the CRD may carry.
pub const FORMATS: &[Format] = &[
    Format {
        pattern: VERSION,
        accepts: is_version,
        allowed: "a version such as 3.6.14",
        fault: fault::version,
    },
    Format {
        pattern: ABSOLUTE_PATH,
        accepts: is_absolute_path,
        allowed: "an absolute path such as /mnt/etcd",
        fault: fault::path,
    },
    Format {
        pattern: QUANTITY,
        accepts: is_quantity,
        allowed: "a size such as 512Mi or 2Gi",
        fault: fault::quantity,
    },
    Format {
        pattern: CORES,
        accepts: is_cores,
        allowed: "cores such as 2, or thousandths of one such as 250m",
        fault: fault::cores,
    },
    Format {
        pattern: DURATION,
        accepts: is_duration,
        allowed: "a time span such as 30m or 6h",
        fault: fault::duration,
    },
    Format {
        pattern: DNS_LABEL,
        accepts: crate::cluster::is_dns_label,
        allowed: "lower-case letters, digits and '-', beginning and ending with a letter or digit",
        fault: fault::dns_label,
    },
    Format {
        pattern: IP_ADDRESS,
        accepts: is_ip_address_text,
        allowed: "an IP address such as 192.168.1.10",
        fault: fault::ip_address,
    },
    Format {
        pattern: HOST,
        accepts: is_host,
        allowed: "a DNS name or an IP address",
        fault: fault::host,
    },
    Format {
        pattern: SCHEDULE,
        accepts: is_schedule,
        allowed: "five fields of cron in UTC, such as 0 3 * * *, or one of @hourly @daily @weekly @monthly",
        fault: fault::schedule,
    },
    Format {
        pattern: BUCKET,
        accepts: is_bucket,
        allowed: "a bucket's name: lower-case letters, digits, '.' and '-'",
        fault: fault::bucket,
    },
    Format {
        pattern: PREFIX,
        accepts: is_prefix,
        allowed: "the beginning of keys, such as shops/berlin, without a slash at either end",
        fault: fault::prefix,
    },
    Format {
        pattern: ENDPOINT,
        accepts: is_endpoint,
        allowed: "a URL without a path, such as https://s3.example.com:9000",
        fault: fault::endpoint,
    },
    Format {
        pattern: REGION,
        accepts: is_region,
        allowed: "a region such as eu-central-1, auto or garage",
        fault: fault::region,
    },
    Format {
        pattern: SIGNER,
        accepts: is_signer,
        allowed: "a key as etcd-operator certs list shows it: ed25519: and 44 characters",
        fault: fault::signer,
    },
    Format {
        pattern: RECIPIENT,
        accepts: is_recipient,
        allowed: "a public key of age, which begins with age1 and has 62 characters",
        fault: fault::recipient,
    },
    Format {
        pattern: SNAPSHOT_SOURCE,
        accepts: is_snapshot_source,
        allowed: "latest, empty, the name of a snapshot, in Kubernetes CLUSTER/NAME, on a host an absolute path",
        fault: fault::snapshot_source,
    },
];

/// The format of a pattern of the CRD.
pub fn format_of(pattern: &str) -> Option<&'static Format> {
    FORMATS.iter().find(|it| it.pattern == pattern)
}

fn is_version(text: &str) -> bool {
    let text = text.strip_prefix('v').unwrap_or(text);
    text.split('.').count() == 3
        && text
            .split('.')
            .all(|it| (1..=4).contains(&it.len()) && it.bytes().all(|byte| byte.is_ascii_digit()))
}

fn is_absolute_path(text: &str) -> bool {
    let names = |it: &str| !["", ".", ".."].contains(&it);
    let parts = text.strip_prefix('/').map(|it| it.split('/'));
    parts.is_some_and(|mut it| it.all(names)) && !text.chars().any(char::is_control)
}

fn digits(text: &str, longest: usize) -> Option<&str> {
    let end = text.bytes().take_while(u8::is_ascii_digit).count();
    let fits = (1..=longest).contains(&end) && !text.starts_with('0');
    fits.then(|| &text[end..])
}

fn is_quantity(text: &str) -> bool {
    let units = [
        (15, ["", "k", "Ki"]),
        (12, ["M", "Mi", "Mi"]),
        (9, ["G", "Gi", "Gi"]),
        (6, ["T", "Ti", "Ti"]),
    ];
    let is = |(longest, units): &(usize, [&str; 3])| {
        digits(text, *longest).is_some_and(|it| units.contains(&it))
    };
    units.iter().any(is)
}

fn is_duration(text: &str) -> bool {
    digits(text, 6).is_some_and(|unit| ["s", "m", "h", "d"].contains(&unit))
}

fn is_ip_address_text(text: &str) -> bool {
    let hexadecimal = |it: u8| it.is_ascii_digit() || (b'a'..=b'f').contains(&it);
    let groups = || text.split(':');
    text.parse::<std::net::Ipv4Addr>().is_ok()
        || (3..=9).contains(&groups().count())
            && groups().all(|it| it.len() <= 4 && it.bytes().all(hexadecimal))
}

fn is_host(text: &str) -> bool {
    let edge = |byte: u8| byte.is_ascii_alphanumeric();
    text.bytes().all(|it| edge(it) || b".:-".contains(&it))
        && text.bytes().next().is_some_and(edge)
        && text.bytes().next_back().is_some_and(edge)
}

fn is_schedule(text: &str) -> bool {
    let mut fields = text.split(' ');
    let mut is = |check: fn(&str) -> bool| fields.next().is_some_and(check);
    SCHEDULE_MACROS.contains(&text)
        || is(is_numbers)
            && is(is_numbers)
            && is(is_numbers)
            && is(is_months)
            && is(is_days)
            && fields.next().is_none()
}

fn is_field(text: &str, names: &[&str]) -> bool {
    let value = |it: &str| {
        names.contains(&it)
            || (1..=2).contains(&it.len()) && it.bytes().all(|it| it.is_ascii_digit())
    };
    let range = |it: &str| match it.split_once('-') {
        Some((from, to)) => value(from) && value(to),
        None => it == "*" || value(it),
    };
    let step = |it: &str| digits(it, 2) == Some("");
    text.split(',').all(|it| match it.split_once('/') {
        Some((of, every)) => range(of) && step(every),
        None => range(it),
    })
}

fn is_numbers(text: &str) -> bool {
    is_field(text, &[])
}

fn is_months(text: &str) -> bool {
    const NAMES: [&str; 12] = [
        "JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC",
    ];
    is_field(text, &NAMES)
}

fn is_days(text: &str) -> bool {
    is_field(text, &["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"])
}

fn is_bucket(text: &str) -> bool {
    let edge = |it: u8| it.is_ascii_lowercase() || it.is_ascii_digit();
    text.len() >= 2
        && text.bytes().all(|it| edge(it) || b".-".contains(&it))
        && text.bytes().next().is_some_and(edge)
        && text.bytes().next_back().is_some_and(edge)
}

fn is_prefix(text: &str) -> bool {
    let first = |it: u8| it.is_ascii_alphanumeric() || it == b'_';
    text.split('/').all(|it| {
        it.bytes().next().is_some_and(first)
            && it.bytes().all(|it| first(it) || b".=-".contains(&it))
    })
}

fn is_endpoint(text: &str) -> bool {
    let scheme = ["https://", "http://"];
    let Some(rest) = scheme.iter().find_map(|it| text.strip_prefix(it)) else {
        return false;
    };
    let (host, port) = rest.split_once(':').unwrap_or((rest, "0"));
    let port = (1..=5).contains(&port.len()) && port.bytes().all(|it| it.is_ascii_digit());
    is_host(host) && !host.contains(':') && port
}

fn is_cores(text: &str) -> bool {
    let number = text.strip_suffix('m').unwrap_or(text);
    digits(number, 6) == Some("")
}

fn is_region(text: &str) -> bool {
    !text.is_empty()
        && text
            .bytes()
            .all(|it| it.is_ascii_alphanumeric() || it == b'-')
}

fn is_signer(text: &str) -> bool {
    let key = text
        .strip_prefix("ed25519:")
        .and_then(|it| it.strip_suffix('='));
    let base64 = |it: u8| it.is_ascii_alphanumeric() || b"+/".contains(&it);
    key.is_some_and(|it| it.len() == 43 && it.bytes().all(base64))
}

fn is_recipient(text: &str) -> bool {
    // The characters of bech32.
    let bech32 =
        |it: u8| (it.is_ascii_lowercase() || it.is_ascii_digit()) && !b"1bio".contains(&it);
    text.strip_prefix("age1")
        .is_some_and(|it| it.len() == 58 && it.bytes().all(bech32))
}

fn is_snapshot_name(text: &str) -> bool {
    let edge = |it: u8| it.is_ascii_lowercase() || it.is_ascii_digit();
    text.bytes()
        .all(|it| it.is_ascii_alphanumeric() || it == b'-')
        && text.bytes().next().is_some_and(edge)
        && text.bytes().next_back().is_some_and(edge)
}

fn is_snapshot_source(text: &str) -> bool {
    text.matches('/').count() <= 1 && text.split('/').all(is_snapshot_name)
        || is_absolute_path(text)
}

/// Seconds of a [`DURATION`].
pub fn seconds(duration: &str) -> Option<u64> {
    if !is_duration(duration) {
        return None;
    }
    let (number, unit) = duration.split_at(duration.len() - 1);
    let factor = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        _ => 86_400,
    };
    Some(number.parse::<u64>().ok()? * factor)
}

/// The bytes of a [`QUANTITY`]; `None` when the text is none.
pub fn bytes(quantity: &str) -> Option<u64> {
    if !is_quantity(quantity) {
        return None;
    }
    let unit = digits(quantity, 15)?;
    let number: u64 = quantity[..quantity.len() - unit.len()].parse().ok()?;
    let factor = match unit {
        "" => 1,
        "k" => 1000,
        "M" => 1_000_000,
        "G" => 1_000_000_000,
        "T" => 1_000_000_000_000,
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        "Gi" => 1 << 30,
        "Ti" => 1_u64 << 40,
        _ => return None,
    };
    number.checked_mul(factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_bytes() {
        assert_eq!(bytes("512Mi"), Some(512 << 20));
        assert_eq!(bytes("17"), Some(17));
        assert_eq!(bytes("1000000Ti"), None, "too many digits");
        for largest in [
            "999999999999999Ki",
            "999999999999Mi",
            "999999999Gi",
            "999999Ti",
        ] {
            assert!(bytes(largest).is_some_and(|it| i64::try_from(it).is_ok()));
        }
        assert_eq!(bytes("512M"), Some(512_000_000));
        assert_eq!([bytes("0"), bytes("1K"), bytes(""), bytes("Gi")], [None; 4]);
    }
}
