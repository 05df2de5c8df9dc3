//! A program as a child of the test, with its output as it arrives.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Instant;

pub use rustix::process::Signal;
use rustix::process::{Pid, kill_process, kill_process_group};
use tempfile::TempDir;

use super::GUARD;

/// A child program. Killed and reaped when dropped.
pub struct Program {
    process: Child,
    lines: Receiver<String>,
    /// Lines that no wait has consumed yet.
    unheard: Vec<String>,
    log: String,
    /// The address of a gateway for clients.
    pub clients: SocketAddr,
    /// The address of a gateway's admin listener, if it has one.
    pub admin: SocketAddr,
    /// Removed after the program has ended.
    directory: Option<TempDir>,
}

impl Program {
    /// Starts it. The lines of both outputs are kept.
    pub fn start(command: &mut Command) -> Program {
        let mut process = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let (sender, lines) = mpsc::channel();
        read(process.stdout.take().expect("piped"), sender.clone());
        read(process.stderr.take().expect("piped"), sender);
        let nowhere = ([127, 0, 0, 1], 0).into();
        Program {
            process,
            lines,
            unheard: Vec::new(),
            log: String::new(),
            clients: nowhere,
            admin: nowhere,
            directory: None,
        }
    }

    /// Keeps this directory until the program has ended.
    pub fn keep(mut self, directory: TempDir) -> Program {
        self.directory = Some(directory);
        self
    }

    /// The directory that [`Program::keep`] was given.
    pub fn directory(&self) -> &Path {
        self.directory.as_ref().expect("it keeps one").path()
    }

    /// Starts a command that ends in `hapax serve --log text`, and waits until it serves.
    pub fn serve(command: &mut Command) -> Program {
        let mut program = Program::start(command);
        program.wait_served();
        program
    }

    /// Waits until a gateway that logs as text serves, and reads its addresses.
    pub fn wait_served(&mut self) {
        let address = |line: &str| {
            let (_, rest) = line.split_once("://")?;
            rest.split('/').next()?.parse().ok()
        };
        self.clients = address(&self.wait_for("  clients ")).expect("an address");
        self.admin = address(&self.wait_for("  operators ")).unwrap_or(self.admin);
        // The last line of the banner has this path.
        self.wait_for("/.well-known/idempotency");
    }

    /// Waits for a line that contains `wanted` and returns it. Lines that were already returned do
    /// not count; earlier lines do.
    pub fn wait_for(&mut self, wanted: &str) -> String {
        self.wait_until(wanted, |line| line.contains(wanted))
    }

    /// Waits for a line that fulfils the predicate.
    pub fn wait_until(&mut self, what: &str, is_wanted: impl Fn(&str) -> bool) -> String {
        if let Some(index) = self.unheard.iter().position(|line| is_wanted(line)) {
            return self.unheard.remove(index);
        }
        loop {
            let Some(line) = self.next_line() else {
                panic!("it never said {what:?}, but:\n{}", self.log);
            };
            if is_wanted(&line) {
                return line;
            }
            self.unheard.push(line);
        }
    }

    /// The next line; `None` when the program has ended.
    pub fn next_line(&mut self) -> Option<String> {
        let line = self.lines.recv_timeout(GUARD).ok()?;
        self.log += &line;
        self.log.push('\n');
        Some(line)
    }

    /// All output that has been read so far.
    pub fn log(&self) -> &str {
        &self.log
    }

    pub fn id(&self) -> u32 {
        self.process.id()
    }

    pub fn is_running(&mut self) -> bool {
        self.process.try_wait().expect("it is ours").is_none()
    }

    /// Sends a signal to the started process. A wrapper that does not `exec` must forward it.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).expect("it is there");
    }

    /// Kills the program (SIGKILL).
    pub fn kill(&mut self) {
        self.kill_its_group();
        self.process.kill().expect("it is ours");
        self.process.wait().expect("it is ours");
    }

    /// Stops the program (SIGSTOP): it keeps its state and does nothing. Returns when none of its
    /// threads runs.
    pub fn stop(&self) {
        self.signal(Signal::STOP);
        let deadline = Instant::now() + GUARD;
        while !self.is_stopped() {
            assert!(Instant::now() < deadline, "it does not stop");
            std::thread::yield_now();
        }
    }

    /// Resumes the program (SIGCONT).
    pub fn go_on(&self) {
        self.signal(Signal::CONT);
    }

    fn is_stopped(&self) -> bool {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.id())).expect("it is there");
        let mut stats = tasks
            .flatten()
            .filter_map(|task| std::fs::read_to_string(task.path().join("stat")).ok());
        // The state is the first word after the command's name, which is in parentheses and may
        // contain any character.
        stats.all(|stat| {
            stat.rsplit_once(") ")
                .is_some_and(|(_, rest)| rest.starts_with('T'))
        })
    }

    /// Waits until the program and its output have ended.
    pub fn ended(&mut self) -> ExitStatus {
        while self.next_line().is_some() {}
        self.process.wait().expect("it is ours")
    }

    /// Asks the program to stop (SIGTERM) and waits until it has ended successfully. Returns all
    /// its output.
    pub fn end(mut self) -> String {
        self.signal(Signal::TERM);
        let status = self.ended();
        assert!(status.success(), "{status}:\n{}", self.log);
        std::mem::take(&mut self.log)
    }

    /// Sends a charge under this key. Returns the gateway's answer including its head.
    pub fn charge(&self, key: &str, body: &[u8]) -> String {
        send(self.clients, "POST /charges", key, body)
    }

    /// Sends another operation under this key.
    pub fn send(&self, operation: &str, key: &str, body: &[u8]) -> String {
        send(self.clients, operation, key, body)
    }

    /// The answer of the admin listener at this path, including its head.
    pub fn ask(&self, path: &str) -> String {
        let (to, rest) = (self.admin, "Connection: close\r\n\r\n");
        let request = format!("GET {path} HTTP/1.1\r\nHost: {to}\r\n{rest}");
        exchange(to, request.as_bytes())
    }
}

impl Program {
    /// Kills the processes that it has started, if it leads a process group of its own.
    fn kill_its_group(&self) {
        if let Some(id) = Pid::from_raw(self.process.id().cast_signed()) {
            let _ = kill_process_group(id, Signal::KILL);
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.kill_its_group();
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Runs on its own thread and reads to the end even if there is no receiver, so that the program
/// never writes into a closed pipe.
fn read(stream: impl Read + Send + 'static, to: Sender<String>) {
    std::thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            let _ = to.send(line);
        }
    });
}

/// Sends a request under this key. Returns the answer including its head.
pub fn send(to: SocketAddr, operation: &str, key: &str, body: &[u8]) -> String {
    let length = body.len();
    let head = format!(
        "{operation} HTTP/1.1\r\nHost: h\r\nIdempotency-Key: {key}\r\n\
         Content-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    exchange(to, &[head.as_bytes(), body].concat())
}

/// Sends one request on its own connection, which the server must close afterwards. Returns
/// everything that comes back.
pub fn exchange(to: SocketAddr, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(to).expect("somebody listens");
    stream.set_read_timeout(Some(GUARD)).expect("a socket");
    stream.write_all(request).expect("somebody reads");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("an answer");
    String::from_utf8_lossy(&answer).into_owned()
}
