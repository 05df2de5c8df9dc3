//! One owner per file: a lock on a file beside it, which the system releases however the process ends.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};

use super::OpenError;

/// Ownership of a store file, for as long as it lives.
pub(super) struct Owner {
    _file: File,
}

impl Owner {
    pub(super) fn take(path: &Path) -> Result<Owner, OpenError> {
        let io = |source| OpenError::Io { path: path.to_owned(), source };
        let mut file = open(path).map_err(io)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut owner = String::new();
                let _ = file.read_to_string(&mut owner);
                let owner = if owner.trim().is_empty() { "(unknown)".to_owned() } else { owner.trim().to_owned() };
                return Err(OpenError::Owned { path: path.to_owned(), owner });
            }
            Err(TryLockError::Error(source)) => return Err(io(source)),
        }
        // Only for the message a second process prints; the lock is what counts.
        file.set_len(0).map_err(io)?;
        file.rewind().map_err(io)?;
        writeln!(file, "{}", std::process::id()).map_err(io)?;
        Ok(Owner { _file: file })
    }

    /// Whether some process owns the file right now.
    pub(super) fn exists(path: &Path) -> bool {
        match File::open(beside(path)) {
            Ok(file) => matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)),
            Err(_) => false,
        }
    }
}

fn open(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(beside(path))
}

/// Beside the file itself, by whatever way it was reached: a link to it is not another file.
fn beside(path: &Path) -> PathBuf {
    let real = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let mut name = real.into_os_string();
    name.push("-owner");
    name.into()
}
