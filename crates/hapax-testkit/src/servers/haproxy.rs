//! HAProxy as a load balancer that retries failed requests.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::io::{Read, Write as _};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;

use super::directory::Directory;
use super::port::Port;
use super::process::{Process, User, listening};
use super::programs::program;
use crate::skipped;

/// A load balancer that distributes requests among some nodes in turn. It sends every failed
/// request to the next node, even a POST, without knowing whether that is safe. Ended when dropped.
pub struct HaProxy {
    // In this order: the process ends before its directory is removed.
    _process: Process,
    directory: Directory,
    port: Port,
}

/// The basic configuration. It cannot retry requests that are larger than its buffer.
const CONFIGURATION: &str = "\
global
    maxconn 2000
    tune.bufsize 65536
defaults
    mode http
    timeout connect 1s
    timeout client 60s
    timeout server 30s
    timeout http-request 30s
    timeout queue 5s
    retries 3
    # At each retry, not only at the last.
    option redispatch 1
    retry-on all-retryable-errors
";

impl HaProxy {
    /// Starts one. Prints `SKIPPED` and returns `None` if it is not installed.
    pub fn in_front_of(nodes: &[SocketAddr]) -> Option<HaProxy> {
        let Some(program) = program("haproxy") else {
            skipped("there is no haproxy here (Debian: apt-get install haproxy)");
            return None;
        };
        let directory = Directory::new();
        let (user, file) = (
            User::other_than_root(&["haproxy", "nobody"]),
            directory.path().join("haproxy.cfg"),
        );
        user.give(directory.path());
        let (process, port) = listening("HAProxy", &directory, |port| {
            std::fs::write(&file, configuration(nodes, port, &directory))
                .expect("a directory of our own");
            // In the foreground, as one process.
            Process::start(
                &program,
                &[OsStr::new("-db"), OsStr::new("-f"), file.as_os_str()],
                user,
                "KILL",
                &directory,
            )
        });
        Some(HaProxy {
            _process: process,
            directory,
            port,
        })
    }

    /// The address it listens on.
    pub fn address(&self) -> SocketAddr {
        self.port.address()
    }

    /// How many times it has sent a failed request to another node.
    pub fn sent_again(&self) -> u64 {
        let statistics = self.statistics();
        let mut lines = statistics.lines();
        let names: Vec<_> = lines
            .next()
            .unwrap_or_default()
            .trim_start_matches("# ")
            .split(',')
            .collect();
        let column = |name| {
            names
                .iter()
                .position(|found| *found == name)
                .expect("HAProxy counts what it does")
        };
        let mut rows = lines.map(|line| line.split(',').collect::<Vec<_>>());
        let total = rows
            .find(|cells| cells.get(column("svname")) == Some(&"BACKEND"))
            .expect("HAProxy has a backend");
        total[column("wredis")].parse().expect("a count")
    }

    fn statistics(&self) -> String {
        let mut socket =
            UnixStream::connect(statistics(&self.directory)).expect("HAProxy tells its statistics");
        socket.write_all(b"show stat\n").expect("HAProxy listens");
        let mut said = String::new();
        socket.read_to_string(&mut said).expect("HAProxy answers");
        said
    }
}

fn configuration(nodes: &[SocketAddr], port: &Port, directory: &Directory) -> String {
    let mut text = CONFIGURATION.to_owned();
    let statistics = statistics(directory);
    // The socket for statistics must be readable for the test, whatever user HAProxy runs as.
    text = text.replacen(
        "global\n",
        &format!(
            "global\n    stats socket {} mode 666\n",
            statistics.display()
        ),
        1,
    );
    write!(
        text,
        "listen nodes\n    bind {}\n    balance roundrobin\n",
        port.address()
    )
    .expect("a string takes everything");
    for (number, node) in nodes.iter().enumerate() {
        writeln!(text, "    server node{number} {node}").expect("a string takes everything");
    }
    text
}

fn statistics(directory: &Directory) -> std::path::PathBuf {
    directory.path().join("statistics")
}
