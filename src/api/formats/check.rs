//! The formats as code: each function names the first character or part that is not allowed, and what would be.

use super::{SCHEDULE_MACROS, digits, is_duration, is_quantity};
use crate::error::shown;

/// Characters of a part that a message shows.
const PART_MAX: usize = 24;

fn part(text: &str) -> String {
    shown(text, PART_MAX)
}

/// A control character, or one of the two others with which etcd's YAML ends.
fn is_control(it: char) -> bool {
    it.is_control() || ['\u{fffe}', '\u{ffff}'].contains(&it)
}

/// `'B' (character 4)`, as a person counts.
fn at(index: usize, it: char) -> String {
    let named = match it {
        ' ' => "a space".to_owned(),
        it if is_control(it) => "a control character".to_owned(),
        it => format!("'{it}'"),
    };
    format!("{named} (character {})", index + 1)
}

/// The first character that is not among these.
fn character(text: &str, allowed: impl Fn(char) -> bool) -> Option<String> {
    let mut all = text.chars().enumerate();
    let (index, it) = all.find(|(_, it)| !allowed(*it))?;
    Some(format!("{} is not allowed", at(index, it)))
}

/// The first character that is not among these, else which end has one that may only stand in the middle.
fn ends(text: &str, allowed: impl Fn(char) -> bool, edge: impl Fn(char) -> bool) -> Option<String> {
    if text.is_empty() {
        return Some("it is empty".to_owned());
    }
    let first = text.chars().next().filter(|it| !edge(*it));
    let last = text.chars().next_back().filter(|it| !edge(*it));
    character(text, &allowed)
        .or_else(|| Some(format!("it begins with '{}'", first?)))
        .or_else(|| Some(format!("it ends with '{}'", last?)))
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

pub(super) fn version(text: &str) -> Option<String> {
    let numbers: Vec<&str> = text.strip_prefix('v').unwrap_or(text).split('.').collect();
    let is_number = |it: &str| !it.is_empty() && it.bytes().all(|it| it.is_ascii_digit());
    if let Some(it) = numbers.iter().find(|it| !is_number(it)) {
        return Some(format!("'{}' is no number", part(it)));
    }
    if numbers.len() != 3 {
        let count = numbers.len();
        return Some(format!("it has {count} numbers, and a version has 3"));
    }
    let long = numbers.iter().any(|it| it.len() > 4);
    long.then(|| "a number has more than 4 digits".to_owned())
}

pub(super) fn path(text: &str) -> Option<String> {
    let parts = || text.split('/').skip(1);
    let said = match character(text, |it| !is_control(it)) {
        Some(fault) => return Some(fault),
        None if text.is_empty() => "it is empty",
        None if !text.starts_with('/') => "it does not begin with /",
        None if text == "/" => "it names the root",
        None if text.ends_with('/') => "it ends with /",
        None if parts().any(str::is_empty) => "it has // in it",
        None if parts().any(|it| it == "." || it == "..") => "it has . or .. as a directory",
        None => return None,
    };
    Some(said.to_owned())
}

/// Decimal units and binary ones, by their first letter in lower case.
const UNITS: [(char, &str, &str, &str); 4] = [
    ('k', "k", "Ki", ""),
    ('m', "M", "Mi", "Ki"),
    ('g', "G", "Gi", "Mi"),
    ('t', "T", "Ti", "Gi"),
];

pub(super) fn quantity(text: &str) -> Option<String> {
    let fault = || no_number(text).unwrap_or_else(|| no_size(text));
    (!is_quantity(text)).then(fault)
}

fn no_size(text: &str) -> String {
    let (digits, rest) = number(text);
    let (named, digits) = (part(rest), digits.get(..15).unwrap_or(digits));
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
                "there is no unit '{named}': {digits}{binary}, or {digits}{decimal} of thousands"
            )
        }
        (None, None) if !unit.is_empty() => {
            format!(
                "there is no unit '{named}', only Ki, Mi, Gi and Ti, or k, M, G and T of thousands"
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

pub(super) fn cores(text: &str) -> Option<String> {
    if digits(text.strip_suffix('m').unwrap_or(text), 6) == Some("") {
        return None;
    }
    let (digits, rest) = number(text);
    if let Some((after, "")) = rest.strip_prefix('.').map(number)
        && after.len() <= 3
        && let Ok(thousandths) = format!("{digits}{after:0<3}").parse::<u64>()
    {
        return Some(format!("only whole numbers are allowed: {thousandths}m"));
    }
    let unit = || match rest {
        "" | "m" => "it is too large".to_owned(),
        other => format!("there is no unit '{}', only m", part(other)),
    };
    Some(no_number(text).unwrap_or_else(unit))
}

pub(super) fn duration(text: &str) -> Option<String> {
    let fault = || no_number(text).unwrap_or_else(|| no_span(text));
    (!is_duration(text)).then(fault)
}

fn no_span(text: &str) -> String {
    let (digits, unit) = number(text);
    let (named, digits) = (part(unit), digits.get(..6).unwrap_or(digits));
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
            format!("there is no unit '{named}': {digits}{it}")
        }
        Some(_) => format!("there is no unit '{named}', only s, m, h and d"),
    }
}

