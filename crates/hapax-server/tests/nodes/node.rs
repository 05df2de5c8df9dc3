//! A gateway as a child of this test, which can be made to stand still at a point and comes back at
//! the same address.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hapax::{Event, Policy};
use hapax_server::config::{Config, PrincipalSource, Protocol};
use hapax_server::gateway::Gateway;
use hapax_testkit::crash::{Child, announce, hear};

const STORE: &str = "HAPAX_TEST_STORE";
const UPSTREAM: &str = "HAPAX_TEST_UPSTREAM";
const LISTEN: &str = "HAPAX_TEST_LISTEN";
const LEASE: &str = "HAPAX_TEST_LEASE_MS";

/// What a node is started with.
pub struct Birth {
    /// The full name of the test that looks at its role first.
    pub test: &'static str,
    /// Known to the database by the name that it has there: `node-0`.
    pub number: usize,
    pub store: String,
    pub upstream: SocketAddr,
    pub listen: SocketAddr,
    pub lease: Duration,
}

impl Birth {
    /// Starts one, which is on its way then.
    pub fn begin(&self) -> Child {
        let envs = [
            (
                STORE,
                format!("{}?application_name=node-{}", self.store, self.number),
            ),
            (UPSTREAM, self.upstream.to_string()),
            (LISTEN, self.listen.to_string()),
            (LEASE, self.lease.as_millis().to_string()),
        ];
        Child::spawn(
            self.test,
            "node",
            &envs.each_ref().map(|(name, value)| (*name, value.as_str())),
        )
    }

    /// Starts one and waits until it listens.
    pub fn complete(&self) -> Child {
        let mut child = self.begin();
        wait_listens(&mut child);
        child
    }
}

/// Waits until it listens; where.
pub fn wait_listens(child: &mut Child) -> SocketAddr {
    child.wait_for("listens at ").parse().unwrap()
}

/// How many requests wait there for an attempt that is under way, or have waited.
pub fn waited(child: &mut Child) -> usize {
    child.say("waited");
    child.wait_for("waited ").parse().unwrap()
}

/// The child's life: serves until its parent kills it or is gone.
pub fn serve() {
    let watcher = Arc::new(Watcher::default());
    // One thread more than can be made to stand still.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let observer = watcher.clone();
    let gateway = runtime.block_on(Gateway::start_observed(
        config(),
        move |event: &Event<'_>| observer.on(event),
    ));
    let gateway = gateway.unwrap_or_else(|error| panic!("{error}"));
    announce(format!("listens at {}", gateway.address()));
    while let Some(order) = hear() {
        match order.strip_prefix("arm ") {
            Some(point) => *watcher.armed.lock().unwrap() = Some(point.to_owned()),
            None => announce(format!("waited {}", watcher.waited.load(Ordering::SeqCst))),
        }
    }
}

fn config() -> Config {
    let env = |name| std::env::var(name).unwrap();
    let mut config = Config::new(format!("http://{}", env(UPSTREAM)).parse().unwrap());
    config.listen = env(LISTEN).parse().unwrap();
    config.admin = None;
    config.principal = PrincipalSource::None.into();
    config.store = env(STORE).parse().unwrap();
    config.upstream.protocol = Protocol::Http1;
    config.defaults = Policy {
        lease: Duration::from_millis(env(LEASE).parse().unwrap()),
        ..Policy::default()
    };
    config
}

/// Sees requests pass the points that only the gateway knows of.
#[derive(Default)]
struct Watcher {
    /// The point at which to stand still, once armed.
    armed: Mutex<Option<String>>,
    waited: AtomicUsize,
}

impl Watcher {
    fn on(&self, event: &Event<'_>) {
        match event {
            Event::Claiming(_) => self.at("before claim"),
            Event::Claimed { .. } => self.at("after claim"),
            Event::Dispatching(_) => self.at("before dispatch"),
            Event::Finishing { .. } => self.at("before completion"),
            Event::Finished { .. } => self.at("after completion"),
            Event::Answering(_) => self.at("before answer"),
            Event::Waiting(_) => {
                self.waited.fetch_add(1, Ordering::SeqCst);
                self.at("waiting for another");
            }
            _ => {}
        }
    }

    /// Stands still here for ever, if this is the point.
    fn at(&self, point: &str) {
        let mut armed = self.armed.lock().unwrap();
        if armed.as_deref() != Some(point) {
            return;
        }
        *armed = None;
        drop(armed);
        announce(format!("at {point}"));
        loop {
            std::thread::park();
        }
    }
}
