//! The program with a JSON log, read line by line.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::harness::{Program, Signal, hapax, replace};

/// A gateway with a JSON log.
pub struct Logged {
    program: Program,
    seen: Vec<Value>,
    pub address: SocketAddr,
    pub admin: SocketAddr,
}

/// The command for the program with these settings.
pub fn command(directory: &Path, settings: &str) -> Command {
    let file = directory.join("hapax.toml");
    let text = format!(
        "listen = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\n{settings}\n[drain]\nnotice = \"0s\"\n"
    );
    replace(&file, &text);
    let mut command = hapax();
    command.args(["serve", "--config"]).arg(file);
    command.env_remove("HAPAX_LOG").env("NO_COLOR", "1");
    command
}

impl Logged {
    /// Starts the program with these settings, which begin before the first section, and waits
    /// until it serves.
    pub fn start(directory: &Path, settings: &str) -> Logged {
        let nowhere = ([127, 0, 0, 1], 0).into();
        let mut logged = Logged {
            program: Program::start(&mut command(directory, settings)),
            seen: Vec::new(),
            address: nowhere,
            admin: nowhere,
        };
        let serves = logged.wait_for("it serves", |line| line["message"] == "the gateway serves");
        let address = |name: &str| {
            let url = serves[name].as_str().unwrap();
            url.strip_prefix("http://").unwrap().parse().unwrap()
        };
        (logged.address, logged.admin) = (address("listen"), address("admin"));
        logged
    }

    /// The first line that matches, among those already read and those to come.
    pub fn wait_for(&mut self, what: &str, is_wanted: impl Fn(&Value) -> bool) -> Value {
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

    /// The access line of this request.
    pub fn access(&mut self, request_id: &str) -> Value {
        self.wait_for(request_id, |line| {
            is_access(line) && line["request_id"] == request_id
        })
    }

    fn next(&mut self) -> Option<Value> {
        let line = self.program.next_line()?;
        let line: Value = serde_json::from_str(&line)
            .unwrap_or_else(|error| panic!("this is no JSON ({error}): {line}"));
        self.seen.push(line.clone());
        Some(line)
    }

    pub fn signal(&self, signal: Signal) {
        self.program.signal(signal);
    }

    /// Kills the program.
    pub fn kill(mut self) {
        self.program.kill();
    }

    /// Stops the program. Returns everything that it has logged.
    pub fn end(mut self) -> Vec<Value> {
        self.signal(Signal::TERM);
        while self.next().is_some() {}
        assert!(self.program.ended().success());
        self.seen
    }
}

pub fn is_access(line: &Value) -> bool {
    line["target"] == "hapax::access"
}
