//! A gateway with records in every state, and clients of its admin listener.

use std::net::SocketAddr;
use std::process::{Output, Stdio};
use std::time::Duration;

use hapax_server::config::{Config, Route, Secret, StoreUrl};
use hapax_server::gateway::Gateway;
use hapax_testkit::origin::{Origin, Step, answer};
use serde_json::Value;
use tokio::process::Command;
use tokio::task::JoinHandle;

use crate::harness::{self, Answer, send_raw};

pub const ADMIN_TOKEN: &str = "the-token-of-operators";
pub const SETTLE_TOKEN: &str = "the-token-of-the-job";

/// A gateway in front of a scripted service.
pub struct World {
    pub origin: Origin,
    gateway: Gateway,
    _directory: tempfile::TempDir,
}

/// Sends one request on its own connection.
pub async fn send(
    to: SocketAddr,
    method: &str,
    target: &str,
    fields: &[(&str, &str)],
    body: &str,
) -> Answer {
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
    send_raw(to, request.as_bytes()).await.into()
}

impl World {
    pub async fn start(change: impl FnOnce(&mut Config)) -> World {
        let directory = tempfile::tempdir().expect("a directory");
        let origin = Origin::start().await;
        let mut config = harness::config(origin.address());
        config.admin = Some("127.0.0.1:0".parse().unwrap());
        config.store = StoreUrl::Sqlite(directory.path().join("hapax.db"));
        let mut short: Route = "/short/*".parse().unwrap();
        (short.policy.lease, short.policy.retention) =
            (Duration::from_millis(50), Duration::from_millis(50));
        // A settled answer is replayed only if it has the version that the route replays.
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

    /// With an admin token and a settle token.
    pub async fn guarded() -> World {
        World::start(with_tokens).await
    }

    pub fn admin(&self) -> SocketAddr {
        self.gateway.admin().expect("it has one")
    }

    /// A client's request with a key.
    pub async fn post(&self, path: &str, key: &str) -> Answer {
        send(
            self.gateway.address(),
            "POST",
            path,
            &[("Idempotency-Key", key)],
            "{\"amount\":5}",
        )
        .await
    }

    /// Scripts the service's answer to the next request.
    pub fn answers(&self, status: u16, fields: &str, body: &str) {
        self.origin
            .script([Step::Read, Step::Write(answer(status, fields, body))]);
    }

    pub async fn completed(&self, key: &str) {
        self.answers(
            201,
            "content-type: application/json\r\n",
            "{\"id\":\"ch_1\"}",
        );
        assert_eq!(self.post("/v1/charges", key).await.status, 201);
    }

    pub async fn failed(&self, key: &str) {
        self.answers(404, "", "no such card");
        assert_eq!(self.post("/v1/charges", key).await.status, 404);
    }

    pub async fn retryable(&self, key: &str) {
        self.answers(503, "", "busy");
        assert_eq!(self.post("/v1/charges", key).await.status, 503);
    }

    /// Loses an attempt: the service reads the request and closes the connection.
    pub async fn lost(&self, key: &str) {
        self.origin.script([Step::Read, Step::Close]);
        assert_eq!(self.post("/v1/charges", key).await.status, 502);
    }

    /// Starts an attempt that the service answers only when the test lets it.
    pub async fn running(&self, key: &str) -> JoinHandle<Answer> {
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

    /// Completes a key and waits until its retention is over.
    pub async fn expired(&self, key: &str) {
        self.answers(201, "", "soon gone");
        assert_eq!(self.post("/short/lived", key).await.status, 201);
        while self.found(&format!("key={key}")).await["state"] != "expired" {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Asks as an operator, always with the admin token.
    pub async fn ask(&self, method: &str, target: &str, body: &str) -> Answer {
        self.ask_as(ADMIN_TOKEN, method, target, body).await
    }

    /// Asks as the upstream's job.
    pub async fn ask_as_job(&self, method: &str, target: &str, body: &str) -> Answer {
        self.ask_as(SETTLE_TOKEN, method, target, body).await
    }

    async fn ask_as(&self, token: &str, method: &str, target: &str, body: &str) -> Answer {
        let token = format!("Bearer {token}");
        let fields = [
            ("Authorization", token.as_str()),
            ("Content-Type", "application/json"),
        ];
        send(self.admin(), method, target, &fields, body).await
    }

    /// The only key that matches this query.
    pub async fn found(&self, query: &str) -> Value {
        let page = self
            .ask("GET", &format!("/v1/keys?{query}"), "")
            .await
            .json();
        assert_eq!(page["keys"].as_array().map(Vec::len), Some(1), "{page}");
        page["keys"][0].clone()
    }

    /// `hapax keys …` against this gateway, with its token in a file.
    pub fn keys(&self, args: &[&str]) -> Command {
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

    pub async fn run(&self, args: &[&str]) -> Output {
        self.keys(args)
            .output()
            .await
            .expect("the program is built")
    }

    pub async fn end(self) {
        self.gateway.drain().await;
    }
}

pub fn with_tokens(config: &mut Config) {
    config.admin_token = Some(Secret::token(ADMIN_TOKEN).unwrap());
    config.settle_token = Some(Secret::token(SETTLE_TOKEN).unwrap());
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("what is printed is text")
}
