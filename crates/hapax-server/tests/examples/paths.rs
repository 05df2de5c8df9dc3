//! No spelling of a path evades a required key, however the service interprets the spelling.
//!
//! Each spelling goes to each service three times: directly, through the gateway without a key, and
//! through the gateway with one. The services record the orders they take. Without a key there must
//! be none; with a key, the same as directly.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use hapax_testkit::skipped;
use tempfile::TempDir;

use super::harness::serve_anybody;
use super::install::{Language, installed};

/// Only a broken service makes the test wait this long.
const PATIENCE: Duration = Duration::from_secs(60);

const SETTINGS: &str = "[[routes]]\nname = \"orders\"\npath = \"/v1/orders\"\nkey = \"required\"\n[[routes]]\npath = \"/open/**\"\nkey = \"off\"\n";

const SPELLINGS: &[&str] = &[
    "/v1/orders",
    "/v1/orders/",
    "/v1/orders//",
    "/v1//orders",
    "//v1/orders",
    "/v1/./orders",
    "/./v1/orders",
    "/v1/orders/.",
    "/v1/x/../orders",
    "/v1/orders/x/..",
    "/../v1/orders",
    "/v1/x//../orders",
    "/open/../v1/orders",
    "/open/%2e%2e/v1/orders",
    "/open/..%2fv1/orders",
    "/v1/%6Frders",
    "/%76%31/%6f%72%64%65%72%73",
    "/v1/x/%2e%2E/orders",
    "/v1%2Forders",
    "/v1%2forders",
    "/%2Fv1/orders",
    "/v1/orders%2F",
    "/v1/orders;x=1",
    "/v1;x/orders",
    "/v1/orders;x=1/",
    "/;/v1/orders",
    "/v1/x/..;/orders",
    "/v1/x/..;y=1/orders",
    "/open/..;/v1/orders",
    "/v1/orders%3Bx=1",
    "/V1/Orders",
    "/v1/ORDERS",
    "/V1/orders/",
    "/V1//%4Frders/",
    "/v1\\orders",
    "/v1%5Corders",
    "/v1/x/..\\orders",
    "/v1/orders.json",
    "/v1/orders.",
    "/v1/orders%20",
    "/v1/orders%0A",
    "/v1/orders%0a",
    "/v1/orders?x=1",
    "/v1/orders/?x=1",
];

#[test]
fn no_spelling_of_a_path_walks_around_a_required_key() {
    let mut readers: Vec<Reader> = ["aspnet", "iis", "tomcat", "rails", "django"]
        .into_iter()
        .filter_map(rules)
        .collect();
    readers.extend([flask(), express(), nginx()].into_iter().flatten());
    std::thread::scope(|scope| {
        for reader in readers {
            scope.spawn(move || attack(&reader));
        }
    });
}

fn attack(reader: &Reader) {
    let gateway = serve_anybody(reader.address, "", SETTINGS);
    let mut answers = Vec::new();
    for (number, path) in SPELLINGS.iter().enumerate() {
        let straight = post(reader.address, path, &format!("straight-{number}"), "");
        let bare = post(gateway.clients, path, &format!("bare-{number}"), "");
        let keyed = post(
            gateway.clients,
            path,
            &format!("keyed-{number}"),
            &format!("Idempotency-Key: key-{number}\r\n"),
        );
        answers.push((path, straight, bare, keyed));
    }
    let ledger = reader.ledger();
    let mut reached = 0;
    for (number, (path, straight, bare, keyed)) in answers.into_iter().enumerate() {
        let has = |what: &str| ledger.contains(&format!("{what}-{number}"));
        let told = format!(
            "{} {path}: straight {straight}, without a key {bare}, with one {keyed}",
            reader.name
        );
        assert!(!has("bare"), "an order without a key: {told}");
        assert_eq!(has("straight"), straight == 201, "{told}");
        assert_eq!(has("keyed"), has("straight"), "{told}");
        assert!(!has("straight") || (bare == 400 && keyed == 201), "{told}");
        reached += usize::from(has("straight"));
    }
    hapax_testkit::report!(
        "{}: {reached} of {} spellings reach the handler",
        reader.name,
        SPELLINGS.len()
    );
    assert!(
        reached >= 3,
        "{}: only {reached} spellings reach the handler",
        reader.name
    );
}

