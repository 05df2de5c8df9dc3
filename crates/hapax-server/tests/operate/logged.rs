//! The program with its log read as it comes: both of its streams, line by line.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Only a broken test waits so long.
const GUARD: Duration = Duration::from_secs(30);

/// A gateway that logs in JSON. Killed and reaped when dropped.
pub(crate) struct Logged {
    child: Child,
    lines: Receiver<String>,
    seen: Vec<Value>,
    pub(crate) address: SocketAddr,
    pub(crate) admin: String,
}

/// The program with these settings, before it is started.
pub(crate) fn command(directory: &Path, settings: &str) -> Command {
    let text = format!(
        "listen = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\n{settings}\n[drain]\nnotice = \"0s\"\n"
    );
    std::fs::write(directory.join("hapax.toml"), text).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_hapax"));
    command
        .args(["serve", "--config"])
        .arg(directory.join("hapax.toml"))
        .env_remove("HAPAX_LOG")
        .env("NO_COLOR", "1");
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

impl Logged {
    /// Starts with these settings, which begin before the first section, and waits until it serves.
    pub(crate) fn start(directory: &Path, settings: &str) -> Logged {
        let mut child = command(directory, settings).spawn().unwrap();
        let (sender, lines) = mpsc::channel();
        read(child.stdout.take().unwrap(), sender.clone());
        read(child.stderr.take().unwrap(), sender);
        let mut logged = Logged {
            child,
            lines,
            seen: Vec::new(),
            address: ([127, 0, 0, 1], 0).into(),
            admin: String::new(),
        };
        let serves = logged.wait_for("it serves", |line| line["message"] == "the gateway serves");
        logged.address = serves["listen"]
            .as_str()
            .unwrap()
            .strip_prefix("http://")
            .unwrap()
            .parse()
            .unwrap();
        logged.admin = serves["admin"].as_str().unwrap().to_owned();
        logged
    }

    /// The first line that is so, of those that were there and those to come.
    pub(crate) fn wait_for(&mut self, what: &str, is_wanted: impl Fn(&Value) -> bool) -> Value {
        if let Some(found) = self.seen.iter().find(|line| is_wanted(line)) {
            return found.clone();
        }
        loop {
            let line = self
                .next()
                .unwrap_or_else(|| panic!("it never said that {what}: {:#?}", self.seen));
            if is_wanted(&line) {
                return line;
            }
        }
    }

    /// The line that the access log has of this request.
    pub(crate) fn access(&mut self, request_id: &str) -> Value {
        self.wait_for(request_id, |line| {
            is_access(line) && line["request_id"] == request_id
        })
    }

    fn next(&mut self) -> Option<Value> {
        let line = self.lines.recv_timeout(GUARD).ok()?;
        let line: Value = serde_json::from_str(&line)
            .unwrap_or_else(|error| panic!("this is no JSON ({error}): {line}"));
        self.seen.push(line.clone());
        Some(line)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Kills it where it stands.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Stops it; everything that it has logged.
    pub(crate) fn end(mut self) -> Vec<Value> {
        self.signal(Signal::TERM);
        while self.next().is_some() {}
        assert!(self.child.wait().unwrap().success());
        std::mem::take(&mut self.seen)
    }
}

impl Drop for Logged {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn is_access(line: &Value) -> bool {
    line["target"] == "hapax::access"
}

fn read(stream: impl Read + Send + 'static, to: Sender<String>) {
    std::thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            let _ = to.send(line);
        }
    });
}
