//! `spec.backup` and `spec.bootstrap`.

use super::{Misfit, misfit, quantity};
use crate::api::{self, EtcdClusterSpec, formats};
use crate::cluster::Timestamp;
use crate::schedule;
use crate::spec::backup::{
    Backup, COPY_GRACE_SECONDS, Destination, Keep, Place, S3, SIGNERS_MAX, Source, Trigger,
};

/// Text of a fixed capacity; the schema's limits are no larger.
fn text<const N: usize>(path: &str, text: &str, problems: &mut Vec<Misfit>) -> heapless::String<N> {
    heapless::String::try_from(text).unwrap_or_else(|_| {
        let bytes = text.len();
        problems.push(Misfit {
            fault: Some(format!(
                "it has {bytes} bytes, of which a letter such as 'ä' takes two, and at most {N} fit"
            )),
            ..misfit(path, text, "a shorter text")
        });
        heapless::String::new()
    })
}

/// The backup of a document.
pub(super) fn backup(wire: &EtcdClusterSpec, problems: &mut Vec<Misfit>) -> Option<Backup> {
    let it = wire.backup.as_ref()?;
    let trigger = match (&it.schedule, &it.interval) {
        (Some(schedule), _) => Some(trigger(schedule, problems)),
        (None, Some(interval)) => formats::seconds(interval).map(Trigger::Every),
        (None, None) => None,
    };
    let mut destinations = heapless::Vec::new();
    for (index, it) in it.destinations.iter().enumerate() {
        let path = format!("spec.backup.destinations[{index}]");
        let destination = match (&it.local, &it.s3) {
            (Some(local), _) => Destination {
                place: Place::Local(text(&path, &local.directory(), problems)),
                keep: keep(
                    &path,
                    [
                        local.keep,
                        local.keep_hourly,
                        local.keep_daily,
                        local.keep_weekly,
                    ],
                    (local.max_bytes.as_deref(), Keep::BYTES_LOCAL),
                    problems,
                ),
            },
            (None, Some(s3)) => Destination {
                place: Place::S3(place_s3(&path, s3, problems)),
                keep: keep(
                    &path,
                    [s3.keep, s3.keep_hourly, s3.keep_daily, s3.keep_weekly],
                    (s3.max_bytes.as_deref(), Keep::BYTES_S3),
                    problems,
                ),
            },
            (None, None) => continue, // a rule refuses it
        };
        if destinations.push(destination).is_err() {
            problems.push(misfit(path, "a fifth destination", "at most four"));
        }
    }
    Some(Backup {
        trigger,
        destinations,
        verify_level: it.verify.as_ref().map_or(3, |it| it.level),
        verify_every: it
            .verify
            .as_ref()
            .and_then(|it| formats::seconds(it.every.as_deref()?)),
        copy_grace: it
            .copy_grace
            .as_deref()
            .and_then(formats::seconds)
            .unwrap_or(COPY_GRACE_SECONDS),
        trusted_signers: it
            .trusted_signers
            .iter()
            .take(SIGNERS_MAX)
            .map(|it| text("spec.backup.trustedSigners", it, problems))
            .collect(),
    })
}

fn trigger(schedule: &str, problems: &mut Vec<Misfit>) -> Trigger {
    const PATH: &str = "spec.backup.schedule";
    let fault = match schedule.parse::<croner::Cron>() {
        Err(_) => Some(formats::field_fault(schedule).unwrap_or_else(|| {
            "a range goes from the lower one to the higher one, such as MON-FRI".to_owned()
        })),
        // Any time will do: the longest wait is for a 29 February on a day of the week.
        Ok(_) if schedule::next(schedule, Timestamp(0)).is_none() => {
            Some("no day has this date".to_owned())
        }
        Ok(_) => None,
    };
    if let Some(fault) = fault {
        let allowed = "five fields of cron in UTC, such as 0 3 * * *";
        problems.push(Misfit {
            fault: Some(fault),
            ..misfit(PATH, schedule, allowed)
        });
    }
    Trigger::Schedule(text(PATH, schedule, problems))
}

fn place_s3(path: &str, it: &api::S3Destination, problems: &mut Vec<Misfit>) -> S3 {
    let mut recipients = heapless::Vec::new();
    let keys = it.encryption.iter().flat_map(|it| &it.recipients);
    for (index, key) in keys.enumerate() {
        let path = format!("{path}.s3.encryption.recipients[{index}]");
        // The pattern sees characters, this the checksum.
        if key.parse::<age::x25519::Recipient>().is_err() {
            let allowed = "a public key as age-keygen prints it; this one has a typing error";
            problems.push(misfit(path.as_str(), key, allowed));
        }
        let _ = recipients.push(text(&path, key, problems));
    }
    let mut optional = |field: &str, value: &Option<String>| {
        let path = format!("{path}.s3.{field}");
        value.as_ref().map(|it| text::<256>(&path, it, problems))
    };
    let (endpoint, ca_file) = (
        optional("endpoint", &it.endpoint),
        optional("caFile", &it.ca_file),
    );
    let (prefix, credentials) = (
        optional("prefix", &it.prefix).unwrap_or_default(),
        optional("credentials", &it.credentials),
    );
    S3 {
        bucket: text(&format!("{path}.s3.bucket"), &it.bucket, problems),
        prefix,
        endpoint,
        region: it
            .region
            .as_ref()
            .map(|region| text(&format!("{path}.s3.region"), region, problems)),
        path_style: it.path_style,
        ca_file,
        credentials,
        bandwidth: quantity(
            &format!("{path}.s3.bandwidth"),
            it.bandwidth.as_deref(),
            problems,
        ),
        recipients,
    }
}

fn keep(
    path: &str,
    [last, hourly, daily, weekly]: [Option<u32>; 4],
    (max_bytes, default): (Option<&str>, u64),
    problems: &mut Vec<Misfit>,
) -> Keep {
    let max_bytes = quantity(&format!("{path}.maxBytes"), max_bytes, problems).unwrap_or(default);
    if [last, hourly, daily, weekly] == [None; 4] {
        return Keep {
            max_bytes,
            ..Keep::DEFAULT
        };
    }
    Keep {
        last: last.unwrap_or(1),
        hourly: hourly.unwrap_or(0),
        daily: daily.unwrap_or(0),
        weekly: weekly.unwrap_or(0),
        max_bytes,
    }
}

/// Where the data of a new cluster comes from.
pub(super) fn bootstrap(wire: &EtcdClusterSpec, problems: &mut Vec<Misfit>) -> Option<Source> {
    const PATH: &str = "spec.bootstrap.from";
    let from = &wire.bootstrap.as_ref()?.from;
    Some(match from.as_str() {
        "latest" => Source::Latest,
        "empty" => Source::Empty,
        file if file.starts_with('/') => Source::File(text(PATH, file, problems)),
        name => Source::Named(text(PATH, name, problems)),
    })
}
