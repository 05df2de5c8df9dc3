//! A program as a child of the test, heard as it speaks.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Instant;

pub use rustix::process::Signal;
use rustix::process::{Pid, kill_process};
use tempfile::TempDir;

use super::GUARD;

/// A program of the test's own. Killed and reaped when dropped.
pub struct Program {
    process: Child,
    lines: Receiver<String>,
    /// Lines that nobody has waited for yet.
    unheard: Vec<String>,
    log: String,
    /// Where a gateway listens to clients.
    pub clients: SocketAddr,
    /// Where a gateway listens to operators, if it does.
    pub admin: SocketAddr,
    /// Removed after the program has ended.
    directory: Option<TempDir>,
}

impl Program {
    /// Starts it. What it writes on either output is kept, line by line.
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

    /// Keeps its directory until it has ended.
    pub fn keep(mut self, directory: TempDir) -> Program {
        self.directory = Some(directory);
        self
    }

    /// The directory that it keeps.
    pub fn directory(&self) -> &Path {
        self.directory.as_ref().expect("it keeps one").path()
    }

    /// Starts a command that ends in `hapax serve --log text`, and waits until it serves.
    pub fn serve(command: &mut Command) -> Program {
        let mut program = Program::start(command);
        program.wait_served();
        program
    }

    /// Waits until a gateway that logs as text serves, and learns where.
    pub fn wait_served(&mut self) {
        let address = |line: &str| {
            let (_, rest) = line.split_once("://")?;
            rest.split('/').next()?.parse().ok()
        };
        self.clients = address(&self.wait_for("  clients ")).expect("an address");
        self.admin = address(&self.wait_for("  operators ")).unwrap_or(self.admin);
        // The banner ends with where to look.
        self.wait_for("/.well-known/idempotency");
    }

    /// The first line with this in it, of those that were there and those to come, but for lines
    /// that were waited for before.
    pub fn wait_for(&mut self, wanted: &str) -> String {
        self.wait_until(wanted, |line| line.contains(wanted))
    }

    /// The same for a line that is so.
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

    /// The next line; none when it has ended.
    pub fn next_line(&mut self) -> Option<String> {
        let line = self.lines.recv_timeout(GUARD).ok()?;
        self.log += &line;
        self.log.push('\n');
        Some(line)
    }

    /// Everything it has said so far, as far as it was waited for.
    pub fn log(&self) -> &str {
        &self.log
    }

    pub fn id(&self) -> u32 {
        self.process.id()
    }

    pub fn is_running(&mut self) -> bool {
        self.process.try_wait().expect("it is ours").is_none()
    }

    /// Sends a signal to the process that was started. One that wraps another without `exec` passes
    /// it on.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).expect("it is there");
    }

    /// Kills it where it stands (SIGKILL).
    pub fn kill(&mut self) {
        self.process.kill().expect("it is ours");
        self.process.wait().expect("it is ours");
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

    fn is_stopped(&self) -> bool {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.id())).expect("it is there");
        let mut stats = tasks
            .flatten()
            .filter_map(|task| std::fs::read_to_string(task.path().join("stat")).ok());
        // The state is the first word after the command's name, which is in parentheses and may
        // hold anything.
        stats.all(|stat| {
            stat.rsplit_once(") ")
                .is_some_and(|(_, rest)| rest.starts_with('T'))
        })
    }

    /// Waits until it has ended, and its output with it.
    pub fn ended(&mut self) -> ExitStatus {
        while self.next_line().is_some() {}
        self.process.wait().expect("it is ours")
    }

    /// Tells it to stop (SIGTERM), and waits until it has ended well. Everything it has said.
    pub fn end(mut self) -> String {
        self.signal(Signal::TERM);
        let status = self.ended();
        assert!(status.success(), "{status}:\n{}", self.log);
        std::mem::take(&mut self.log)
    }

    /// A charge under this key: the answer of the gateway, head and all.
    pub fn charge(&self, key: &str, body: &[u8]) -> String {
        send(self.clients, "POST /charges", key, body)
    }

    /// Something else under this key.
    pub fn send(&self, operation: &str, key: &str, body: &[u8]) -> String {
        send(self.clients, operation, key, body)
    }

    /// What the admin listener says at this path, head and all.
    pub fn ask(&self, path: &str) -> String {
        let (to, rest) = (self.admin, "Connection: close\r\n\r\n");
        let request = format!("GET {path} HTTP/1.1\r\nHost: {to}\r\n{rest}");
        exchange(to, request.as_bytes())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// On a thread of its own, to the end even when nobody listens any more, so that the program never
/// writes into a closed pipe.
fn read(stream: impl Read + Send + 'static, to: Sender<String>) {
    std::thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            let _ = to.send(line);
        }
    });
}

/// A request under this key: the answer, head and all.
pub fn send(to: SocketAddr, operation: &str, key: &str, body: &[u8]) -> String {
    let length = body.len();
    let head = format!(
        "{operation} HTTP/1.1\r\nHost: h\r\nIdempotency-Key: {key}\r\n\
         Content-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    exchange(to, &[head.as_bytes(), body].concat())
}

/// One request on a connection of its own, which is to be closed after it: all that comes back.
pub fn exchange(to: SocketAddr, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(to).expect("somebody listens");
    stream.set_read_timeout(Some(GUARD)).expect("a socket");
    stream.write_all(request).expect("somebody reads");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("an answer");
    String::from_utf8_lossy(&answer).into_owned()
}
