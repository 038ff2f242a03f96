//! Figures of three members on a node.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{BARE, bare_ready, mean, resident, row};
use crate::images::version_of;
use crate::lab::{is_true, skip};
use crate::operated::{Operated, document, pass};
use crate::operator::USER;
use crate::processes::kill_etcd_of;
use crate::several::{GROWS_WITHIN, MEMBERS, id_of};
use crate::stream::Stream;
use crate::table::{Row, Table};

const ROUNDS: usize = 3;
/// A leader is deleted, or killed, so often.
const LEADERS: usize = 5;
const CLUSTERS: usize = 20;
const CLUSTERS_MIB_MAX: f64 = 20.0;
/// How long what a cluster at rest writes is counted; ETCD_OPERATOR_IDLE_SECONDS says another time.
const IDLE_SECONDS: u64 = 120;
/// A status is confirmed every half hour.
const IDLE_WRITES_AN_HOUR: u64 = 2;
/// A trial on a copy, and three restarts.
const ROLLS_WITHIN: Duration = Duration::from_secs(400);
/// An edit, and what is deleted, beside etcd's own.
const GAP_MAX: Duration = Duration::from_millis(200);
const ELECTION_RATIO_MAX: f64 = 1.2;
const REPLACED_MAX: Duration = Duration::from_secs(5);

/// Waits until three members serve, of which nothing is left to do.
fn whole(it: &Operated, name: &str) -> Value {
    it.eventually("three members", GROWS_WITHIN, || {
        let now = it.try_json(&["get", "etcdcluster", name])?;
        let seen = now["status"]["observedGeneration"] == now["metadata"]["generation"];
        let whole = now["status"]["ready"] == "3/3" && !is_true(&now, "Progressing");
        let members =
            format!("etcd.edge-operator.io/cluster={name},app.kubernetes.io/component=member");
        let pods = it.try_json(&["get", "pods", "-l", &members])?;
        let stays =
            |it: &&Value| it["metadata"]["deletionTimestamp"].is_null() && is_true(it, "Ready");
        let ready = pods["items"].as_array()?.iter().filter(stays).count() == 3;
        (seen && whole && ready).then(|| now["status"].clone())
    })
}

fn three_bare(it: &Operated) -> Duration {
    let names = ["bare", "bare1", "bare2"];
    let all = names.map(|it| BARE.replace("bare", it)).join("---\n");
    let begun = Instant::now();
    it.apply(&all);
    for name in names {
        bare_ready(it, name);
    }
    let took = begun.elapsed();
    for name in names {
        it.kubectl(&["delete", "pod,pvc", name]).good();
    }
    took
}

fn remove(it: &Operated, name: &str) {
    it.kubectl(&["delete", "etcdcluster", name]).good();
    let label = format!("etcd.edge-operator.io/cluster={name}");
    it.kubectl(&["delete", "pods,pvc,secrets", "-l", &label])
        .good();
}

/// And how long three bare Pods take.
fn born(it: &Operated) -> (Row, Duration) {
    let (mut ours, mut bare) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let name = format!("born{round}");
        let begun = Instant::now();
        it.apply(&document("EtcdCluster", &name, "{size: 3}"));
        whole(it, &name);
        ours.push(begun.elapsed());
        remove(it, &name);
        bare.push(three_bare(it));
    }
    let own = mean(&bare);
    (
        row("three members, apply to all that serve", &ours, &bare),
        own,
    )
}

/// What an act costs a client that writes: the longest time between two writes.
fn gap(it: &Operated, act: impl FnOnce()) -> Duration {
    let stream = Stream::start(it, "shop", &MEMBERS);
    act();
    whole(it, "shop");
    let (_, gap) = stream.end();
    gap
}

fn leader(it: &Operated) -> String {
    let status = whole(it, "shop");
    let members = status["members"].as_array().unwrap();
    let leads = members.iter().find(|it| it["leader"] == true).unwrap();
    leads["name"].as_str().unwrap().to_owned()
}

/// Its Pod is deleted; and, beside it, its process is killed, which is etcd's own election.
fn leaders(it: &Operated) -> Row {
    let (mut deleted, mut killed) = (Vec::new(), Vec::new());
    for _ in 0..LEADERS {
        let name = leader(it);
        deleted.push(gap(it, || {
            it.kubectl(&["delete", "pod", &name]).good();
        }));
        let name = leader(it);
        killed.push(gap(it, || kill_etcd_of(it, &name)));
    }
    println!("leader deleted {deleted:.0?}, killed {killed:.0?}");
    let (ours, own) = (mean(&deleted), mean(&killed));
    let ratio = ours.as_secs_f64() / own.as_secs_f64();
    let figure = "longest gap of a writer while the leader's Pod is deleted, mean of five";
    Row::new(figure, format!("{ours:.0?}")).against(
        format!("etcd of the leader killed {own:.0?}"),
        ratio,
        Some(ELECTION_RATIO_MAX),
    )
}

