//! `hapax serve` as a user runs it: what it refuses, what it prints, how it stops.

mod harness;

use std::fs;
use std::net::TcpListener;

use harness::{Program, Signal, hapax, said, serve_command, words};

fn ended(args: &[&str]) -> (Option<i32>, String) {
    let said = said(hapax().args(args));
    assert!(
        said.stdout.is_empty(),
        "what went wrong is said on standard error"
    );
    (Some(said.code), said.stderr)
}

#[test]
fn mistakes_on_the_command_line_end_with_2_and_say_what_to_write() {
    for (args, said) in [
        (
            &["serve"][..],
            "no upstream: give --upstream http://127.0.0.1:3000",
        ),
        (
            &words("serve --upstream 127.0.0.1:3000"),
            "write http://127.0.0.1:3000",
        ),
        (
            &words("serve --upstream http://a/b"),
            "requests keep their own path",
        ),
        (
            &words("serve --upstream http://a --listen 4000"),
            "write 127.0.0.1:4000",
        ),
        (
            &words("serve --upstream http://a --admin 0.0.0.0:1"),
            "the admin listener asks nobody who they are",
        ),
        (
            &words("serve --upstream http://a --admin 127.0.0.1:4000"),
            "are one address",
        ),
        (
            &words("serve --upstream http://a --store hapax.db"),
            "write sqlite:hapax.db",
        ),
        (
            &words("serve --upstream http://a --principal jwt:sub"),
            "`jwt:sub` needs [jwt] in the configuration",
        ),
        (
            &words("serve --upstream http://a --principal header:x-user"),
            "believes only proxies that are named",
        ),
        (
            &words("serve --upstream http://a --log loud"),
            "[possible values: text, json]",
        ),
        (&words("serve --upstrem http://a"), "--upstream"),
        (
            &words("serve --config /nowhere/hapax.toml"),
            "could not read the configuration /nowhere/hapax.toml",
        ),
        (&["server"], "serve"),
    ] {
        let (code, stderr) = ended(args);
        assert!(
            code == Some(2) && stderr.contains(said),
            "{args:?}: {code:?} {stderr}"
        );
    }
}

#[test]
fn a_mistake_in_the_file_is_shown() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("hapax.toml");
    fs::write(&file, "listen = \"4000\"\n").unwrap();
    let (code, stderr) = ended(&[
        "serve",
        "--upstream",
        "http://a",
        "--config",
        file.to_str().unwrap(),
    ]);
    assert_eq!(code, Some(2));
    assert!(
        stderr.contains("hapax.toml:1:10: ") && stderr.contains("|          ^^^^^^\n"),
        "{stderr}"
    );
}

#[test]
fn an_address_in_use_is_named_with_its_setting() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let (code, stderr) = ended(&[
        "serve",
        "--upstream",
        "http://a",
        "--store",
        "memory:",
        "--admin",
        "off",
        "--listen",
        &address,
    ]);
    assert_eq!(code, Some(2));
    assert!(
        stderr.contains(&format!("could not bind {address}")) && stderr.contains("--listen"),
        "{stderr}"
    );
}

/// A started gateway. No service listens on port 1, and the gateway starts nevertheless.
fn served(notice: &str) -> Program {
    let directory = tempfile::tempdir().unwrap();
    let settings = format!(
        "listen = \"127.0.0.1:0\"\nadmin = \"off\"\nstore = \"memory:\"\n[drain]\nnotice = \"{notice}\"\n"
    );
    let mut command = serve_command(directory.path(), &settings);
    Program::serve(command.args(["--upstream", "http://127.0.0.1:1"])).keep(directory)
}

#[test]
fn one_signal_drains_and_ends_with_0() {
    for signal in [Signal::TERM, Signal::INT] {
        let mut gateway = served("0s");
        gateway.signal(signal);
        gateway.wait_for("stopped: no attempt was left under way");
        assert_eq!(gateway.ended().code(), Some(0));
    }
}

#[test]
fn a_second_signal_ends_at_once_with_130() {
    let mut gateway = served("1h");
    gateway.signal(Signal::TERM);
    gateway.wait_for("draining");
    gateway.signal(Signal::TERM);
    assert_eq!(gateway.ended().code(), Some(130));
}

#[test]
fn an_upstream_that_is_not_there_is_a_warning() {
    let mut gateway = served("0s");
    gateway.wait_for("could not reach the upstream 127.0.0.1 port 1");
    gateway.signal(Signal::TERM);
    gateway.wait_for("stopped");
    assert!(gateway.ended().success());
}
