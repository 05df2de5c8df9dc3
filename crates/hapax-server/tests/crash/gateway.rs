//! The child: a gateway on SQLite that can be made to stand still at a point.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hapax::Event;
use hapax_server::config::{Config, PrincipalSource, Protocol, StoreUrl};
use hapax_server::gateway::Gateway;
use hapax_testkit::crash::{Child, announce, hear};

use super::upstream::Upstream;

/// Attempts that must be in flight for a kill to count.
pub const IN_FLIGHT_MIN: usize = 16;

const DIRECTORY: &str = "HAPAX_TEST_DIRECTORY";
const UPSTREAM: &str = "HAPAX_TEST_UPSTREAM";
const PROTOCOL: &str = "HAPAX_TEST_PROTOCOL";

/// The settings of every gateway here: any port, no operators, all callers one.
pub fn config(store: StoreUrl, upstream: SocketAddr, protocol: Protocol) -> Config {
    let mut config = Config::new(format!("http://{upstream}").parse().unwrap());
    config.listen = ([127, 0, 0, 1], 0).into();
    config.admin = None;
    config.principal = PrincipalSource::None.into();
    config.store = store;
    config.upstream.protocol = protocol;
    // No load balancer has to notice anything.
    config.drain.notice = Duration::from_millis(10);
    config
}

/// Starts the child on the store of a directory.
pub fn start(
    test: &str,
    directory: &Path,
    upstream: &Upstream,
    protocol: Protocol,
) -> (Child, SocketAddr) {
    let address = upstream.address(protocol).to_string();
    let protocol = if protocol == Protocol::Http2 {
        "http2"
    } else {
        "http1"
    };
    let envs = [
        (DIRECTORY, directory.to_str().unwrap()),
        (UPSTREAM, &address),
        (PROTOCOL, protocol),
    ];
    let mut child = Child::spawn(test, "gateway", &envs);
    let address = child.wait_for("listens at ").parse().unwrap();
    (child, address)
}

/// The child's life: serves until its parent kills it or is gone.
pub fn serve() {
    let env = |name| std::env::var(name).unwrap();
    let protocol = if env(PROTOCOL) == "http2" {
        Protocol::Http2
    } else {
        Protocol::Http1
    };
    let store = StoreUrl::Sqlite(Path::new(&env(DIRECTORY)).join("hapax.db"));
    let watcher = Arc::new(Watcher::default());
    // One thread more than can be made to stand still.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(3)
        .enable_all()
        .build()
        .unwrap();
    let observer = watcher.clone();
    let config = config(store, env(UPSTREAM).parse().unwrap(), protocol);
    let gateway = runtime
        .block_on(Gateway::start_observed(config, move |event: &Event<'_>| {
            observer.on(event);
        }))
        .unwrap();
    announce(format!("listens at {}", gateway.address()));
    while let Some(order) = hear() {
        let point = order
            .strip_prefix("arm ")
            .unwrap_or_else(|| panic!("no such order: {order:?}"));
        *watcher.armed.lock().unwrap() = Some(point.to_owned());
    }
}

/// Sees an attempt pass the points that only the gateway knows of.
#[derive(Default)]
struct Watcher {
    /// The point at which to stand still, once armed.
    armed: Mutex<Option<String>>,
    in_flight: AtomicUsize,
}

impl Watcher {
    fn on(&self, event: &Event<'_>) {
        match event {
            Event::Claiming(_) => self.at("before claim"),
            Event::Claimed { .. } => self.at("after claim"),
            Event::Dispatching(_) => {
                self.at("before dispatch");
                self.in_flight.fetch_add(1, Ordering::SeqCst);
            }
            Event::Finishing { .. } => self.at("before completion"),
            Event::Finished { .. } => {
                self.at("after completion");
                self.in_flight.fetch_sub(1, Ordering::SeqCst);
            }
            Event::Answering(_) => self.at("before answer"),
            _ => {}
        }
    }

    /// Stands still here for ever, if this is the point and enough attempts are in flight.
    fn at(&self, point: &str) {
        let in_flight = self.in_flight.load(Ordering::SeqCst);
        let mut armed = self.armed.lock().unwrap();
        if armed.as_deref() != Some(point) || in_flight < IN_FLIGHT_MIN {
            return;
        }
        *armed = None;
        drop(armed);
        announce(format!("at {point} with {in_flight}"));
        loop {
            std::thread::park();
        }
    }
}
