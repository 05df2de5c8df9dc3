//! A gateway as a child process of this test, which can be made to stop at a point.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hapax::Event;
use hapax_server::config::{PrincipalSource, Protocol};
use hapax_server::gateway::Gateway;
use hapax_testkit::crash::{Child, announce, hear};

const STORE: &str = "HAPAX_TEST_STORE";
const UPSTREAM: &str = "HAPAX_TEST_UPSTREAM";
const PROTOCOL: &str = "HAPAX_TEST_PROTOCOL";
const LISTEN: &str = "HAPAX_TEST_LISTEN";
const LEASE: &str = "HAPAX_TEST_LEASE_MS";

/// The settings of a node.
pub struct NodeSettings {
    /// The full name of the test that runs as the child.
    pub test: &'static str,
    pub store: String,
    pub upstream: SocketAddr,
    pub protocol: Protocol,
    pub listen: SocketAddr,
    pub lease: Duration,
}

impl NodeSettings {
    /// Starts the node without waiting for it.
    pub fn begin(&self) -> Child {
        let protocol = if self.protocol == Protocol::Http2 {
            "http2"
        } else {
            "http1"
        };
        let envs = [
            (STORE, self.store.clone()),
            (UPSTREAM, self.upstream.to_string()),
            (PROTOCOL, protocol.to_owned()),
            (LISTEN, self.listen.to_string()),
            (LEASE, self.lease.as_millis().to_string()),
        ];
        let envs = envs.each_ref().map(|(name, value)| (*name, value.as_str()));
        Child::spawn(self.test, "node", &envs)
    }

    /// Starts the node and waits until it listens. Returns its address.
    pub fn complete(&self) -> (Child, SocketAddr) {
        let mut child = self.begin();
        let address = child.wait_for("listens at ").parse().unwrap();
        (child, address)
    }
}

/// Makes the next request that reaches this point stop there, once at least `in_flight_min`
/// attempts are in flight. The node then prints `at POINT with` their number.
pub fn arm(child: &mut Child, point: &str, in_flight_min: usize) {
    child.say(&format!("arm {in_flight_min} {point}"));
}

/// How many requests have waited there, or still wait, for a running attempt.
pub fn waited(child: &mut Child) -> usize {
    child.say("waited");
    child.wait_for("waited ").parse().unwrap()
}

/// The child process: serves until its parent kills it or exits.
pub fn serve() {
    let watcher = Arc::new(Watcher::default());
    // One more thread than can be parked.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(3)
        .enable_all()
        .build()
        .unwrap();
    let env = |name| std::env::var(name).unwrap();
    let mut config = super::config(env(UPSTREAM).parse().unwrap());
    config.listen = env(LISTEN).parse().unwrap();
    config.principal = PrincipalSource::None.into();
    config.store = env(STORE).parse().unwrap();
    config.upstream.protocol = if env(PROTOCOL) == "http2" {
        Protocol::Http2
    } else {
        Protocol::Http1
    };
    config.defaults.lease = Duration::from_millis(env(LEASE).parse().unwrap());
    let observer = watcher.clone();
    let started = Gateway::start_observed(config, move |event: &Event<'_>| observer.on(event));
    let gateway = runtime
        .block_on(started)
        .unwrap_or_else(|error| panic!("{error}"));
    announce(format!("listens at {}", gateway.address()));
    while let Some(order) = hear() {
        match order
            .strip_prefix("arm ")
            .and_then(|arm| arm.split_once(' '))
        {
            Some((in_flight_min, point)) => {
                let armed = (in_flight_min.parse().unwrap(), point.to_owned());
                *watcher.armed.lock().unwrap() = Some(armed);
            }
            None => announce(format!("waited {}", watcher.waited.load(Ordering::SeqCst))),
        }
    }
}

/// Observes requests at points that only the gateway knows.
#[derive(Default)]
struct Watcher {
    /// The required number of attempts in flight, and the point at which to stop, once armed.
    armed: Mutex<Option<(usize, String)>>,
    in_flight: AtomicUsize,
    waited: AtomicUsize,
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
            Event::Waiting(_) => {
                self.waited.fetch_add(1, Ordering::SeqCst);
                self.at("waiting for another");
            }
            _ => {}
        }
    }

    /// Parks this thread for ever if `point` is armed and enough attempts are in flight.
    fn at(&self, point: &str) {
        let in_flight = self.in_flight.load(Ordering::SeqCst);
        let mut armed = self.armed.lock().unwrap();
        let is_here = |(min, armed): &mut (usize, String)| armed == point && in_flight >= *min;
        if armed.take_if(is_here).is_none() {
            return;
        }
        drop(armed);
        announce(format!("at {point} with {in_flight}"));
        loop {
            std::thread::park();
        }
    }
}
