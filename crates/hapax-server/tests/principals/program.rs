//! `hapax serve`, as a process of its own.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use http::Request;
use rustix::process::{Pid, Signal, kill_process};

use crate::client::{Client, empty};
use crate::world::Upstream;

/// Only a broken test waits so long.
const GUARD: Duration = Duration::from_secs(60);

/// The program, and where it listens. Killed when dropped.
pub(crate) struct Program {
    process: Child,
    pub(crate) clients: SocketAddr,
    pub(crate) operators: SocketAddr,
    /// What it printed when it started.
    pub(crate) banner: String,
}

impl Program {
    /// Starts it in this directory, with these settings before the first section.
    pub(crate) fn start(directory: &Path, upstream: &Upstream, settings: &str) -> Program {
        write(directory, upstream, settings);
        let log = File::create(directory.join("log")).unwrap();
        let mut process = Command::new(env!("CARGO_BIN_EXE_hapax"))
            .args(["serve", "--log", "text", "--config"])
            .arg(directory.join("hapax.toml"))
            .env("HAPAX_LOG", "trace")
            .env("RUST_LOG", "trace")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap())
            .lines()
            .map_while(Result::ok);
        let mut banner = String::new();
        // The banner ends with where to look.
        for line in lines.by_ref() {
            banner += &format!("{line}\n");
            if line.contains("/.well-known/") {
                break;
            }
        }
        let address = |name: &str| {
            let line = banner
                .lines()
                .find(|line| line.trim_start().starts_with(name))
                .expect("it says where it listens");
            let (_, url) = line.split_once("http://").unwrap();
            url.split(['/', ',']).next().unwrap().parse().unwrap()
        };
        let (clients, operators) = (address("clients"), address("operators"));
        // Whatever it says later goes nowhere, and must not stop it.
        std::thread::spawn(move || lines.for_each(drop));
        Program {
            process,
            clients,
            operators,
            banner,
        }
    }

    /// Writes other settings down for the next reload.
    pub(crate) fn configure(&self, directory: &Path, upstream: &Upstream, settings: &str) {
        write(directory, upstream, settings);
    }

    /// Has it read its settings again, and waits until it has logged this. Everything it has
    /// logged.
    pub(crate) async fn reload(&self, directory: &Path, until: &str) -> String {
        kill_process(Pid::from_child(&self.process), Signal::HUP).unwrap();
        let begun = Instant::now();
        loop {
            let log = std::fs::read_to_string(directory.join("log")).unwrap();
            if log.contains(until) {
                return log;
            }
            assert!(begun.elapsed() < GUARD, "it never logged {until:?}:\n{log}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// What operators are told.
    pub(crate) async fn ask(&self, target: &str) -> String {
        let got = Client::new(self.operators, false)
            .send(Request::get(target).body(empty()).unwrap())
            .await;
        assert!(got.status.is_success(), "{target}: {got:?}");
        got.text()
    }

    /// Stops it; everything it has logged.
    pub(crate) fn end(mut self, directory: &Path) -> String {
        kill_process(Pid::from_child(&self.process), Signal::TERM).unwrap();
        self.process.wait().unwrap();
        std::fs::read_to_string(directory.join("log")).unwrap()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn write(directory: &Path, upstream: &Upstream, settings: &str) {
    let text = format!(
        "listen = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\nstore = \"sqlite:hapax.db\"\n{settings}\n\
         [upstream]\nurl = \"http://{}\"\n\n[drain]\nnotice = \"0s\"\n",
        upstream.address
    );
    std::fs::write(directory.join("hapax.toml"), text).unwrap();
}
