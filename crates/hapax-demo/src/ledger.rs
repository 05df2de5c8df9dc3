//! The ledger of the payments service: a row for each charge that was really made.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags, OptionalExtension, params};

use crate::plan::Fault;

const SCHEMA: &str = "
    CREATE TABLE IF NOT EXISTS charges (
        id INTEGER PRIMARY KEY,
        order_id TEXT NOT NULL,
        amount_cents INTEGER NOT NULL,
        -- As it was received. The service does nothing with it, as most services do.
        key TEXT
    );
    CREATE INDEX IF NOT EXISTS charges_by_key ON charges (key);
    -- Outlives the process, so that an order that killed it does not kill the next one too.
    CREATE TABLE IF NOT EXISTS faults (order_id TEXT PRIMARY KEY, fault TEXT NOT NULL) WITHOUT ROWID;
";

/// An open ledger.
pub(crate) struct Ledger(Connection);

/// The details of a charge to make.
pub(crate) struct Entry<'a> {
    pub(crate) order: &'a str,
    pub(crate) amount_cents: u64,
    pub(crate) key: Option<&'a str>,
}

/// A charge that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Charge {
    pub(crate) id: i64,
    pub(crate) order: String,
    pub(crate) amount_cents: u64,
}

/// How often an order was charged, and the amount of each charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Charged {
    pub(crate) times: u64,
    pub(crate) amount_cents: u64,
}

impl Ledger {
    /// Opens the ledger for writing, and creates it if necessary.
    pub(crate) fn open(path: &Path) -> rusqlite::Result<Ledger> {
        let connection = Connection::open(path)?;
        connection.busy_timeout(Duration::from_secs(5))?;
        connection.pragma_update(None, "journal_mode", "wal")?;
        // A charge is on disk before the service reports it.
        connection.pragma_update(None, "synchronous", "full")?;
        connection.execute_batch(SCHEMA)?;
        Ok(Ledger(connection))
    }

    /// Opens the ledger for reading, while the service writes.
    pub(crate) fn read(path: &Path) -> rusqlite::Result<Ledger> {
        let connection = Connection::open_with_flags(
            path,
            OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX,
        )?;
        connection.busy_timeout(Duration::from_secs(5))?;
        connection.pragma_update(None, "query_only", true)?;
        Ok(Ledger(connection))
    }

    /// Makes a charge and records the order's fault in the same transaction. Returns whether the
    /// fault is still to strike.
    pub(crate) fn charge(
        &mut self,
        entry: &Entry<'_>,
        fault: Option<Fault>,
    ) -> rusqlite::Result<(i64, bool)> {
        let tx = self.0.transaction()?;
        tx.execute(
            "INSERT INTO charges (order_id, amount_cents, key) VALUES (?1, ?2, ?3)",
            params![entry.order, entry.amount_cents as i64, entry.key],
        )?;
        let id = tx.last_insert_rowid();
        let strikes = fault.map_or(Ok(false), |fault| note(&tx, entry.order, fault))?;
        tx.commit()?;
        Ok((id, strikes))
    }

    /// Records the order's fault without a charge. Returns whether the fault is still to strike.
    pub(crate) fn strike(&self, order: &str, fault: Fault) -> rusqlite::Result<bool> {
        note(&self.0, order, fault)
    }

    /// The charge that was made under this key, if any. Reconciliation uses it.
    pub(crate) fn find(&self, key: &str) -> rusqlite::Result<Option<Charge>> {
        let mut find = self.0.prepare_cached(
            "SELECT id, order_id, amount_cents FROM charges WHERE key = ?1 ORDER BY id LIMIT 1",
        )?;
        let read = |row: &rusqlite::Row<'_>| {
            Ok(Charge {
                id: row.get(0)?,
                order: row.get(1)?,
                amount_cents: cents(row.get(2)?),
            })
        };
        find.query_row([key], read).optional()
    }

    /// The number of charges, and of charged orders.
    pub(crate) fn count(&self) -> rusqlite::Result<(u64, u64)> {
        let mut count = self
            .0
            .prepare_cached("SELECT count(*), count(DISTINCT order_id) FROM charges")?;
        count.query_row([], |row| Ok((cents(row.get(0)?), cents(row.get(1)?))))
    }

    /// Every order that was charged.
    pub(crate) fn orders(&self) -> rusqlite::Result<BTreeMap<String, Charged>> {
        let mut orders = self.0.prepare_cached(
            "SELECT order_id, count(*), max(amount_cents) FROM charges GROUP BY order_id",
        )?;
        let read = |row: &rusqlite::Row<'_>| {
            Ok((
                row.get(0)?,
                Charged {
                    times: cents(row.get(1)?),
                    amount_cents: cents(row.get(2)?),
                },
            ))
        };
        orders.query_map([], read)?.collect()
    }
}

fn note(connection: &Connection, order: &str, fault: Fault) -> rusqlite::Result<bool> {
    let mut note = connection
        .prepare_cached("INSERT OR IGNORE INTO faults (order_id, fault) VALUES (?1, ?2)")?;
    Ok(note.execute([order, fault.word()])? == 1)
}

/// SQLite has no unsigned integers; no amount is negative.
fn cents(stored: i64) -> u64 {
    stored.unsigned_abs()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ledger_says_how_often_each_order_was_charged_and_under_which_key() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ledger.db");
        let mut ledger = Ledger::open(&path).unwrap();
        let entry = |order, key| Entry {
            order,
            amount_cents: 250,
            key,
        };
        ledger.charge(&entry("a", Some("ka")), None).unwrap();
        ledger.charge(&entry("a", Some("ka")), None).unwrap();
        ledger.charge(&entry("b", None), None).unwrap();

        let read = Ledger::read(&path).unwrap();
        assert_eq!(read.count().unwrap(), (3, 2));
        assert_eq!(
            read.orders().unwrap()["a"],
            Charged {
                times: 2,
                amount_cents: 250
            }
        );
        assert_eq!(
            read.find("ka").unwrap(),
            Some(Charge {
                id: 1,
                order: "a".into(),
                amount_cents: 250
            })
        );
        assert_eq!(read.find("kb").unwrap(), None);
    }

    #[test]
    fn a_fault_strikes_an_order_once_also_after_reopening() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ledger.db");
        let mut ledger = Ledger::open(&path).unwrap();
        let entry = Entry {
            order: "a",
            amount_cents: 1,
            key: None,
        };
        assert!(ledger.charge(&entry, Some(Fault::Died)).unwrap().1);
        let mut ledger = Ledger::open(&path).unwrap();
        assert!(!ledger.charge(&entry, Some(Fault::Died)).unwrap().1);
        assert!(ledger.strike("b", Fault::Busy).unwrap());
        assert!(!ledger.strike("b", Fault::Busy).unwrap());
    }
}
