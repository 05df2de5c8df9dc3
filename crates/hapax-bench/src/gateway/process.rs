//! Programs that a measurement starts, and that are always ended with it.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, getppid, kill_process, set_parent_process_death_signal};
use tokio::net::TcpStream;

use crate::Error;
use crate::child::{cpu_micros, resident_bytes_of};

/// The command under which this program starts others.
pub(crate) const TIED: &str = "tied";

/// Long enough to provision a store.
const READY_WITHIN: Duration = Duration::from_secs(60);
const ENDED_WITHIN: Duration = Duration::from_secs(10);
/// How many bytes of a failed program's output are shown.
const LAST_WORDS_BYTES: usize = 2_000;

/// Replaces this process with another program that the kernel ends when its parent has ended. Only
/// a process itself can ask for that; the request survives the `exec`.
pub(crate) fn tied(mut arguments: impl Iterator<Item = String>) -> ExitCode {
    let (Some(parent), Some(program)) = (arguments.next(), arguments.next()) else {
        return ExitCode::from(2);
    };
    // TERM instead of KILL: a killed nginx would leave its workers behind.
    let asked = set_parent_process_death_signal(Some(Signal::TERM));
    let parent_lives = getppid().is_some_and(|pid| pid.as_raw_nonzero().to_string() == parent);
    if let Err(error) = asked.map_err(std::io::Error::from) {
        eprintln!("{program} cannot be tied to its parent: {error}");
    } else if parent_lives {
        eprintln!(
            "{program} cannot be started: {}",
            Command::new(&program).args(arguments).exec()
        );
    }
    ExitCode::FAILURE
}

/// A command that ends with this process and that takes no settings from this process's
/// environment.
pub(crate) fn command(program: impl AsRef<Path>) -> Result<Command, Error> {
    let mut command = Command::new(std::env::current_exe()?);
    let is_setting = |name: &str| {
        ["RESTATE_", "HAPAX_", "OTEL_", "RUST_LOG"]
            .iter()
            .any(|prefix| name.starts_with(prefix))
    };
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(is_setting)) {
        command.env_remove(name);
    }
    command
        .arg(TIED)
        .arg(std::process::id().to_string())
        .arg(program.as_ref())
        .stdin(Stdio::null());
    Ok(command)
}

/// A serving program; ended and reaped when dropped.
pub(crate) struct Process {
    name: &'static str,
    process: std::process::Child,
    log: PathBuf,
}

impl Process {
    /// Starts it. Its output goes into a file in this directory.
    pub(crate) fn start(
        name: &'static str,
        mut command: Command,
        directory: &Path,
    ) -> Result<Process, Error> {
        let log = directory.join(format!("{name}.log"));
        let output = File::options().create(true).append(true).open(&log)?;
        let process = command.stdout(output.try_clone()?).stderr(output).spawn()?;
        Ok(Process { name, process, log })
    }

    /// Waits until it accepts connections at this address.
    pub(super) async fn ready(&mut self, address: &str) -> Result<(), Error> {
        let deadline = Instant::now() + READY_WITHIN;
        while TcpStream::connect(address).await.is_err() {
            if let Some(status) = self.process.try_wait()? {
                return Err(format!(
                    "{} ended ({status}) and said:\n{}",
                    self.name,
                    self.last_words()
                )
                .into());
            }
            if Instant::now() > deadline {
                return Err(format!(
                    "{} does not listen on {address}, and said:\n{}",
                    self.name,
                    self.last_words()
                )
                .into());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    /// The processor time that the program and its children have used so far, in microseconds.
    pub(super) fn cpu_micros(&self) -> Result<u64, Error> {
        tree(self.process.id()).into_iter().map(cpu_micros).sum()
    }

    /// The resident memory of the program and its children, in bytes.
    pub(crate) fn resident_bytes(&self) -> Result<u64, Error> {
        tree(self.process.id())
            .into_iter()
            .map(resident_bytes_of)
            .sum()
    }

    /// The end of its output.
    pub(crate) fn last_words(&self) -> String {
        let said = std::fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(&said[said.len().saturating_sub(LAST_WORDS_BYTES)..])
            .trim()
            .to_owned()
    }

    fn ended(&mut self, within: Duration) -> bool {
        let deadline = Instant::now() + within;
        while Instant::now() < deadline {
            if !matches!(self.process.try_wait(), Ok(None)) {
                return true;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        false
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let asked = kill_process(Pid::from_child(&self.process), Signal::TERM);
        if asked.is_err() || !self.ended(ENDED_WITHIN) {
            drop(self.process.kill());
            drop(self.process.wait());
        }
    }
}

/// A process and all its descendants.
pub(crate) fn tree(pid: u32) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
        .flatten();
    let children =
        tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    let children: Vec<u32> = children
        .flat_map(|pids| {
            pids.split_whitespace()
                .filter_map(|pid| pid.parse().ok())
                .collect::<Vec<_>>()
        })
        .collect();
    std::iter::once(pid)
        .chain(children.into_iter().flat_map(tree))
        .collect()
}

/// A loopback address that is not in use. Another program may take it before the intended one,
/// which then fails with an error.
pub(super) fn free_address() -> Result<String, Error> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?
        .local_addr()?
        .to_string())
}

/// The port of an address.
pub(super) fn port(address: &str) -> &str {
    address.rsplit_once(':').map_or(address, |(_, port)| port)
}

/// The cargo that runs this program, or `cargo` from the path.
pub(super) fn cargo() -> PathBuf {
    std::env::var_os("CARGO").map_or_else(|| PathBuf::from("cargo"), PathBuf::from)
}
