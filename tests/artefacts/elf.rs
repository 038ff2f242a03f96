//! The binaries: size, static, alignment, nothing of the builder's machine.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use crate::{ARCHES, Scratch, VERSION, arg, binary, checkout, dist, run, skip, text};

/// Program headers that say how a binary is loaded.
const PT_LOAD: u32 = 1;
const PT_INTERP: u32 = 3;
/// Of a dynamic section: a library that is needed.
const PT_DYNAMIC: u32 = 2;
const DT_NEEDED: u64 = 1;

struct Segment {
    kind: u32,
    offset: usize,
    size: usize,
    align: u64,
}

fn number<const N: usize>(data: &[u8], at: usize) -> [u8; N] {
    data[at..at + N].try_into().unwrap()
}

fn word(data: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(number(data, at))
}

fn index(data: &[u8], at: usize) -> usize {
    usize::try_from(word(data, at)).unwrap()
}

/// The program headers of a 64-bit little-endian file.
fn segments(data: &[u8]) -> Vec<Segment> {
    assert_eq!(&data[..6], b"\x7fELF\x02\x01", "64 bits, little-endian");
    let start = index(data, 0x20);
    let size = usize::from(u16::from_le_bytes(number(data, 0x36)));
    let count = usize::from(u16::from_le_bytes(number(data, 0x38)));
    let header = |at: usize| Segment {
        kind: u32::from_le_bytes(number(data, at)),
        offset: index(data, at + 8),
        size: index(data, at + 32),
        align: word(data, at + 48),
    };
    (0..count).map(|it| header(start + it * size)).collect()
}

/// Room for the next mend, below what is promised.
const FREE: u64 = 128 << 10;

#[test]
fn the_binaries_keep_their_budget_with_room_to_grow() {
    let Some(dist) = dist() else { return };
    for arch in ARCHES {
        let size = binary(&dist, &arch).len() as u64;
        println!("{}: {size} bytes of {}", arch.name, arch.size_max);
        assert!(
            size + FREE <= arch.size_max,
            "{}: {size} bytes, promised are {}, of which {FREE} stay free",
            arch.name,
            arch.size_max
        );
    }
}

#[test]
fn the_binaries_are_static_and_load_at_every_page_size() {
    let Some(dist) = dist() else { return };
    for arch in ARCHES {
        let data = binary(&dist, &arch);
        let machine = u16::from_le_bytes(number(&data, 0x12));
        assert_eq!(machine, arch.elf, "{}", arch.name);
        let segments = segments(&data);
        assert!(segments.iter().any(|it| it.kind == PT_LOAD));
        for segment in segments {
            assert_ne!(
                segment.kind, PT_INTERP,
                "{} wants a dynamic loader",
                arch.name
            );
            if segment.kind == PT_LOAD {
                assert_eq!(segment.align, arch.page_max, "{}: p_align", arch.name);
            }
            if segment.kind == PT_DYNAMIC {
                let entries = &data[segment.offset..segment.offset + segment.size];
                let needed = entries.chunks_exact(16).any(|it| word(it, 0) == DT_NEEDED);
                assert!(!needed, "{} wants a library", arch.name);
            }
        }
    }
}

#[test]
fn the_binaries_hold_no_path_of_their_builder() {
    let Some(dist) = dist() else { return };
    let home = std::env::var("HOME").unwrap();
    let variable =
        |name: &str, below: &str| std::env::var(name).unwrap_or_else(|_| format!("{home}/{below}"));
    let mut paths = vec![
        checkout().to_str().unwrap().to_owned(),
        variable("CARGO_HOME", ".cargo"),
        variable("RUSTUP_HOME", ".rustup"),
        variable("ETCD_OPERATOR_CACHE", ".cache"),
        // Where Debian built its rustc, and what a crates registry calls its folder.
        "/registry/src/".to_owned(),
        "/lib/rustlib/src/".to_owned(),
        "/build/rust".to_owned(),
    ];
    // A home of `/` would be in every path.
    if home.len() > 1 {
        paths.push(format!("{}/", home.trim_end_matches('/')));
    }
    for arch in ARCHES {
        let data = binary(&dist, &arch);
        // The search finds what is there.
        assert!(holds(&data, "/etc/etcd-operator"));
        for path in &paths {
            assert!(!holds(&data, path), "{} holds {path}", arch.name);
        }
    }
}

fn holds(data: &[u8], what: &str) -> bool {
    let what = what.as_bytes();
    data.windows(what.len()).any(|it| it == what)
}

#[test]
fn the_binary_of_this_machine_runs() {
    let Some(dist) = dist() else { return };
    let machine = std::env::consts::ARCH;
    let Some(arch) = ARCHES.iter().find(|it| it.machine == machine) else {
        return skip(&format!("no artefact is for {machine}"));
    };
    let data = binary(&dist, arch);
    let dir = Scratch::empty();
    let file = dir.0.join("etcd-operator");
    fs::write(&file, data).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    // Nothing of the environment is needed.
    let printed = run("env", &["-i", arg(&file), "--version"]);
    assert_eq!(text(&printed), format!("etcd-operator {VERSION}\n"));
    let crds = run(arg(&file), &["crd"]);
    assert_eq!(
        text(&crds),
        fs::read_to_string(checkout().join("deploy/crds.yaml")).unwrap()
    );
}

#[test]
fn the_reader_of_binaries_sees_what_is_dynamic() {
    // This test itself is linked with a loader, where the host's libc is glibc.
    if cfg!(target_env = "musl") {
        return;
    }
    let itself = fs::read(std::env::current_exe().unwrap()).unwrap();
    let found = segments(&itself);
    assert!(found.iter().any(|it| it.kind == PT_INTERP));
    let dynamic = found.iter().find(|it| it.kind == PT_DYNAMIC).unwrap();
    let entries = &itself[dynamic.offset..dynamic.offset + dynamic.size];
    assert!(entries.chunks_exact(16).any(|it| word(it, 0) == DT_NEEDED));
}
