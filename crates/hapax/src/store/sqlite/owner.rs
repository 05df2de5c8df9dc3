//! One owner per file: holds a lock on a file beside it, which the system releases when the process
//! ends.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::OpenError;
use super::backup::directory;

/// Makes sure that the file exists, and returns its canonical path, which is the same through every
/// link.
///
/// An existing file is not opened here. Closing it again would drop the locks that SQLite holds on
/// it in this process, for an open store or a view, and another program could then remove the log
/// while it is in use.
pub(super) fn locate(path: &Path) -> Result<PathBuf, OpenError> {
    if path.as_os_str().is_empty() || path == Path::new(":memory:") {
        return Err(OpenError::NotAPath);
    }
    let io = |source| OpenError::Io {
        path: path.to_owned(),
        source,
    };
    if !path.try_exists().map_err(io)? {
        drop(private().open(path).map_err(io)?);
        // Sync the directory: a new file must survive a power loss as soon as it contains data.
        File::open(directory(path))
            .and_then(|directory| directory.sync_all())
            .map_err(io)?;
    }
    std::fs::canonicalize(path).map_err(io)
}

const SQLITE_HEADER: &[u8; 16] = b"SQLite format 3\0";

/// Ownership of a store file, for as long as this value lives.
pub(super) struct Owner {
    file: File,
    /// The store file itself. It must be closed after every connection to it, see [`locate`].
    _database: File,
    /// The name of the store last opened here, and its incarnation.
    last: Option<(String, i64)>,
}

impl Owner {
    pub(super) fn take(path: &Path) -> Result<Owner, OpenError> {
        let io = |source| OpenError::Io {
            path: path.to_owned(),
            source,
        };
        let is_new = !beside(path).exists();
        let mut file = private().read(true).open(beside(path)).map_err(io)?;
        let mut content = String::new();
        let _ = file.read_to_string(&mut content);
        lock(&file).map_err(|error| match error {
            TryLockError::WouldBlock => {
                let owner = content
                    .lines()
                    .next()
                    .filter(|owner| !owner.is_empty())
                    .unwrap_or("(unknown)")
                    .to_owned();
                OpenError::Owned {
                    path: path.to_owned(),
                    owner,
                }
            }
            TryLockError::Error(source) => io(source),
        })?;
        match check(path) {
            Ok(database) => Ok(Owner {
                file,
                _database: database,
                last: last(&content),
            }),
            Err(error) => {
                // Another program's file is left as it was, without a file beside it.
                if is_new {
                    let _ = std::fs::remove_file(beside(path));
                }
                Err(error)
            }
        }
    }

    /// The name of the store last opened here, and its incarnation.
    pub(super) fn last(&self) -> Option<(String, i64)> {
        self.last.clone()
    }

    /// Writes the id of the owning process, for the error message of a second one, and the
    /// incarnation, by which an older copy of the store is recognised. Only the lock decides
    /// ownership.
    pub(super) fn sign(
        &mut self,
        path: &Path,
        name: &str,
        incarnation: i64,
    ) -> Result<(), OpenError> {
        let text = format!("{}\n{name} {incarnation}\n", std::process::id());
        let write = |file: &mut File| {
            file.rewind()?;
            file.write_all(text.as_bytes())?;
            file.set_len(text.len() as u64)
        };
        write(&mut self.file).map_err(|source| OpenError::Io {
            path: path.to_owned(),
            source,
        })
    }

    /// Whether a process owns the file at the moment.
    pub(super) fn exists(path: &Path) -> bool {
        match File::open(beside(path)) {
            Ok(file) => matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)),
            Err(_) => false,
        }
    }
}

/// Retries, because `exists` takes the lock for a moment without being an owner.
fn lock(file: &File) -> Result<(), TryLockError> {
    for _ in 0..LOCK_TRIES {
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(2)),
            result => return result,
        }
    }
    file.try_lock()
}

const LOCK_TRIES: usize = 5;

/// Checks that this can be a store file: empty or a database, and without a second hard link.
fn check(path: &Path) -> Result<File, OpenError> {
    let io = |source| OpenError::Io {
        path: path.to_owned(),
        source,
    };
    let metadata = std::fs::metadata(path).map_err(io)?;
    // Checked before the file is opened (see [`locate`]): it may be open in this process under its
    // other name.
    #[cfg(unix)]
    if std::os::unix::fs::MetadataExt::nlink(&metadata) > 1 {
        return Err(OpenError::Linked {
            path: path.to_owned(),
        });
    }
    let mut file = private().read(true).open(path).map_err(io)?;
    let mut header = [0; SQLITE_HEADER.len()];
    // A file whose creation was interrupted by a power loss may have no header yet; SQLite rolls it
    // back with the journal beside it.
    let is_cut_short = with_suffix(path, "-journal").exists();
    if metadata.len() > 0
        && !is_cut_short
        && (file.read_exact(&mut header).is_err() || header != *SQLITE_HEADER)
    {
        return Err(OpenError::NotAStore {
            path: path.to_owned(),
        });
    }
    Ok(file)
}

fn last(content: &str) -> Option<(String, i64)> {
    let (name, incarnation) = content.lines().nth(1)?.split_once(' ')?;
    Some((name.to_owned(), incarnation.parse().ok()?))
}

fn beside(path: &Path) -> PathBuf {
    with_suffix(path, "-owner")
}

/// The path with a suffix added to the file name.
pub(super) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Files are created for their owner's account alone: the store contains answers and a secret, and
/// an account that could open the lock file could prevent the store from being opened.
fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}
