//! The API server is away for minutes while Pods work on claims: nobody waits for it, and what they did is
//! told when it is back.

use std::time::{Duration, Instant};

use crate::backups::requests;
use crate::claims::claim;
use crate::lab::SOON;
use crate::operated::{Operated, document, pass};
use crate::processes::Frozen;
use crate::writer::Writer;

/// Longer than any wait of the operator, the scheduler and the kubelet.
const AWAY: u64 = 130;

fn spec(claim: &str) -> String {
    format!("{{backup: {{interval: 24h, destinations: [{{local: {{claimName: {claim}}}}}]}}}}")
}

/// The process that works in a Pod, once it is there, stands still.
fn freeze(it: &Operated, words: &str) -> Frozen {
    it.eventually(words, SOON, || {
        let found = it.processes(words);
        (!found.is_empty()).then(|| Frozen::new(found))
    })
}

#[test]
fn a_backup_and_a_restore_on_claims_end_while_the_api_server_is_away_for_minutes() {
    let Some(it) = Operated::up() else {
        return;
    };
    for name in ["till", "shop"] {
        let snapshots = format!("{name}-snapshots");
        it.apply(&claim(&snapshots));
        it.apply(&document("EtcdCluster", name, &spec(&snapshots)));
    }
    let writers = ["till", "shop"].map(|name| {
        it.available(name);
        // The first snapshot needs no request, and none is taken unasked after it.
        it.says(name, "BackupHealthy", "Verified");
        it.gone(&["pod", &format!("{name}-backup")]);
        let writer = Writer::new(&it, 1, name);
        writer.fill(40);
        writer
    });
    it.put("shop", "kept", "before");
    it.apply(&document("EtcdBackup", "first", "{cluster: shop}"));
    it.phase("etcdbackup", "first", "Succeeded");
    it.put("shop", "kept", "after");
    it.put("shop", "lost", "after");

    let since = it.mark();
    let gap = writers[0].longest_gap(|| {
        it.apply(&document("EtcdBackup", "now", "{cluster: till}"));
        let backup = freeze(&it, "etcd-operator backup pod");
        let restore = "{cluster: shop, replaceData: shop}";
        it.apply(&document("EtcdRestore", "back", restore));
        let restore = freeze(&it, "etcd-operator restore --pod");
        it.api_stop();
        drop((backup, restore));
        pass(AWAY);
        for words in ["etcd-operator backup pod", "etcd-operator restore --pod"] {
            assert!(it.processes(words).is_empty(), "{words} has ended");
        }
        it.api_start();
    });
    println!("API server away for {AWAY} s: longest time between two writes {gap:.1?}");
    assert!(gap < Duration::from_secs(2), "{gap:?}");
    let begun = Instant::now();
    let taken = it.phase("etcdbackup", "now", "Succeeded");
    println!("back to the backup's end: {:.1?}", begun.elapsed());
    assert_eq!(taken["status"]["level"], 3, "{taken}");
    let back = it.phase("etcdrestore", "back", "Succeeded");
    println!("back to the restore's end: {:.1?}", begun.elapsed());
    assert_eq!(back["status"]["revisionsLost"], 2, "{back}");
    it.available("shop");
    println!("back to the restored member: {:.1?}", begun.elapsed());
    assert_eq!(it.get("shop", "kept"), "before");
    assert_eq!(it.get("shop", "lost"), "");
    it.says("till", "BackupHealthy", "Verified");
    for pod in ["till-backup", "shop-restore"] {
        it.gone(&["pod", pod]);
        assert_eq!(requests(&it, since, "create", "pods", pod), 1, "{pod}");
    }
}
