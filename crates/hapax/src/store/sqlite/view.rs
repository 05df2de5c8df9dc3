//! A store file seen from outside, whoever owns it.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use hapax_core::record::Head;
use hapax_core::scope::RecordId;
use hapax_core::store::{ListQuery, Reading, StoreError};
use hapax_core::time::Clock;
use rusqlite::Connection;

use super::OpenError;
use super::book::Book;
use super::error::store_error;
use super::index::{Index, prefix};
use super::owner::Owner;
use super::policies::Policies;
use super::reader;
use super::row::{Leases, Rows};
use super::schema::{self, Meta};
use crate::clock::{BootClock, boot_id};

/// A store file seen from outside, whoever owns it. Changes nothing.
///
/// Leases show as over when the owner is gone or the machine has been restarted since. Finding a record takes an index of the whole
/// file, which is read when the view is opened and again when the file has changed: a second or two where there are millions.
pub struct View {
    inside: Mutex<Inside>,
}

struct Inside {
    connection: Connection,
    policies: Policies,
    leases: Leases,
    clock: Arc<dyn Clock>,
    index: Option<(i64, Arc<Index>)>,
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
        let inside = Inside { connection, policies: Policies::default(), leases, clock: Arc::new(clock), index: None };
        Ok(View { inside: Mutex::new(inside) })
    }

    /// Reads records, answers included.
    pub fn get(&self, ids: &[RecordId]) -> Result<Reading, StoreError> {
        let mut inside = self.inside.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let index = inside.index()?;
            let found = ids.iter().map(|id| (*id, index.find(id))).collect();
            let clock = inside.clock.clone();
            if let Some(reading) = reader::get(inside.rows(), found, || clock.now())? {
                return Ok(reading);
            }
            // The file changed between the two; or the roll names a row that is gone, and then there is no record.
            if !inside.has_changed()? {
                return inside.get_one_by_one(ids, &index);
            }
        }
    }

    /// A page of heads in the order of their ids.
    pub fn list(&self, query: &ListQuery) -> Result<Vec<Head>, StoreError> {
        let mut inside = self.inside.lock().unwrap_or_else(PoisonError::into_inner);
        let index = inside.index()?;
        let (mut heads, mut next) = (Vec::new(), Some(query.after.as_ref().map_or(0, prefix)));
        while let Some(from) = next
            && heads.len() < query.limit
        {
            let rest = ListQuery { limit: query.limit - heads.len(), ..query.clone() };
            let part = reader::list(inside.rows(), &index, &rest, from, inside.clock.now())?;
            heads.extend(part.heads);
            next = part.next;
        }
        Ok(heads)
    }
}

impl Inside {
    fn rows(&self) -> Rows<'_> {
        Rows { connection: &self.connection, policies: &self.policies, leases: self.leases }
    }

    fn version(&self) -> Result<i64, StoreError> {
        self.connection.query_row("PRAGMA data_version", [], |row| row.get(0)).map_err(store_error)
    }

    fn has_changed(&self) -> Result<bool, StoreError> {
        let version = self.version()?;
        Ok(self.index.as_ref().is_none_or(|(known, _)| *known != version))
    }

    /// The index of the file as it is.
    fn index(&mut self) -> Result<Arc<Index>, StoreError> {
        if self.has_changed()? {
            let version = self.version()?;
            let snapshot = self.connection.unchecked_transaction().map_err(store_error)?;
            let index = Book::load(&self.connection, &self.policies, self.leases)?.index;
            drop(snapshot);
            self.index = Some((version, index));
        }
        Ok(self.index.as_ref().expect("just made").1.clone())
    }

    fn get_one_by_one(&self, ids: &[RecordId], index: &Index) -> Result<Reading, StoreError> {
        let now = self.clock.now();
        let records = ids.iter().map(|id| {
            let reading = reader::get(self.rows(), vec![(*id, index.find(id))], || now)?;
            Ok(reading.and_then(|mut reading| reading.records.pop().flatten()))
        });
        Ok(Reading { records: records.collect::<Result<_, StoreError>>()?, now })
    }
}
