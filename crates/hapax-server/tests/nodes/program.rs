//! The program itself, `hapax serve`, on the database that it shares with others.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// Only a broken test waits so long.
const GUARD: Duration = Duration::from_secs(60);

/// A gateway of its own. Killed and reaped when dropped.
pub struct Program {
    process: Child,
    pub address: SocketAddr,
    _directory: TempDir,
}

/// What it is started with.
pub struct Settings<'a> {
    pub store: &'a str,
    pub upstream: SocketAddr,
    /// Lines of `[defaults]`.
    pub defaults: &'a str,
    pub environment: &'a [(String, String)],
}

impl Program {
    /// Starts it and waits until it serves.
    pub fn start(settings: &Settings<'_>) -> Program {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("hapax.toml");
        std::fs::write(&file, settings.text()).unwrap();
        let mut process = Command::new(env!("CARGO_BIN_EXE_hapax"))
            .args(["serve", "--log", "text", "--config"])
            .arg(&file)
            .envs(
                settings
                    .environment
                    .iter()
                    .map(|(name, value)| (name, value)),
            )
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let output = lines(&mut process);
        let address = loop {
            let line = output
                .recv_timeout(GUARD)
                .unwrap_or_else(|error| panic!("it never said where it serves: {error}"));
            if let Some(address) = line.strip_prefix("  clients ") {
                break address
                    .trim()
                    .strip_prefix("http://")
                    .and_then(|address| address.parse().ok())
                    .expect("an address");
            }
        };
        Program {
            process,
            address,
            _directory: directory,
        }
    }

    /// Stops it (SIGSTOP): it keeps all it has and does nothing. Returns when no thread of it runs
    /// any more.
    pub fn stop(&self) {
        self.signal(Signal::STOP);
        let deadline = Instant::now() + GUARD;
        while !self.is_stopped() {
            assert!(Instant::now() < deadline, "it does not stop");
            std::thread::yield_now();
        }
    }

    /// Lets it go on (SIGCONT), as if no time had passed.
    pub fn go_on(&self) {
        self.signal(Signal::CONT);
    }

    /// Kills it where it stands (SIGKILL).
    pub fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).unwrap();
    }

    fn is_stopped(&self) -> bool {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.process.id()))
            .expect("it is there")
            .flatten();
        let mut stats =
            tasks.filter_map(|task| std::fs::read_to_string(task.path().join("stat")).ok());
        // The state is the first word after the command's name, which is in parentheses and may
        // hold anything.
        stats.all(|stat| {
            stat.rsplit_once(") ")
                .is_some_and(|(_, rest)| rest.starts_with('T'))
        })
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Settings<'_> {
    fn text(&self) -> String {
        let Settings {
            store,
            upstream,
            defaults,
            ..
        } = self;
        format!(
            "listen = \"127.0.0.1:0\"\nadmin = \"off\"\nstore = \"{store}\"\nprincipal = \"none\"\n\n[upstream]\nurl = \"http://{upstream}\"\n\n\
             [defaults]\n{defaults}\n"
        )
    }
}

/// On a thread of its own, to the end even when nobody listens any more, so that it never writes
/// into a closed pipe.
fn lines(process: &mut Child) -> Receiver<String> {
    let (stdout, (sender, output)) = (process.stdout.take().unwrap(), mpsc::channel());
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            let _ = sender.send(line);
        }
    });
    output
}
