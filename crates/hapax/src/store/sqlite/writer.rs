//! Writing: one thread, and a commit for whatever has gathered while the last one was on its way to the disk.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use hapax_core::guard::{self, Due};
use hapax_core::record::{Fence, Head};
use hapax_core::store::{Change, Lifetime, Put, Renewal, Reply, Seen, StoreError, Swept, Won, Written};
use hapax_core::time::Clock;
use rusqlite::{Connection, Transaction, TransactionBehavior, params};
use tokio::sync::oneshot;

use super::owner::Owner;
use super::row::{self, Leases, Stored};
use super::schema::Meta;
use super::{answered, store_error};

/// Commands that may wait; further ones are refused, which a caller sees as a store that is unavailable.
const QUEUE_MAX: usize = 4096;
/// Commands in one commit: bounds how long the first of them waits for the last.
const BATCH_MAX: usize = 256;

type Answer<T> = oneshot::Sender<Result<T, StoreError>>;

pub(super) enum Command {
    Put(Put, Answer<Written>),
    Renew(Vec<Renewal>, Answer<Vec<bool>>),
    Sweep(usize, Answer<Swept>),
}

/// The writing thread.
pub(super) struct Writer {
    commands: Option<SyncSender<Command>>,
    commits: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    pub(super) fn start(connection: Connection, clock: Arc<dyn Clock>, leases: Leases, owner: Owner) -> Writer {
        let (commands, queue) = sync_channel(QUEUE_MAX);
        let commits = Arc::new(AtomicU64::new(0));
        let counter = commits.clone();
        let thread = std::thread::Builder::new().name("hapax-writer".into());
        let thread = thread.spawn(move || {
            // Held until the last write is done, and released only then.
            let _owner = owner;
            let mut desk = Desk { connection, clock, leases, commits: counter };
            while let Some(batch) = gather(&queue) {
                desk.commit(batch);
            }
        });
        Writer { commands: Some(commands), commits, thread: Some(thread.expect("a thread can be started")) }
    }

    pub(super) fn commits(&self) -> u64 {
        self.commits.load(Ordering::Relaxed)
    }

    pub(super) fn ask<T: Send + 'static>(&self, command: impl FnOnce(Answer<T>) -> Command) -> Reply<'_, T> {
        let (reply, answer) = oneshot::channel();
        answered(self.commands.as_ref().expect("open until dropped").try_send(command(reply)), answer)
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

/// The next batch: one command as soon as there is one, and with it all that are there already. `None` when nobody can ask any more.
fn gather(queue: &Receiver<Command>) -> Option<Vec<Command>> {
    let mut batch = vec![queue.recv().ok()?];
    while batch.len() < BATCH_MAX
        && let Ok(command) = queue.try_recv()
    {
        batch.push(command);
    }
    Some(batch)
}

/// What a command came to, to be told once it is durable.
type Told = Box<dyn FnOnce(Option<StoreError>)>;

struct Desk {
    connection: Connection,
    clock: Arc<dyn Clock>,
    leases: Leases,
    commits: Arc<AtomicU64>,
}

impl Desk {
    /// Carries out a batch in one transaction and tells nobody anything before it is durable.
    fn commit(&mut self, batch: Vec<Command>) {
        let mut told: Vec<Told> = Vec::with_capacity(batch.len());
        let result = self.carry_out(batch, &mut told);
        let error = result.err();
        self.commits.fetch_add(1, Ordering::Relaxed);
        for tell in told {
            tell(error.clone());
        }
    }

    fn carry_out(&mut self, batch: Vec<Command>, told: &mut Vec<Told>) -> Result<(), StoreError> {
        let begun = self.connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(store_error);
        let begun = begun.and_then(|transaction| {
            let meta = Meta::read(&transaction).map_err(store_error)?;
            // The lock on a file beside can be lost with that file; what the store file itself says cannot.
            if self.leases != Leases::Of(meta.incarnation) {
                return Err(StoreError::unavailable("another process has opened the store file since: this one must stop"));
            }
            Ok((transaction, meta.floor))
        });
        let (transaction, floor) = match begun {
            Ok(begun) => begun,
            Err(error) => {
                batch.into_iter().for_each(|command| told.push(refuse(command)));
                return Err(error);
            }
        };
        let mut page = Page { transaction, clock: &*self.clock, leases: self.leases, floor, broken: None };
        for command in batch {
            // On a full disk SQLite gives up the whole transaction by itself; what came after would commit one by one.
            if page.transaction.is_autocommit() {
                page.broken.get_or_insert_with(|| StoreError::unavailable("the store file could not be written"));
            }
            match command {
                command if page.broken.is_some() => told.push(refuse(command)),
                // A caller who gave up is not surprised by a write it no longer expects.
                Command::Put(_, reply) if reply.is_closed() => {}
                Command::Put(put, reply) => told.push(tell(reply, page.put_if(&put))),
                Command::Renew(renewals, reply) => told.push(tell(reply, page.renew(&renewals))),
                Command::Sweep(limit, reply) => told.push(tell(reply, page.sweep(limit))),
            }
        }
        match page.broken {
            // A command that broke off may have written half of what it meant to: none of the batch counts.
            Some(error) => Err(error),
            None => page.transaction.commit().map_err(store_error),
        }
    }
}

/// A result that is good only if the commit is.
fn tell<T: 'static>(reply: Answer<T>, result: Result<T, StoreError>) -> Told {
    Box::new(move |error| {
        let _ = reply.send(error.map_or(result, Err));
    })
}

fn refuse(command: Command) -> Told {
    let never = StoreError::unavailable("the write was not begun");
    match command {
        Command::Put(_, reply) => tell(reply, Err(never)),
        Command::Renew(_, reply) => tell(reply, Err(never)),
        Command::Sweep(_, reply) => tell(reply, Err(never)),
    }
}

/// One open transaction.
struct Page<'a> {
    transaction: Transaction<'a>,
    clock: &'a dyn Clock,
    leases: Leases,
    floor: Fence,
    broken: Option<StoreError>,
}

