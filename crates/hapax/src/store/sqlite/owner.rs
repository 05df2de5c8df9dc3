//! One owner per file: a lock on a file beside it, which the system releases however the process ends.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};

use super::OpenError;

/// Makes sure that there is a file, and finds its one true path: by whatever link it was reached, it is not another file.
pub(super) fn locate(path: &Path) -> Result<PathBuf, OpenError> {
    if path.as_os_str().is_empty() || path == Path::new(":memory:") {
        return Err(OpenError::NotAPath);
    }
    let io = |source| OpenError::Io { path: path.to_owned(), source };
    let mut file = private().read(true).open(path).map_err(io)?;
    let mut header = [0; SQLITE_HEADER.len()];
    let is_empty = file.metadata().map_err(io)?.len() == 0;
    // Before anything is put beside it: a file of somebody else is left alone.
    if !is_empty && (file.read_exact(&mut header).is_err() || header != *SQLITE_HEADER) {
        return Err(OpenError::NotAStore { path: path.to_owned() });
    }
    std::fs::canonicalize(path).map_err(io)
}

const SQLITE_HEADER: &[u8; 16] = b"SQLite format 3\0";

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
    private().read(true).open(beside(path))
}

fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push("-owner");
    name.into()
}

/// What is created is for its owner's account alone: the store holds answers and a secret, and who can open the file beside it could
/// keep the store from being opened.
fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}
