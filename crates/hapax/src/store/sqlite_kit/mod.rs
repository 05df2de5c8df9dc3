//! Code that the two stores in SQLite files share: reader threads, queries, heads as columns, the
//! audit log, and errors.

pub(super) mod audit;
pub(super) mod error;
pub(super) mod row;

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;

use hapax_core::store::{Reply, StoreError};
use parking_lot::Mutex;
use rusqlite::{Connection, Params, Row};
use tokio::sync::oneshot;

use self::error::OpenError;

/// SQLite before this version can corrupt a database in WAL mode (the WAL-reset bug).
pub const SQLITE_VERSION_MIN: i32 = 3_051_003;

/// Questions that may wait; further ones are refused.
const QUEUE_MAX: usize = 4096;

pub(super) fn check_version() -> Result<(), OpenError> {
    if rusqlite::version_number() < SQLITE_VERSION_MIN {
        return Err(OpenError::SqliteTooOld {
            found: rusqlite::version().to_owned(),
        });
    }
    Ok(())
}

/// Runs blocking work on a thread for that.
pub(super) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work)
        .await
        .expect("it does not panic")
}

/// A thread that is joined when this is dropped. The value that makes it end must be dropped
/// before.
pub(super) struct Thread(Option<JoinHandle<()>>);

impl Thread {
    /// `path` is the file that the thread works on, for error messages.
    pub(super) fn start(
        name: &str,
        path: &Path,
        work: impl FnOnce() + Send + 'static,
    ) -> Result<Thread, OpenError> {
        let thread = std::thread::Builder::new().name(name.into()).spawn(work);
        let thread = thread.map_err(|source| OpenError::Io {
            path: path.to_owned(),
            source,
        })?;
        Ok(Thread(Some(thread)))
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        let _ = self.0.take().map(JoinHandle::join);
    }
}

pub(super) type Question = Box<dyn FnOnce(Result<&Connection, StoreError>) + Send>;

/// Threads that answer questions about a file.
pub(super) struct Readers {
    questions: SyncSender<Question>,
    // Dropped after the sender, without which the threads end.
    threads: Vec<Thread>,
}

impl Readers {
    /// Starts a thread for each of `readers`, which pass a connection to the questions.
    pub(super) fn start(
        path: &Path,
        readers: impl IntoIterator<Item = impl FnMut(Question) + Send + 'static>,
    ) -> Result<Readers, OpenError> {
        let (questions, queue) = sync_channel::<Question>(QUEUE_MAX);
        let queue = Arc::new(Mutex::new(queue));
        let mut started = Readers {
            questions,
            threads: Vec::new(),
        };
        for mut reader in readers {
            let queue = queue.clone();
            let read = move || {
                loop {
                    let question = queue.lock().recv();
                    let Ok(question) = question else { return };
                    reader(question);
                }
            };
            started
                .threads
                .push(Thread::start("hapax-reader", path, read)?);
        }
        Ok(started)
    }

    pub(super) fn ask<T, F>(&self, question: F) -> Reply<'static, T>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let question: Question = Box::new(move |connection| {
            if !reply.is_closed() {
                let _ = reply.send(connection.and_then(question));
            }
        });
        answered(self.questions.try_send(question), answer)
    }
}

/// The answer of a thread to a message, or an error if the message was not accepted.
pub(super) fn answered<T: Send + 'static, M>(
    sent: Result<(), TrySendError<M>>,
    answer: oneshot::Receiver<Result<T, StoreError>>,
) -> Reply<'static, T> {
    let stopped = || StoreError::unavailable("the store has stopped");
    let taken = sent.map_err(|error| match error {
        TrySendError::Full(_) => {
            StoreError::unavailable("too many requests are waiting for the store")
        }
        TrySendError::Disconnected(_) => stopped(),
    });
    Box::pin(async move {
        taken?;
        answer.await.map_err(|_| stopped())?
    })
}

/// Sends the result after the commit, or the commit's error.
pub(super) fn reply_after_commit<T: 'static>(
    reply: oneshot::Sender<Result<T, StoreError>>,
    result: Result<T, StoreError>,
) -> impl FnOnce(Option<StoreError>) {
    move |failure| drop(reply.send(failure.map_or(result, Err)))
}

/// A connection, and how its errors are translated.
#[derive(Clone, Copy)]
pub(super) struct Queries<'a> {
    pub(super) connection: &'a Connection,
    pub(super) explain: fn(rusqlite::Error) -> StoreError,
}

impl Queries<'_> {
    /// Reads the first row, if there is one.
    pub(super) fn first<T>(
        self,
        sql: &str,
        parameters: impl Params,
        read: impl FnOnce(&Row<'_>) -> Result<T, StoreError>,
    ) -> Result<Option<T>, StoreError> {
        let mut statement = self.connection.prepare_cached(sql).map_err(self.explain)?;
        let mut rows = statement.query(parameters).map_err(self.explain)?;
        rows.next().map_err(self.explain)?.map(read).transpose()
    }

    /// Reads row by row, for as long as `read` returns true.
    pub(super) fn each(
        self,
        sql: &str,
        parameters: impl Params,
        mut read: impl FnMut(&Row<'_>) -> Result<bool, StoreError>,
    ) -> Result<(), StoreError> {
        let mut statement = self.connection.prepare_cached(sql).map_err(self.explain)?;
        let mut rows = statement.query(parameters).map_err(self.explain)?;
        while let Some(row) = rows.next().map_err(self.explain)? {
            if !read(row)? {
                break;
            }
        }
        Ok(())
    }

    /// Reads all rows.
    pub(super) fn all<T, C: Extend<T> + Default>(
        self,
        sql: &str,
        parameters: impl Params,
        mut read: impl FnMut(&Row<'_>) -> Result<T, StoreError>,
    ) -> Result<C, StoreError> {
        let mut all = C::default();
        self.each(sql, parameters, |row| {
            all.extend([read(row)?]);
            Ok(true)
        })?;
        Ok(all)
    }
}
