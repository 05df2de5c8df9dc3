//! The program: SIGHUP, `hapax reload`, and its notifications to a service manager.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::Path;

use tempfile::TempDir;

use crate::harness::{GUARD, Program, Signal, hapax, said, words};

struct Served {
    program: Program,
    manager: UnixDatagram,
    directory: TempDir,
}

fn settings(directory: &Path, more: &str) {
    let text = "listen = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\nstore = \"memory:\"\n";
    fs::write(
        directory.join("hapax.toml"),
        format!("{text}{more}[drain]\nnotice = \"0s\"\n"),
    )
    .unwrap();
}

/// Starts the program with a configuration file or without one, under a service manager.
fn spawn(has_file: bool) -> Served {
    let directory = tempfile::tempdir().unwrap();
    settings(directory.path(), "");
    let manager = UnixDatagram::bind(directory.path().join("notify")).unwrap();
    manager.set_read_timeout(Some(GUARD)).unwrap();
    let mut command = hapax();
    command
        .args(words("serve --upstream http://127.0.0.1:1 --log text"))
        .env("NOTIFY_SOCKET", directory.path().join("notify"));
    command.env("WATCHDOG_USEC", "200000");
    if has_file {
        command
            .arg("--config")
            .arg(directory.path().join("hapax.toml"));
    } else {
        command.args(words(
            "--listen 127.0.0.1:0 --admin 127.0.0.1:0 --store memory:",
        ));
    }
    Served {
        program: Program::start(&mut command),
        manager,
        directory,
    }
}

fn served(has_file: bool) -> Served {
    let mut served = spawn(has_file);
    served.program.wait_served();
    let ready = served.told("READY=1");
    assert!(ready.contains("STATUS=listening on 127.0.0.1:"), "{ready}");
    served
}

impl Served {
    /// The next notification to the manager, watchdog pings aside, which must begin with `what`.
    fn told(&self, what: &str) -> String {
        loop {
            let mut bytes = [0; 1_024];
            let len = self.manager.recv(&mut bytes).expect("the manager is told");
            let text = String::from_utf8(bytes[..len].to_vec()).unwrap();
            if text != "WATCHDOG=1" || what == text {
                assert!(text.starts_with(what), "{text}");
                return text;
            }
        }
    }

    fn signal(&self, signal: Signal) {
        self.program.signal(signal);
    }

    fn reload(&self, more: &[&str]) -> (Option<i32>, String, String) {
        let admin = format!("http://{}", self.program.admin);
        let said = said(hapax().args(["reload", "--admin", &admin]).args(more));
        (Some(said.code), said.stdout, said.stderr)
    }

    /// Stops the program. Returns its log.
    fn end(mut self) -> String {
        self.signal(Signal::TERM);
        self.told("STOPPING=1");
        let status = self.program.ended();
        assert!(status.success(), "{}", self.program.log());
        self.program.log().to_owned()
    }
}

#[test]
fn a_hangup_reads_the_configuration_again_and_a_manager_is_told() {
    let served = served(true);
    settings(served.directory.path(), "[timeouts]\nstall = \"30s\"\n");
    served.signal(Signal::HUP);
    let reloading = served.told("RELOADING=1\nMONOTONIC_USEC=");
    assert!(
        reloading.lines().nth(1).unwrap()["MONOTONIC_USEC=".len()..]
            .parse::<u64>()
            .unwrap()
            > 0,
        "{reloading}"
    );
    assert!(
        served
            .told("READY=1")
            .contains("the configuration was reloaded, settings changed: 1")
    );

    settings(served.directory.path(), "nonsense = 7\n");
    served.signal(Signal::HUP);
    served.told("RELOADING=1");
    assert!(served.told("READY=1").contains("NOT reloaded"));
    served.told("WATCHDOG=1");
    let stderr = served.end();
    assert!(
        stderr.contains("a setting changed setting=\"timeouts.stall\" from=\"20s\" to=\"30s\""),
        "{stderr}"
    );
    assert!(
        stderr.contains("hapax.toml:4:1: unknown setting `nonsense`")
            && stderr.contains("\n   | ^^^^^^^^"),
        "{stderr}"
    );
}

#[test]
fn without_a_file_there_is_nothing_to_reload_and_it_goes_on() {
    let served = served(false);
    served.signal(Signal::HUP);
    served.told("RELOADING=1");
    served.told("READY=1");
    let (code, _, stderr) = served.reload(&[]);
    assert!(
        code == Some(1) && stderr.contains("started without --config"),
        "{code:?} {stderr}"
    );
    assert!(
        served
            .end()
            .contains("there is nothing to reload: this gateway was started without --config")
    );
}

#[test]
fn a_hangup_before_the_gateway_is_up_does_not_end_it() {
    let served = spawn(true);
    // The signal is sent as soon as the program handles it, long before the store is open.
    let caught = |status: &str| {
        let mask = status
            .lines()
            .find_map(|line| line.strip_prefix("SigCgt:"))
            .expect("the kernel tells it");
        u64::from_str_radix(mask.trim(), 16).unwrap() & 1 != 0
    };
    while !caught(&fs::read_to_string(format!("/proc/{}/status", served.program.id())).unwrap()) {
        std::thread::yield_now();
    }
    served.signal(Signal::HUP);
    served.told("READY=1");
    served.told("RELOADING=1");
    served.told("READY=1");
    served.end();
}

#[test]
fn an_operator_reloads_and_is_told_what_changed_or_why_not() {
    let served = served(true);
    let told = "no setting changed; the files that they name were read again\n";
    assert_eq!(
        served.reload(&[]),
        (Some(0), told.to_owned(), String::new())
    );
    settings(served.directory.path(), "namespace = \"other\"\n");
    let (code, _, stderr) = served.reload(&[]);
    assert!(
        code == Some(1) && stderr.contains("`namespace` changes from \"default\" to \"other\""),
        "{code:?} {stderr}"
    );
    assert!(
        stderr.contains("(0 live keys now)") && stderr.contains("--allow-scope-change"),
        "{stderr}"
    );
    let (code, _, stderr) = served.reload(&["--allow-scope-change"]);
    assert!(
        code == Some(2) && stderr.contains("--reason"),
        "{code:?} {stderr}"
    );
    let (code, stdout, stderr) =
        served.reload(&words("--allow-scope-change --reason 'nobody uses it yet'"));
    assert_eq!(
        (code, stdout.as_str()),
        (Some(0), "namespace\tdefault -> other\n"),
        "{stderr}"
    );
    settings(served.directory.path(), "listen = \"127.0.0.1:1\"\n");
    let (code, _, stderr) = served.reload(&[]);
    assert!(
        code == Some(1) && stderr.contains("duplicate key"),
        "{code:?} {stderr}"
    );
    served.end();
}
