//! A pipeline: one connection for one kind of statement, replaced whenever it is lost.
//!
//! If a statement gets no reply, its pipeline gives up the connection, and every statement on it
//! fails: whether these writes took effect is not known, and callers that must know send them
//! again. New statements wait for the first try to reconnect. After that try has failed, they are
//! refused at once until a connection succeeds.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use hapax_core::store::StoreError;
use tokio::sync::{Semaphore, SemaphorePermit, watch};
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};
use tokio_util::sync::CancellationToken;

use super::connect::Connected;
use super::error::{Failure, Fault};
use super::shared::Shared;
use crate::backoff::Backoff;

const PAUSE_MIN: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// The pause before connecting again, after several connections without an answer.
const REST_MIN: Duration = Duration::from_millis(250);
const REST_MAX: Duration = Duration::from_secs(5);

/// Statements in flight on one connection. The server runs them one after the other, and the last
/// must not wait longer than the statement timeout.
const IN_FLIGHT_MAX: usize = 32;
/// Statements that may wait for room; further ones are refused.
const WAITING_MAX: usize = 4096;

/// Parameters of a statement with their types, so that the server need not be asked for these.
pub(super) type Parameters<'a> = &'a [(&'a (dyn ToSql + Sync), Type)];

pub(super) struct Pipeline {
    shared: Arc<Shared>,
    /// Room for statements in flight. Statements wait here without a timeout that would cost the
    /// connection.
    room: Semaphore,
    waiting: AtomicUsize,
    /// Consecutive connections that were given up without a single answer.
    unanswered: AtomicU32,
    link_state: watch::Sender<LinkState>,
}

/// The state of the connection.
#[derive(Clone)]
enum LinkState {
    Up(Arc<Link>),
    Connecting,
    Down(StoreError),
}

/// A connection in use.
pub(super) struct Link {
    pub(super) connected: Connected,
    /// Cancelled when the connection turns out to be unusable, so that statements waiting for a
    /// reply on it fail at once.
    given_up: CancellationToken,
}

impl Link {
    pub(super) fn new(connected: Connected) -> Arc<Link> {
        Arc::new(Link {
            connected,
            given_up: CancellationToken::new(),
        })
    }

    fn is_over(&self) -> bool {
        self.given_up.is_cancelled() || self.connected.closed.is_cancelled()
    }

    /// Sends one statement, in one round trip: nothing is prepared, and nothing is left on the
    /// server.
    pub(super) async fn ask(
        &self,
        sql: &str,
        parameters: Parameters<'_>,
        timeout: Duration,
    ) -> Result<Vec<Row>, Failure> {
        let asked =
            tokio::time::timeout(timeout, self.connected.client.query_typed(sql, parameters));
        tokio::select! {
            biased;
            asked = asked => match asked {
                Ok(rows) => rows.map_err(Failure::new),
                Err(_) => Err(Failure::connection(StoreError::unavailable("the database did not answer in time"))),
            },
            () = self.given_up.cancelled() => Err(Failure::connection(StoreError::unavailable("the connection to the database was given up"))),
        }
    }
}

impl Pipeline {
    /// A pipeline that starts to connect.
    pub(super) fn connecting(shared: Arc<Shared>) -> Arc<Pipeline> {
        let pipeline = Pipeline::new(shared, LinkState::Connecting);
        pipeline.connect();
        pipeline
    }

    /// A pipeline with an existing connection.
    pub(super) fn connected(shared: Arc<Shared>, link: Arc<Link>) -> Arc<Pipeline> {
        Pipeline::new(shared, LinkState::Up(link))
    }

    fn new(shared: Arc<Shared>, link_state: LinkState) -> Arc<Pipeline> {
        let (room, waiting, unanswered) = (
            Semaphore::new(IN_FLIGHT_MAX),
            AtomicUsize::new(0),
            AtomicU32::new(0),
        );
        Arc::new(Pipeline {
            shared,
            room,
            waiting,
            unanswered,
            link_state: watch::Sender::new(link_state),
        })
    }

    /// Sends a statement and waits for its rows, up to the statement timeout.
    pub(super) async fn ask(
        self: &Arc<Self>,
        sql: &str,
        parameters: Parameters<'_>,
    ) -> Result<Vec<Row>, Failure> {
        let _room = self.enter().await.map_err(|error| Failure {
            fault: Fault::Server,
            error,
        })?;
        let link = self.link().await.map_err(Failure::connection)?;
        let asked = link
            .ask(sql, parameters, self.shared.options.statement_timeout)
            .await;
        self.shared.counters.statement();
        let fault = asked.as_ref().err().map(|failure| failure.fault);
        if fault != Some(Fault::Connection) {
            self.unanswered.store(0, Ordering::Relaxed);
        }
        if let Err(Failure {
            fault: Fault::OutOfUse,
            error,
        }) = &asked
        {
            self.shared.sound_alarm(&error.to_string());
        }
        if matches!(fault, Some(Fault::Connection | Fault::OutOfUse)) {
            self.give_up(&link);
        }
        asked
    }

    /// Waits for room for one more statement. Refused if too many are waiting.
    async fn enter(&self) -> Result<SemaphorePermit<'_>, StoreError> {
        if let Ok(room) = self.room.try_acquire() {
            return Ok(room);
        }
        let _waiting = Waiting::begin(&self.waiting)?;
        self.room
            .acquire()
            .await
            .map_err(|error| StoreError::unavailable("the store has stopped").because(error))
    }

    /// The connection, as soon as there is one.
    pub(super) async fn link(self: &Arc<Self>) -> Result<Arc<Link>, StoreError> {
        if let Some(known) = self.known() {
            return known;
        }
        let mut link_state = self.link_state.subscribe();
        // Do not hold the borrowed state: a change of it would block.
        let waited = async {
            link_state
                .wait_for(|link_state| !matches!(link_state, LinkState::Connecting))
                .await
                .is_ok()
        };
        if tokio::time::timeout(self.shared.options.statement_timeout, waited).await == Ok(true)
            && let Some(known) = self.known()
        {
            return known;
        }
        Err(StoreError::unavailable(
            "no connection to the database came to be in time",
        ))
    }

    /// What is known without waiting. Replaces a connection that has ended; `None` while a first
    /// try to connect is under way.
    fn known(self: &Arc<Self>) -> Option<Result<Arc<Link>, StoreError>> {
        let link_state = self.link_state.borrow().clone();
        match link_state {
            LinkState::Up(link) if link.is_over() => {
                self.give_up(&link);
                None
            }
            LinkState::Up(link) => Some(Ok(link)),
            LinkState::Connecting => None,
            LinkState::Down(error) => Some(Err(error)),
        }
    }

    /// Gives up a connection, and starts to connect again.
    pub(super) fn give_up(self: &Arc<Self>, link: &Arc<Link>) {
        link.given_up.cancel();
        let is_ours = self.link_state.send_if_modified(|link_state| {
            let is_ours =
                matches!(link_state, LinkState::Up(current) if Arc::ptr_eq(current, link));
            if is_ours {
                *link_state = LinkState::Connecting;
            }
            is_ours
        });
        if is_ours {
            self.shared.counters.lost_connection();
            self.unanswered.fetch_add(1, Ordering::Relaxed);
            self.connect();
        }
    }

    /// Gives up the current connection, because the database has changed.
    pub(super) fn begin_anew(self: &Arc<Self>) {
        let link_state = self.link_state.borrow().clone();
        if let LinkState::Up(link) = link_state {
            self.give_up(&link);
        }
    }

    /// Connects at once, unless several connections in a row were never answered. Then the server
    /// is stuck (for example a primary that waits for a standby), and sessions that we abandon
    /// there accumulate.
    fn connect(self: &Arc<Self>) {
        let rest = match self.unanswered.load(Ordering::Relaxed) {
            0..=2 => Duration::ZERO,
            more => (REST_MIN * 2_u32.pow((more - 3).min(10))).min(REST_MAX),
        };
        if !rest.is_zero() {
            let error =
                StoreError::unavailable("the database takes connections and answers none of them");
            self.shared.counters.failed(&error);
            self.link_state.send_replace(LinkState::Down(error));
        }
        tokio::spawn(connect(Arc::downgrade(self), self.shared.clone(), rest));
    }
}

/// Counts a waiting statement while it lives.
struct Waiting<'a>(&'a AtomicUsize);

impl Waiting<'_> {
    fn begin(count: &AtomicUsize) -> Result<Waiting<'_>, StoreError> {
        // Created before the check, so that dropping it undoes the count of a refused statement.
        let waiting = Waiting(count);
        match count.fetch_add(1, Ordering::Relaxed) {
            others if others < WAITING_MAX => Ok(waiting),
            _ => Err(StoreError::unavailable(
                "too many requests wait for the database: it is too slow for them",
            )),
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Tries until it succeeds, or until the pipeline is dropped.
async fn connect(pipeline: Weak<Pipeline>, shared: Arc<Shared>, rest: Duration) {
    tokio::time::sleep(rest).await;
    let mut backoff = Backoff::new(PAUSE_MIN, PAUSE_MAX);
    loop {
        let tried = shared.connect().await;
        let Some(pipeline) = pipeline.upgrade() else {
            return;
        };
        match tried {
            Ok(link) => {
                shared.counters.connected();
                pipeline.link_state.send_replace(LinkState::Up(link));
                return;
            }
            Err(error) => {
                let error = StoreError::from(error);
                shared.counters.failed(&error);
                pipeline.link_state.send_replace(LinkState::Down(error));
            }
        }
        drop(pipeline);
        backoff.pause().await;
    }
}
