//! `hapax serve` as a person runs it: what it refuses, what it says, how it stops.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

fn hapax(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hapax"));
    command
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn ended(args: &[&str]) -> (Option<i32>, String) {
    let Output {
        status,
        stdout,
        stderr,
    } = hapax(args).output().unwrap();
    assert!(
        stdout.is_empty(),
        "what went wrong is said on standard error"
    );
    (status.code(), String::from_utf8(stderr).unwrap())
}

#[test]
fn mistakes_on_the_command_line_end_with_2_and_say_what_to_write() {
    for (args, said) in [
        (
            &["serve"][..],
            "no upstream: give --upstream http://127.0.0.1:3000",
        ),
        (
            &["serve", "--upstream", "127.0.0.1:3000"],
            "write http://127.0.0.1:3000",
        ),
        (
            &["serve", "--upstream", "http://a/b"],
            "requests keep their own path",
        ),
        (
            &["serve", "--upstream", "http://a", "--listen", "4000"],
            "write 127.0.0.1:4000",
        ),
        (
            &["serve", "--upstream", "http://a", "--admin", "0.0.0.0:1"],
            "the admin listener asks nobody who they are",
        ),
        (
            &[
                "serve",
                "--upstream",
                "http://a",
                "--admin",
                "127.0.0.1:4000",
            ],
            "are one address",
        ),
        (
            &["serve", "--upstream", "http://a", "--store", "hapax.db"],
            "write sqlite:hapax.db",
        ),
        (
            &["serve", "--upstream", "http://a", "--principal", "jwt:sub"],
            "`jwt:sub` needs [jwt] in the configuration",
        ),
        (
            &[
                "serve",
                "--upstream",
                "http://a",
                "--principal",
                "header:x-user",
            ],
            "believes only proxies that are named",
        ),
        (
            &["serve", "--upstream", "http://a", "--log", "loud"],
            "[possible values: text, json]",
        ),
        (&["serve", "--upstrem", "http://a"], "--upstream"),
        (
            &["serve", "--config", "/nowhere/hapax.toml"],
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

/// A gateway that has begun, and the lines it says.
struct Served {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
    _directory: TempDir,
}

fn served(notice: &str) -> Served {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("hapax.toml");
    fs::write(&file, format!("listen = \"127.0.0.1:0\"\nadmin = \"off\"\nstore = \"memory:\"\n[drain]\nnotice = \"{notice}\"\n"))
        .unwrap();
    // Nobody listens on the first port: the gateway starts all the same.
    let mut child = hapax(&[
        "serve",
        "--log",
        "text",
        "--upstream",
        "http://127.0.0.1:1",
        "--config",
        file.to_str().unwrap(),
    ])
    .spawn()
    .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap());
    let mut served = Served {
        child,
        lines,
        _directory: directory,
    };
    served.until("/.well-known/idempotency");
    served
}

impl Served {
    fn until(&mut self, wanted: &str) {
        let mut line = String::new();
        while !line.contains(wanted) {
            line.clear();
            assert_ne!(
                self.lines.read_line(&mut line).unwrap(),
                0,
                "it ended before it said {wanted}"
            );
        }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// The exit code and what it said on standard error.
    fn end(mut self) -> (Option<i32>, String) {
        let mut stderr = String::new();
        self.child
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut stderr)
            .unwrap();
        (self.child.wait().unwrap().code(), stderr)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn one_signal_drains_and_ends_with_0() {
    for signal in [Signal::TERM, Signal::INT] {
        let mut gateway = served("0s");
        gateway.signal(signal);
        gateway.until("stopped: no attempt was left under way");
        assert_eq!(gateway.end().0, Some(0));
    }
}

#[test]
fn a_second_signal_ends_at_once_with_130() {
    let mut gateway = served("1h");
    gateway.signal(Signal::TERM);
    gateway.until("draining");
    gateway.signal(Signal::TERM);
    assert_eq!(gateway.end().0, Some(130));
}

#[test]
fn an_upstream_that_is_not_there_is_a_warning() {
    let mut gateway = served("0s");
    let mut stderr = BufReader::new(gateway.child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("could not reach the upstream 127.0.0.1 port 1") {
        line.clear();
        assert_ne!(
            stderr.read_line(&mut line).unwrap(),
            0,
            "it ended without a warning"
        );
    }
    gateway.signal(Signal::TERM);
    gateway.until("stopped");
    assert!(gateway.child.wait().unwrap().success());
}
