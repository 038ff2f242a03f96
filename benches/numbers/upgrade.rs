//! Another version of etcd: a writer's longest gap beside that of a plain restart by the operator, from the edit to
//! serving, and what a large database costs.

use std::time::{Duration, Instant};

use crate::bare::target;
use crate::fleet::Writer;
use crate::lab::{Lab, condition, etcd_dir, text, version_of};
use crate::procfs::memory;
use crate::starts::SHORT_ELECTION;
use crate::table::{Row, mib};
use crate::{LINE, median};

/// What an edit that needs a restart changes.
const SNAPSHOT_COUNT: usize = 9000;
/// Turns of a change and of a restart.
const ROUNDS: usize = 6;
/// Of a plain restart.
const GAP_MAX: f64 = 1.3;
/// From the edit to serving, on a small database.
const SERVING_MAX: Duration = Duration::from_secs(10);
/// Of 1 KiB each: some 500 MB of database.
const LARGE: usize = 420_000;
/// For so long nobody waits.
const PATIENCE: Duration = Duration::from_secs(300);

struct Place {
    lab: Lab,
    versions: [String; 2],
}

/// What a change took.
struct Taken {
    serving: Duration,
    gap: Duration,
}

impl Place {
    /// A cluster on the older one of two patches, and both in its store.
    fn new() -> Self {
        let mut lab = Lab::new("3.6-before");
        let count = format!("options: {{snapshotCount: {SNAPSHOT_COUNT}, ");
        lab.spec
            .push_str(&SHORT_ELECTION.replace("options: {", &count));
        lab.start_agent();
        lab.wait_available();
        let newer = etcd_dir(LINE);
        let versions = [lab.version.clone(), version_of(&newer)];
        let from = newer.to_str().unwrap();
        let installed = lab.operator(&["etcd", "install", "--from", from, &versions[1]]);
        assert!(installed.status.success(), "{}", text(&installed.stderr));
        Place { lab, versions }
    }

    fn writer(&self) -> Writer {
        let url = format!("https://127.0.0.1:{}", self.lab.ports[0]);
        Writer::start(vec![url], self.lab.certificates().operator_files())
    }

    fn reload(&self) {
        self.lab.write_document();
        let reloaded = self.lab.operator(&["reload"]);
        let held = reloaded.status.code() == Some(3);
        let words = text(&reloaded.stderr);
        assert!(reloaded.status.success() || held, "{words}");
    }

    fn settle(&self) {
        self.lab.wait_for(PATIENCE, "the end of the change", |it| {
            it["version"] == self.lab.version.as_str()
                && condition(it, "Progressing").0 == "False"
                && condition(it, "Available").0 == "True"
        });
    }

    /// A change to one of the two versions.
    fn change(&mut self, to: usize) -> Taken {
        self.versions[to].clone_into(&mut self.lab.version);
        let (writer, begin) = (self.writer(), Instant::now());
        self.reload();
        let version = self.lab.version.as_str();
        self.lab.wait_for(PATIENCE, "the other version", |it| {
            it["version"] == version && condition(it, "Available").0 == "True"
        });
        let serving = begin.elapsed();
        let gap = writer.end().1;
        self.settle();
        Taken { serving, gap }
    }

    /// A restart of the same etcd, for an edit that needs one.
    fn restart(&mut self, round: usize) -> Duration {
        let pid = self.lab.etcd_pid();
        let count = |it: usize| format!("snapshotCount: {}", SNAPSHOT_COUNT + it);
        self.lab.spec = self.lab.spec.replace(&count(round), &count(round + 1));
        let writer = self.writer();
        self.reload();
        self.lab.wait_for(PATIENCE, "the restart", |it| {
            self.lab.etcd_pid() != pid && condition(it, "Available").0 == "True"
        });
        writer.end().1
    }
}

/// Both in turns, then a large database.
pub fn rows() -> Vec<Row> {
    let mut place = Place::new();
    let rest = memory(place.lab.agent_pid()).resident;
    let (mut gaps, mut restarts, mut serving) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        restarts.push(place.restart(round));
        let taken = place.change((round + 1) % 2);
        gaps.push(taken.gap);
        serving.push(taken.serving);
    }
    let peak = memory(place.lab.agent_pid()).peak;
    let (gap, restart, serving) = (median(gaps), median(restarts), median(serving));
    let ratio = gap.as_secs_f64() / restart.as_secs_f64();
    let mut rows = vec![
        Row::new("a patch of etcd changed: longest gap of a writer", ms(gap)).against(
            format!("a restart of the same etcd {}", ms(restart)),
            ratio,
            Some(GAP_MAX),
        ),
        Row::new("from the edit to serving, a small database", ms(serving)).promised(
            format!("<= {} s", SERVING_MAX.as_secs()),
            serving <= SERVING_MAX,
        ),
        Row::new(
            "operator while it rehearses: VmHWM, above the VmRSS before",
            mib(peak.saturating_sub(rest)),
        ),
    ];
    rows.extend(large(&mut place));
    rows
}

fn large(place: &mut Place) -> Vec<Row> {
    target(&place.lab).load(LARGE, 1024);
    place.lab.wait_available();
    let restart = place.restart(ROUNDS);
    let taken = place.change(1);
    let size = std::fs::metadata(place.lab.data("member/snap/db"))
        .unwrap()
        .len();
    let of = format!("{} MB", size / 1_000_000);
    let peak = memory(place.lab.agent_pid()).peak;
    vec![
        Row::new(
            format!("the same with {of}: longest gap of a writer"),
            ms(taken.gap),
        )
        .against(
            format!("a restart of the same etcd {}", ms(restart)),
            taken.gap.as_secs_f64() / restart.as_secs_f64(),
            None,
        ),
        Row::new(format!("from the edit to serving, {of}"), ms(taken.serving)),
        Row::new(format!("operator meanwhile: VmHWM, {of}"), mib(peak)),
    ]
}

fn ms(it: Duration) -> String {
    format!("{} ms", it.as_millis())
}
