//! Reading: threads with connections of their own, which no transaction of anybody holds up.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use hapax_core::guard;
use hapax_core::record::{Fence, Head};
use hapax_core::scope::RecordId;
use hapax_core::store::{ListQuery, Put, Reading, Reply, Seen, StoreError};
use hapax_core::time::Clock;
use parking_lot::Mutex;
use rusqlite::Connection;
use tokio::sync::oneshot;

use super::Shared;
use super::error::store_error;
use super::row::Rows;
use super::schema;
use crate::store::sqlite::{OpenError, answered};

/// Questions that may wait; further ones are refused.
const QUEUE_MAX: usize = 4096;
const READERS: usize = 2;
/// Rows that a listing looks at before it lets others read.
const LIST_ROWS: usize = 1024;

type Question = Box<dyn FnOnce(Rows<'_>) + Send>;

pub(super) struct Readers {
    questions: Option<SyncSender<Question>>,
    threads: Vec<JoinHandle<()>>,
}

impl Readers {
    pub(super) fn start(shared: &Arc<Shared>, patience: Duration) -> Result<Readers, OpenError> {
        let (questions, queue) = sync_channel(QUEUE_MAX);
        let queue = Arc::new(Mutex::new(queue));
        let mut readers = Readers {
            questions: Some(questions),
            threads: Vec::new(),
        };
        for _ in 0..READERS {
            let connection = schema::connect_to_read(&shared.path, patience)?;
            let (queue, inside) = (queue.clone(), shared.clone());
            let thread = std::thread::Builder::new().name("hapax-guest-reader".into());
            let thread = thread.spawn(move || answer_all(&inside, &connection, &queue));
            readers.threads.push(thread.map_err(|source| OpenError::Io {
                path: shared.path.clone(),
                source,
            })?);
        }
        Ok(readers)
    }

    pub(super) fn ask<T, F>(&self, question: F) -> Reply<'static, T>
    where
        T: Send + 'static,
        F: FnOnce(Rows<'_>) -> Result<T, StoreError> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let question: Question = Box::new(move |rows| {
            if !reply.is_closed() {
                let _ = reply.send(question(rows));
            }
        });
        answered(
            self.questions
                .as_ref()
                .expect("open until dropped")
                .try_send(question),
            answer,
        )
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

fn answer_all(shared: &Shared, connection: &Connection, queue: &Mutex<Receiver<Question>>) {
    loop {
        let question = queue.lock().recv();
        let Ok(question) = question else { return };
        question(Rows {
            connection,
            policies: &shared.policies,
        });
    }
}

/// Reads records, all of them as they were at one moment.
pub(super) fn get(
    rows: Rows<'_>,
    ids: &[RecordId],
    clock: &dyn Clock,
) -> Result<Reading, StoreError> {
    let _snapshot = rows
        .connection
        .unchecked_transaction()
        .map_err(store_error)?;
    let stored = ids
        .iter()
        .map(|id| rows.find(id))
        .collect::<Result<Vec<_>, _>>()?;
    // After the snapshot: nothing in it was written later than this.
    let now = clock.now();
    let records = stored
        .into_iter()
        .map(|stored| stored.map(|stored| rows.record(stored, now)).transpose());
    Ok(Reading {
        records: records.collect::<Result<_, _>>()?,
        now,
    })
}

/// What there is, if it alone says that the write would lose: whoever only wants to hear that waits
/// for nobody's transaction.
pub(super) fn refused(
    rows: Rows<'_>,
    put: &Put,
    clock: &dyn Clock,
) -> Result<Option<Seen>, StoreError> {
    let _snapshot = rows
        .connection
        .unchecked_transaction()
        .map_err(store_error)?;
    let stored = rows.find(&put.id)?;
    let now = clock.now();
    // Of a fence that is minted nothing is made here, so that the floor does not matter.
    if guard::judge(
        stored.as_ref().map(|stored| &stored.head),
        put,
        now,
        Fence::ZERO,
    )
    .is_ok()
    {
        return Ok(None);
    }
    let record = stored.map(|stored| rows.record(stored, now)).transpose()?;
    Ok(Some(Seen { record, now }))
}

/// A part of a listing, and after which id to go on.
pub(super) struct Part {
    pub(super) heads: Vec<Head>,
    pub(super) next: Option<RecordId>,
}

/// Heads in the order of their ids: as many as are asked for, or fewer if that would take long.
pub(super) fn list(
    rows: Rows<'_>,
    query: &ListQuery,
    clock: &dyn Clock,
) -> Result<Part, StoreError> {
    let stored = rows.after(query.after, LIST_ROWS)?;
    let now = clock.now();
    let next = (stored.len() == LIST_ROWS).then(|| stored[LIST_ROWS - 1].head.id);
    let heads = stored.into_iter().map(|stored| stored.head.at(now));
    let heads = heads
        .filter(|head| query.state.is_none_or(|word| head.state.is_called(word)))
        .take(query.limit);
    Ok(Part {
        heads: heads.collect(),
        next,
    })
}