impl Page<'_> {
    /// Notes that a write failed, which dooms the whole transaction.
    fn written<T>(&mut self, result: rusqlite::Result<T>) -> Result<T, StoreError> {
        result.map_err(store_error).inspect_err(|error| self.broken = Some(error.clone()))
    }

    fn put_if(&mut self, put: &Put) -> Result<Written, StoreError> {
        let current = row::find(&self.transaction, &put.id, self.leases)?;
        let now = self.clock.now();
        match guard::judge(current.as_ref().map(|stored| &stored.head), put, now, self.floor) {
            Err(guard::Refused) => {
                let record = current.map(|stored| row::with_answer(&self.transaction, stored)).transpose()?;
                Ok(Written::Lost(Seen { record, now }))
            }
            Ok(head) => {
                let result = self.write_record(put, current.as_ref(), &head);
                self.written(result)?;
                Ok(Written::Won(Won { head, now }))
            }
        }
    }

    fn renew(&mut self, renewals: &[Renewal]) -> Result<Vec<bool>, StoreError> {
        let mut renewed = Vec::with_capacity(renewals.len());
        for renewal in renewals {
            let current = row::find(&self.transaction, &renewal.id, self.leases)?;
            let judged = guard::renew(current.as_ref().map(|stored| &stored.head), renewal, self.clock.now());
            renewed.push(judged.is_ok());
            if let (Ok(head), Some(stored)) = (judged, current) {
                let result = self.write(Some(stored.row), &head);
                self.written(result)?;
            }
        }
        Ok(renewed)
    }

    fn sweep(&mut self, limit: usize) -> Result<Swept, StoreError> {
        let now = self.clock.now();
        let mut swept = Swept::default();
        for (row, head) in row::due(&self.transaction, now, limit, self.leases)? {
            let head = match head {
                Ok(head) => head,
                Err(error) => {
                    // Left as it is for somebody to look at, and out of the way of the others.
                    tracing::error!(%error, row, "a record cannot be read and is no longer swept");
                    let result = self.transaction.execute("UPDATE heads SET due = NULL WHERE row = ?1", [row]);
                    self.written(result)?;
                    continue;
                }
            };
            let Some(due) = guard::due(&head, Lifetime::default(), now) else { continue };
            swept.count(&due);
            let result = self.write_due(row, head.fence, &due);
            self.written(result)?;
        }
        // The clock's reading too, so that after a restart it does not begin before this.
        let clock = i64::try_from(now.as_micros()).unwrap_or(i64::MAX);
        let floor = self.floor.as_u64() as i64;
        let sql = "UPDATE meta SET floor = ?1, clock_us = max(clock_us, ?2), boot_us = boot_us + max(0, ?2 - clock_us)";
        let result = self.transaction.execute(sql, params![floor, clock]);
        self.written(result)?;
        Ok(swept)
    }

    fn write_record(&self, put: &Put, before: Option<&Stored>, head: &Head) -> rusqlite::Result<()> {
        let place = self.write(before.map(|stored| stored.row), head)?;
        if let Some(answer) = put.change.answer() {
            let mut statement = self.transaction.prepare_cached("INSERT OR REPLACE INTO answers (row, content) VALUES (?1, ?2)")?;
            statement.execute(params![place, answer.encode(&put.id)])?;
        } else if before.is_some_and(|stored| stored.head.kept) {
            self.delete_answer(place)?;
        }
        if matches!(put.change, Change::Forget(_)) {
            self.transaction.execute("UPDATE meta SET epoch = epoch + 1", [])?;
        }
        Ok(())
    }

    fn write_due(&mut self, place: i64, fence: Fence, due: &Due) -> rusqlite::Result<()> {
        self.delete_answer(place)?;
        match due {
            Due::Lost(head) | Due::Buried(head) => self.write(Some(place), head).map(drop),
            Due::Removed => {
                self.floor = self.floor.max(fence);
                self.transaction.prepare_cached("DELETE FROM heads WHERE row = ?1")?.execute([place]).map(drop)
            }
        }
    }

    fn write(&self, place: Option<i64>, head: &Head) -> rusqlite::Result<i64> {
        let Leases::Of(incarnation) = self.leases else { unreachable!("a writer is an owner") };
        row::write(&self.transaction, place, head, incarnation)
    }

    fn delete_answer(&self, place: i64) -> rusqlite::Result<()> {
        self.transaction.prepare_cached("DELETE FROM answers WHERE row = ?1")?.execute([place]).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use hapax_core::answer::Answer as Kept;
    use hapax_core::fingerprint::Fingerprint;
    use hapax_core::key::Key;
    use hapax_core::record::{AttemptToken, State};
    use hapax_core::scope::{Principal, RecordId, Scope};
    use hapax_core::store::{Claim, Condition, Finish};

    use super::*;

    fn commit(desk: &mut Desk, puts: Vec<Put>) -> Vec<Result<Written, StoreError>> {
        let (commands, answers): (Vec<_>, Vec<_>) = puts
            .into_iter()
            .map(|put| {
                let (reply, answer) = oneshot::channel();
                (Command::Put(put, reply), answer)
            })
            .unzip();
        desk.commit(commands);
        answers.into_iter().map(|mut answer| answer.try_recv().unwrap()).collect()
    }

    fn claim(name: &str) -> Put {
        let scope = Scope { namespace: "n".into(), principal: Principal::Anonymous, method: "POST".into(), path: "/".into() };
        let (scope, key) = (Arc::new(scope), Key::new(name).unwrap());
        let id = RecordId::of(&scope, &key);
        let fingerprint = Fingerprint { digest: [1; 32], policy: Arc::default() };
        let token = AttemptToken::from_bytes([1; 16]);
        let claim = Claim { scope, key, fingerprint, token, lease: Duration::from_secs(100) };
        Put { id, condition: Condition::Absent, change: Change::Claim(claim) }
    }

    fn complete(head: &Head) -> Put {
        let answer = Some(Arc::new(Kept::new(200, vec![7; 900_000])));
        let finish = Finish { state: State::Completed, status: Some(200), answer, lifetime: Lifetime::default() };
        Put { id: head.id, condition: Condition::Held { fence: head.fence }, change: Change::Finish(finish) }
    }

    #[test]
    fn a_batch_that_fills_the_disk_leaves_nothing_behind() {
        let directory = tempfile::tempdir().unwrap();
        let opened = super::super::schema::open(&directory.path().join("hapax.db"), None).unwrap();
        let mut desk = Desk { connection: opened.connection, clock: opened.clock, leases: opened.leases, commits: Arc::default() };
        let heads: Vec<Head> = commit(&mut desk, (0..40).map(|i| claim(&format!("k{i}"))).collect())
            .into_iter()
            .map(|written| match written.unwrap() {
                Written::Won(won) => won.head,
                Written::Lost(seen) => panic!("{seen:?}"),
            })
            .collect();
        let set_pages = |desk: &Desk, more: i64| {
            let pages: i64 = desk.connection.query_row("PRAGMA page_count", [], |row| row.get(0)).unwrap();
            desk.connection
                .query_row(&format!("PRAGMA max_page_count = {}", pages + more), [], |row| row.get::<_, i64>(0))
                .unwrap();
        };
        // Room for one of the answers; then SQLite gives up the transaction by itself, in the middle of the batch.
        set_pages(&desk, 300);
        let said = commit(&mut desk, heads.iter().map(complete).collect());
        assert!(said.iter().all(Result::is_err));
        for head in &heads {
            let stored = row::find(&desk.connection, &head.id, desk.leases).unwrap().unwrap();
            assert_eq!(stored.head, *head);
        }
        // And with space again, all of them complete.
        set_pages(&desk, 100_000);
        assert!(commit(&mut desk, heads.iter().map(complete).collect()).iter().all(|said| matches!(said, Ok(Written::Won(_)))));
    }
}
