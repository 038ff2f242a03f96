//! A restart while clients watch: etcd would wait for them, with its port closed.

use std::fs::{self, File};
use std::time::Duration;

use serde_json::Value;

use crate::datastore::Process;
use crate::fleet::Writer;
use crate::lab::{Lab, condition};
use crate::upgrades::reload;

#[test]
fn a_restart_under_clients_that_watch_is_short_and_no_crash() {
    let mut lab = Lab::new("3.6");
    lab.start_agent();
    lab.wait_available();
    let url = format!("https://127.0.0.1:{}", lab.ports[0]);
    let files = lab.certificates().operator_files();
    let output = lab.root.join("watch");
    let _watch = Process(
        lab.etcdctl_command(&["watch", "--prefix", "w/"])
            .stdout(File::create(&output).unwrap())
            .spawn()
            .unwrap(),
    );
    let sees = |number: u64| {
        let key = format!("w/{number:08}");
        fs::read_to_string(&output).is_ok_and(|it| it.contains(&key))
    };
    let writer = Writer::start(vec![url], files);
    lab.add("options: {snapshotCount: 4321}");
    for count in ["4321", "5432"] {
        let before = writer.acknowledged();
        lab.wait("writes", |_| sees(before + 50));
        lab.spec = lab.spec.replace("4321", count);
        reload(&lab);
        lab.wait("the edit", |it| {
            condition(it, "DocumentAccepted").1 == "InForce"
                && condition(it, "Available").0 == "True"
        });
    }
    let (acknowledged, gap) = writer.end();
    println!("a writer's longest gap in restarts that are watched: {gap:?}");
    // etcd alone is away for 6.6 s or more.
    assert!(gap < Duration::from_millis(5500), "{gap:?}");
    lab.wait("the watch to go on", |_| sees(acknowledged - 1));
    // The operator ended it: nothing that etcd is blamed for.
    let starts: Value = serde_json::from_slice(&fs::read(lab.run("starts.json")).unwrap()).unwrap();
    assert_eq!(starts["ends"].as_u64().unwrap_or(0), 0, "{starts}");
    assert_eq!(starts["starts"].as_array().unwrap().len(), 0, "{starts}");
    assert!(lab.log().contains("restart etcd with the edited document"));
}
