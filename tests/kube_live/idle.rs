//! What idleness costs the API server, and the flash below its datastore.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::json;

use crate::cluster::Request;
use crate::lab::{Api, ApiOptions, SOON};
use crate::operator::{self, Operator, USER, cluster};

const CLUSTERS: usize = 10;
const IDLE: Duration = Duration::from_secs(180);
/// How often what is not watched is looked at meanwhile, at most.
const LOOKS: usize = 7;
/// With nothing to do for so long, all that followed from the beginning is over.
const SETTLED: Duration = Duration::from_secs(15);

fn of_operator(all: Vec<Request>) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for it in all.into_iter().filter(|it| it.user == USER) {
        *counts
            .entry(format!("{} {}", it.verb, it.resource))
            .or_default() += 1;
    }
    counts
}

#[test]
fn with_ten_clusters_an_idle_operator_writes_nothing_and_reads_little_but_its_watches() {
    if !operator::can() {
        return;
    }
    let Some(api) = Api::up(&ApiOptions::default()) else {
        return;
    };
    let access = operator::install(&api);
    let begin = api.mark();
    let mut operator = Operator::start(&access);
    for number in 0..CLUSTERS {
        api.apply(&cluster("default", &format!("c{number}"), &json!({})));
    }
    for number in 0..CLUSTERS {
        let pod = format!("c{number}-0");
        api.eventually("its Pod", SOON, || api.try_json(&["get", "pod", &pod]));
    }
    // No kubelet is here to start them, and that is told after a minute.
    api.eventually("all to be told of", 2 * SOON, || {
        let told = api.try_json(&["get", "etcdclusters"])?.to_string();
        (told.matches("\"hold\":\"PodNotStarted\"").count() == CLUSTERS).then_some(())
    });
    api.eventually("the beginning to be over", SOON, || {
        let mark = api.mark();
        std::thread::sleep(SETTLED);
        let mut all = of_operator(api.requests("", mark));
        all.retain(|it, _| !it.starts_with("get "));
        all.is_empty().then_some(())
    });
    println!("requests to make {CLUSTERS} clusters:");
    for (what, count) in of_operator(api.requests("", begin)) {
        println!("{count:>6}  {what}");
    }
    let mark = api.mark();
    std::thread::sleep(IDLE);
    let idle = of_operator(api.requests("", mark));
    println!("requests in {IDLE:?} of idleness:");
    for (what, count) in &idle {
        println!("{count:>6}  {what}");
    }
    assert!(operator.is_alive());
    for (what, count) in &idle {
        // A status is confirmed every half hour, and a watch is renewed after minutes.
        let allowed = match what.as_str() {
            "patch etcdclusters/status" => CLUSTERS,
            it if it.starts_with("watch ") => 2,
            // What is not watched is looked at every 30 s, in the server's memory.
            "get secrets" => CLUSTERS * 3 * LOOKS,
            "get networkpolicies" => CLUSTERS * LOOKS,
            "get leases" => LOOKS,
            _ => 0,
        };
        assert!(*count <= allowed, "{count} times {what}");
    }
    // Not idle for want of looking: what is removed comes back.
    api.kubectl(&["delete", "service", "c7-client"]).good();
    api.eventually("the Service", SOON, || {
        api.try_json(&["get", "service", "c7-client"])
    });
    let text = operator.get("/metrics").unwrap().1;
    let passes = text
        .lines()
        .filter(|it| it.starts_with("etcd_operator_passes_total{"));
    assert_eq!(passes.count(), CLUSTERS, "{text}");
}
