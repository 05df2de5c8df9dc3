//! For the tests of a service: a [`Hapax`] whose clock a test turns, and an [`Operation`] for a
//! handler that is called alone.
//!
//! A feature of this crate, and no crate of its own, so that it always has the version of the code
//! under test. Turn it on for tests only:
//!
//! ```toml
//! [dev-dependencies]
//! hapax = { version = "0.1", features = ["testing"] }
//! ```
//!
//! An answer is replayed until its retention is over:
//!
//! ```
//! # #[cfg(feature = "axum")]
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! use axum::{Router, body::Body, http::Request, routing::post};
//! use hapax::{Policy, testing::TestHapax};
//! use tower::ServiceExt;
//!
//! let hapax = TestHapax::new();
//! let app = Router::new()
//!     .route("/orders", post(|| async { "ordered" }))
//!     .route_layer(hapax.guard().anonymous().build().unwrap());
//! let send = async || {
//!     let order = Request::post("/orders").header("Idempotency-Key", "k1").body(Body::empty());
//!     app.clone().oneshot(order.unwrap()).await.unwrap().status()
//! };
//!
//! assert_eq!(send().await, 200);
//! assert_eq!(send().await, 200); // the first answer again
//! hapax.pass(Policy::default().retention).await;
//! assert_eq!(send().await, 410); // key-expired
//! # }
//! # #[cfg(not(feature = "axum"))]
//! # fn main() {}
//! ```
//!
//! A handler that is at work when its lease ends is a lost attempt, as if its process had been
//! killed:
//!
//! ```
//! # #[cfg(feature = "axum")]
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! # use axum::{Router, body::Body, http::Request, routing::post};
//! # use hapax::{Policy, testing::TestHapax};
//! # use tower::ServiceExt;
//! let hapax = TestHapax::new();
//! let (arrived, mut arrivals) = tokio::sync::mpsc::channel(1);
//! let never_answers = move || async move {
//!     arrived.send(()).await.unwrap();
//!     std::future::pending::<()>().await
//! };
//! let app = Router::new()
//!     .route("/orders", post(never_answers))
//!     .route_layer(hapax.guard().anonymous().build().unwrap());
//! let order = || Request::post("/orders").header("Idempotency-Key", "k1").body(Body::empty()).unwrap();
//!
//! let first = tokio::spawn(app.clone().oneshot(order()));
//! arrivals.recv().await;
//! hapax.pass(Policy::default().lease).await;
//! let repeat = app.oneshot(order()).await.unwrap();
//! assert_eq!(repeat.status(), 409); // outcome-unknown
//! # drop(first);
//! # }
//! # #[cfg(not(feature = "axum"))]
//! # fn main() {}
//! ```
//!
//! A handler alone, without a layer:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! use hapax::{Operation, testing::operation};
//!
//! async fn place(operation: Operation, order: &str) -> String {
//!     format!("{order}, paid under {}", operation.derive("payment"))
//! }
//!
//! let placed = place(operation("k1"), "a book").await;
//! assert_eq!(placed, place(operation("k1"), "a book").await);
//! assert_ne!(placed, place(operation("k2"), "a book").await);
//! # }
//! ```

use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use hapax_core::key::Key;
use hapax_core::memory::Memory;
use hapax_core::time::{ManualClock, Timestamp};

use crate::Hapax;
use crate::once::Operation;
use crate::store::random_secret;

/// A [`Hapax`] on a store in memory, by a clock that stands still until [`pass`](TestHapax::pass)
/// turns it. Clones are handles on the same one.
#[derive(Clone)]
pub struct TestHapax {
    hapax: Hapax,
    clock: ManualClock,
}

impl TestHapax {
    /// An empty store, whose clock shows the time of this machine. Nothing is swept in the
    /// background: call [`Hapax::sweep_once`] where a test is about that.
    pub fn new() -> TestHapax {
        let clock = ManualClock::starting_at(Timestamp::from_system_time(SystemTime::now()));
        let store = Memory::new(Arc::new(clock.clone()), random_secret());
        let hapax = Hapax::builder(store).sweep(None).build();
        TestHapax { hapax, clock }
    }

    /// What the service under test takes.
    pub fn hapax(&self) -> Hapax {
        self.hapax.clone()
    }

    /// Lets so much time pass for the records, the answers cached in memory, and the limits on new
    /// keys.
    ///
    /// For this node it passes at once, as for a machine that was suspended: no lease is renewed
    /// meanwhile. An attempt whose lease is over afterwards is lost, though its handler still runs.
    /// An attempt that should go on under its lease needs steps shorter than the lease.
    ///
    /// What waits by a timer still waits: `Prefer: wait`, `longest_attempt` and `store_timeout` go
    /// by tokio's clock, which `tokio::time::pause` and `advance` turn.
    pub async fn pass(&self, duration: Duration) {
        self.clock.advance(duration);
        self.hapax.engine().resume_after(duration).await;
    }
}

impl Default for TestHapax {
    fn default() -> Self {
        TestHapax::new()
    }
}

impl Deref for TestHapax {
    type Target = Hapax;

    fn deref(&self) -> &Hapax {
        &self.hapax
    }
}

/// The first attempt of `POST /` under this key, by an anonymous caller: what a handler gets that
/// is called without a layer. Of one key it has the same id each time, and so the same
/// [derived](Operation::derive) keys.
///
/// No store has a record of it, so that it cannot [`finish`](Operation::finish) or
/// [`join`](Operation::join) in a transaction: that is
/// [`FinishError::NotATransactionRoute`](crate::FinishError::NotATransactionRoute). To test a
/// handler that does, call it in [`Hapax::once`] with
/// [`Mode::Transaction`](crate::Mode::Transaction), on a store in the database of the test.
///
/// # Panics
///
/// If the text is no key.
pub fn operation(key: &str) -> Operation {
    match Key::new(key) {
        Ok(key) => Operation::alone(key),
        Err(error) => panic!("{key:?} is no key: {error}"),
    }
}
