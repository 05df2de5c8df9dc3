//! The writer loop: runs batches, takes care of the log and the file's size, and reopens the file
//! after a disk error.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use hapax_core::store::StoreError;
use rusqlite::Connection;

use super::erasure::Erasures;
use super::log::{self, Progress, Wake};
use super::schema::Meta;
use super::shared::{Connections, Shared, shut};
use super::transaction::{Failure, WriteTransaction};
use super::transfer::{StandingChange, StandingResult};
use super::writer::{Answer, Command, Finish, Queue, Work};
use super::writer_state::WriterState;
use super::{backup, repair, transfer};
use crate::backoff::Backoff;
use crate::store::sqlite_kit::error::{is_suspect, store_error};

/// Pages given back to the file system at a time: when idle, and between two batches.
const SHRINK_PAGES_IDLE: u32 = 2048;
const SHRINK_PAGES_BUSY: u32 = 64;
/// Free pages that are always kept for reuse, and the part of the file that may be free: a quarter.
const FREE_PAGES_MIN: i64 = 4096;
const FREE_PART: i64 = 4;
/// Batches between two checks of the log's length: few enough that the log cannot exceed its limit
/// in between, however large they are.
const LOOK_BATCHES: u32 = 4;
/// The pauses between tries to reopen the file.
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_secs(1);

pub(super) struct WriterLoop {
    shared: Arc<Shared>,
    wake: Arc<Wake>,
    state: State,
    /// Whether the file has more free pages than it should.
    is_shrinking: bool,
    /// Batches since the log's length was last checked.
    unlooked: u32,
    /// Forgotten answers that are not erased yet, and the callers that wait for that.
    erasures: Erasures,
    /// The pause before the file is reopened after an error. It grows each time, until a write
    /// succeeds.
    pause: Backoff,
}

enum State {
    Open(Box<Open>),
    /// The disk failed: until the file was reopened and loaded again, nothing in memory about it is
    /// valid.
    Broken(Broken),
}

struct Open {
    /// Shared only with a backup, which runs while batches are written.
    connection: Rc<Connection>,
    writer_state: WriterState,
}

struct Broken {
    error: StoreError,
    next_try: Instant,
}

impl WriterLoop {
    pub(super) fn new(
        shared: Arc<Shared>,
        connection: Connection,
        writer_state: WriterState,
        wake: Arc<Wake>,
        erasures: Erasures,
    ) -> WriterLoop {
        let state = State::Open(Box::new(Open {
            connection: Rc::new(connection),
            writer_state,
        }));
        WriterLoop {
            shared,
            wake,
            state,
            is_shrinking: false,
            unlooked: 0,
            erasures,
            pause: Backoff::new(PAUSE_MIN, PAUSE_MAX).immediate(),
        }
    }

    /// How long to wait for commands before other work is due; `None` for ever.
    pub(super) fn wait_max(&self) -> Option<Duration> {
        let wait_max = match &self.state {
            State::Open(_) => self.is_shrinking.then_some(Duration::ZERO),
            State::Broken(broken) => {
                Some(broken.next_try.saturating_duration_since(Instant::now()))
            }
        };
        wait_max.into_iter().chain(self.erasures.wait_max()).min()
    }

    /// Runs one batch, and then the housekeeping.
    pub(super) fn work(&mut self, batch: Vec<Command>, queue: &Queue) {
        let mut chores = OtherCommands::default();
        let is_idle = batch.is_empty();
        let batch: Vec<_> = batch
            .into_iter()
            .filter_map(|command| chores.take(command))
            .collect();
        self.look_for_trouble();
        self.reopen_if_due();
        if !batch.is_empty() {
            self.commit(batch);
        }
        self.erase();
        let has_swept = match &mut self.state {
            State::Open(open) => std::mem::take(&mut open.writer_state.has_swept),
            State::Broken(_) => false,
        };
        if self.is_shrinking || has_swept {
            self.keep_house(
                chores.reset_log,
                Some(if is_idle {
                    SHRINK_PAGES_IDLE
                } else {
                    SHRINK_PAGES_BUSY
                }),
            );
        } else {
            self.keep_house(chores.reset_log, None);
        }
        for (path, reply) in chores.backups {
            let copied = self.back_up(&path, &reply, queue);
            let _ = reply.send(copied);
        }
        for (turn, reply) in chores.turns {
            let _ = reply.send(self.turn(&turn));
        }
    }

    /// Runs a batch in one transaction, and answers the callers only after the commit.
    fn commit(&mut self, batch: Vec<Work>) {
        let begun = Instant::now();
        let mut finishes = Vec::with_capacity(batch.len());
        let result = match &mut self.state {
            State::Broken(broken) => {
                finishes.extend(batch.into_iter().map(refuse));
                Err(Failure {
                    error: broken.error.clone(),
                    is_suspect: false,
                })
            }
            State::Open(open) => open
                .carry_out(&self.shared, batch, &mut finishes)
                .and_then(|()| in_place(&self.shared)),
        };
        let error = match result {
            Ok(()) => {
                self.shared.counters.committed(begun.elapsed());
                self.pause.reset();
                None
            }
            Err(failure) => {
                self.shared.counters.failed(describe(&failure.error));
                if failure.is_suspect {
                    self.fail(failure.error.clone());
                }
                Some(failure.error)
            }
        };
        for finish in finishes {
            if let Some(forgotten) = finish(error.clone()) {
                self.erasures.owe(forgotten);
            }
        }
    }

