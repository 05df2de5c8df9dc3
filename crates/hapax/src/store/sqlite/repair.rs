//! Reopening the file after a disk error.
//!
//! When an fsync fails, Linux marks the pages as clean: the next fsync would succeed although
//! nothing reached the disk, and a read would return data that is only in memory. So an fsync is
//! never repeated. Every connection is closed. The log is *written* again, byte for byte, which
//! makes its pages dirty again, and is then synced. After that everything that can be read from the
//! log is on the disk: either the whole failed write, or nothing of it. Its callers were told that
//! the outcome is unknown. Pages of the file itself need no such care: until a copy of the log was
//! synced without an error, the log still exists and is copied again.

use std::fs::OpenOptions;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;

use hapax_core::store::StoreError;
use rusqlite::Connection;

use super::owner::with_suffix;
use super::schema::{self, Meta};
use super::shared::{Connections, Shared};
use super::writer_state::WriterState;
use crate::store::sqlite_kit::error::store_error;

/// Opens the file, checks that it can be written, and loads everything again. Nothing else may have
/// it open.
pub(super) fn reopen(
    shared: &Shared,
) -> Result<(Connection, WriterState, Connections), StoreError> {
    rewrite_log(&shared.path).map_err(|error| {
        StoreError::unavailable("the log cannot be written again").because(error)
    })?;
    let connection = schema::open_again(&shared.path).map_err(|error| {
        StoreError::unavailable("the store file cannot be opened").because(error)
    })?;
    let meta = Meta::read(&connection)?;
    if meta.incarnation != shared.incarnation {
        return Err(StoreError::unavailable(
            "another process has opened the store file since: this one must stop",
        ));
    }
    // Make a real commit: a file system that became read-only can still be read.
    meta.at(shared.clock.now())
        .write(&connection)
        .map_err(store_error)?;
    let writer_state = WriterState::load(&connection, &shared.policies, shared.leases())?;
    let connections = Connections::open(&shared.path).map_err(|error| {
        StoreError::unavailable("the store file cannot be opened to read").because(error)
    })?;
    Ok((connection, writer_state, connections))
}

fn rewrite_log(path: &Path) -> std::io::Result<()> {
    let mut file = match OpenOptions::new()
        .read(true)
        .write(true)
        .open(with_suffix(path, "-wal"))
    {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    let mut piece = vec![0; 1 << 20];
    let mut at = 0;
    loop {
        file.seek(SeekFrom::Start(at))?;
        let read = file.read(&mut piece)?;
        if read == 0 {
            return file.sync_all();
        }
        file.seek(SeekFrom::Start(at))?;
        file.write_all(&piece[..read])?;
        at += read as u64;
    }
}
