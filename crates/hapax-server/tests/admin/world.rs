//! A gateway with records in every state, and clients of its admin listener.

use std::net::SocketAddr;
use std::process::{Output, Stdio};
use std::time::Duration;

use hapax_server::config::{Config, Route, Secret, StoreUrl};
use hapax_server::gateway::Gateway;
use hapax_testkit::origin::{Origin, Step, answer};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::Command;
use tokio::task::JoinHandle;

pub(crate) const ADMIN_TOKEN: &str = "the-token-of-operators";
pub(crate) const SETTLE_TOKEN: &str = "the-token-of-the-job";

/// A gateway in front of a scripted service.
pub(crate) struct World {
    pub(crate) origin: Origin,
    gateway: Gateway,
    _directory: tempfile::TempDir,
}

/// What came back.
#[derive(Clone, Debug)]
pub(crate) struct Got {
    pub(crate) status: u16,
    head: String,
    pub(crate) body: Vec<u8>,
}

impl Got {
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        let field = |line: &'_ str| {
            line.split_once(':')
                .filter(|(given, _)| given.eq_ignore_ascii_case(name))
                .is_some()
        };
        self.head
            .lines()
            .skip(1)
            .find(|line| field(line))
            .and_then(|line| line.split_once(": "))
            .map(|(_, value)| value)
    }

    pub(crate) fn text(&self) -> &str {
        str::from_utf8(&self.body).expect("text")
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// What kind of problem it is.
    pub(crate) fn problem(&self) -> (u16, String) {
        assert_eq!(
            self.field("content-type"),
            Some("application/problem+json"),
            "{self:?}"
        );
        let problem = self.json();
        assert_eq!(problem["status"], self.status, "{problem}");
        (
            self.status,
            problem["code"].as_str().expect("a code").to_owned(),
        )
    }
}

/// One request on a connection of its own.
pub(crate) async fn send(
    to: SocketAddr,
    method: &str,
    target: &str,
    fields: &[(&str, &str)],
    body: &str,
) -> Got {
    let mut stream = TcpStream::connect(to).await.expect("a connection");
    let host = if fields
        .iter()
        .any(|(name, _)| name.eq_ignore_ascii_case("host"))
    {
        String::new()
    } else {
        format!("Host: {to}\r\n")
    };
    let fields: String = fields
        .iter()
        .map(|(name, value)| format!("{name}: {value}\r\n"))
        .collect();
    let length = if body.is_empty() && method == "GET" {
        String::new()
    } else {
        format!("Content-Length: {}\r\n", body.len())
    };
    let request = format!(
        "{method} {target} HTTP/1.1\r\n{host}Connection: close\r\n{length}{fields}\r\n{body}"
    );
    // Who is refused may be so before everything was sent.
    let _ = stream.write_all(request.as_bytes()).await;
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes).await;
    let end = bytes
        .windows(4)
        .position(|four| four == b"\r\n\r\n")
        .unwrap_or_else(|| panic!("no answer to {method} {target}"));
    let head = String::from_utf8(bytes[..end].to_vec()).expect("a head is text");
    Got {
        status: head[9..12].parse().expect("a status"),
        head,
        body: bytes[end + 4..].to_vec(),
    }
}

impl World {
    pub(crate) async fn start(change: impl FnOnce(&mut Config)) -> World {
        let directory = tempfile::tempdir().expect("a directory");
        let origin = Origin::start().await.expect("a service");
        let mut config = Config::new(format!("http://{}", origin.address()).parse().unwrap());
        config.listen.set_port(0);
        config.admin = Some("127.0.0.1:0".parse().unwrap());
        config.store = StoreUrl::Sqlite(directory.path().join("hapax.db"));
        config.drain.notice = Duration::ZERO;
        let mut short: Route = "/short/*".parse().unwrap();
        (short.policy.lease, short.policy.retention) =
            (Duration::from_millis(50), Duration::from_millis(50));
        // What is settled is replayed only if it has the version that the route replays.
        let mut charges: Route = "/v1/charges".parse().unwrap();
        charges.policy.answer_version = Some("2026-11".into());
        config.routes.extend([short, charges]);
        change(&mut config);
        let gateway = Gateway::start(config)
            .await
            .unwrap_or_else(|error| panic!("{error}"));
        World {
            origin,
            gateway,
            _directory: directory,
        }
    }

    /// With both tokens.
    pub(crate) async fn guarded() -> World {
        World::start(with_tokens).await
    }

