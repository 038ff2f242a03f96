//! Formats of single strings: the pattern that stands in the CRD, the check that the host's parser
//! runs, and the words for people, in one row each.
//!
//! There is no regular-expression engine in the binary; a test holds each check against its
//! pattern.

mod check;

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

/// What a path may not have: a slash, a control character, or one of the two that etcd's YAML calls so.
macro_rules! no_name {
    () => {
        r"/\p{Cc}\x{FFFE}\x{FFFF}"
    };
}

/// A path below the root, of any characters but control characters, without `.` and `..`.
macro_rules! path {
    () => {
        concat!(
            "(/([^.",
            no_name!(),
            r"]|\.[^.",
            no_name!(),
            r"]|\.\.[^",
            no_name!(),
            "])",
            "[^",
            no_name!(),
            "]*)+"
        )
    };
}

/// What is wrong with a cluster's name.
pub(super) fn name_fault(name: &str) -> Option<String> {
    let long = || format!("it has {} characters", name.chars().count());
    check::dns_label(name).or_else(|| Some(long()))
}

/// What keeps a schedule of the right form from being one: a number, or a step.
pub(super) fn field_fault(schedule: &str) -> Option<String> {
    check::field_fault(schedule)
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
    r"^([a-z0-9][A-Za-z0-9-]*(/[a-z0-9][A-Za-z0-9-]*)?|",
    path!(),
    ")$"
);

/// `latest`, or the name of a snapshot or a part of it.
pub const SNAPSHOT_NAME: &str = r"^[a-z0-9][A-Za-z0-9-]*$";

/// A format: its pattern, its check and how a message names it.
pub struct Format {
    /// The pattern in the CRD.
    pub pattern: &'static str,
    /// The same as code: the first character or part of a text that is not allowed, and what would be; none: it is of this
    /// format.
    pub fault: fn(&str) -> Option<String>,
    /// What is allowed, for a message.
    pub allowed: &'static str,
}

/// Every pattern that the CRD may carry.
pub const FORMATS: &[Format] = &[
    Format {
        pattern: VERSION,
        fault: check::version,
        allowed: "a version such as 3.6.14",
    },
    Format {
        pattern: ABSOLUTE_PATH,
        fault: check::path,
        allowed: "an absolute path such as /mnt/etcd",
    },
    Format {
        pattern: QUANTITY,
        fault: check::quantity,
        allowed: "a size such as 512Mi or 2Gi",
    },
    Format {
        pattern: CORES,
        fault: check::cores,
        allowed: "cores such as 2, or thousandths of one such as 250m",
    },
    Format {
        pattern: DURATION,
        fault: check::duration,
        allowed: "a time span such as 30m or 6h",
    },
    Format {
        pattern: DNS_LABEL,
        fault: check::dns_label,
        allowed: "lower-case letters, digits and '-', beginning and ending with a letter or digit",
    },
    Format {
        pattern: IP_ADDRESS,
        fault: check::ip_address,
        allowed: "an IP address such as 192.168.1.10",
    },
    Format {
        pattern: HOST,
        fault: check::host,
        allowed: "a DNS name or an IP address",
    },
    Format {
        pattern: SCHEDULE,
        fault: check::schedule,
        allowed: "five fields of cron in UTC, such as 0 3 * * *, or one of @hourly @daily @weekly @monthly",
    },
    Format {
        pattern: BUCKET,
        fault: check::bucket,
        allowed: "a bucket's name: lower-case letters, digits, '.' and '-'",
    },
    Format {
        pattern: PREFIX,
        fault: check::prefix,
        allowed: "the beginning of keys, such as shops/berlin, without a slash at either end",
    },
    Format {
        pattern: ENDPOINT,
        fault: check::endpoint,
        allowed: "a URL without a path, such as https://s3.example.com:9000",
    },
    Format {
        pattern: REGION,
        fault: check::region,
        allowed: "a region such as eu-central-1, auto or garage",
    },
    Format {
        pattern: SIGNER,
        fault: check::signer,
        allowed: "a key as etcd-operator certs list shows it: ed25519: and 44 characters",
    },
    Format {
        pattern: RECIPIENT,
        fault: check::recipient,
        allowed: "a public key of age, which begins with age1 and has 62 characters",
    },
    Format {
        pattern: SNAPSHOT_SOURCE,
        fault: check::snapshot_source,
        allowed: "latest, empty, the name of a snapshot, in Kubernetes CLUSTER/NAME, on a host an absolute path",
    },
];

/// The format of a pattern of the CRD.
pub fn format_of(pattern: &str) -> Option<&'static Format> {
    FORMATS.iter().find(|it| it.pattern == pattern)
}

fn digits(text: &str, longest: usize) -> Option<&str> {
    let end = text.bytes().take_while(u8::is_ascii_digit).count();
    let fits = (1..=longest).contains(&end) && !text.starts_with('0');
    fits.then(|| &text[end..])
}

fn is_quantity(text: &str) -> bool {
    let units: [(usize, &[&str]); 4] = [
        (15, &["", "k", "Ki"]),
        (12, &["M", "Mi"]),
        (9, &["G", "Gi"]),
        (6, &["T", "Ti"]),
    ];
    let is = |(longest, units): &(usize, &[&str])| {
        digits(text, *longest).is_some_and(|it| units.contains(&it))
    };
    units.iter().any(is)
}

fn is_duration(text: &str) -> bool {
    digits(text, 6).is_some_and(|unit| ["s", "m", "h", "d"].contains(&unit))
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
