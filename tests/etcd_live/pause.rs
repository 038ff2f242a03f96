//! A pause: nothing is changed, whoever asks for what; it outlives the agent and ends by itself.

use crate::lab::{Lab, condition, text};

fn run(lab: &Lab, arguments: &[&str]) -> (i32, String) {
    let output = lab.operator(arguments);
    let said = text(&output.stdout) + &text(&output.stderr);
    (output.status.code().unwrap(), said)
}

#[test]
fn while_it_is_paused_the_agent_changes_nothing_and_says_until_when() {
    let mut lab = Lab::new("3.6");
    lab.start_agent();
    lab.wait_available();
    let (code, said) = run(&lab, &["pause", "30m"]);
    assert_eq!(code, 0, "{said}");
    assert!(
        said.contains("changes nothing for 30 min, until 20"),
        "{said}"
    );
    // An edit that would restart etcd, and one that would stop it.
    let etcd = lab.etcd_pid();
    for line in ["profile: standard", "size: 0"] {
        lab.add(line);
        lab.signal_agent("HUP");
        let status = lab.wait("the pause", |it| it["plan"]["hold"] == "Paused");
        let message = status["plan"]["message"].as_str().unwrap();
        assert!(
            message.starts_with("a person paused the operator until 20"),
            "{message}"
        );
        assert_eq!(condition(&status, "Degraded").0, "False");
        assert_eq!(lab.etcd_pid(), etcd);
    }
    // The guard, too, knows nothing of what the edit asks for.
    assert!(!lab.lib("member/hibernates").exists());
    lab.spec = lab.spec.replace("  size: 0\n", "");
    lab.write_document();
    let (code, said) = run(&lab, &["plan"]);
    assert!(
        code == 3 && said.contains("etcd-operator resume"),
        "{code} {said}"
    );
    assert!(
        run(&lab, &["status"])
            .1
            .starts_with("ATTENTION: Paused: a person paused")
    );
    let (code, said) = run(&lab, &["restore", "--yes"]);
    assert!(code == 3 && said.contains("is paused"), "{code} {said}");
    // Another agent finds it. What a person stops stays stopped.
    lab.stop_agent();
    lab.kill_etcd();
    lab.start_agent();
    for _ in 0..5 {
        lab.wait("the pause", |it| it["plan"]["hold"] == "Paused");
        assert_eq!(lab.etcd_pid(), None);
    }
    let (code, said) = run(&lab, &["resume"]);
    assert!(
        code == 0 && said == "the operator makes changes again\n",
        "{said}"
    );
    lab.wait_available();
    assert_eq!(run(&lab, &["resume"]).1, "there was no pause\n");
}

#[test]
fn a_pause_ends_by_itself_or_by_zero() {
    let mut lab = Lab::new("3.6");
    lab.start_agent();
    lab.wait_available();
    assert_eq!(run(&lab, &["pause", "3s"]).0, 0);
    lab.wait_hold("Paused");
    lab.kill_etcd();
    // Nobody asks it: a status would be a look of its own.
    let begin = std::time::Instant::now();
    while lab.etcd_pid().is_none() {
        assert!(begin.elapsed().as_secs() < 20, "{}", lab.log());
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    lab.wait_available();
    assert_eq!(run(&lab, &["pause", "1h"]).0, 0);
    lab.wait_hold("Paused");
    assert_eq!(
        run(&lab, &["pause", "0"]).1,
        "the operator makes changes again\n"
    );
    lab.wait("no hold", |it| it["plan"].get("hold").is_none());
    for wrong in ["8d", "soon", "-1s", "1.5h"] {
        let (code, said) = run(&lab, &["pause", wrong]);
        assert_eq!(code, 2, "{wrong}: {said}");
    }
    // Of another boot it says nothing.
    assert_eq!(run(&lab, &["pause", "1h"]).0, 0);
    let file = lab.run("pause.json");
    let paused = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, paused.replace("\"ends\":", "\"ends\":9")).unwrap();
    lab.wait("no hold", |it| it["plan"].get("hold").is_none());
}