    pub(crate) fn admin(&self) -> SocketAddr {
        self.gateway.admin().expect("it has one")
    }

    /// A client's request with a key.
    pub(crate) async fn post(&self, path: &str, key: &str) -> Got {
        send(
            self.gateway.address(),
            "POST",
            path,
            &[("Idempotency-Key", key)],
            "{\"amount\":5}",
        )
        .await
    }

    /// The service answers the next request so.
    pub(crate) fn answers(&self, status: u16, fields: &str, body: &str) {
        self.origin
            .script([Step::Read, Step::Write(answer(status, fields, body))]);
    }

    pub(crate) async fn completed(&self, key: &str) {
        self.answers(
            201,
            "content-type: application/json\r\n",
            "{\"id\":\"ch_1\"}",
        );
        assert_eq!(self.post("/v1/charges", key).await.status, 201);
    }

    pub(crate) async fn failed(&self, key: &str) {
        self.answers(404, "", "no such card");
        assert_eq!(self.post("/v1/charges", key).await.status, 404);
    }

    pub(crate) async fn retryable(&self, key: &str) {
        self.answers(503, "", "busy");
        assert_eq!(self.post("/v1/charges", key).await.status, 503);
    }

    /// The service reads the request and hangs up.
    pub(crate) async fn lost(&self, key: &str) {
        self.origin.script([Step::Read, Step::Close]);
        assert_eq!(self.post("/v1/charges", key).await.status, 502);
    }

    /// The service takes its time, until the origin is told to go on.
    pub(crate) async fn running(&self, key: &str) -> JoinHandle<Got> {
        let seen = self.origin.ledger().all().len();
        self.origin
            .script([Step::Read, Step::Wait, Step::Write(answer(201, "", "late"))]);
        let (to, key) = (self.gateway.address(), key.to_owned());
        let asking = tokio::spawn(async move {
            send(
                to,
                "POST",
                "/v1/charges",
                &[("Idempotency-Key", &key)],
                "{\"amount\":5}",
            )
            .await
        });
        self.origin.ledger().until_requests(seen + 1).await;
        asking
    }

    /// Done, and past its retention.
    pub(crate) async fn expired(&self, key: &str) {
        self.answers(201, "", "soon gone");
        assert_eq!(self.post("/short/lived", key).await.status, 201);
        while self.found(&format!("key={key}")).await["state"] != "expired" {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// As an operator, whose token is sent in any case where there is one.
    pub(crate) async fn ask(&self, method: &str, target: &str, body: &str) -> Got {
        let token = format!("Bearer {ADMIN_TOKEN}");
        let fields = [
            ("Authorization", token.as_str()),
            ("Content-Type", "application/json"),
        ];
        send(self.admin(), method, target, &fields, body).await
    }

    /// As the upstream's job.
    pub(crate) async fn ask_as_job(&self, method: &str, target: &str, body: &str) -> Got {
        let token = format!("Bearer {SETTLE_TOKEN}");
        send(
            self.admin(),
            method,
            target,
            &[
                ("Authorization", &token),
                ("Content-Type", "application/json"),
            ],
            body,
        )
        .await
    }

    /// The one key that this finds.
    pub(crate) async fn found(&self, query: &str) -> Value {
        let page = self
            .ask("GET", &format!("/v1/keys?{query}"), "")
            .await
            .json();
        assert_eq!(page["keys"].as_array().map(Vec::len), Some(1), "{page}");
        page["keys"][0].clone()
    }

    /// `hapax keys …` against this gateway, with its token in a file.
    pub(crate) fn keys(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hapax"));
        command
            .arg("keys")
            .args(args)
            .args(["--admin", &format!("http://{}", self.admin())]);
        command
            .env("HAPAX__ADMIN_TOKEN", ADMIN_TOKEN)
            .env("USER", "ada")
            .current_dir(self._directory.path());
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        command
    }

    pub(crate) async fn run(&self, args: &[&str]) -> Output {
        self.keys(args)
            .output()
            .await
            .expect("the program is built")
    }

    pub(crate) async fn end(self) {
        self.gateway.drain().await;
    }
}

pub(crate) fn with_tokens(config: &mut Config) {
    config.admin_token = Some(Secret::token(ADMIN_TOKEN).unwrap());
    config.settle_token = Some(Secret::token(SETTLE_TOKEN).unwrap());
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("what is printed is text")
}
