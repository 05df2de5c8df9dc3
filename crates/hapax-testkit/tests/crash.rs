//! Tests the crash harness with simple children.

use std::time::Duration;

use hapax_testkit::crash::{self, Child, Ledger};

/// A ledger that no other test and no earlier run has written to.
fn fresh_ledger_path(test: &str) -> String {
    let path = format!(
        "{}/{test}-{}.ledger",
        env!("CARGO_TARGET_TMPDIR"),
        std::process::id()
    );
    drop(std::fs::remove_file(&path));
    path
}

#[test]
fn a_killed_child_is_dead_at_once_and_its_effects_stay() {
    const TEST: &str = "a_killed_child_is_dead_at_once_and_its_effects_stay";
    if crash::role().is_some() {
        let ledger = Ledger::open(std::env::var("LEDGER").unwrap());
        ledger.append("charge 17");
        crash::announce("charged");
        crash::pause_forever();
    }
    let path = fresh_ledger_path(TEST);
    for round in 1..=3 {
        let mut child = Child::spawn(TEST, "charger", &[("LEDGER", &path)]);
        child.wait_for("charged");
        assert!(!child.kill().success());
        assert_eq!(
            child.line(Duration::from_secs(60)),
            None,
            "the dead say nothing"
        );
        assert_eq!(
            Ledger::open(&path).counts(),
            [("charge 17".to_owned(), round)].into()
        );
    }
    std::fs::remove_file(path).unwrap();
}

#[test]
fn a_stopped_child_goes_on_where_it_stood() {
    const TEST: &str = "a_stopped_child_goes_on_where_it_stood";
    if crash::role().is_some() {
        while let Some(line) = crash::hear() {
            crash::announce(format!("heard {line}"));
        }
        return;
    }
    let mut child = Child::spawn(TEST, "echo", &[]);
    child.say("one");
    assert_eq!(child.wait_for("heard "), "one");
    for word in ["two", "three"] {
        child.stop();
        child.say(word);
        assert_eq!(child.line(Duration::ZERO), None);
        child.cont();
        assert_eq!(child.wait_for("heard "), word);
    }
    child.stop();
    assert!(!child.kill().success(), "the stopped can be killed too");
}

#[test]
fn a_child_gets_its_role_and_environment_and_ends_by_itself() {
    const TEST: &str = "a_child_gets_its_role_and_environment_and_ends_by_itself";
    if let Some(role) = crash::role() {
        crash::announce(format!(
            "I am {role} with {}",
            std::env::var("PROP").unwrap()
        ));
        crash::announce(format!("pid {}", std::process::id()));
        return;
    }
    let mut child = Child::spawn(TEST, "Hamlet", &[("PROP", "a skull")]);
    assert_eq!(child.wait_for("I am "), "Hamlet with a skull");
    assert_eq!(
        child.line(Duration::from_secs(60)),
        Some(format!("pid {}", child.pid()))
    );
    assert!(child.ended().success());
}

#[test]
fn a_dropped_child_does_not_live_on() {
    const TEST: &str = "a_dropped_child_does_not_live_on";
    if crash::role().is_some() {
        crash::announce("here");
        crash::pause_forever();
    }
    let mut child = Child::spawn(TEST, "sitter", &[]);
    child.wait_for("here");
    let process = format!("/proc/{}", child.pid());
    drop(child);
    assert!(!std::path::Path::new(&process).exists());
}

#[test]
#[should_panic(expected = "never said")]
fn a_child_that_does_not_exist_is_no_success() {
    Child::spawn("no such test", "nobody", &[]).wait_for("ready");
}