/// Three voters serve; then the first one is restarted with the timing of several.
fn grown(it: &Operated, version: &str, bare: Duration) -> Vec<Row> {
    let spec =
        format!("{{size: 1, version: {version}, backup: {{destinations: [{{local: {{}}}}]}}}}");
    it.apply(&document("EtcdCluster", "shop", &spec));
    it.available("shop");
    let stream = Stream::start(it, "shop", &["shop-client"]);
    let begun = Instant::now();
    it.patch("shop", r#"{"spec": {"size": 3}}"#);
    it.eventually("three voters", GROWS_WITHIN, || {
        let status = it.try_json(&["get", "etcdcluster", "shop"])?["status"].clone();
        let mut members = status["members"].as_array()?.iter();
        let vote = members.all(|it| it["role"] == "voter" && it["serving"] == true);
        (status["ready"] == "3/3" && vote).then_some(())
    });
    let vote = begun.elapsed();
    whole(it, "shop");
    let took = begun.elapsed();
    let (_, gap) = stream.end();
    vec![
        row(
            "1 -> 3 members under a writer, to three voters that serve",
            &[vote],
            &[bare],
        ),
        Row::new(
            "the same, to the end of the first one's restart with the timing of several",
            format!("{took:.1?}"),
        ),
        Row::new("longest gap of the writer meanwhile", format!("{gap:.0?}"))
            .promised("<= 200 ms", gap <= GAP_MAX),
    ]
}

fn replaced(it: &Operated, own: Duration) -> Row {
    let before = id_of(&whole(it, "shop"), "shop-1");
    let begun = Instant::now();
    let both = ["pod/shop-1", "pvc/data-shop-1"];
    it.kubectl(&["delete", both[0], both[1], "--wait=false"])
        .good();
    it.eventually("another member", GROWS_WITHIN, || {
        (id_of(&whole(it, "shop"), "shop-1") != before).then_some(())
    });
    let took = begun.elapsed();
    let beyond = took.saturating_sub(own);
    let figure = "a member and its claim deleted, to three that serve";
    // What it announced lay in the snapshot that it got: it waits for the answer, and announces itself again.
    let log = it.kubectl(&["logs", "shop-1"]).good();
    let again = log.contains("failed to publish local member to cluster");
    let told = if again { "twice" } else { "once" };
    Row::new(figure, format!("{took:.1?}"))
        .compared(format!("etcd announced itself {told}"))
        .promised("<= 5 s beyond a bare Pod's start", beyond <= REPLACED_MAX)
}

fn edited(it: &Operated) -> Row {
    let gap = gap(it, || {
        it.patch("shop", r#"{"spec": {"options": {"logLevel": "debug"}}}"#);
    });
    Row::new(
        "an edit that restarts three members: longest gap of a writer",
        format!("{gap:.0?}"),
    )
    .promised("<= 200 ms", gap <= GAP_MAX)
}

fn upgraded(it: &Operated, version: &str) -> Row {
    let asked = json!({"spec": {"version": version}}).to_string();
    let gap = gap(it, || {
        it.patch("shop", &asked);
        it.eventually("the newer one on all three", ROLLS_WITHIN, || {
            let status = it.try_json(&["get", "etcdcluster", "shop"])?["status"].clone();
            let mut members = status["members"].as_array()?.iter();
            members.all(|it| it["version"] == version).then_some(())
        });
    });
    let figure = "a patch upgrade of three members: longest gap of a writer";
    Row::new(figure, format!("{gap:.0?}")).promised("<= 200 ms", gap <= GAP_MAX)
}

fn idle(it: &Operated) -> Row {
    let named = std::env::var("ETCD_OPERATOR_IDLE_SECONDS").ok();
    let seconds = named.map_or(IDLE_SECONDS, |it| it.parse().unwrap());
    pass(20);
    let mark = it.mark();
    pass(seconds);
    let mut asked = it.requests("", mark);
    asked.retain(|it| it.user == USER && !["get", "watch", "list"].contains(&it.verb.as_str()));
    // The Lease is one for all clusters.
    asked.retain(|it| it.resource != "leases");
    let figure = format!("writes to the API in {seconds} s at rest, beside the Lease");
    let most = seconds.div_ceil(3600 / IDLE_WRITES_AN_HOUR);
    let most = usize::try_from(most).unwrap();
    Row::new(figure, asked.len().to_string()).promised(format!("<= {most}"), asked.len() <= most)
}

#[test]
#[ignore = "figures, by make bench"]
fn figures_of_three_members() {
    let Some(it) = Operated::up() else {
        return;
    };
    let Some(older) = it.images.etcd.get("3.6-before").cloned() else {
        return skip("an image of the patch before is made of target/tools/etcd/3.6-before");
    };
    it.import(&older);
    let (older, newer) = (version_of(&older), version_of(&it.images.etcd["3.6"]));
    let begun = Instant::now();
    it.apply(BARE);
    bare_ready(&it, "bare");
    let own = begun.elapsed();
    it.kubectl(&["delete", "pod,pvc", "bare"]).good();
    let (row, bare) = born(&it);
    let mut rows = vec![row];
    rows.extend(grown(&it, &older, bare));
    rows.push(replaced(&it, own));
    rows.push(edited(&it));
    rows.push(upgraded(&it, &newer));
    rows.push(leaders(&it));
    rows.push(idle(&it));
    for index in 1..CLUSTERS {
        it.apply(&document(
            "EtcdCluster",
            &format!("more{index}"),
            &json!({"size": 3}).to_string(),
        ));
        whole(&it, &format!("more{index}"));
    }
    pass(30);
    let mib = resident(&it);
    let figure = format!("operator with {CLUSTERS} clusters of three: VmRSS");
    rows.push(Row::new(figure, format!("{mib:.1} MiB")).promised(
        format!("<= {CLUSTERS_MIB_MAX} MiB"),
        mib <= CLUSTERS_MIB_MAX,
    ));
    let mut table = Table::default();
    table.extend(rows);
    table.publish("kubernetes-three");
}
