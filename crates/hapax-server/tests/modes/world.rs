//! A gateway before a service, with one route for everything.

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

/// Where services answer what became of an operation.
pub const PROBE: &str = "/hapax/probe";

/// What a service does. An error is a connection that breaks off.
pub trait Serve: Send + Sync + 'static {
    fn serve(self: Arc<Self>, asked: Asked) -> impl Future<Output = io::Result<Reply>> + Send;
}

/// A service at work, until it is dropped.
pub fn serve(service: &Arc<impl Serve>) -> Upstream {
    let service = service.clone();
    Upstream::start(Serving::default(), move |arrived| {
        let service = service.clone();
        async move { service.serve(arrived.read().await?).await }
    })
}

/// Orders under this key, and tells the service what to do with it: repeats are the same request
/// whatever they tell it.
pub async fn order(to: SocketAddr, key: &str, told: &str) -> Answer {
    let order = post("/orders", "a hat").key(key).with("x-do", told);
    Client::new(to).send(order).await
}

pub struct World(Gateway);

impl World {
    /// In this mode, with records in memory unless `settle` says otherwise.
    pub async fn start(
        mode: Mode,
        upstream: SocketAddr,
        settle: impl FnOnce(&mut Config, &mut Policy),
    ) -> World {
        let mut config = harness::config(upstream);
        config.admin = Some("127.0.0.1:0".parse().unwrap());
        // What the service is told to do says nothing of who is asking.
        config.anonymous_fields = vec!["x-do".parse().unwrap()];
        // Whatever still runs in the end hangs on purpose.
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

    /// What the gateway has counted under this name and these labels.
    pub async fn counted(&self, series: &str) -> u64 {
        let operators = Client::new(self.0.admin().unwrap());
        metric(operators.send(get("/metrics")).await.text(), series) as u64
    }

    pub async fn end(self) {
        self.0.drain().await;
    }
}
