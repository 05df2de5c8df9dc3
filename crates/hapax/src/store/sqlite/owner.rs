//! One owner per file: a lock on a file beside it, which the system releases however the process
//! ends.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::OpenError;
use super::backup::directory;

/// Makes sure that there is a file, and finds its one true path: by whatever link it was reached,
/// it is not another file.
///
/// A file that is there is not opened: closing it again would drop the locks that SQLite holds on
/// it in this very process, for a store that is open or a view, and another program could then take
/// the log away from under it.
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
        // A file that was just made must still be there after a loss of power, as soon as something
        // in it is.
        File::open(directory(path))
            .and_then(|directory| directory.sync_all())
            .map_err(io)?;
    }
    std::fs::canonicalize(path).map_err(io)
}

const SQLITE_HEADER: &[u8; 16] = b"SQLite format 3\0";

/// Ownership of a store file, for as long as it lives.
pub(super) struct Owner {
    file: File,
    /// The store's file itself: to be closed after every connection to it, see [`locate`].
    _database: File,
    /// The store that was last opened here, and how often it had been by then.
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
                // A file of somebody else is left as it was, with nothing beside it.
                if is_new {
                    let _ = std::fs::remove_file(beside(path));
                }
                Err(error)
            }
        }
    }

    /// The store that was last opened here, and in which incarnation.
    pub(super) fn last(&self) -> Option<(String, i64)> {
        self.last.clone()
    }

    /// Leaves word of who owns the file, for the message a second process prints, and of how often
    /// it was opened, which gives an older copy away that is put in its place. The lock is what
    /// counts.
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

    /// Whether some process owns the file right now.
    pub(super) fn exists(path: &Path) -> bool {
        match File::open(beside(path)) {
            Ok(file) => matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)),
            Err(_) => false,
        }
    }
}

/// A look at who has the file takes the lock for a moment; that alone does not make it somebody
/// else's.
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

/// Whether this can be our file: empty, or a database, and under one name only.
fn check(path: &Path) -> Result<File, OpenError> {
    let io = |source| OpenError::Io {
        path: path.to_owned(),
        source,
    };
    let metadata = std::fs::metadata(path).map_err(io)?;
    // Before it is opened, see [`locate`]: by its other name it may be open in this very process.
    #[cfg(unix)]
    if std::os::unix::fs::MetadataExt::nlink(&metadata) > 1 {
        return Err(OpenError::Linked {
            path: path.to_owned(),
        });
    }
    let mut file = private().read(true).open(path).map_err(io)?;
    let mut header = [0; SQLITE_HEADER.len()];
    // A file whose creation was cut short by the loss of power may have no header yet; SQLite takes
    // it back by the journal beside it.
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

/// A file beside another, by the end of its name.
pub(super) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// What is created is for its owner's account alone: the store holds answers and a secret, and who
/// can open the file beside it could keep the store from being opened.
fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}