fn lower(it: char) -> bool {
    it.is_ascii_lowercase() || it.is_ascii_digit()
}

pub(super) fn dns_label(text: &str) -> Option<String> {
    ends(text, |it| lower(it) || it == '-', lower)
}

pub(super) fn ip_address(text: &str) -> Option<String> {
    if is_ip_address(text) {
        return None;
    }
    let hexadecimal = |it: char| it.is_ascii_digit() || ('a'..='f').contains(&it);
    let fault = character(text, |it| hexadecimal(it) || ".:".contains(it));
    let more = |it: &&str| it.parse::<u32>().is_ok_and(|it| it > 255);
    let wrong = text.split('.').find(more).filter(|_| !text.contains(':'));
    Some(match (fault, wrong) {
        (Some(fault), _) => fault,
        (None, Some(it)) => format!("{} is more than 255", part(it)),
        (None, None) if text.is_empty() => "it is empty".to_owned(),
        (None, None) => "it has not the numbers of an address".to_owned(),
    })
}

fn is_ip_address(text: &str) -> bool {
    let hexadecimal = |it: u8| it.is_ascii_digit() || (b'a'..=b'f').contains(&it);
    let groups = || text.split(':');
    text.parse::<std::net::Ipv4Addr>().is_ok()
        || (3..=9).contains(&groups().count())
            && groups().all(|it| it.len() <= 4 && it.bytes().all(hexadecimal))
}

pub(super) fn host(text: &str) -> Option<String> {
    let edge = |it: char| it.is_ascii_alphanumeric();
    ends(text, |it| edge(it) || ".:-".contains(it), edge)
}

pub(super) fn schedule(text: &str) -> Option<String> {
    if text.starts_with("CRON_TZ=") || text.starts_with("TZ=") {
        let zone = part(text.split(' ').next()?);
        return Some(format!("a schedule is in UTC, without '{zone}'"));
    }
    if text.starts_with('@') {
        let known = || format!("there is only {}", SCHEDULE_MACROS.join(" "));
        return (!SCHEDULE_MACROS.contains(&text)).then(known);
    }
    let fields: Vec<&str> = text.split(' ').collect();
    if text.contains("  ") || text.trim() != text {
        return Some("one space stands between two fields".to_owned());
    }
    if fields.len() != 5 {
        let count = fields.len();
        return Some(format!("it has {count} fields, and a schedule has 5"));
    }
    let known: [(&str, &[&str]); 5] = [
        ("minute", &[]),
        ("hour", &[]),
        ("day of the month", &[]),
        ("month", &MONTHS),
        ("day of the week", &DAYS),
    ];
    let mut all = known.iter().zip(fields);
    let ((name, _), field) = all.find(|((_, names), field)| !is_field(field, names))?;
    // crontab takes them in any case.
    let upper = field.to_ascii_uppercase();
    let (_, names) = known.iter().find(|it| it.0 == *name)?;
    let meant = is_field(&upper, names).then(|| format!(": write {upper}"));
    let meant = meant.unwrap_or_default();
    Some(format!("'{}' is no {name}{meant}", part(field)))
}

/// What keeps a schedule of the right form from being one.
pub(super) fn field_fault(schedule: &str) -> Option<String> {
    let known = [
        ("minutes", 0, 59),
        ("hours", 0, 23),
        ("days of the month", 1, 31),
        ("months", 1, 12),
        ("days of the week", 0, 7),
    ];
    let mut fields = known.iter().zip(schedule.split(' '));
    fields.find_map(|(it, field)| fault_of(*it, field))
}

