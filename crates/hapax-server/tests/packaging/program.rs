//! `hapax serve` as an operator runs it, under whatever it is to be wrapped in, in front of a real
//! upstream.

use std::io::{BufRead, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// Only a broken test waits so long.
const GUARD: Duration = Duration::from_secs(60);

/// A gateway of its own. Killed and reaped when dropped.
pub(crate) struct Program {
    process: Child,
    output: Receiver<String>,
    pub(crate) clients: SocketAddr,
    pub(crate) admin: SocketAddr,
}

impl Program {
    /// Starts a command that ends in `hapax serve` with both listeners on, and waits until it
    /// serves.
    pub(crate) fn start(command: &mut Command) -> Program {
        let mut process = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let stdout = process.stdout.take().unwrap();
        let (sender, output) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        let none = ([127, 0, 0, 1], 0).into();
        let mut program = Program {
            process,
            output,
            clients: none,
            admin: none,
        };
        program.clients = address(&program.wait_for("  clients "));
        program.admin = address(&program.wait_for("  operators "));
        program.wait_for("Look");
        program
    }

    /// The rest of the next line that begins so.
    pub(crate) fn wait_for(&self, prefix: &str) -> String {
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

    /// Sends a signal to the process that was started; whoever wraps without `exec` passes it on.
    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).unwrap();
    }

    /// Waits until it has ended.
    pub(crate) fn ended(&mut self) -> ExitStatus {
        while self.output.recv_timeout(GUARD).is_ok() {}
        self.process.wait().unwrap()
    }

    /// A charge under this key: the answer.
    pub(crate) fn charge(&self, key: &str, body: &[u8]) -> String {
        charge(self.clients, key, body)
    }

    /// Something else under this key: the answer.
    pub(crate) fn send(&self, operation: &str, key: &str, body: &[u8]) -> String {
        send(self.clients, operation, key, body)
    }

    /// What the admin listener says at this path, head and all.
    pub(crate) fn ask(&self, path: &str) -> String {
        exchange(
            self.admin,
            format!(
                "GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n",
                self.admin
            )
            .as_bytes(),
        )
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A charge under this key: the answer.
pub(crate) fn charge(to: SocketAddr, key: &str, body: &[u8]) -> String {
    send(to, "POST /charges", key, body)
}

fn send(to: SocketAddr, operation: &str, key: &str, body: &[u8]) -> String {
    let length = body.len();
    let head = format!(
        "{operation} HTTP/1.1\r\nHost: h\r\nIdempotency-Key: {key}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    exchange(to, &[head.as_bytes(), body].concat())
}

/// `http://127.0.0.1:4001/readyz, /healthz` begins with an address.
fn address(line: &str) -> SocketAddr {
    let rest = line
        .trim()
        .strip_prefix("http://")
        .unwrap_or_else(|| panic!("no address in {line:?}"));
    rest.split('/')
        .next()
        .unwrap()
        .parse()
        .unwrap_or_else(|error| panic!("{line:?}: {error}"))
}

/// One request on a connection of its own.
fn exchange(to: SocketAddr, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(to).unwrap();
    stream.set_read_timeout(Some(GUARD)).unwrap();
    stream.write_all(request).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}
