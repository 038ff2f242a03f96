//! What is wrong with a text of a format: the first character or part that is not allowed, and what would be.

use super::{SCHEDULE_MACROS, is_days, is_host, is_months, is_numbers, is_snapshot_name};

/// Characters of a part that a message shows.
const PART_MAX: usize = 24;

/// A part of a text as it may stand in a message: on one line, and not endless.
fn part(text: &str) -> String {
    let shown = text.chars().take(PART_MAX);
    let shown: String = shown.flat_map(char::escape_debug).collect();
    let more = text.chars().nth(PART_MAX).map_or("", |_| "...");
    format!("{shown}{more}")
}

/// `'B' (character 4)`, as a person counts.
fn at(index: usize, it: char) -> String {
    let shown = match it {
        ' ' => "a space".to_owned(),
        it if it.is_control() => "a control character".to_owned(),
        it => format!("'{it}'"),
    };
    format!("{shown} (character {})", index + 1)
}

/// The first character that is not among these.
fn character(text: &str, allowed: impl Fn(char) -> bool) -> Option<String> {
    let mut all = text.chars().enumerate();
    let (index, it) = all.find(|(_, it)| !allowed(*it))?;
    Some(format!("{} is not allowed", at(index, it)))
}

/// The first character that is not among these, else which end has one that may only stand in the middle.
fn ends(text: &str, allowed: impl Fn(char) -> bool, edge: impl Fn(char) -> bool) -> String {
    let whole = || character(text, &allowed);
    let first = text.chars().next().filter(|it| !edge(*it));
    let last = text.chars().next_back().filter(|it| !edge(*it));
    match (text.is_empty(), whole(), first, last) {
        (true, ..) => "it is empty".to_owned(),
        (_, Some(fault), ..) => fault,
        (_, _, Some(it), _) => format!("it begins with '{it}'"),
        (_, _, _, Some(it)) => format!("it ends with '{it}'"),
        _ => "it is too short".to_owned(),
    }
}

/// The digits that a text begins with, and the rest.
fn number(text: &str) -> (&str, &str) {
    let end = text.bytes().take_while(u8::is_ascii_digit).count();
    text.split_at(end)
}

/// A number without a unit that does not begin as one.
fn no_number(text: &str) -> Option<String> {
    let (digits, _) = number(text);
    match text.chars().next() {
        None => Some("it is empty".to_owned()),
        Some(it) if digits.is_empty() => Some(format!("{} is no digit", at(0, it))),
        Some(_) if digits.starts_with('0') && !text.starts_with("0.") => {
            Some("it begins with 0".to_owned())
        }
        Some(_) => None,
    }
}

pub(super) fn version(text: &str) -> String {
    let numbers: Vec<&str> = text.strip_prefix('v').unwrap_or(text).split('.').collect();
    let is_number = |it: &str| !it.is_empty() && it.bytes().all(|it| it.is_ascii_digit());
    match numbers.iter().find(|it| !is_number(it)) {
        Some(it) => format!("'{}' is no number", part(it)),
        None if numbers.len() != 3 => {
            format!("it has {} numbers, and a version has 3", numbers.len())
        }
        None => "a number has more than 4 digits".to_owned(),
    }
}

pub(super) fn path(text: &str) -> String {
    let control = character(text, |it| !it.is_control());
    let mut parts = text.split('/').skip(1).peekable();
    match control {
        Some(fault) => fault,
        None if text.is_empty() => "it is empty".to_owned(),
        None if !text.starts_with('/') => "it does not begin with /".to_owned(),
        None if text == "/" => "it names the root".to_owned(),
        None if text.ends_with('/') => "it ends with /".to_owned(),
        None if parts.any(str::is_empty) => "it has // in it".to_owned(),
        None => "it has . or .. as a directory".to_owned(),
    }
}

/// Decimal units and binary ones, by their first letter in lower case.
const UNITS: [(char, &str, &str, &str); 4] = [
    ('k', "k", "Ki", ""),
    ('m', "M", "Mi", "Ki"),
    ('g', "G", "Gi", "Mi"),
    ('t', "T", "Ti", "Gi"),
];

