//! What the store's threads share, and the gate that keeps them off the file when nobody may touch
//! it.

use std::path::PathBuf;
use std::sync::Arc;

use hapax_core::store::StoreError;
use hapax_core::time::Clock;
use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use rusqlite::Connection;

use super::OpenError;
use super::index::Index;
use super::policies::Policies;
use super::row::{Leases, Rows};
use super::schema;
use super::stats::Counters;

/// Enough for the machines an embedded store runs on; replays mostly come from memory.
pub(super) const READERS: usize = 2;

/// What the store's threads share.
pub(super) struct Shared {
    pub(super) path: PathBuf,
    /// The file that was at the path when it was opened.
    file: Option<(u64, u64)>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) incarnation: i64,
    pub(super) policies: Policies,
    pub(super) counters: Counters,
    index: RwLock<Option<Arc<Index>>>,
    /// Held to read by whoever uses one of the connections; to write by the writer when it must be
    /// alone with the file.
    gate: RwLock<Option<Connections>>,
}

/// The connections beside the writer's.
pub(super) struct Connections {
    readers: [Mutex<Connection>; READERS],
    checkpointer: Mutex<Connection>,
}

impl Connections {
    pub(super) fn open(path: &std::path::Path) -> Result<Connections, OpenError> {
        let reader = || schema::open_to_read(path).map(Mutex::new);
        Ok(Connections {
            readers: [reader()?, reader()?],
            checkpointer: Mutex::new(schema::open_to_checkpoint(path)?),
        })
    }

    pub(super) fn reader(&self, number: usize) -> MutexGuard<'_, Connection> {
        self.readers[number].lock()
    }

    pub(super) fn checkpointer(&self) -> MutexGuard<'_, Connection> {
        self.checkpointer.lock()
    }
}

impl Shared {
    pub(super) fn new(path: PathBuf, clock: Arc<dyn Clock>, incarnation: i64) -> Shared {
        Shared {
            file: identity(&path),
            path,
            clock,
            incarnation,
            policies: Policies::default(),
            counters: Counters::default(),
            index: RwLock::new(None),
            gate: RwLock::new(None),
        }
    }

    /// Whether the file that is open is the one at the path. One that was removed, or whose
    /// directory was, takes writes all the same, and they are gone with the process.
    pub(super) fn is_in_place(&self) -> bool {
        self.file.is_some() && identity(&self.path) == self.file
    }

    pub(super) fn leases(&self) -> Leases {
        Leases::Of(self.incarnation)
    }

    pub(super) fn rows<'a>(&'a self, connection: &'a Connection) -> Rows<'a> {
        Rows {
            connection,
            policies: &self.policies,
            leases: self.leases(),
        }
    }

    /// The index, while there is a file to be read.
    pub(super) fn index(&self) -> Result<Arc<Index>, StoreError> {
        let index = self.index.read();
        index.clone().ok_or_else(shut)
    }

    /// Opens the gate, with what was read of the file.
    pub(super) fn open(&self, connections: Connections, index: Arc<Index>) {
        *self.gate.write() = Some(connections);
        *self.index.write() = Some(index);
    }

    /// Another index takes the place of the one in use.
    pub(super) fn index_anew(&self, index: Arc<Index>) {
        *self.index.write() = Some(index);
    }

    /// Waits until nobody uses the file, and lets nobody use it any more: every connection but the
    /// writer's is closed.
    pub(super) fn shut(&self) {
        *self.index.write() = None;
        *self.gate.write() = None;
    }

    /// The way in for whoever uses one of the connections.
    pub(super) fn enter(&self) -> RwLockReadGuard<'_, Option<Connections>> {
        self.gate.read()
    }

    /// Waits until nobody else uses the file, and keeps everybody out while the guard lives.
    pub(super) fn alone(&self) -> RwLockWriteGuard<'_, Option<Connections>> {
        self.gate.write()
    }
}

/// What tells a file from every other.
fn identity(path: &std::path::Path) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(path)
        .ok()
        .map(|file| (file.dev(), file.ino()))
}

/// What is said while the gate is shut.
pub(super) fn shut() -> StoreError {
    StoreError::unavailable("the store file is being opened again after an error")
}
