//! Each check of a format against its pattern.

use etcd_operator::api::formats::FORMATS;

use super::random::Random;

const SAMPLES: &[&str] = &[
    "3.6.14",
    "v3.5.0",
    "9999.9999.9999",
    "vv3.5.0",
    "/mnt/etcd",
    "/a/b.c/d_e+f@g=h:i,j-k",
    "/",
    "/./a",
    "/../a",
    "/a/../b",
    "/a/.hidden",
    "/a/..b/...",
    "/a/..",
    "/media/pi/USB DISK",
    "/mnt/Sicherung ä",
    "//a",
    "/a/",
    "512Mi",
    "1",
    "999999999999999Ki",
    "9999999999999999",
    "999999999999Mi",
    "9999999999999Mi",
    "999999999Gi",
    "9999999999Gi",
    "999999Ti",
    "9999999Ti",
    "0Mi",
    "01Gi",
    "1M",
    "512MB",
    "1.5Gi",
    "12k",
    "999999T",
    "30m",
    "6h",
    "999999d",
    "9999999s",
    "0s",
    "edge",
    "a",
    "a-b",
    "-a",
    "a-",
    "A",
    "127.0.0.1",
    "255.255.255.255",
    "256.1.1.1",
    "01.1.1.1",
    "249.99.100.0",
    "1:2:3:4:5:6:7::",
    "::",
    "fe80:0000::abcd",
    "::1",
    "fd00::a:1",
    "fg",
    "example.com",
    "Edge-1",
    "a.",
    ".a",
    "10.0.0.1:80",
    "",
    "0 3 * * *",
    "*/15 0-23/2 1,15 * 1-5",
    "*/30 * * * *",
    "5 4 1-7 * 0,6",
    "0 0 * * 0",
    "0 12 1 1 *",
    "0 3 * JAN-MAR,DEC MON-FRI/2",
    "0 3 * MON *",
    "@daily",
    "@hourly",
    "@weekly",
    "@monthly",
    "@reboot",
    "CRON_TZ=UTC 0 3 * * *",
    "0 3 * *",
    "0  3 * * *",
    "*/0 3 * * *",
    "backup.1",
    "shops/berlin_1",
    "/shops",
    "shops/",
    "https://s3.example.com:9000",
    "http://10.0.0.1",
    "https://s3/x",
    "ftp://s3",
    "eu-central-1",
    "age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p",
    "age1qqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqq",
    "age1zvkyg2lqzraa2lnjvqej32nkuu0ues2s82hzrye869xeexvn73equnujwj",
    "age1lggyhqrw2nlhcxprm67z43rta597azn8gknawjehu9d9dl0jq3yqqvfafg",
    "http://minio:9000",
    "https://a.b",
    "age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8",
    "ed25519:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=",
    "ed25519:o8c1E2/+fIcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=",
    "ed25519:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=",
    "ed25519://////////////////////////////////////////8=",
    "latest",
    "shop-0-20261121T131500Z-r12-0000000a",
];

const CHARACTERS: &[char] = &[
    '0', '1', '9', 'a', 'f', 'g', 'z', 'A', 'Z', 'v', '.', '-', '/', ':', '_', '+', '@', '=', ',',
    '*', '1', '2', 'q', 'p', 'K', 'M', 'G', 'T', 'i', 's', 'm', 'h', 'd', ' ', '\n', '\0', 'é',
    '٣', '\u{feff}', '\u{fffe}',
];

fn text(random: &mut Random) -> String {
    let mut text: Vec<char> = random.pick(SAMPLES).chars().collect();
    if random.one_in(8) {
        text = (0..random.below(50))
            .map(|_| random.pick(CHARACTERS))
            .collect();
    }
    for _ in 0..random.below(4) {
        let at = random.below(text.len() + 1);
        match random.below(3) {
            0 => text.insert(at, random.pick(CHARACTERS)),
            1 if at < text.len() => drop(text.remove(at)),
            2 if at < text.len() => text.insert(at, text[at]),
            _ => {}
        }
    }
    text.into_iter().collect()
}

