//! A read-only view of a store file, which another process may own.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use hapax_core::audit::{LogEntry, LogQuery};
use hapax_core::operation::OperationIds;
use hapax_core::record::Head;
use hapax_core::scope::RecordId;
use hapax_core::store::{ListQuery, Reading, StoreError};
use hapax_core::time::{Clock, Timestamp};
use parking_lot::Mutex;
use rusqlite::{Connection, Transaction};

use super::OpenError;
use super::backup::{self, BackupError, Copied};
use super::index::{Index, prefix};
use super::owner::Owner;
use super::policies::Policies;
use super::reader;
use super::row::{Leases, Rows};
use super::schema::{self, Meta};
use super::writer_state::WriterState;
use crate::clock::{BootClock, boot_id};
use crate::store::sqlite_kit::error::{store_error, unreadable};

/// A read-only view of a store file, which another process may own. Changes nothing.
///
/// Leases show as over if the owner is gone or the machine has been restarted since. Finding a
/// record needs an index of the whole file, which is loaded when the view is opened and again when
/// the file has changed. That takes a second or two with millions of records.
pub struct View {
    inside: Mutex<Inside>,
}

struct Inside {
    path: PathBuf,
    connection: Connection,
    policies: Policies,
    /// The index, the file version for which it was loaded, and the leases that were valid then.
    index: Option<(i64, Leases, Arc<Index>)>,
}

/// A snapshot of the file.
struct Moment<'a> {
    rows: Rows<'a>,
    index: Arc<Index>,
    now: Timestamp,
    /// Keeps the snapshot open.
    _snapshot: Transaction<'a>,
}

impl View {
    /// Opens an existing file for reading.
    pub fn open(path: impl AsRef<Path>) -> Result<View, OpenError> {
        let path = std::fs::canonicalize(path.as_ref()).map_err(|source| OpenError::Io {
            path: path.as_ref().to_owned(),
            source,
        })?;
        let connection = schema::open_to_read(&path)?;
        Meta::read(&connection).map_err(|source| unreadable(&path, source))?;
        Ok(View {
            inside: Mutex::new(Inside {
                path,
                connection,
                policies: Policies::default(),
                index: None,
            }),
        })
    }

    /// The generator of the store's operation ids.
    pub fn operation_ids(&self) -> Result<OperationIds, StoreError> {
        let inside = self.inside.lock();
        let meta = Meta::read(&inside.connection)?;
        Ok(OperationIds::new(meta.secret, meta.lives_since))
    }

    /// Reads records, answers included.
    pub fn get(&self, ids: &[RecordId]) -> Result<Reading, StoreError> {
        let mut inside = self.inside.lock();
        let moment = inside.moment()?;
        let record = |id| {
            let found = moment.rows.look_up(id, moment.index.find(id))?.settled()?;
            found
                .map(|stored| moment.rows.record(stored, moment.now))
                .transpose()
        };
        Ok(Reading {
            records: ids.iter().map(record).collect::<Result<_, StoreError>>()?,
            now: moment.now,
        })
    }

    /// A page of heads in the order of their ids.
    pub fn list(&self, query: &ListQuery) -> Result<Vec<Head>, StoreError> {
        let mut inside = self.inside.lock();
        let moment = inside.moment()?;
        let (mut heads, mut next) = (Vec::new(), Some(query.after.as_ref().map_or(0, prefix)));
        while let Some(from) = next
            && heads.len() < query.limit
        {
            let rest = ListQuery {
                limit: query.limit - heads.len(),
                ..query.clone()
            };
            let part = reader::list(moment.rows, &moment.index, &rest, from, moment.now)?;
            heads.extend(part.heads);
            next = part.next;
        }
        Ok(heads)
    }

    /// A page of the audit log. Needs no index, so it is quick in a file of any size.
    pub fn log(&self, query: &LogQuery) -> Result<Vec<LogEntry>, StoreError> {
        let inside = self.inside.lock();
        schema::audit_log(&inside.connection)?
            .map_or(Ok(Vec::new()), |log| log.read(&inside.connection, query))
    }

    /// Copies the file as it is now into a new one that can be opened as a store, like
    /// [`Sqlite::backup`](super::Sqlite::backup). The copy contains every write that was
    /// acknowledged before this call. Nothing is overwritten; a failed backup leaves no file
    /// behind.
    ///
    /// Blocks until it is done. Until then the owner's log grows with each write.
    pub fn backup(&self, to: impl AsRef<Path>) -> Result<Copied, BackupError> {
        let inside = self.inside.lock();
        backup::copy_from_outside(&inside.connection, to.as_ref())
    }
}

impl Inside {
    /// Takes a snapshot, and reads the store-wide values in it.
    fn moment(&mut self) -> Result<Moment<'_>, StoreError> {
        let snapshot = self
            .connection
            .unchecked_transaction()
            .map_err(store_error)?;
        // Read again, because the owner may have changed.
        let meta = Meta::read(&self.connection)?;
        let (clock, is_same_boot) = clock(&meta);
        let leases = if is_same_boot && Owner::exists(&self.path) {
            Leases::Of(meta.incarnation)
        } else {
            Leases::Nobodys
        };
        let version = self
            .connection
            .query_row("PRAGMA data_version", [], |row| row.get(0))
            .map_err(store_error)?;
        let index = match &self.index {
            Some((known, counted, index)) if (*known, *counted) == (version, leases) => {
                index.clone()
            }
            _ => WriterState::load(&self.connection, &self.policies, leases)?.index,
        };
        self.index = Some((version, leases, index.clone()));
        let rows = Rows {
            connection: &self.connection,
            policies: &self.policies,
            leases,
        };
        Ok(Moment {
            rows,
            index,
            now: clock.now(),
            _snapshot: snapshot,
        })
    }
}

/// The store's clock as its owner would read it, and whether the owner ran in the current boot.
pub(super) fn clock(meta: &Meta) -> (BootClock, bool) {
    let is_same_boot = meta.boot_id == boot_id();
    (
        if is_same_boot {
            BootClock::resumed(meta.clock, meta.boot)
        } else {
            BootClock::anchored(meta.clock)
        },
        is_same_boot,
    )
}
