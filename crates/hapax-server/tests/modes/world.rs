//! A gateway in front of a service, with one route for all paths.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hapax::{Mode, Policy};
use hapax_server::config::{Config, Route};
use hapax_server::gateway::Gateway;

use crate::harness::{
    self, Answer, Asked, Client, Reply, Serving, Upstream, With, get, metric, post,
};

/// The path at which services answer probes.
pub const PROBE: &str = "/hapax/probe";

/// A service. An error closes the connection.
pub trait Serve: Send + Sync + 'static {
    fn serve(self: Arc<Self>, asked: Asked) -> impl Future<Output = io::Result<Reply>> + Send;
}

/// Runs a service until it is dropped.
pub fn serve(service: &Arc<impl Serve>) -> Upstream {
    let service = service.clone();
    Upstream::start(Serving::default(), move |arrived| {
        let service = service.clone();
        async move { service.serve(arrived.read().await?).await }
    })
}

/// Sends an order under this key with instructions for the service. Repeats are the same request
/// whatever the instructions.
pub async fn order(to: SocketAddr, key: &str, told: &str) -> Answer {
    let order = post("/orders", "a hat").key(key).with("x-do", told);
    Client::new(to).send(order).await
}

pub struct World(Gateway);

impl World {
    /// In this mode, with a store in memory unless `settle` changes that.
    pub async fn start(
        mode: Mode,
        upstream: SocketAddr,
        settle: impl FnOnce(&mut Config, &mut Policy),
    ) -> World {
        let mut config = harness::config(upstream);
        config.admin = Some("127.0.0.1:0".parse().unwrap());
        // The instructions for the service do not identify the caller.
        config.anonymous_fields = vec!["x-do".parse().unwrap()];
        // Whatever still runs at the end hangs on purpose.
        config.drain.deadline = Duration::ZERO;
        let mut policy = Policy {
            mode,
            ..Policy::default()
        };
        settle(&mut config, &mut policy);
        let probe = (mode == Mode::Probe).then(|| PROBE.parse().unwrap());
        config.routes = vec![Route {
            probe,
            ..Route::everywhere(policy)
        }];
        World(Gateway::start(config).await.unwrap())
    }

    pub fn address(&self) -> SocketAddr {
        self.0.address()
    }

    pub async fn order(&self, key: &str, told: &str) -> Answer {
        order(self.address(), key, told).await
    }

    /// The value of this series, a name with labels.
    pub async fn counted(&self, series: &str) -> u64 {
        let operators = Client::new(self.0.admin().unwrap());
        metric(operators.send(get("/metrics")).await.text(), series) as u64
    }

    pub async fn end(self) {
        self.0.drain().await;
    }
}
