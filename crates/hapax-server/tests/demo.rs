//! `hapax demo` as a user runs it: the built program, a short run, a fixed seed.

mod harness;

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use harness::words;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const FAULTS: [&str; 7] = [
    "answer lost",
    "charged, then 500",
    "request lost",
    "stalled",
    "truncated",
    "busy",
    "died",
];

fn demo(scratch: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hapax"));
    command.arg("demo").args(arguments).env("TMPDIR", scratch);
    command
}

fn is_empty(directory: &Path) -> bool {
    std::fs::read_dir(directory).unwrap().next().is_none()
}

#[test]
fn the_ledgers_show_one_charge_each_with_hapax_and_more_without() {
    let scratch = tempfile::tempdir().unwrap();
    let ran = demo(
        scratch.path(),
        &words("--seed 7 --for 3s --orders 60 --json"),
    )
    .output()
    .unwrap();
    let told = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{told}");
    let verdict: Value = serde_json::from_slice(&ran.stdout).unwrap();
    let count = |side: &str, what: &str| {
        verdict[side][what]
            .as_u64()
            .unwrap_or_else(|| panic!("no {side} {what} in {verdict}"))
    };

    let faults = verdict["faults"].as_array().unwrap();
    for struck in faults {
        assert!(
            struck["without_hapax"].as_u64() > Some(0) && struck["with_hapax"].as_u64() > Some(0),
            "{struck}\n{told}"
        );
    }
    assert_eq!(
        faults
            .iter()
            .filter_map(|struck| struck["fault"].as_str())
            .collect::<Vec<_>>(),
        FAULTS
    );

    let orders = count("once_settled", "orders");
    assert!(orders > 40, "{verdict}");
    assert!(
        count("without_hapax", "charged_more") > 5,
        "the storm without Hapax shows nothing: {verdict}"
    );
    assert!(count("without_hapax", "overcharged_cents") > 0, "{verdict}");
    assert_eq!(count("with_hapax", "charged_more"), 0, "{verdict}");
    assert_eq!(count("with_hapax", "confirmed_but_missing"), 0, "{verdict}");
    assert_eq!(count("once_settled", "charges"), orders, "{verdict}");
    assert_eq!(count("once_settled", "charged_once"), orders, "{verdict}");
    assert!(
        count("reconciled", "found") > 0 && count("reconciled", "not_there") > 0,
        "{verdict}"
    );
    assert_eq!(verdict["kept"], true);

    assert!(
        told.contains("with Hapax: sent"),
        "plain lines show the storm: {told}"
    );
    assert!(is_empty(scratch.path()), "the demo leaves nothing behind");
}

#[test]
fn an_interrupted_demo_ends_its_services_and_leaves_nothing_behind() {
    let scratch = tempfile::tempdir().unwrap();
    let mut running = demo(scratch.path(), &["--seed", "7"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(running.stdout.take().unwrap());
    until(&mut said, "with Hapax: sent");
    let services = children(&running);
    assert_eq!(services.len(), 2, "one with Hapax and one without");

    kill_process(Pid::from_child(&running), Signal::INT).unwrap();
    assert_eq!(running.wait().unwrap().code(), Some(130));
    let mut told = String::new();
    running.stderr.unwrap().read_to_string(&mut told).unwrap();
    assert!(told.contains("nothing is left behind"), "{told}");
    assert!(is_empty(scratch.path()));
    assert!(
        services
            .iter()
            .all(|service| !Path::new(&format!("/proc/{service}")).exists()),
        "{services:?}"
    );
}

#[test]
fn what_makes_no_storm_is_refused() {
    let scratch = tempfile::tempdir().unwrap();
    for arguments in [["--orders", "5"], ["--for", "300s"]] {
        let ran = demo(scratch.path(), &arguments).output().unwrap();
        assert_eq!(ran.status.code(), Some(2), "{arguments:?}");
    }
}

#[test]
fn a_directory_that_cannot_be_written_is_named() {
    let scratch = tempfile::tempdir().unwrap();
    let ran = demo(&scratch.path().join("absent"), &[]).output().unwrap();
    let told = String::from_utf8_lossy(&ran.stderr);
    assert_eq!(ran.status.code(), Some(1));
    assert!(told.contains("absent") && told.contains("TMPDIR"), "{told}");
}

fn until(said: &mut impl BufRead, wanted: &str) {
    let found = said
        .lines()
        .map_while(Result::ok)
        .any(|line| line.contains(wanted));
    assert!(found, "the demo ended without saying {wanted:?}");
}

/// The child processes of a process, from `/proc`.
fn children(parent: &Child) -> Vec<String> {
    let threads = std::fs::read_dir(format!("/proc/{}/task", parent.id())).unwrap();
    let of_thread = |thread: std::io::Result<std::fs::DirEntry>| {
        std::fs::read_to_string(thread.ok()?.path().join("children")).ok()
    };
    let listed: Vec<_> = threads.filter_map(of_thread).collect();
    listed
        .iter()
        .flat_map(|listed| listed.split_whitespace().map(str::to_owned))
        .collect()
}
