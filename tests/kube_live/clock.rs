//! A node without a clock: the operator begins in 1970, and the time comes later.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::json;

use crate::lab::{Api, ApiOptions, Node, Options, SOON, images, skip};
use crate::operated::{Operated, document};
use crate::operator::{self, Operator, cluster};
use crate::several::{GROWS_WITHIN, id_of, whole};
use crate::writer::{Writer, restarts};

const LIBRARIES: [&str; 2] = [
    "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1",
    "/usr/lib/aarch64-linux-gnu/faketime/libfaketimeMT.so.1",
];

const IN_1970: &str = "@1970-01-02 00:00:00";

/// A clock that a test sets.
struct Clock {
    library: &'static str,
    file: PathBuf,
}

impl Clock {
    fn library() -> Option<&'static str> {
        let library = LIBRARIES.into_iter().find(|it| Path::new(it).exists());
        if library.is_none() {
            skip("a faked clock needs the package libfaketime");
        }
        library
    }

    fn at(time: &str, library: &'static str, dir: &Path) -> Clock {
        let file = dir.join("clock");
        let clock = Clock { library, file };
        clock.set(time);
        clock
    }

    fn in_1970(library: &'static str, dir: &Path) -> Clock {
        Clock::at(IN_1970, library, dir)
    }

    /// To a time after `@`, or to one so far from the right one.
    fn set(&self, time: &str) {
        fs::write(&self.file, format!("{time}\n")).unwrap();
    }

    fn environment(&self) -> [(&str, &str); 4] {
        [
            ("LD_PRELOAD", self.library),
            ("FAKETIME_TIMESTAMP_FILE", self.file.to_str().unwrap()),
            ("FAKETIME_NO_CACHE", "1"),
            ("DONT_FAKE_MONOTONIC", "1"),
        ]
    }

    fn set_right(&self) {
        self.set("+0");
    }
}

/// An API server, and the clock of the operator beside it. `faketime`: the server's certificate is valid
/// from 1970 on.
fn begin(faketime: &'static str) -> Option<(Api, Clock)> {
    if !operator::can() {
        return None;
    }
    let library = Clock::library()?;
    let api = Api::up(&ApiOptions {
        faketime,
        ..ApiOptions::default()
    })?;
    let clock = Clock::in_1970(library, &api.dir);
    Some((api, clock))
}

#[test]
fn an_operator_that_begins_in_1970_says_why_it_sees_nothing_and_goes_on_with_the_time() {
    let Some((api, clock)) = begin("") else {
        return;
    };
    let access = operator::install(&api);
    let mut operator = Operator::start_with(&access, &clock.environment());
    api.apply(&cluster("default", "edge", &json!({})));
    api.eventually("the reason", SOON, || {
        operator
            .said()
            .contains("certificate not valid yet")
            .then_some(())
    });
    assert_eq!(operator.get("/livez").unwrap().0, 200);
    clock.set_right();
    api.eventually("the Pod", SOON, || api.try_json(&["get", "pod", "edge-0"]));
    assert!(operator.is_alive());
}

#[test]
fn certificates_of_1970_are_good_for_later_and_are_renewed_with_the_time() {
    let Some(library) = Clock::library() else {
        return;
    };
    let Some((api, clock)) = begin(library) else {
        return;
    };
    let access = operator::install(&api);
    let mut operator = Operator::start_with(&access, &clock.environment());
    api.apply(&cluster("default", "edge", &json!({})));
    let told = |condition: &str| {
        let it = api.try_json(&["get", "etcdcluster", "edge"])?;
        let all = it["status"]["conditions"].as_array()?;
        let found = all.iter().find(|it| it["type"] == condition)?;
        Some((found["status"].clone(), found["reason"].clone()))
    };
    let is = |status: &str, reason: &str| Some((json!(status), json!(reason)));
    api.eventually("provisional certificates", SOON, || {
        (told("CertificatesValid") == is("True", "Provisional")).then_some(())
    });
    assert_eq!(told("ClockTrusted"), is("False", "BehindKnownTime"));
    let leaf = || {
        let secret = api.json(&["get", "secret", "edge-member"]);
        secret["data"]["server.crt"].clone()
    };
    let early = leaf();
    clock.set_right();
    // What Kubernetes tells of itself rings for a pass.
    api.kubectl(&["label", "pod", "edge-0", "the=time"]).good();
    api.eventually("certificates by the clock", SOON, || {
        (told("CertificatesValid") == is("True", "Valid")).then_some(())
    });
    assert_eq!(told("ClockTrusted").unwrap().0, "True");
    assert_ne!(leaf(), early);
    assert!(operator.is_alive());
}

/// A node whose API server's certificate is valid since 1970, and an operator beside it whose clock shows `time`.
fn beside_a_node(time: &str) -> Option<(Operated, Operator, Clock)> {
    let images = images();
    let Some(guard) = &images.operator else {
        skip("the guard comes with the operator's image: make dist");
        return None;
    };
    let library = Clock::library()?;
    let node = Node::up(&Options {
        images: &[guard, &images.etcd["3.6"]],
        faketime: library,
        ..Options::default()
    })?;
    let clock = Clock::at(time, library, &node.dir);
    let access = operator::install_beside(&node);
    let operator = Operator::start_in_with(&node, &access, &clock.environment());
    Some((Operated { node, images }, operator, clock))
}

#[test]
fn a_member_that_serves_with_certificates_of_1970_serves_on_with_those_of_the_right_time() {
    let Some((it, mut operator, clock)) = beside_a_node(IN_1970) else {
        return;
    };
    it.apply(&document("EtcdCluster", "edge", "{}"));
    it.available("edge");
    it.says("edge", "CertificatesValid", "Provisional");
    it.put("edge", "kept", "1");
    let (uid, first) = (it.pod_uid("edge"), it.served("edge"));
    let gap = Writer::new(&it, 1, "edge").longest_gap(|| {
        clock.set_right();
        it.kubectl(&["label", "pod", "edge-0", "the=time"]).good();
        it.says("edge", "CertificatesValid", "Valid");
        it.eventually("etcd to serve another certificate", SOON, || {
            (it.served("edge") != first).then_some(())
        });
    });
    println!("from 1970 to now: longest time between two writes {gap:.1?}");
    assert!(gap < Duration::from_secs(2), "{gap:?}");
    assert_eq!(it.pod_uid("edge"), uid, "the Pod was not touched");
    assert_eq!(restarts(&it, "edge"), 0);
    it.available("edge");
    assert_eq!(it.get("edge", "kept"), "1");
    assert!(operator.is_alive());
}

/// The operator's clock dates the certificates that the members' nodes read by their own.
#[test]
fn three_members_come_and_are_replaced_where_the_clocks_of_nodes_are_twenty_hours_apart() {
    let Some((it, mut operator, clock)) = beside_a_node("-20h") else {
        return;
    };
    it.apply(&document("EtcdCluster", "shop", "{size: 3}"));
    let before = id_of(&whole(&it, 3), "shop-1");
    it.put("shop", "kept", "1");
    clock.set("+20h");
    it.kubectl(&["delete", "pvc", "data-shop-1", "--wait=false"])
        .good();
    it.kubectl(&["delete", "pod", "shop-1"]).good();
    it.eventually("another member in its place", GROWS_WITHIN, || {
        (id_of(&whole(&it, 3), "shop-1") != before).then_some(())
    });
    assert_eq!(it.get("shop", "kept"), "1");
    assert!(operator.is_alive());
}
