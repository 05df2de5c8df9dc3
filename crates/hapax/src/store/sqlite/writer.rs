//! Writing: one thread, with one commit for all commands that arrived during the previous commit.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use hapax_core::store::{Change, Put, Reply, StoreError, Written};
use rusqlite::Connection;
use tokio::sync::oneshot;

use super::erasure::{self, Erasures, Forgotten};
use super::log::Wake;
use super::owner::Owner;
use super::seal::Sealed;
use super::shared::Shared;
use super::transaction::WriteTransaction;
use super::transfer::StandingChange;
use super::writer_loop::WriterLoop;
use super::writer_state::WriterState;
use super::{OpenError, backup};
use crate::store::sqlite_kit::{Thread, answered, reply_after_commit};

/// Commands that may wait. Further ones are refused, which a caller sees as an unavailable store.
const QUEUE_MAX: usize = 4096;
/// Commands in one commit. Bounds how long the first of them waits for the last.
const BATCH_MAX: usize = 256;
/// Bytes in one commit, for the same reason. The last command may exceed it.
const BATCH_BYTES_MAX: usize = 4 << 20;
/// The size of a command without its answer.
const COMMAND_BYTES: usize = 1024;

pub(super) type Answer<T> = oneshot::Sender<Result<T, StoreError>>;

/// Runs in a transaction, or handles the error if there is none.
pub(super) type Work =
    Box<dyn FnOnce(Result<&mut WriteTransaction<'_>, StoreError>) -> Finish + Send>;
/// Runs after the commit, with the error if it failed.
pub(super) type Finish = Box<dyn FnOnce(Option<StoreError>) -> Option<Forgotten>>;

pub(super) enum Command {
    Write { work: Work, bytes: usize },
    Backup(PathBuf, Answer<backup::Copied>),
    StandingChange(Box<StandingChange>, Answer<bool>),
    ResetLog,
}

impl Command {
    /// The approximate memory that it holds while it waits.
    fn bytes(&self) -> usize {
        let content = match self {
            Command::Write { bytes, .. } => *bytes,
            Command::Backup(..) | Command::StandingChange(..) | Command::ResetLog => 0,
        };
        COMMAND_BYTES + content
    }
}

/// A handle to the writer thread.
pub(super) struct Writer {
    commands: SyncSender<Command>,
    shared: Arc<Shared>,
    queue_bytes_max: usize,
    // Dropped after the sender, without which the thread ends.
    _thread: Thread,
}

/// The initial state of a writer.
pub(super) struct Start {
    pub(super) connection: Connection,
    pub(super) writer_state: WriterState,
    pub(super) owner: Owner,
    pub(super) wake: Arc<Wake>,
    pub(super) queue_bytes_max: usize,
    pub(super) erase_timeout: Duration,
}

impl Writer {
    pub(super) fn start(shared: Arc<Shared>, start: Start) -> Result<Writer, OpenError> {
        let (commands, queue) = sync_channel(QUEUE_MAX);
        let Start {
            connection,
            writer_state,
            owner,
            wake,
            queue_bytes_max,
            erase_timeout,
        } = start;
        let inside = shared.clone();
        let work = move || {
            // Holds the lock until the last write is done.
            let _owner = owner;
            let mut writer_loop = WriterLoop::new(
                inside.clone(),
                connection,
                writer_state,
                wake,
                Erasures::new(erase_timeout),
            );
            let queue = Queue {
                commands: queue,
                shared: inside,
            };
            while let Some(batch) = queue.gather(writer_loop.wait_max()) {
                writer_loop.work(batch, &queue);
            }
            writer_loop.close();
        };
        Ok(Writer {
            commands,
            _thread: Thread::start("hapax-writer", &shared.path, work)?,
            shared,
            queue_bytes_max,
        })
    }

    pub(super) fn commands(&self) -> SyncSender<Command> {
        self.commands.clone()
    }

    /// Runs `work` in a transaction. `bytes` is the memory that it holds while it waits.
    pub(super) fn write<T, F>(&self, bytes: usize, work: F) -> Reply<'_, T>
    where
        T: Send + 'static,
        F: FnOnce(&mut WriteTransaction<'_>) -> Result<T, StoreError> + Send + 'static,
    {
        self.ask(|reply| Command::Write {
            work: Box::new(move |transaction| finish(reply, transaction.and_then(work))),
            bytes,
        })
    }

    /// Writes a record. The answer is encoded and sealed here, on the caller's task, because there
    /// is only one writer.
    pub(super) fn put(&self, put: Put) -> Reply<'_, Written> {
        let mut answer = put
            .change
            .answer()
            .map(|answer| Sealed::new(&answer.encode(&put.id)));
        // Counted twice: the original, and the encoded one.
        let bytes = answer.as_ref().map_or(0, |answer| answer.len() * 2);
        let mut work = move |reply: Answer<Written>,
                             transaction: Result<&mut WriteTransaction<'_>, StoreError>|
              -> Finish {
            // If the caller has given up, do not make a write that it no longer expects.
            if reply.is_closed() {
                return Box::new(|_| None);
            }
            let is_forgetting = matches!(put.change, Change::Forget(..));
            let written = transaction.and_then(|transaction| {
                let written = transaction.put_if(&put, answer.as_mut())?;
                if is_forgetting && transaction.is_left_open() {
                    return Err(erasure::unsealed());
                }
                Ok(written)
            });
            match written {
                Ok(written @ Written::Won(_)) if is_forgetting => {
                    Box::new(|failure| match failure {
                        None => Some(Forgotten { reply, written }),
                        Some(error) => finish(reply, Err(error))(None),
                    })
                }
                written => finish(reply, written),
            }
        };
        self.ask(|reply| Command::Write {
            work: Box::new(move |transaction| work(reply, transaction)),
            bytes,
        })
    }

    /// Puts a command into the queue. Refused at once if too much is waiting, so that callers fail
    /// early rather than after waiting.
    pub(super) fn ask<T: Send + 'static>(
        &self,
        command: impl FnOnce(Answer<T>) -> Command,
    ) -> Reply<'_, T> {
        let (reply, answer) = oneshot::channel();
        let command = command(reply);
        let counters = &self.shared.counters;
        let bytes = command.bytes() as u64;
        let waiting = counters.queue_bytes.fetch_add(bytes, Ordering::Relaxed);
        // One command is always accepted: a single answer larger than the whole queue must be
        // written too.
        if waiting > 0 && waiting + bytes > self.queue_bytes_max as u64 {
            counters.queue_bytes.fetch_sub(bytes, Ordering::Relaxed);
            counters.refused.fetch_add(1, Ordering::Relaxed);
            return Box::pin(async {
                Err(StoreError::unavailable(
                    "too much waits to be written: the disk is too slow",
                ))
            });
        }
        let sent = self.commands.try_send(command);
        if sent.is_err() {
            counters.queue_bytes.fetch_sub(bytes, Ordering::Relaxed);
            counters.refused.fetch_add(1, Ordering::Relaxed);
        }
        answered(sent, answer)
    }
}