#[test]
fn each_format_says_the_same_as_its_pattern() {
    for format in FORMATS {
        let pattern = regex::Regex::new(format.pattern).unwrap();
        let mut seen = [0, 0];
        for seed in 0..20_000 {
            let text = text(&mut Random(seed));
            let theirs = pattern.is_match(&text);
            let fault = (format.fault)(&text);
            assert_eq!(
                fault.is_none(),
                theirs,
                "SEED={seed} {text:?}: {}",
                format.pattern
            );
            assert!(fault.is_none_or(|it| it.len() > 10), "{text:?}");
            seen[usize::from(theirs)] += 1;
        }
        assert!(
            seen[0] > 150 && seen[1] > 150,
            "{}: {seen:?}",
            format.pattern
        );
    }
}

#[test]
fn a_refusal_names_the_first_thing_that_is_wrong() {
    for (text, words) in [
        (
            "/mnt/a\tb",
            "a control character (character 7) is not allowed",
        ),
        (
            "/mnt/\u{ffff}",
            "a control character (character 6) is not allowed",
        ),
        ("mnt/etcd", "it does not begin with /"),
        ("/mnt/../etc", "it has . or .. as a directory"),
        ("/mnt//etc", "it has // in it"),
        ("/mnt/", "it ends with /"),
        (
            "512MB",
            "there is no unit 'MB': 512Mi, or 512M of thousands",
        ),
        (
            "512 Mi",
            "there is no unit ' Mi': 512Mi, or 512M of thousands",
        ),
        ("2gb", "there is no unit 'gb': 2Gi, or 2G of thousands"),
        ("1.5Gi", "only whole numbers are allowed: 1536Mi"),
        ("0.3Gi", "only whole numbers are allowed"),
        ("12x", "there is no unit 'x', only Ki, Mi, Gi and Ti"),
        ("-1Gi", "'-' (character 1) is no digit"),
        ("0.5", "only whole numbers are allowed: 500m"),
        ("30", "the unit is missing: 30s, 30m, 30h or 30d"),
        ("30min", "there is no unit 'min': 30m"),
        ("1h30m", "one number and one unit are allowed"),
        ("2w", "there is no unit 'w', only s, m, h and d"),
        ("3.6", "it has 2 numbers, and a version has 3"),
        ("3.6.x", "'x' is no number"),
        ("Shop", "'S' (character 1) is not allowed"),
        ("shop_1", "'_' (character 5) is not allowed"),
        ("shop-", "it ends with '-'"),
        ("192.168.1.300", "300 is more than 255"),
        ("0 3 * *", "it has 4 fields, and a schedule has 5"),
        ("0 3 * * MONDAY", "'MONDAY' is no day of the week"),
        ("0 3 * * mon", "'mon' is no day of the week"),
        ("0 3pm * * *", "'3pm' is no hour"),
        ("@reboot", "there is only @hourly @daily @weekly @monthly"),
        (
            "CRON_TZ=Europe/Berlin 0 3 * * *",
            "a schedule is in UTC, without 'CRON_TZ=Europe/Berlin'",
        ),
        ("shops/%2e%2e", "'%' (character 7) is not allowed"),
        ("shops/ä", "'ä' (character 7) is not allowed"),
        ("/shops", "it begins with /"),
        (
            "https://s3.example.com/bucket",
            "'/bucket' stands after the host",
        ),
        (
            "s3.example.com",
            "it does not begin with https:// or http://",
        ),
        ("AGE-SECRET-KEY-1", "it is a secret key"),
        ("Backups", "'B' (character 1) is not allowed"),
    ] {
        let said = FORMATS.iter().filter_map(|it| (it.fault)(text));
        let said: Vec<String> = said.collect();
        assert!(
            said.iter().any(|it| it.contains(words)),
            "{text}: {said:#?}"
        );
    }
}
