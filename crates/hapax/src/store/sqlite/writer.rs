//! Writing: one thread, and a commit for whatever has gathered while the last one was on its way to
//! the disk.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use hapax_core::audit::{self, LogEntry, Note};
use hapax_core::scope::RecordId;
use hapax_core::store::{KnownPrincipal, Put, Reading, Renewal, Reply, StoreError, Swept, Written};
use rusqlite::Connection;
use tokio::sync::oneshot;

use super::book::Book;
use super::desk::Desk;
use super::erasure::Erasures;
use super::log::Wake;
use super::owner::Owner;
use super::seal::Sealed;
use super::shared::Shared;
use super::transfer::{Arrived, Turn};
use super::{answered, backup};

/// Commands that may wait; further ones are refused, which a caller sees as a store that is
/// unavailable.
const QUEUE_MAX: usize = 4096;
/// Commands in one commit: bounds how long the first of them waits for the last.
const BATCH_MAX: usize = 256;
/// Bytes in one commit, for the same reason: a command more may go over it.
const BATCH_BYTES_MAX: usize = 4 << 20;
/// What a command takes besides the answer in it.
const COMMAND_BYTES: usize = 1024;

pub(super) type Answer<T> = oneshot::Sender<Result<T, StoreError>>;

pub(super) enum Command {
    Put(Box<Asked>, Answer<Written>),
    Get(Vec<RecordId>, Answer<Reading>),
    Renew(Vec<Renewal>, Answer<Vec<bool>>),
    Sweep(usize, Answer<Swept>),
    Remember(Vec<KnownPrincipal>, Answer<()>),
    Note(Box<Note>, Answer<LogEntry>),
    Backup(PathBuf, Answer<backup::Copied>),
    Import(Box<Arrived>, Answer<()>),
    Turn(Box<Turn>, Answer<bool>),
    ResetLog,
}

/// A write as it waits. The answer is encoded and sealed by whoever asks: they are many, and the
/// writer is one.
pub(super) struct Asked {
    pub(super) put: Put,
    pub(super) answer: Option<Sealed>,
}

impl Command {
    pub(super) fn put(put: Put, reply: Answer<Written>) -> Command {
        let answer = put
            .change
            .answer()
            .map(|answer| Sealed::new(&answer.encode(&put.id)));
        Command::Put(Box::new(Asked { put, answer }), reply)
    }

    /// Roughly how much memory it holds while it waits.
    fn bytes(&self) -> usize {
        let content = match self {
            // Twice: as it is, and encoded.
            Command::Put(asked, _) => asked.answer.as_ref().map_or(0, |answer| answer.len() * 2),
            Command::Get(ids, _) => size_of_val(&**ids),
            Command::Renew(renewals, _) => size_of_val(&**renewals),
            Command::Remember(principals, _) => size_of_val(&**principals),
            // A bounded text; the rest is nothing to speak of.
            Command::Note(..) => audit::REASON_BYTES_MAX,
            Command::Import(arrived, _) => arrived.bytes(),
            Command::Sweep(..) | Command::Backup(..) | Command::Turn(..) | Command::ResetLog => 0,
        };
        COMMAND_BYTES + content
    }
}

/// The writing thread.
pub(super) struct Writer {
    commands: Option<SyncSender<Command>>,
    shared: Arc<Shared>,
    queue_bytes_max: usize,
    thread: Option<JoinHandle<()>>,
}

/// What a writer begins with.
pub(super) struct Start {
    pub(super) connection: Connection,
    pub(super) book: Book,
    pub(super) owner: Owner,
    pub(super) wake: Arc<Wake>,
    pub(super) queue_bytes_max: usize,
    pub(super) erase_patience: Duration,
}

impl Writer {
    pub(super) fn start(shared: Arc<Shared>, start: Start) -> Writer {
        let (commands, queue) = sync_channel(QUEUE_MAX);
        let Start {
            connection,
            book,
            owner,
            wake,
            queue_bytes_max,
            erase_patience,
        } = start;
        let (thread, inside) = (
            std::thread::Builder::new().name("hapax-writer".into()),
            shared.clone(),
        );
        let thread = thread.spawn(move || {
            // Held until the last write is done, and released only then.
            let _owner = owner;
            let mut desk = Desk::new(
                inside.clone(),
                connection,
                book,
                wake,
                Erasures::new(erase_patience),
            );
            let queue = Queue {
                commands: queue,
                shared: inside,
            };
            while let Some(batch) = queue.gather(desk.patience()) {
                desk.work(batch, &queue);
            }
            desk.close();
        });
        Writer {
            commands: Some(commands),
            shared,
            queue_bytes_max,
            thread: Some(thread.expect("a thread can be started")),
        }
    }

    pub(super) fn commands(&self) -> SyncSender<Command> {
        self.commands.clone().expect("open until dropped")
    }

    /// Puts a command into the queue, unless too much is waiting: callers learn at once what a
    /// queue would only tell them later.
    pub(super) fn ask<T: Send + 'static>(
        &self,
        command: impl FnOnce(Answer<T>) -> Command,
    ) -> Reply<'_, T> {
        let (reply, answer) = oneshot::channel();
        let command = command(reply);
        let counters = &self.shared.counters;
        let bytes = command.bytes() as u64;
        let waiting = counters.queue_bytes.fetch_add(bytes, Ordering::Relaxed);
        // One is always let in: a single answer larger than the whole queue must be written too.
        if waiting > 0 && waiting + bytes > self.queue_bytes_max as u64 {
            counters.queue_bytes.fetch_sub(bytes, Ordering::Relaxed);
            counters.refused.fetch_add(1, Ordering::Relaxed);
            return Box::pin(async {
                Err(StoreError::unavailable(
                    "too much waits to be written: the disk is too slow",
                ))
            });
        }
        let sent = self
            .commands
            .as_ref()
            .expect("open until dropped")
            .try_send(command);
        if sent.is_err() {
            counters.queue_bytes.fetch_sub(bytes, Ordering::Relaxed);
            counters.refused.fetch_add(1, Ordering::Relaxed);
        }
        answered(sent, answer)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.commands = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// What is waiting for the writer.
pub(super) struct Queue {
    commands: Receiver<Command>,
    shared: Arc<Shared>,
}

impl Queue {
    /// The next batch: one command as soon as there is one, and with it all that are there already.
    /// An empty one when patience ends. `None` when nobody can ask any more.
    pub(super) fn gather(&self, patience: Option<Duration>) -> Option<Vec<Command>> {
        let mut batch = Vec::new();
        let first = match patience {
            None => self
                .commands
                .recv()
                .map_err(|_| RecvTimeoutError::Disconnected),
            Some(patience) => self.commands.recv_timeout(patience),
        };
        let mut bytes = match first {
            Ok(command) => self.taken(&mut batch, command),
            Err(RecvTimeoutError::Timeout) => return Some(batch),
            Err(RecvTimeoutError::Disconnected) => return None,
        };
        while batch.len() < BATCH_MAX && bytes < BATCH_BYTES_MAX {
            match self.commands.try_recv() {
                Ok(command) => bytes += self.taken(&mut batch, command),
                // Should nobody be left to ask, the next call says so.
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