    fn erase(&mut self) {
        let connection = match &self.state {
            State::Open(open) => Some(open.connection.clone()),
            State::Broken(_) => None,
        };
        if let Err(error) = self.erasures.work(&self.shared, connection.as_deref())
            && is_suspect(&error)
        {
            self.fail(store_error(error));
        }
    }

    /// Handles a disk error: gives up the connections and the state in memory.
    fn fail(&mut self, error: StoreError) {
        let reason = describe(&error);
        tracing::error!(
            error = reason,
            "the store file failed; it is closed, and opened and read again before anything is served from it"
        );
        self.shared.counters.failing(reason);
        // Shut the gate before a reader can see data that may not be on the disk.
        self.shared.shut();
        self.state = State::Broken(Broken {
            error,
            next_try: Instant::now() + self.pause.next_pause(),
        });
    }

    /// Handles an error that the copying thread has met.
    fn look_for_trouble(&mut self) {
        let suspect = self.wake.suspect.lock().take();
        if let Some(error) = suspect
            && matches!(self.state, State::Open(_))
        {
            self.fail(store_error(error));
        }
    }

    fn reopen_if_due(&mut self) {
        let State::Broken(broken) = &mut self.state else {
            return;
        };
        if broken.next_try > Instant::now() {
            return;
        }
        match repair::reopen(&self.shared) {
            Ok((connection, writer_state, connections)) => {
                tracing::info!("the store file is open again");
                self.open(connection, writer_state, connections);
            }
            Err(error) => {
                broken.error = shut().because(Cause(describe(&error)));
                broken.next_try = Instant::now() + self.pause.next_pause();
                self.shared.counters.failing(describe(&error));
                tracing::warn!(
                    error = describe(&error),
                    "the store file cannot be opened again yet"
                );
            }
        }
    }

    fn open(
        &mut self,
        connection: Connection,
        writer_state: WriterState,
        connections: Connections,
    ) {
        self.shared.open(connections, writer_state.index.clone());
        self.shared
            .counters
            .reopened
            .fetch_add(1, Ordering::Relaxed);
        self.state = State::Open(Box::new(Open {
            connection: Rc::new(connection),
            writer_state,
        }));
    }

    /// Housekeeping between two batches: keeps the log short, and the file small.
    fn keep_house(&mut self, reset_log: bool, shrink_pages: Option<u32>) {
        let State::Open(open) = &self.state else {
            return;
        };
        let connection = open.connection.clone();
        let mut kept = self.keep_log(&connection, reset_log);
        if let Some(pages) = shrink_pages {
            kept = kept.and_then(|()| self.keep_size(&connection, pages));
        }
        if let Err(error) = kept {
            if is_suspect(&error) {
                self.fail(store_error(error));
            } else {
                // A full disk, or another program's lock: try again the next time.
                self.is_shrinking = false;
                tracing::debug!(%error, "housekeeping of the store file was put off");
            }
        }
    }

    fn keep_log(&mut self, connection: &Connection, reset_log: bool) -> rusqlite::Result<()> {
        self.unlooked += 1;
        if self.unlooked < LOOK_BATCHES && !reset_log {
            return Ok(());
        }
        self.unlooked = 0;
        let progress = Progress::read(connection)?;
        self.shared
            .counters
            .log_bytes
            .store(progress.bytes(), Ordering::Relaxed);
        let is_held = self.wake.is_held.load(Ordering::Relaxed);
        if reset_log || (progress.is_too_long() && !is_held) {
            let is_reset = log::reset(&self.shared, connection)?;
            self.wake.is_held.store(!is_reset, Ordering::Relaxed);
        } else if progress.is_long() {
            self.wake.copy();
        }
        Ok(())
    }

    /// Gives free pages back, and checks whether there are too many. Only a sweep frees pages.
    fn keep_size(&mut self, connection: &Connection, pages: u32) -> rusqlite::Result<()> {
        if self.is_shrinking {
            connection.execute_batch(&format!("PRAGMA incremental_vacuum({pages})"))?;
        }
        let pragma = |name: &str| {
            connection
                .prepare_cached(name)?
                .query_row([], |row| row.get::<_, i64>(0))
        };
        let (free, all) = (
            pragma("PRAGMA freelist_count")?,
            pragma("PRAGMA page_count")?,
        );
        self.is_shrinking = free > FREE_PAGES_MIN && free > all / FREE_PART;
        Ok(())
    }

