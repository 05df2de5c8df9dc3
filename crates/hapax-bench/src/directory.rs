//! The directory of a measurement's files, and their size.

use std::path::{Path, PathBuf};

use crate::Error;

/// A directory with a store in it: temporary, unless it was given by name.
pub(crate) struct Directory {
    path: PathBuf,
    _temporary: Option<tempfile::TempDir>,
}

impl Directory {
    /// A new temporary directory. `HAPAX_BENCH_DIR` chooses the disk to measure; a `/tmp` in memory
    /// would make every commit free.
    pub(crate) fn temporary() -> Result<Directory, Error> {
        let builder = || {
            tempfile::Builder::new()
                .prefix("hapax-bench-")
                .rand_bytes(6)
                .to_owned()
        };
        let made = match std::env::var_os("HAPAX_BENCH_DIR") {
            Some(parent) => builder().tempdir_in(parent)?,
            None => builder().tempdir()?,
        };
        Ok(Directory {
            path: made.path().to_owned(),
            _temporary: Some(made),
        })
    }

    /// A directory that is not removed.
    pub(crate) fn kept(path: &Path) -> Result<Directory, Error> {
        std::fs::create_dir_all(path)?;
        Ok(Directory {
            path: path.to_owned(),
            _temporary: None,
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// The store's file.
    pub(crate) fn store(&self) -> PathBuf {
        self.file("hapax.db")
    }

    /// The size of all files of the store, whatever their names.
    pub(crate) fn bytes(&self) -> u64 {
        let entries = std::fs::read_dir(&self.path)
            .into_iter()
            .flatten()
            .flatten();
        entries
            .filter_map(|entry| entry.metadata().ok())
            .map(|metadata| metadata.len())
            .sum()
    }
}

/// The size of the write-ahead log beside a store's file; zero if there is none.
pub(crate) fn wal_bytes(store: &Path) -> u64 {
    let mut name = store.as_os_str().to_owned();
    name.push("-wal");
    file_bytes(Path::new(&name))
}

pub(crate) fn file_bytes(path: &Path) -> u64 {
    std::fs::metadata(path).map_or(0, |metadata| metadata.len())
}
