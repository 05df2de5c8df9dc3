//! A gateway, and a service behind it that records its requests.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use hapax_server::config::{Config, Protocol};
use hapax_server::gateway::{Gateway, StartError};
use http::Response;
use tempfile::TempDir;

use crate::harness::{
    self, Answer, Asked, Client, ClientRequest, Program, Reply, Service, Serving, broken_off, get,
    serve_command, whole, with,
};

/// A service that has an effect for every request, and answers with its number.
pub struct Upstream(Service);

impl Upstream {
    pub fn start(protocol: Protocol) -> Upstream {
        let serving = Serving {
            http2: protocol == Protocol::Http2,
            ..Serving::default()
        };
        Upstream(Service::start(serving, act))
    }

    /// The number of requests that had an effect.
    pub fn effects(&self) -> usize {
        self.all().len()
    }

    pub fn all(&self) -> Vec<Asked> {
        let mut asked = self.0.asked();
        asked.retain(|asked| !is_forged(asked));
        asked
    }

    pub fn last(&self) -> Asked {
        self.all().pop().expect("something has arrived")
    }
}

fn is_forged(asked: &Asked) -> bool {
    let token = asked.headers.get("authorization");
    token.is_some_and(|token| token.as_bytes().starts_with(b"Bearer forged"))
}

fn act(asked: &Asked) -> io::Result<Reply> {
    if is_forged(asked) {
        return Ok(whole(401, "who are you?\n"));
    }
    if asked.uri.path() == "/break-off" {
        return Err(broken_off());
    }
    let canary = format!("canary-{}", uuid::Uuid::new_v4().simple());
    let body = format!("{{\"id\":\"{canary}\"}}\n");
    Ok(with(whole(201, body), "x-canary", &canary))
}

/// An answer with this body.
pub fn says(text: impl Into<String>) -> Response<String> {
    Response::new(text.into())
}

/// The program in this directory, with these settings before the first section and the most verbose
/// log.
pub fn serve(directory: &Path, upstream: &Upstream, settings: &str) -> Program {
    let mut command = serve_command(directory, &file(upstream, settings));
    Program::serve(command.env("HAPAX_LOG", "trace").env("RUST_LOG", "trace"))
}

/// Its configuration file with these settings.
pub fn file(upstream: &Upstream, settings: &str) -> String {
    format!(
        "listen = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\nstore = \"sqlite:hapax.db\"\n{settings}\n\
         [upstream]\nurl = \"http://{}\"\n\n[drain]\nnotice = \"0s\"\n",
        upstream.0.address
    )
}

/// Asks the admin listener.
pub async fn ask(admin: SocketAddr, target: &str) -> String {
    let got = Client::new(admin).send(get(target)).await;
    assert_eq!(got.status, 200, "{target}: {got:?}");
    got.text().to_owned()
}

/// A gateway in front of such a service.
pub struct World {
    pub upstream: Upstream,
    gateway: Gateway,
    pub directory: TempDir,
}

impl World {
    pub async fn start(settle: impl FnOnce(&mut Config, &Path)) -> World {
        World::try_start(Protocol::Http1, settle).await.unwrap()
    }

    pub async fn try_start(
        protocol: Protocol,
        settle: impl FnOnce(&mut Config, &Path),
    ) -> Result<World, StartError> {
        let upstream = Upstream::start(protocol);
        let directory = tempfile::tempdir().unwrap();
        let mut config = harness::config(upstream.0.address);
        config.admin = Some("127.0.0.1:0".parse().unwrap());
        config.upstream.protocol = protocol;
        config.drain.deadline = Duration::ZERO;
        settle(&mut config, directory.path());
        Ok(World {
            upstream,
            gateway: Gateway::start(config).await?,
            directory,
        })
    }

    pub fn client(&self, is_http2: bool) -> Client {
        Client::new(self.gateway.address()).http2(is_http2)
    }

    pub async fn send(&self, is_http2: bool, request: ClientRequest) -> Answer {
        self.client(is_http2).send(request).await
    }

    pub fn address(&self) -> SocketAddr {
        self.gateway.address()
    }

    /// Asks the admin listener.
    pub async fn ask(&self, target: &str) -> String {
        ask(self.gateway.admin().unwrap(), target).await
    }

    /// The value of this series in the gateway's metrics.
    pub async fn counted(&self, metric: &str) -> u64 {
        let metrics = self.ask("/metrics").await;
        let lines = metrics.lines().filter_map(|line| line.strip_prefix(metric));
        lines
            .filter_map(|rest| rest.trim().parse::<u64>().ok())
            .sum()
    }

    /// The number of records in the gateway's store.
    pub async fn records(&self) -> u64 {
        self.counted("hapax_sqlite_records ").await
    }

    pub async fn end(self) {
        self.gateway.drain().await;
    }
}