    fn back_up(
        &mut self,
        path: &std::path::Path,
        reply: &Answer<backup::Copied>,
        queue: &Queue,
    ) -> Result<backup::Copied, StoreError> {
        let State::Open(open) = &self.state else {
            return Err(shut());
        };
        let connection = open.connection.clone();
        let clock = self.shared.clock.clone();
        backup::copy(&connection, path, &*clock, || {
            if let Some(batch) = queue
                .gather(Some(Duration::ZERO))
                .filter(|batch| !batch.is_empty())
            {
                self.work_during_backup(batch);
            }
            // Stop if the caller has gone.
            matches!(self.state, State::Open(_)) && !reply.is_closed()
        })
    }

    /// Changes the store's standing. If that emptied the file, its state is loaded again.
    fn turn(&mut self, turn: &StandingChange) -> Result<bool, StoreError> {
        let State::Open(open) = &mut self.state else {
            return Err(shut());
        };
        let turned = open
            .turn(&self.shared, turn)
            .and_then(|turned| in_place(&self.shared).map(|()| turned));
        turned.map_err(|failure| {
            if failure.is_suspect {
                self.fail(failure.error.clone());
            }
            failure.error
        })
    }

    /// Runs one batch between two steps of a backup. After a disk error, the file is not reopened
    /// before the backup has released it.
    fn work_during_backup(&mut self, batch: Vec<Command>) {
        let mut chores = OtherCommands::default();
        let batch: Vec<_> = batch
            .into_iter()
            .filter_map(|command| chores.take(command))
            .collect();
        for (_, reply) in chores.backups {
            let _ = reply.send(Err(StoreError::unavailable(
                "a backup is being made already",
            )));
        }
        for (_, reply) in chores.turns {
            let _ = reply.send(Err(StoreError::unavailable(
                "a backup is being made: wait until it is",
            )));
        }
        self.look_for_trouble();
        if !batch.is_empty() {
            self.commit(batch);
        }
        self.erase();
        self.keep_house(chores.reset_log, None);
    }

    /// Ends in an orderly way: copies the log into the file, which is then complete without it.
    pub(super) fn close(self) {
        self.shared.shut();
        if let State::Open(open) = self.state
            && let Err(error) = open
                .connection
                .execute_batch("PRAGMA wal_checkpoint(TRUNCATE)")
        {
            tracing::warn!(%error, "the log was not copied into the store file; the next start does that");
        }
    }
}

/// The requests in a batch other than writes.
#[derive(Default)]
struct OtherCommands {
    reset_log: bool,
    backups: Vec<(std::path::PathBuf, Answer<backup::Copied>)>,
    turns: Vec<(Box<StandingChange>, Answer<bool>)>,
}

impl OtherCommands {
    fn take(&mut self, command: Command) -> Option<Work> {
        match command {
            Command::Write { work, .. } => return Some(work),
            Command::ResetLog => self.reset_log = true,
            Command::Backup(path, reply) => self.backups.push((path, reply)),
            Command::StandingChange(turn, reply) => self.turns.push((turn, reply)),
        }
        None
    }
}

impl Open {
    fn carry_out(
        &mut self,
        shared: &Shared,
        batch: Vec<Work>,
        finishes: &mut Vec<Finish>,
    ) -> Result<(), Failure> {
        let mut transaction = match WriteTransaction::open(
            &self.connection,
            &shared.policies,
            shared.incarnation,
            &*shared.clock,
            &mut self.writer_state,
        ) {
            Ok(transaction) => transaction,
            Err(failure) => {
                finishes.extend(batch.into_iter().map(refuse));
                return Err(failure);
            }
        };
        for work in batch {
            finishes.push(match transaction.failure() {
                None => work(Ok(&mut transaction)),
                Some(_) => refuse(work),
            });
        }
        transaction.commit()
    }

    fn turn(&mut self, shared: &Shared, turn: &StandingChange) -> Result<bool, Failure> {
        let turned = transfer::turn(&self.connection, shared.incarnation, turn)?;
        if let StandingResult::Cleared = turned {
            self.writer_state =
                WriterState::load(&self.connection, &shared.policies, shared.leases())?;
            shared.index_anew(self.writer_state.index.clone());
        } else {
            self.writer_state.meta = Meta::read(&self.connection)?;
        }
        Ok(turned != StandingResult::Refused)
    }
}

/// Checks that the file is still in its place: writes to a removed file are not durable.
fn in_place(shared: &Shared) -> Result<(), Failure> {
    if shared.is_in_place() {
        return Ok(());
    }
    let error = "the store file is no longer where it was: it was removed, moved or replaced. Put it back, with the files beside it";
    Err(Failure {
        error: StoreError::unavailable(error),
        is_suspect: true,
    })
}

fn refuse(work: Work) -> Finish {
    work(Err(StoreError::unavailable("the write was not begun")))
}

/// An error and its causes, in one line.
fn describe(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

/// An error cause that is only a text.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Cause(String);
