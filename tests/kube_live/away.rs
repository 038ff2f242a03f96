//! The API server is away for minutes while Pods work on claims: nobody waits for it, and what they did is
//! told when it is back.

use std::time::{Duration, Instant};

use crate::backups::requests;
use crate::claims::{claim, directory, snapshots_in};
use crate::lab::SOON;
use crate::operated::{Operated, document, pass};
use crate::processes::Frozen;
use crate::writer::Writer;

/// Longer than any wait of the operator, the scheduler and the kubelet.
const AWAY: u64 = 130;

fn spec(claim: &str, interval: &str) -> String {
    format!(
        "{{backup: {{interval: {interval}, destinations: [{{local: {{claimName: {claim}}}}}]}}}}"
    )
}

/// The process that works in a Pod, once it is there, stands still.
fn freeze(it: &Operated, words: &str) -> Frozen {
    it.eventually(words, SOON, || {
        let found = it.processes(words);
        (!found.is_empty()).then(|| Frozen::new(found))
    })
}

#[test]
fn snapshots_are_taken_on_time_and_a_restore_ends_while_the_api_server_is_away_for_minutes() {
    let Some(it) = Operated::up() else {
        return;
    };
    for (name, interval) in [("till", "30s"), ("shop", "24h")] {
        let snapshots = format!("{name}-snapshots");
        it.apply(&claim(&snapshots));
        it.apply(&document("EtcdCluster", name, &spec(&snapshots, interval)));
    }
    let writers = ["till", "shop"].map(|name| {
        it.available(name);
        // The first snapshot needs no request.
        it.says(name, "BackupHealthy", "Verified");
        let writer = Writer::new(&it, 1, name);
        writer.fill(40);
        writer
    });
    it.put("shop", "kept", "before");
    it.snapshot("shop", "first");
    it.put("shop", "kept", "after");
    it.put("shop", "lost", "after");

    let since = it.mark();
    let place = it.path(1, &directory(&it, "till-snapshots"));
    let count = || snapshots_in(&place.join("till"));
    let mut meanwhile = (0, 0);
    let gap = writers[0].longest_gap(|| {
        it.apply(&document("EtcdBackup", "now", "{cluster: till}"));
        let restore = "{cluster: shop, replaceData: shop}";
        it.apply(&document("EtcdRestore", "back", restore));
        let restore = freeze(&it, "etcd-operator restore --pod");
        it.api_stop();
        drop(restore);
        meanwhile.0 = count();
        pass(AWAY);
        meanwhile.1 = count();
        assert!(
            it.processes("etcd-operator restore --pod").is_empty(),
            "it has ended"
        );
        it.api_start();
    });
    println!("API server away for {AWAY} s: longest time between two writes {gap:.1?}");
    assert!(gap < Duration::from_secs(2), "{gap:?}");
    // Every 30 s, of 130: retention keeps more than that.
    assert!(meanwhile.1 >= meanwhile.0 + 3, "{meanwhile:?}");
    let begun = Instant::now();
    let now = it.phase("etcdbackup", "now", "Succeeded");
    println!("back to the backup's end: {:.1?}", begun.elapsed());
    assert_eq!(now["status"]["level"], 3, "{now}");
    let back = it.phase("etcdrestore", "back", "Succeeded");
    println!("back to the restore's end: {:.1?}", begun.elapsed());
    assert_eq!(back["status"]["revisionsLost"], 2, "{back}");
    it.available("shop");
    println!("back to the restored member: {:.1?}", begun.elapsed());
    assert_eq!(it.get("shop", "kept"), "before");
    assert_eq!(it.get("shop", "lost"), "");
    it.says("till", "BackupHealthy", "Verified");
    it.gone(&["pod", "shop-restore"]);
    assert_eq!(requests(&it, since, "create", "pods", "shop-restore"), 1);
    assert_eq!(requests(&it, since, "create", "pods", "till-backup"), 0);
}
