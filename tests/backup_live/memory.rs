//! Memory of the commands does not grow with the database.

use crate::stage::{Stage, unpack};
use crate::watched::Watched;

const MIB: u64 = 1 << 20;
/// Between a small database and one ten times as large. The debug build's allocator is as lumpy as
/// the other's; a tenth of what the large one has more would be 9 MiB.
const ALIKE: u64 = 3 * MIB;
/// Above the same command with nothing to do.
const ABOVE_IDLE: u64 = 16 * MIB;

/// Of a command that changes nothing, again where it ended before the first look.
fn peak_of_look(stage: &Stage, arguments: &[&str]) -> u64 {
    for _ in 0..20 {
        let needed = Watched::start(stage, arguments).end();
        assert_eq!(needed.output.status.code(), Some(0), "{arguments:?}");
        if needed.peak > MIB {
            return needed.peak;
        }
    }
    peak(stage, arguments)
}

fn peak(stage: &Stage, arguments: &[&str]) -> u64 {
    let needed = Watched::start(stage, arguments).end();
    let words = String::from_utf8_lossy(&needed.output.stderr).into_owned();
    assert_eq!(
        needed.output.status.code(),
        Some(0),
        "{arguments:?}: {words}"
    );
    assert!(
        needed.peak > MIB,
        "{arguments:?}: it was too fast to look at"
    );
    needed.peak
}

#[test]
fn memory_is_the_same_for_10_and_for_100_mib_and_hardly_more_than_for_none() {
    let stage = Stage::with("3.6", "", "options: {maxRequestSize: 4Mi}");
    let file = |number: u32| stage.lab.root.join(format!("{number}.db"));
    let create = || {
        let peak = peak(&stage, &["backup", "create"]);
        let newest = &stage.entries()[0];
        assert_eq!(newest.level(), 3);
        let size = newest.manifest.as_ref().unwrap().database.size;
        (peak, size, stage.store().snapshot(&newest.name))
    };
    let verify =
        |path: &std::path::Path| peak_of_look(&stage, &["verify-snapshot", path.to_str().unwrap()]);
    stage.etcdctl(&["put", "key", "1"]);
    let (_, _, tiny) = create();
    let idle_create = peak_of_look(&stage, &["backup", "create"]);
    let idle_verify = verify(&tiny);
    let mut seen = Vec::new();
    // Many pages, and long ones.
    for (number, keys, large) in [(0, 4_000, 6), (1, 40_000, 60)] {
        stage.fill("key", keys, 1000);
        stage.fill("large", large, 1 << 20);
        let (create, size, packed) = create();
        unpack(&packed, &file(number));
        let (packed, raw) = (verify(&packed), verify(&file(number)));
        println!(
            "{} MiB: create {} KiB (idle {}), verify-snapshot {} packed, {} not (idle {})",
            size / MIB,
            create >> 10,
            idle_create >> 10,
            packed >> 10,
            raw >> 10,
            idle_verify >> 10
        );
        assert!(create <= idle_create + ABOVE_IDLE, "create");
        assert!(
            packed.max(raw) <= idle_verify + ABOVE_IDLE,
            "verify-snapshot"
        );
        seen.push((size, [create, packed, raw]));
    }
    let ((small, before), (large, after)) = (seen[0], seen[1]);
    assert!(small < 14 * MIB && large > 95 * MIB, "{small} {large}");
    for (before, after) in before.iter().zip(after) {
        assert!(after <= before + ALIKE, "{before} became {after}");
    }
}
