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
    '٣', '\u{feff}',
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
            assert_eq!(
                (format.accepts)(&text),
                theirs,
                "SEED={seed} {text:?}: {}",
                format.pattern
            );
            seen[usize::from(theirs)] += 1;
        }
        assert!(
            seen[0] > 150 && seen[1] > 150,
            "{}: {seen:?}",
            format.pattern
        );
    }
}