pub(super) fn quantity(text: &str) -> String {
    if let Some(fault) = no_number(text) {
        return fault;
    }
    let (digits, rest) = number(text);
    let (shown, digits) = (part(rest), digits.get(..15).unwrap_or(digits));
    let fraction = rest.strip_prefix(['.', ',']).map(number);
    let unit = fraction.map_or(rest, |it| it.1).trim_start();
    let letter = unit.chars().next().map(|it| it.to_ascii_lowercase());
    let known = UNITS.iter().find(|it| Some(it.0) == letter);
    match (fraction, known) {
        (Some((after, _)), Some((_, _, _, smaller))) => {
            let whole = digits.parse().ok().zip(in_1024ths(after));
            let whole =
                whole.and_then(|(it, more): (u64, u64)| it.checked_mul(1024)?.checked_add(more));
            let would = whole.map_or_else(String::new, |it| format!(": {it}{smaller}"));
            format!("only whole numbers are allowed{would}")
        }
        (Some(_), None) => "only whole numbers are allowed".to_owned(),
        (None, Some((_, decimal, binary, _))) if ![*decimal, *binary].contains(&rest) => {
            format!(
                "there is no unit '{shown}': {digits}{binary}, or {digits}{decimal} of thousands"
            )
        }
        (None, None) if !unit.is_empty() => {
            format!(
                "there is no unit '{shown}', only Ki, Mi, Gi and Ti, or k, M, G and T of thousands"
            )
        }
        (None, _) => "it is too large".to_owned(),
    }
}

/// Decimal places as 1024ths, where these are whole.
fn in_1024ths(places: &str) -> Option<u64> {
    let one = 10_u64.checked_pow(u32::try_from(places.len()).ok()?)?;
    let all = places.parse::<u64>().ok()?.checked_mul(1024)?;
    (all % one == 0).then_some(all / one)
}

pub(super) fn cores(text: &str) -> String {
    let (digits, rest) = number(text);
    if let Some((after, "")) = rest.strip_prefix('.').map(number)
        && after.len() <= 3
        && let Ok(thousandths) = format!("{digits}{after:0<3}").parse::<u64>()
    {
        return format!("only whole numbers are allowed: {thousandths}m");
    }
    no_number(text).unwrap_or_else(|| match rest {
        "" | "m" => "it is too large".to_owned(),
        other => format!("there is no unit '{}', only m", part(other)),
    })
}

pub(super) fn duration(text: &str) -> String {
    if let Some(fault) = no_number(text) {
        return fault;
    }
    let (digits, unit) = number(text);
    let (shown, digits) = (part(unit), digits.get(..6).unwrap_or(digits));
    let letter = unit
        .trim_start()
        .chars()
        .next()
        .map(|it| it.to_ascii_lowercase());
    match letter {
        None => format!("the unit is missing: {digits}s, {digits}m, {digits}h or {digits}d"),
        Some('.' | ',') => "only whole numbers are allowed: 90m, not 1.5h".to_owned(),
        Some('s' | 'm' | 'h' | 'd') if unit.len() == 1 && unit == unit.to_ascii_lowercase() => {
            "it is too long".to_owned()
        }
        Some('s' | 'm' | 'h' | 'd') if unit.bytes().any(|it| it.is_ascii_digit()) => {
            "one number and one unit are allowed: 90m, not 1h30m".to_owned()
        }
        Some(it @ ('s' | 'm' | 'h' | 'd')) => {
            format!("there is no unit '{shown}': {digits}{it}")
        }
        Some(_) => format!("there is no unit '{shown}', only s, m, h and d"),
    }
}

fn lower(it: char) -> bool {
    it.is_ascii_lowercase() || it.is_ascii_digit()
}

pub(super) fn dns_label(text: &str) -> String {
    ends(text, |it| lower(it) || it == '-', lower)
}

pub(super) fn ip_address(text: &str) -> String {
    let hexadecimal = |it: char| it.is_ascii_digit() || ('a'..='f').contains(&it);
    let fault = character(text, |it| hexadecimal(it) || ".:".contains(it));
    let more = |it: &&str| it.parse::<u32>().is_ok_and(|it| it > 255);
    let wrong = text.split('.').find(more).filter(|_| !text.contains(':'));
    match (fault, wrong) {
        (Some(fault), _) => fault,
        (None, Some(it)) => format!("{} is more than 255", part(it)),
        (None, None) if text.is_empty() => "it is empty".to_owned(),
        (None, None) => "it has not the numbers of an address".to_owned(),
    }
}

pub(super) fn host(text: &str) -> String {
    let edge = |it: char| it.is_ascii_alphanumeric();
    ends(text, |it| edge(it) || ".:-".contains(it), edge)
}

