//! A gateway before a service, with one route for everything.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use hapax::{Mode, Policy};
use hapax_server::config::{Config, Drain, Route, StoreUrl};
use hapax_server::gateway::Gateway;
use http::Request;
use http_body_util::Full;

use crate::client::{self, Got};

/// Where services answer what became of an operation.
pub(crate) const PROBE: &str = "/hapax/probe";

pub(crate) struct World(Gateway);

impl World {
    /// In this mode, with records in memory unless `settle` says otherwise.
    pub(crate) async fn start(
        mode: Mode,
        upstream: SocketAddr,
        settle: impl FnOnce(&mut Config, &mut Policy),
    ) -> World {
        let mut config = Config::new(format!("http://{upstream}").parse().unwrap());
        config.listen = "127.0.0.1:0".parse().unwrap();
        config.admin = Some("127.0.0.1:0".parse().unwrap());
        config.store = StoreUrl::Memory;
        // What the service is told to do says nothing of who is asking.
        config.anonymous_fields = vec!["x-do".parse().unwrap()];
        // Whatever still runs in the end hangs on purpose.
        config.drain = Drain {
            notice: Duration::ZERO,
            deadline: Duration::ZERO,
        };
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

    pub(crate) fn address(&self) -> SocketAddr {
        self.0.address()
    }

    /// Orders under this key, and tells the service what to do with it.
    pub(crate) async fn order(&self, key: &str, told: &str) -> Got {
        client::order(self.address(), key, told).await
    }

    /// What the gateway has counted under this name and these labels.
    pub(crate) async fn counted(&self, series: &str) -> u64 {
        let metrics = Request::get("/metrics")
            .body(Full::<Bytes>::default())
            .unwrap();
        let text = client::send(self.0.admin().unwrap(), metrics).await.body;
        let text = String::from_utf8_lossy(&text);
        let value = text
            .lines()
            .find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        value
            .unwrap_or_else(|| panic!("no {series} in\n{text}"))
            .parse()
            .unwrap()
    }

    pub(crate) async fn end(self) {
        self.0.drain().await;
    }
}