fn fault_of((name, from, to): (&str, u32, u32), field: &str) -> Option<String> {
    field.split(',').find_map(|part| {
        let (range, step) = part.split_once('/').unwrap_or((part, ""));
        let numbers = range.split('-').filter_map(|it| it.parse::<u32>().ok());
        let wrong = { numbers }.find(|it| !(from..=to).contains(it));
        let alone = range != "*" && !range.contains('-');
        match wrong {
            Some(wrong) => Some(format!(
                "{name} go from {from} to {to}: there is no {wrong}"
            )),
            None if alone && !step.is_empty() => Some(format!(
                "a step follows * or a range: write */{step} or {range}-{to}/{step}"
            )),
            _ => None,
        }
    })
}

const MONTHS: [&str; 12] = [
    "JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC",
];
const DAYS: [&str; 7] = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];

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

pub(super) fn bucket(text: &str) -> Option<String> {
    let short = || (text.len() < 2).then(|| "it is too short".to_owned());
    ends(text, |it| lower(it) || ".-".contains(it), lower).or_else(short)
}

pub(super) fn prefix(text: &str) -> Option<String> {
    let first = |it: char| it.is_ascii_alphanumeric() || it == '_';
    if let Some(fault) = character(text, |it| first(it) || ".=-/".contains(it)) {
        return Some(fault);
    }
    let mut parts = text.split('/');
    let wrong = parts.find(|it| !it.chars().next().is_some_and(first))?;
    Some(match wrong {
        _ if text.is_empty() => "it is empty".to_owned(),
        _ if text.starts_with('/') => "it begins with /".to_owned(),
        _ if text.ends_with('/') => "it ends with /".to_owned(),
        "" => "it has // in it".to_owned(),
        it => format!("'{}' does not begin with a letter or digit", part(it)),
    })
}

pub(super) fn endpoint(text: &str) -> Option<String> {
    let schemes = ["https://", "http://"];
    let Some(rest) = schemes.iter().find_map(|it| text.strip_prefix(it)) else {
        return Some("it does not begin with https:// or http://".to_owned());
    };
    if let Some((_, path)) = rest.split_once('/') {
        return Some(format!(
            "'/{}' stands after the host: the bucket and the prefix are fields of their own",
            part(path)
        ));
    }
    let (name, port) = rest.split_once(':').unwrap_or((rest, "1"));
    let is_port = (1..=5).contains(&port.len()) && port.bytes().all(|it| it.is_ascii_digit());
    host(name).or_else(|| (!is_port).then(|| format!("'{}' is no port", part(port))))
}

pub(super) fn region(text: &str) -> Option<String> {
    let edge = |it: char| it.is_ascii_alphanumeric() || it == '-';
    ends(text, edge, edge)
}

pub(super) fn signer(text: &str) -> Option<String> {
    let Some(key) = text.strip_prefix("ed25519:") else {
        return Some("it does not begin with ed25519:".to_owned());
    };
    let base64 = |it: char| it.is_ascii_alphanumeric() || "+/=".contains(it);
    let whole = key.len() == 44 && key.find('=') == Some(43);
    let count = key.chars().count();
    let words = || {
        format!(
            "after ed25519: it has {count} characters, and a key 44, of which only the last is ="
        )
    };
    character(key, base64).or_else(|| (!whole).then(words))
}

pub(super) fn recipient(text: &str) -> Option<String> {
    if text.starts_with("AGE-SECRET-KEY-") {
        return Some("it is a secret key; its public key begins with age1".to_owned());
    }
    let Some(key) = text.strip_prefix("age1") else {
        return Some("it does not begin with age1".to_owned());
    };
    // The characters of bech32.
    let fault = character(key, |it| lower(it) && !"1bio".contains(it));
    let count = text.chars().count();
    let length = (count != 62).then(|| format!("it has {count} characters"));
    fault.map(|it| format!("after age1 {it}")).or(length)
}

pub(super) fn snapshot_source(text: &str) -> Option<String> {
    if text.starts_with('/') {
        return path(text);
    }
    let allowed = |it: char| it.is_ascii_alphanumeric() || it == '-';
    if let Some(fault) = character(text, |it| allowed(it) || it == '/') {
        return Some(fault);
    }
    if text.matches('/').count() > 1 {
        return Some("it has more than one /".to_owned());
    }
    // A part of a name ends as it likes.
    text.split('/').find_map(|it| match it.chars().next() {
        None => Some("it is empty".to_owned()),
        first => first
            .filter(|it| !lower(*it))
            .map(|it| format!("it begins with '{it}'")),
    })
}
