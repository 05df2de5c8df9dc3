//! The writer thread. Commands that arrive while it waits for SQLite's write lock, or for the disk,
//! share the next transaction.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use hapax_core::store::{Reply, StoreError};
use rusqlite::Connection;
use tokio::sync::oneshot;

use super::Shared;
use super::error::{is_busy, locked, store_error};
use super::rest::Rest;
use super::transaction::WriteTransaction;
use crate::store::sqlite::OpenError;
use crate::store::sqlite_kit::{Thread, answered, reply_after_commit};

/// Commands that may wait; further ones are refused.
const QUEUE_MAX: usize = 1024;
/// Commands in one transaction, during which no other connection can write.
const BATCH_MAX: usize = 256;

/// Replies to the caller after the commit, with the error if it failed.
type Finish = Box<dyn FnOnce(Option<StoreError>)>;
type Work = Box<dyn FnOnce(Result<&mut WriteTransaction<'_>, StoreError>) -> Finish + Send>;

struct Command {
    /// Until when it waits for the lock.
    until: Instant,
    work: Work,
}

impl Command {
    fn refuse(self, error: StoreError) {
        (self.work)(Err(error))(None);
    }
}

pub(super) struct Writer {
    commands: SyncSender<Command>,
    // Dropped after the sender, without which the thread ends.
    _thread: Thread,
    timeout: Duration,
}

impl Writer {
    pub(super) fn start(
        shared: &Arc<Shared>,
        connection: Connection,
        timeout: Duration,
    ) -> Result<Writer, OpenError> {
        let (commands, queue) = sync_channel(QUEUE_MAX);
        let inside = shared.clone();
        let work = move || run(&inside, &connection, &queue);
        Ok(Writer {
            commands,
            _thread: Thread::start("hapax-writer", &shared.path, work)?,
            timeout,
        })
    }

    /// Runs `work` in a transaction.
    pub(super) fn ask<T, F>(&self, work: F) -> Reply<'static, T>
    where
        T: Send + 'static,
        F: FnOnce(&mut WriteTransaction<'_>) -> Result<T, StoreError> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let work: Work = Box::new(move |transaction| {
            // If the caller has given up, do not make a write that it no longer expects.
            if reply.is_closed() {
                return Box::new(drop);
            }
            let result = transaction.and_then(work);
            Box::new(reply_after_commit(reply, result))
        });
        let command = Command {
            until: Instant::now() + self.timeout,
            work,
        };
        answered(self.commands.try_send(command), answer)
    }
}

fn run(shared: &Shared, connection: &Connection, queue: &Receiver<Command>) {
    while let Ok(first) = queue.recv() {
        let mut batch = vec![first];
        match begin(connection, queue, &mut batch) {
            Ok(true) => commit(shared, connection, batch),
            Ok(false) => {}
            Err(error) => {
                let error = store_error(error);
                batch
                    .into_iter()
                    .for_each(|command| command.refuse(error.clone()));
            }
        }
    }
}

/// Waits for the lock for as long as a command in the batch waits. Refuses commands whose time is
/// over. Returns whether a transaction has begun.
fn begin(
    connection: &Connection,
    queue: &Receiver<Command>,
    batch: &mut Vec<Command>,
) -> rusqlite::Result<bool> {
    if !connection.is_autocommit() {
        // A transaction whose rollback failed is still open.
        connection.execute_batch("ROLLBACK")?;
    }
    let mut rest = Rest::default();
    loop {
        batch.extend(queue.try_iter().take(BATCH_MAX.saturating_sub(batch.len())));
        match connection.prepare_cached("BEGIN IMMEDIATE")?.execute([]) {
            Err(error) if is_busy(&error) => {}
            begun => return begun.map(|_| true),
        }
        let now = Instant::now();
        batch
            .extract_if(.., |command| command.until <= now)
            .for_each(|late| late.refuse(locked()));
        if batch.is_empty() {
            return Ok(false);
        }
        rest.take();
    }
}

fn commit(shared: &Shared, connection: &Connection, batch: Vec<Command>) {
    let mut finishes: Vec<Finish> = Vec::with_capacity(batch.len());
    let failure = carry_out(shared, connection, batch, &mut finishes).err();
    if failure.is_some() && !connection.is_autocommit() {
        // If this fails, it is repeated before the next transaction begins.
        let _ = connection.execute_batch("ROLLBACK");
    }
    finishes
        .into_iter()
        .for_each(|finish| finish(failure.clone()));
}

fn carry_out(
    shared: &Shared,
    connection: &Connection,
    batch: Vec<Command>,
    finishes: &mut Vec<Finish>,
) -> Result<(), StoreError> {
    let mut transaction = match WriteTransaction::new(shared.rows(connection), &*shared.clock) {
        Ok(transaction) => transaction,
        Err(error) => {
            batch
                .into_iter()
                .for_each(|command| command.refuse(error.clone()));
            return Err(error);
        }
    };
    for command in batch {
        let transaction = transaction.failure().map_or(Ok(&mut transaction), Err);
        finishes.push((command.work)(transaction));
    }
    transaction.close()?;
    connection
        .prepare_cached("COMMIT")
        .and_then(|mut commit| commit.execute([]))
        .map(drop)
        .map_err(store_error)
}
