//! Reading: threads with connections of their own, and the view other processes have.

use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use hapax_core::record::Head;
use hapax_core::scope::RecordId;
use hapax_core::store::{ListQuery, Pulse, Reading, Reply, StoreError};
use hapax_core::time::Clock;
use rusqlite::Connection;
use tokio::sync::oneshot;

use super::owner::Owner;
use super::row::{self, Leases};
use super::schema::{self, Meta};
use super::{OpenError, answered, store_error};
use crate::clock::{BootClock, boot_id};

/// Enough for the machines an embedded store runs on; replays mostly come from memory.
const THREADS: usize = 2;
/// Questions that may wait; further ones are refused.
const QUEUE_MAX: usize = 4096;

type Question = Box<dyn FnOnce(&Reader) + Send>;

/// The reading threads.
pub(super) struct Readers {
    questions: Option<SyncSender<Question>>,
    threads: Vec<JoinHandle<()>>,
}

impl Readers {
    pub(super) fn start(path: &Path, clock: &Arc<dyn Clock>, leases: Leases) -> Result<Readers, OpenError> {
        let (questions, queue) = sync_channel(QUEUE_MAX);
        let queue = Arc::new(Mutex::new(queue));
        let mut threads = Vec::new();
        for _ in 0..THREADS {
            let reader = Reader { connection: schema::open_to_read(path)?, clock: clock.clone(), leases };
            let queue = queue.clone();
            let thread = std::thread::Builder::new().name("hapax-reader".into());
            let io = |source| OpenError::Io { path: path.to_owned(), source };
            threads.push(thread.spawn(move || reader.answer_all(&queue)).map_err(io)?);
        }
        Ok(Readers { questions: Some(questions), threads })
    }

    pub(super) fn ask<T, F>(&self, question: F) -> Reply<'_, T>
    where
        T: Send + 'static,
        F: FnOnce(&Reader) -> Result<T, StoreError> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let question: Question = Box::new(move |reader| {
            if !reply.is_closed() {
                let _ = reply.send(question(reader));
            }
        });
        answered(self.questions.as_ref().expect("open until dropped").try_send(question), answer)
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        self.questions = None;
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// One connection that can only read.
pub(super) struct Reader {
    connection: Connection,
    clock: Arc<dyn Clock>,
    leases: Leases,
}

impl Reader {
    fn answer_all(self, queue: &Mutex<Receiver<Question>>) {
        loop {
            let question = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
            match question {
                Ok(question) => question(&self),
                Err(_) => return,
            }
        }
    }

    pub(super) fn get(&self, ids: &[RecordId]) -> Result<Reading, StoreError> {
        // One snapshot for all of them.
        let snapshot = self.connection.unchecked_transaction().map_err(store_error)?;
        let mut records = Vec::with_capacity(ids.len());
        for id in ids {
            let stored = row::find(&snapshot, id, self.leases)?;
            records.push(stored.map(|stored| row::with_answer(&snapshot, stored)).transpose()?);
        }
        Ok(Reading { records, now: self.clock.now() })
    }

    pub(super) fn list(&self, query: &ListQuery) -> Result<Vec<Head>, StoreError> {
        let found = row::list(&self.connection, query.after.as_ref(), query.state, query.limit, self.leases)?;
        Ok(found.into_iter().map(|stored| stored.head).collect())
    }

    pub(super) fn pulse(&self) -> Result<Pulse, StoreError> {
        let meta = Meta::read(&self.connection).map_err(store_error)?;
        Ok(Pulse { now: self.clock.now(), epoch: meta.epoch, secret: meta.secret })
    }
}

/// A store file seen from outside, whoever owns it. Changes nothing.
///
/// Leases show as over when the owner is gone or the machine has been restarted since.
pub struct View {
    reader: Mutex<Reader>,
}

impl View {
    /// Opens an existing file to look at it.
    pub fn open(path: impl AsRef<Path>) -> Result<View, OpenError> {
        let path =
            &std::fs::canonicalize(path.as_ref()).map_err(|source| OpenError::Io { path: path.as_ref().to_owned(), source })?;
        let connection = schema::open_to_read(path)?;
        let meta = Meta::read(&connection).map_err(|source| OpenError::Sqlite { path: path.to_owned(), source })?;
        let same_boot = meta.boot_id == boot_id();
        let clock = if same_boot { BootClock::resumed(meta.clock, meta.boot) } else { BootClock::anchored(meta.clock) };
        let leases = if same_boot && Owner::exists(path) { Leases::Of(meta.incarnation) } else { Leases::Nobodys };
        Ok(View { reader: Mutex::new(Reader { connection, clock: Arc::new(clock), leases }) })
    }

    /// Reads records, answers included.
    pub fn get(&self, ids: &[RecordId]) -> Result<Reading, StoreError> {
        self.reader.lock().unwrap_or_else(PoisonError::into_inner).get(ids)
    }

    /// A page of heads in the order of their ids.
    pub fn list(&self, query: &ListQuery) -> Result<Vec<Head>, StoreError> {
        self.reader.lock().unwrap_or_else(PoisonError::into_inner).list(query)
    }
}
