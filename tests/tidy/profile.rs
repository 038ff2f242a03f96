//! What `[profile.release]` leaves in a program, tried on a small one of the same name.

use std::path::Path;
use std::process::Command;

/// `cargo build --release` strips all symbols, which a profile of this package's own would stop, and a
/// sum that does not fit ends the program.
#[test]
fn a_released_program_has_no_symbols_and_checks_its_sums() {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("profile");
    std::fs::create_dir_all(dir.join("src")).unwrap();
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
    let manifest = std::fs::read_to_string(manifest).unwrap();
    let profile: Vec<&str> = manifest
        .split_inclusive("\n[")
        .skip_while(|section| !section.starts_with("profile.release]"))
        .take_while(|section| section.starts_with("profile.release"))
        .collect();
    assert!(!profile.is_empty(), "Cargo.toml has no [profile.release]");
    let package = "[package]\nname = \"etcd-operator\"\nedition = \"2024\"\n[workspace]\n";
    let profile = profile.concat();
    let profile = profile.trim_end_matches('[');
    std::fs::write(dir.join("Cargo.toml"), format!("{package}[{profile}")).unwrap();
    let sum = "fn main() { println!(\"{}\", std::env::args().count() as u8 + 255); }\n";
    std::fs::write(dir.join("src/main.rs"), sum).unwrap();

    let built = Command::new(env!("CARGO"))
        .args(["build", "--release", "--quiet", "--offline"])
        .args(["--target-dir", "target"])
        .current_dir(&dir)
        .status()
        .unwrap();
    assert!(built.success());
    let program = dir.join("target/release/etcd-operator");
    let bytes = std::fs::read(&program).unwrap();
    for section in [".symtab", ".strtab", ".debug_info"] {
        let name = [section.as_bytes(), b"\0"].concat();
        let found = bytes.windows(name.len()).any(|at| at == name);
        assert!(
            !found,
            "{section} is in it: cargo build --release does not strip"
        );
    }
    let ran = Command::new(&program).output().unwrap();
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(said.contains("attempt to add with overflow"), "{said}");
}
