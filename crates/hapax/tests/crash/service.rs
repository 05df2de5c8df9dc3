//! The child: an axum service on SQLite with its own ledger. The parent can make it stop at a
//! point.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use hapax::{
    Audit, Event, Hapax, Mode, Operation, OperatorError, Policy, Settlement, Sqlite, Store, Sweep,
};
use hapax_core::store::ListQuery;
use hapax_testkit::crash::{Child, Ledger, announce, hear};
use hapax_testkit::{Fault, Faulty, Verb};
use tokio::sync::{Semaphore, watch};

/// The number of attempts that must be in flight for a kill to count.
pub const IN_FLIGHT_MIN: usize = 16;
/// The number of attempts in flight before the rest is sent.
pub const FIRST_WAVE: usize = 18;
/// The number of attempts that the handler gathers before it lets one of them through.
const GATHERED: usize = 20;

/// The named points of an attempt, in order. The parent observes the last one itself.
pub const POINTS: [&str; 10] = [
    "before claim",
    "after claim",
    "before dispatch",
    "after dispatch",
    "before effect",
    "after effect",
    "before completion",
    "after completion",
    "before answer",
    "after answer",
];

/// State shared by the whole service.
struct Inside {
    ledger: Ledger,
    /// The point at which the next thread stops, once armed.
    armed: Mutex<Option<String>>,
    in_flight: AtomicUsize,
    gathered: watch::Sender<usize>,
    /// Permits for held attempts to continue.
    through: Semaphore,
    /// The fault layer between the first node and the store.
    faulty: OnceLock<Arc<Faulty>>,
    hapax: OnceLock<Hapax>,
}

impl Inside {
    /// Parks this thread for ever if `point` is armed and enough attempts are in flight.
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
}

async fn charge(
    State(inside): State<Arc<Inside>>,
    operation: Operation,
    headers: HeaderMap,
) -> (StatusCode, String) {
    inside.at("after dispatch");
    let holds = headers.contains_key("x-hold");
    if holds {
        // All attempts arrive before any has its effect, so that a kill finds some before and some
        // after it.
        inside.gathered.send_modify(|count| {
            *count += 1;
            if *count == FIRST_WAVE {
                announce("the first wave is in flight");
            }
        });
        let mut gathered = inside.gathered.subscribe();
        gathered.wait_for(|count| *count >= GATHERED).await.unwrap();
    }
    inside.at("before effect");
    inside.ledger.append(operation.key().as_str());
    inside.at("after effect");
    if holds {
        inside.through.acquire().await.unwrap().forget();
    }
    (
        StatusCode::CREATED,
        format!("charged by {}", operation.fence()),
    )
}

/// Holds the first attempt until the parent releases it, so that the process can be stopped in the
/// middle of it.
async fn slow(State(inside): State<Arc<Inside>>, operation: Operation) -> (StatusCode, String) {
    inside.ledger.append(operation.key().as_str());
    announce(format!("began {}", operation.attempt()));
    if operation.attempt() == 1 {
        inside.through.acquire().await.unwrap().forget();
    }
    (
        StatusCode::CREATED,
        format!("charged by attempt {}", operation.attempt()),
    )
}

/// Settles every unknown record as done.
async fn settle(State(inside): State<Arc<Inside>>) -> (StatusCode, String) {
    let hapax = inside.hapax.get().unwrap();
    let mut settled = 0;
    for head in hapax
        .list(ListQuery {
            state: None,
            after: None,
            limit: 1_000,
        })
        .await
        .unwrap()
    {
        let audit = Audit {
            by: "the test",
            reason: "it says so",
        };
        // A sweep may change the record between the listing and the settlement; then the loop tries
        // again.
        let result = loop {
            let done = Settlement::Done(hapax::Answer::new(200, "settled"));
            match hapax.settle(head.id, done, audit).await {
                Err(OperatorError::Changed(_)) => {}
                result => break result,
            }
        };
        settled += usize::from(result.is_ok());
    }
    (StatusCode::OK, settled.to_string())
}

/// The child process: serves until its parent kills it or exits.
pub fn serve() {
    let directory = std::env::var("HAPAX_TEST_DIRECTORY").unwrap();
    let directory = std::path::Path::new(&directory);
    let inside = Arc::new(Inside {
        ledger: Ledger::open(directory.join("ledger")),
        armed: Mutex::new(None),
        in_flight: AtomicUsize::new(0),
        gathered: watch::Sender::new(0),
        through: Semaphore::new(0),
        faulty: OnceLock::new(),
        hapax: OnceLock::new(),
    });
    // One more thread than can be parked.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(3)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(listen(&inside, directory));
    while let Some(order) = hear() {
        match order.split_once(' ') {
            Some(("arm", point)) => *inside.armed.lock().unwrap() = Some(point.to_owned()),
            Some(("let", count)) => inside.through.add_permits(count.parse().unwrap()),
            Some(("fail", "renewals")) => {
                inside
                    .faulty
                    .get()
                    .unwrap()
                    .fail_next(Verb::Renew, Fault::ErrorBefore, usize::MAX);
            }
            _ => panic!("no such order: {order:?}"),
        }
        announce("done");
    }
}

/// Two nodes in one process, because the file has one owner: a lease that one node does not renew
/// can be taken over by the other.
async fn listen(inside: &Arc<Inside>, directory: &std::path::Path) {
    let store: Arc<dyn Store> = Arc::new(Sqlite::open(directory.join("hapax.db")).await.unwrap());
    let faulty = Arc::new(Faulty::new(store.clone()));
    inside.faulty.set(faulty.clone()).ok().unwrap();

    let observer = inside.clone();
    let sweep = Sweep {
        interval: Duration::from_millis(20),
        batch: 256,
    };
    let first = Hapax::builder_shared(faulty)
        .observer(move |event: &Event<'_>| observer.on(event))
        .sweep(Some(sweep))
        .build();
    let second = Hapax::builder_shared(store).sweep(None).build();
    inside.hapax.set(second.clone()).ok().unwrap();
    let addresses = [node(inside, &first).await, node(inside, &second).await];
    announce(format!("listens at {} {}", addresses[0], addresses[1]));
}

async fn node(inside: &Arc<Inside>, hapax: &Hapax) -> SocketAddr {
    let mode = if std::env::var("HAPAX_TEST_MODE").as_deref() == Ok("rerun") {
        Mode::Rerun
    } else {
        Mode::Hold
    };
    let stoppable = Policy {
        mode,
        lease: Duration::from_millis(100),
        ..Policy::default()
    };
    let app = Router::new()
        .route(
            "/charges",
            post(charge).layer(hapax.guard().anonymous().build().unwrap()),
        )
        .route(
            "/slow",
            post(slow).layer(hapax.guard().policy(stoppable).anonymous().build().unwrap()),
        )
        .route("/settle", post(settle))
        .with_state(inside.clone());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await });
    address
}

/// Starts the child on the files in `directory`; returns the addresses of its two nodes.
pub fn start(test: &str, directory: &std::path::Path, mode: &str) -> (Child, [SocketAddr; 2]) {
    let envs = [
        ("HAPAX_TEST_DIRECTORY", directory.to_str().unwrap()),
        ("HAPAX_TEST_MODE", mode),
    ];
    let mut child = Child::spawn(test, "service", &envs);
    let addresses = child.wait_for("listens at ");
    let (first, second) = addresses.split_once(' ').unwrap();
    (child, [first.parse().unwrap(), second.parse().unwrap()])
}

pub fn order(child: &mut Child, order: &str) {
    child.say(order);
    child.wait_for("done");
}
