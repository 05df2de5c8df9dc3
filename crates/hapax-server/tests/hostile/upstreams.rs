//! Real upstreams, private to these tests, that record every request they find in their input.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

/// Long enough for a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// A request as an upstream parsed it.
#[derive(Debug, Default)]
pub struct Seen {
    pub method: String,
    pub target: String,
    pub body: String,
    /// Whether it was read to its end.
    pub whole: bool,
    /// The status with which the upstream itself refused it.
    pub refused: Option<u16>,
    fields: Vec<(String, String)>,
}

impl Seen {
    /// All values of a field in any spelling of its name: many frameworks treat `_` as `-`.
    pub fn field(&self, name: &str) -> Vec<&str> {
        let is_it = |given: &str| given.to_ascii_lowercase().replace('_', "-") == name;
        self.fields
            .iter()
            .filter(|(given, _)| is_it(given))
            .map(|(_, value)| value.as_str())
            .collect()
    }
}

/// A running upstream. It ends when dropped, or with this process.
pub struct Upstream {
    pub name: &'static str,
    pub address: SocketAddr,
    seen: Receiver<Seen>,
    child: Child,
    _directory: TempDir,
}

impl Upstream {
    /// The requests seen before the one with this target.
    pub fn seen_until(&self, target: &str) -> Result<Vec<Seen>, String> {
        let mut all = Vec::new();
        loop {
            match self.seen.recv_timeout(PATIENCE) {
                Ok(seen) if seen.target == target => return Ok(all),
                Ok(seen) => all.push(seen),
                Err(_) => return Err(format!("the upstream never saw {target}, but {all:?}")),
            }
        }
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// The upstreams that can be started here. The names of the others are printed.
pub fn all() -> Vec<Upstream> {
    [nginx(), python(), node()]
        .into_iter()
        .filter_map(|started| {
            started
                .inspect_err(|why| hapax_testkit::report!("SKIPPED upstream {why}"))
                .ok()
        })
        .collect()
}

fn nginx() -> Result<Upstream, String> {
    let directory = tempfile::tempdir().unwrap();
    // nginx cannot choose a free port and report it.
    let port = TcpListener::bind("127.0.0.1:0")
        .and_then(|socket| socket.local_addr())
        .unwrap()
        .port();
    let configuration =
        include_str!("nginx.conf").replace("DIRECTORY", directory.path().to_str().unwrap());
    let file = directory.path().join("nginx.conf");
    fs::write(&file, configuration.replace("PORT", &port.to_string())).unwrap();
    let file = file.to_str().unwrap().to_owned();
    start(
        "nginx",
        &["nginx", "-e", "/dev/stderr", "-c", &file],
        directory,
        move |line| line.contains("event method").then_some(port),
    )
}

fn python() -> Result<Upstream, String> {
    let directory = tempfile::tempdir().unwrap();
    start(
        "python",
        &["python3", "-c", include_str!("upstream.py")],
        directory,
        listening,
    )
}

fn node() -> Result<Upstream, String> {
    let directory = tempfile::tempdir().unwrap();
    start(
        "node",
        &[
            "node",
            "--max-http-header-size=65536",
            "-e",
            include_str!("upstream.js"),
        ],
        directory,
        listening,
    )
}

fn listening(line: &str) -> Option<u16> {
    line.strip_prefix("listening ")?.trim().parse().ok()
}

/// Starts a program that ends when its standard input closes, and waits until a line of its output
/// names its port.
fn start(
    name: &'static str,
    command: &[&str],
    directory: TempDir,
    port: impl Fn(&str) -> Option<u16>,
) -> Result<Upstream, String> {
    let mut child = Command::new("sh")
        .args([
            "-c",
            "PATH=$PATH:/usr/sbin; \"$@\" 2>&1 & read _; kill $!; wait",
            "sh",
        ])
        .args(command)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("{name}: {error}"))?;
    let mut said = BufReader::new(child.stdout.take().unwrap());
    let (mut line, mut before) = (String::new(), String::new());
    let port = loop {
        line.clear();
        if said.read_line(&mut line).unwrap_or(0) == 0
            || line.contains("not found")
            || line.contains("[emerg]")
        {
            return Err(format!("{name}: it could not be started: {before}{line}"));
        }
        if let Some(port) = port(&line) {
            break port;
        }
        before += &line;
    };
    let (sender, seen) = channel();
    std::thread::spawn(move || read_records(said, &sender));
    Ok(Upstream {
        name,
        address: ([127, 0, 0, 1], port).into(),
        seen,
        child,
        _directory: directory,
    })
}

fn read_records(mut said: impl BufRead, sender: &Sender<Seen>) {
    let mut line = Vec::new();
    while said
        .read_until(b'\n', &mut line)
        .is_ok_and(|length| length > 0)
    {
        let text = String::from_utf8_lossy(&line);
        if text.starts_with('{') && sender.send(record(&text)).is_err() {
            return;
        }
        line.clear();
    }
}

fn record(text: &str) -> Seen {
    let record: Value =
        serde_json::from_str(text).unwrap_or_else(|error| panic!("{error} in {text}"));
    let string = |name: &str| record[name].as_str().unwrap_or_default().to_owned();
    let mut seen = Seen {
        method: string("method"),
        target: string("target"),
        body: string("body"),
        ..Seen::default()
    };
    let pairs = record["fields"].as_array().into_iter().flatten();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    // nginx reports a missing field as an empty value.
    seen.fields = pairs
        .map(|pair| (text(&pair[0]), text(&pair[1])))
        .filter(|(_, value)| !value.is_empty())
        .collect();
    let status = record["status"]
        .as_u64()
        .or(record["refused"].as_u64())
        .and_then(|status| u16::try_from(status).ok());
    seen.refused = status.filter(|status| *status != 200);
    seen.whole = record["whole"].as_bool().unwrap_or(seen.refused.is_none());
    if seen.method.is_empty() || seen.target.is_empty() {
        let line = string("line");
        let mut words = line.split(' ').map(str::to_owned);
        (seen.method, seen.target) = (
            words.next().unwrap_or_default(),
            words.next().unwrap_or_default(),
        );
    }
    seen
}
