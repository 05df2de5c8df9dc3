//! What the work of a test does with any driver: one transaction, one effect, one end.

use std::fmt::Display;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use hapax::join::{FinishError, Kept};
use hapax::{Answer, Done, Once, Operation, RunError};

/// What the tests need from a driver.
pub trait Driver: Send + Sync + Sized + 'static {
    /// The driver's name in the table of kills.
    const NAME: &'static str;
    /// Whether its database is a file; otherwise it is a server.
    const IS_FILE: bool;

    /// Prepares for a database, by its URL or path. Connects only when it must.
    fn new(at: &str) -> Self;

    /// Runs the script: begins, writes the effect of this operation, and ends.
    fn perform(
        &self,
        operation: &Operation,
        script: &Script,
    ) -> impl Future<Output = Result<Kept, Failed>> + Send;

    /// Whether it claims the key in the transaction of the effect: then this is run instead.
    const AT_ONCE: bool = false;

    /// Claims a key, writes its effect and completes it, in one transaction.
    fn run_at_once(
        &self,
        _once: &Once,
        _key: &str,
        _script: &Script,
    ) -> impl Future<Output = Result<Done<Bytes>, RunError>> + Send {
        async { unreachable!("{} claims apart from its effect", Self::NAME) }
    }
}

/// How the transaction ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Finish,
    JoinAndCommit,
    JoinAndRollBack,
    RollBack,
}

/// The points that a script reaches. `finish` does not stop at `Joined`, because it joins and
/// commits in one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// Only where the key is claimed in the transaction of the effect.
    Claimed,
    Begun,
    Written,
    Emitted,
    Joined,
    Committing,
    Committed,
}

type Passing = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The steps of one transaction.
#[derive(Clone)]
pub struct Script {
    pub end: End,
    passing: Arc<dyn Fn(Point) -> Passing + Send + Sync>,
}

impl Script {
    pub fn new(end: End) -> Script {
        Script {
            end,
            passing: Arc::new(|_| Box::pin(async {})),
        }
    }

    /// Calls `passing` at every point.
    pub fn passing<F: Future<Output = ()> + Send + 'static>(
        self,
        passing: impl Fn(Point) -> F + Send + Sync + 'static,
    ) -> Script {
        Script {
            passing: Arc::new(move |point| Box::pin(passing(point))),
            ..self
        }
    }

    pub async fn at(&self, point: Point) {
        (self.passing)(point).await;
    }
}

/// Why a script returned no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failed {
    FencedOut,
    FinishedAlready,
    NoTransaction,
    Nested,
    AnotherDatabase,
    /// The database is known not to have committed.
    RolledBack(String),
    /// The script asked for the failure.
    OnPurpose,
    /// Any other failure, including an unknown outcome.
    Otherwise(String),
}

impl std::error::Error for Failed {}

impl Display for Failed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self:?}")
    }
}

impl<E: Display> From<FinishError<E>> for Failed {
    fn from(error: FinishError<E>) -> Failed {
        match error {
            FinishError::FencedOut => Failed::FencedOut,
            FinishError::FinishedAlready => Failed::FinishedAlready,
            FinishError::NoTransaction => Failed::NoTransaction,
            FinishError::Nested => Failed::Nested,
            FinishError::AnotherDatabase => Failed::AnotherDatabase,
            FinishError::RolledBack(error) => Failed::RolledBack(error.to_string()),
            error => Failed::Otherwise(error.to_string()),
        }
    }
}

/// An error of the driver itself.
pub fn driver(error: impl Display) -> Failed {
    Failed::Otherwise(error.to_string())
}

/// An answer that names its attempt.
pub fn answer(operation: &Operation) -> Answer {
    Answer::new(201, body(operation.fence().as_u64()))
}

pub fn body(fence: u64) -> String {
    format!("done by {fence}")
}
