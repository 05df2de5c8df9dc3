//! The program itself, `hapax serve`, as an operator starts and stops it.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use hapax_server::config::Protocol;
use rustix::process::{Pid, Signal, kill_process};

use super::upstream::Upstream;

/// Only a broken test waits so long.
const GUARD: Duration = Duration::from_secs(60);

/// A gateway of its own. Killed and reaped when dropped.
pub struct Program {
    process: Child,
    output: Receiver<String>,
    pub address: SocketAddr,
}

impl Program {
    /// Starts it on the store of a directory, to give attempts so long when it is told to stop.
    pub fn start(directory: &Path, upstream: &Upstream, deadline: &str) -> Program {
        let config = directory.join("hapax.toml");
        std::fs::write(&config, settings(directory, upstream, deadline)).unwrap();
        let mut process = Command::new(env!("CARGO_BIN_EXE_hapax"))
            .args(["serve", "--log", "text", "--config"])
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let stdout = process.stdout.take().unwrap();
        let (sender, output) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                // Read to the end even when nobody listens any more, so that it never writes into a
                // closed pipe.
                let _ = sender.send(line);
            }
        });
        let mut program = Program {
            process,
            output,
            address: ([127, 0, 0, 1], 0).into(),
        };
        let line = program.wait_for("  clients ");
        program.address = line
            .trim()
            .strip_prefix("http://")
            .and_then(|address| address.parse().ok())
            .expect("an address");
        program
    }

    /// The rest of the next line that begins so.
    pub fn wait_for(&self, prefix: &str) -> String {
        loop {
            let line = self
                .output
                .recv_timeout(GUARD)
                .unwrap_or_else(|error| panic!("it never said {prefix:?}: {error}"));
            if let Some(rest) = line.strip_prefix(prefix) {
                return rest.to_owned();
            }
        }
    }

    /// Tells it to stop (SIGTERM).
    pub fn terminate(&self) {
        kill_process(Pid::from_child(&self.process), Signal::TERM).unwrap();
    }

    /// Waits until it has ended.
    pub fn ended(&mut self) -> ExitStatus {
        // Its output ends with it.
        while self.output.recv_timeout(GUARD).is_ok() {}
        let ended = self.process.try_wait().unwrap();
        ended.unwrap_or_else(|| self.process.wait().unwrap())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn settings(directory: &Path, upstream: &Upstream, deadline: &str) -> String {
    let store = directory.join("hapax.db");
    format!(
        "listen = \"127.0.0.1:0\"\nadmin = \"off\"\nstore = \"sqlite:{}\"\nprincipal = \"none\"\n\n\
         [upstream]\nurl = \"http://{}\"\n\n[drain]\nnotice = \"50ms\"\ndeadline = \"{deadline}\"\n",
        store.display(),
        upstream.address(Protocol::Http1)
    )
}
