//! The state that the store's threads share, and the gate that keeps them away from the file when
//! it must not be used.

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

/// Enough for the machines of an embedded store; most replays come from memory.
pub(super) const READERS: usize = 2;

/// The state that the store's threads share.
pub(super) struct Shared {
    pub(super) path: PathBuf,
    /// The identity of the file when it was opened.
    file: Option<(u64, u64)>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) incarnation: i64,
    pub(super) policies: Policies,
    pub(super) counters: Counters,
    index: RwLock<Option<Arc<Index>>>,
    /// Locked for reading while a connection is in use, and for writing when the writer needs the
    /// file alone.
    gate: RwLock<Option<Connections>>,
}

/// All connections except the writer's.
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

    /// Whether the open file is still the one at the path. A file that was removed, or whose
    /// directory was, still accepts writes, but they are lost when the process ends.
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

    /// The index, while the file is open.
    pub(super) fn index(&self) -> Result<Arc<Index>, StoreError> {
        let index = self.index.read();
        index.clone().ok_or_else(shut)
    }

    /// Opens the gate, with connections and an index.
    pub(super) fn open(&self, connections: Connections, index: Arc<Index>) {
        *self.gate.write() = Some(connections);
        *self.index.write() = Some(index);
    }

    /// Replaces the index.
    pub(super) fn index_anew(&self, index: Arc<Index>) {
        *self.index.write() = Some(index);
    }

    /// Waits until no thread uses the file, and closes every connection except the writer's.
    pub(super) fn shut(&self) {
        *self.index.write() = None;
        *self.gate.write() = None;
    }

    /// Enters the gate, to use one of the connections.
    pub(super) fn enter(&self) -> RwLockReadGuard<'_, Option<Connections>> {
        self.gate.read()
    }

    /// Waits until no other thread uses the file, and keeps all of them out while the guard lives.
    pub(super) fn alone(&self) -> RwLockWriteGuard<'_, Option<Connections>> {
        self.gate.write()
    }
}

/// The device and inode that identify a file.
fn identity(path: &std::path::Path) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(path)
        .ok()
        .map(|file| (file.dev(), file.ino()))
}

/// The error while the gate is shut.
pub(super) fn shut() -> StoreError {
    StoreError::unavailable("the store file is being opened again after an error")
}