/// Sends a request with this exact target. Returns its status.
fn post(address: SocketAddr, target: &str, tag: &str, fields: &str) -> u16 {
    let mut socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let head = format!(
        "POST {target} HTTP/1.1\r\nHost: h\r\nUser-Agent: {tag}\r\nContent-Length: 0\r\nConnection: close\r\n{fields}\r\n"
    );
    socket.write_all(head.as_bytes()).unwrap();
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer).unwrap();
    let answer = String::from_utf8_lossy(&answer);
    answer
        .split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok())
        .unwrap_or_else(|| panic!("{target}: {answer:?}"))
}

/// A service that takes orders at `/v1/orders`. Dropping it ends the process.
struct Reader {
    name: String,
    address: SocketAddr,
    orders: Receiver<String>,
    child: Child,
    _directory: TempDir,
}

impl Reader {
    /// The tags of all orders so far.
    fn ledger(&self) -> BTreeSet<String> {
        post(self.address, "/v1/orders", "last", "");
        let orders = std::iter::from_fn(|| {
            self.orders
                .recv_timeout(PATIENCE)
                .ok()
                .filter(|tag| tag != "last")
        });
        orders.collect()
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn rules(name: &str) -> Option<Reader> {
    let mut command = Command::new("node");
    command
        .args(["-e", include_str!("readers/rules.js")])
        .env("RULES", name);
    start(name, command, tempfile::tempdir().unwrap(), None)
}

fn flask() -> Option<Reader> {
    let mut command = installed(Language::Python)?.interpreter();
    command.args(["-c", include_str!("readers/flask.py")]);
    start("flask", command, tempfile::tempdir().unwrap(), None)
}

fn express() -> Option<Reader> {
    let mut command = installed(Language::Node)?.interpreter();
    command.args(["-e", include_str!("readers/express.js")]);
    start("express", command, tempfile::tempdir().unwrap(), None)
}

fn nginx() -> Option<Reader> {
    let directory = tempfile::tempdir().unwrap();
    // nginx cannot choose a free port and report it.
    let port = TcpListener::bind("127.0.0.1:0")
        .and_then(|socket| socket.local_addr())
        .unwrap()
        .port();
    let configuration =
        include_str!("readers/nginx.conf").replace("DIRECTORY", directory.path().to_str().unwrap());
    let file = directory.path().join("nginx.conf");
    fs::write(&file, configuration.replace("PORT", &port.to_string())).unwrap();
    let mut command = Command::new("sh");
    command
        .args([
            "-c",
            "PATH=$PATH:/usr/sbin exec nginx -e /dev/stdout -c \"$0\" 2>&1",
        ])
        .arg(&file);
    start("nginx", command, directory, Some(port))
}

/// Starts a service and waits until it listens; `None`, after printing why, if it cannot be started
/// here.
fn start(
    name: &str,
    mut command: Command,
    directory: TempDir,
    port: Option<u16>,
) -> Option<Reader> {
    let Ok(mut child) = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn() else {
        skipped(format!("{name} cannot be started"));
        return None;
    };
    let mut said = BufReader::new(child.stdout.take().unwrap())
        .lines()
        .map_while(Result::ok);
    let is_up = |line: &str| match port {
        Some(port) => line.contains("event method").then_some(port),
        None => line
            .strip_prefix("listening ")
            .and_then(|port| port.parse().ok()),
    };
    let Some(port) = said.find_map(|line| is_up(&line)) else {
        skipped(format!("{name} cannot be started"));
        return None;
    };
    let (sender, orders) = channel();
    std::thread::spawn(move || {
        for tag in said.filter_map(|line| line.strip_prefix("order ").map(str::to_owned)) {
            let _ = sender.send(tag);
        }
    });
    let address = ([127, 0, 0, 1], port).into();
    Some(Reader {
        name: name.to_owned(),
        address,
        orders,
        child,
        _directory: directory,
    })
}
