//! Keeps the payments service running: starts it, reads its output, and restarts it on the same
//! port when it has died.

use std::io::{self, BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::plan::Fault;
use crate::service::{LISTENING, STRUCK};

/// The delay before a restart: long enough for callers to find the service down.
const NOTICE: Duration = Duration::from_millis(250);

/// A service that is kept running until this is dropped.
pub(crate) struct Supervisor {
    shared: Arc<Shared>,
    address: SocketAddr,
    watching: Option<JoinHandle<()>>,
}

struct Shared {
    command: Vec<String>,
    program: PathBuf,
    struck: [AtomicU64; Fault::ALL.len()],
    state: Mutex<State>,
    stopped: Condvar,
}

#[derive(Default)]
struct State {
    child: Option<Child>,
    stopping: bool,
}

impl Supervisor {
    /// Starts the service on a free port, with its ledger in this file.
    pub(crate) fn start(ledger: &Path, seed: u64, orders: usize) -> io::Result<Supervisor> {
        let text = |path: &Path| {
            path.to_str()
                .map(str::to_owned)
                .ok_or_else(|| io::Error::other("the path of the ledger is not UTF-8"))
        };
        let command = [
            "demo-service",
            "--ledger",
            &text(ledger)?,
            "--seed",
            &seed.to_string(),
            "--orders",
            &orders.to_string(),
        ];
        let shared = Arc::new(Shared {
            command: command.map(str::to_owned).to_vec(),
            program: std::env::current_exe()?,
            struck: Default::default(),
            state: Mutex::default(),
            stopped: Condvar::new(),
        });
        let mut said = shared.spawn((Ipv4Addr::LOCALHOST, 0).into())?;
        let address = listening(&mut said)?;
        let watching = std::thread::spawn({
            let shared = shared.clone();
            move || shared.watch(said, address)
        });
        Ok(Supervisor {
            shared,
            address,
            watching: Some(watching),
        })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// How often this fault has struck.
    pub(crate) fn struck(&self, fault: Fault) -> u64 {
        self.shared.struck[fault as usize].load(Ordering::Relaxed)
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        self.shared.stop();
        if let Some(watching) = self.watching.take() {
            let _ = watching.join();
        }
    }
}

/// Reads the address from the first line of output.
fn listening(said: &mut BufReader<ChildStdout>) -> io::Result<SocketAddr> {
    let mut line = String::new();
    said.read_line(&mut line)?;
    let address = line
        .strip_prefix(LISTENING)
        .and_then(|address| address.trim().parse().ok());
    address.ok_or_else(|| io::Error::other("the payments service ended before it listened"))
}

impl Shared {
    fn spawn(&self, address: SocketAddr) -> io::Result<BufReader<ChildStdout>> {
        let mut state = self.state();
        if state.stopping {
            return Err(io::Error::other("the demo is over"));
        }
        let mut child = service(&self.program, &self.command, address).spawn()?;
        let said = child.stdout.take().map(BufReader::new);
        state.child = Some(child);
        said.ok_or_else(|| io::Error::other("the payments service has no output"))
    }

    fn watch(&self, mut said: BufReader<ChildStdout>, address: SocketAddr) {
        loop {
            self.listen(&mut said);
            if !self.bury() {
                return;
            }
            match self.spawn(address) {
                Ok(next) => said = next,
                Err(_) if self.state().stopping => return,
                Err(error) => {
                    return eprintln!("hapax: the payments service does not start again: {error}");
                }
            }
        }
    }

    /// Counts the faults that the service reports, until its output ends.
    fn listen(&self, said: &mut BufReader<ChildStdout>) {
        for line in said.lines().map_while(Result::ok) {
            if let Some(fault) = line.strip_prefix(STRUCK).and_then(Fault::from_word) {
                self.struck[fault as usize].fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Reaps a service whose output has ended. Returns whether to start another.
    fn bury(&self) -> bool {
        let mut state = self.state();
        if let Some(mut child) = state.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        let waited = self
            .stopped
            .wait_timeout_while(state, NOTICE, |state| !state.stopping);
        !waited.unwrap_or_else(PoisonError::into_inner).0.stopping
    }

    fn stop(&self) {
        let mut state = self.state();
        state.stopping = true;
        if let Some(child) = &mut state.child {
            let _ = child.kill();
        }
        self.stopped.notify_all();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn service(program: &Path, arguments: &[String], address: SocketAddr) -> Command {
    use std::os::unix::process::CommandExt;

    let mut command = Command::new(program);
    command
        .args(arguments)
        .arg("--address")
        .arg(address.to_string());
    // The pipe to its standard input closes when this process ends, for whatever reason, which ends
    // the service.
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    // In its own process group: Ctrl-C goes only to the demo, which then ends the service.
    command.process_group(0);
    command
}