pub(super) fn schedule(text: &str) -> String {
    if text.starts_with("CRON_TZ=") || text.starts_with("TZ=") {
        let zone = text.split(' ').next().unwrap_or_default();
        return format!("a schedule is in UTC, without '{}'", part(zone));
    }
    if text.starts_with('@') {
        return format!("there is only {}", SCHEDULE_MACROS.join(" "));
    }
    let fields: Vec<&str> = text.split(' ').collect();
    if text.contains("  ") || text.trim() != text {
        return "one space stands between two fields".to_owned();
    }
    if fields.len() != 5 {
        return format!("it has {} fields, and a schedule has 5", fields.len());
    }
    let names = [
        "minute",
        "hour",
        "day of the month",
        "month",
        "day of the week",
    ];
    let checks = [is_numbers, is_numbers, is_numbers, is_months, is_days];
    let mut all = names.iter().zip(fields).zip(checks);
    let wrong = all.find(|((_, field), check)| !check(field));
    wrong.map_or_else(String::new, |((name, field), _)| {
        format!("'{}' is no {name}", part(field))
    })
}

pub(super) fn bucket(text: &str) -> String {
    ends(text, |it| lower(it) || ".-".contains(it), lower)
}

pub(super) fn prefix(text: &str) -> String {
    let first = |it: char| it.is_ascii_alphanumeric() || it == '_';
    let fault = character(text, |it| first(it) || ".=-/".contains(it));
    let wrong = text
        .split('/')
        .find(|it| !it.chars().next().is_some_and(first));
    match (fault, wrong) {
        (Some(fault), _) => fault,
        (None, _) if text.is_empty() => "it is empty".to_owned(),
        (None, _) if text.starts_with('/') => "it begins with /".to_owned(),
        (None, _) if text.ends_with('/') => "it ends with /".to_owned(),
        (None, Some("")) => "it has // in it".to_owned(),
        (None, it) => format!(
            "'{}' does not begin with a letter or digit",
            part(it.unwrap_or_default())
        ),
    }
}

pub(super) fn endpoint(text: &str) -> String {
    let schemes = ["https://", "http://"];
    let Some(rest) = schemes.iter().find_map(|it| text.strip_prefix(it)) else {
        return "it does not begin with https:// or http://".to_owned();
    };
    if let Some((_, path)) = rest.split_once('/') {
        return format!(
            "'/{}' stands after the host: the bucket and the prefix are fields of their own",
            part(path)
        );
    }
    let (host, port) = rest.split_once(':').unwrap_or((rest, "1"));
    if host.is_empty() || !is_host(host) {
        return self::host(host);
    }
    format!("'{}' is no port", part(port))
}

pub(super) fn region(text: &str) -> String {
    let fault = character(text, |it| it.is_ascii_alphanumeric() || it == '-');
    fault.unwrap_or_else(|| "it is empty".to_owned())
}

pub(super) fn signer(text: &str) -> String {
    let Some(key) = text.strip_prefix("ed25519:") else {
        return "it does not begin with ed25519:".to_owned();
    };
    let base64 = |it: char| it.is_ascii_alphanumeric() || "+/=".contains(it);
    let count = key.chars().count();
    character(key, base64).unwrap_or_else(|| {
        format!("after ed25519: it has {count} characters, and a key 44, of which the last is =")
    })
}

pub(super) fn recipient(text: &str) -> String {
    if text.starts_with("AGE-SECRET-KEY-") {
        return "it is a secret key; its public key begins with age1".to_owned();
    }
    let Some(key) = text.strip_prefix("age1") else {
        return "it does not begin with age1".to_owned();
    };
    let bech32 = |it: char| lower(it) && !"1bio".contains(it);
    let count = text.chars().count();
    character(key, bech32).map_or_else(
        || format!("it has {count} characters"),
        |fault| format!("after age1 {fault}"),
    )
}

pub(super) fn snapshot_source(text: &str) -> String {
    if text.starts_with('/') {
        return path(text);
    }
    let allowed = |it: char| it.is_ascii_alphanumeric() || it == '-';
    if let Some(fault) = character(text, |it| allowed(it) || it == '/') {
        return fault;
    }
    if text.matches('/').count() > 1 {
        return "it has more than one /".to_owned();
    }
    let wrong = text.split('/').find(|it| !is_snapshot_name(it));
    ends(wrong.unwrap_or_default(), allowed, lower)
}