/// Sends a result after the commit, or the commit's error.
fn finish<T: 'static>(reply: Answer<T>, result: Result<T, StoreError>) -> Finish {
    let send = reply_after_commit(reply, result);
    Box::new(move |failure| {
        send(failure);
        None
    })
}

/// The commands waiting for the writer.
pub(super) struct Queue {
    commands: Receiver<Command>,
    shared: Arc<Shared>,
}

impl Queue {
    /// The next batch: waits for one command, and adds all that have arrived. Empty after
    /// `wait_max`. `None` when the queue is closed.
    pub(super) fn gather(&self, wait_max: Option<Duration>) -> Option<Vec<Command>> {
        let mut batch = Vec::new();
        let first = match wait_max {
            None => self
                .commands
                .recv()
                .map_err(|_| RecvTimeoutError::Disconnected),
            Some(wait_max) => self.commands.recv_timeout(wait_max),
        };
        let mut bytes = match first {
            Ok(command) => self.taken(&mut batch, command),
            Err(RecvTimeoutError::Timeout) => return Some(batch),
            Err(RecvTimeoutError::Disconnected) => return None,
        };
        while batch.len() < BATCH_MAX && bytes < BATCH_BYTES_MAX {
            match self.commands.try_recv() {
                Ok(command) => bytes += self.taken(&mut batch, command),
                // If the queue is closed, the next call returns `None`.
                Err(_) => break,
            }
        }
        Some(batch)
    }

    fn taken(&self, batch: &mut Vec<Command>, command: Command) -> usize {
        let bytes = command.bytes();
        if !matches!(command, Command::ResetLog) {
            self.shared
                .counters
                .queue_bytes
                .fetch_sub(bytes as u64, Ordering::Relaxed);
        }
        batch.push(command);
        bytes
    }
}
