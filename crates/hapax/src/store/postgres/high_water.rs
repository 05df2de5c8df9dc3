//! The high-water file: the last writes that the database acknowledged, kept on this machine.
//!
//! If a database is restored while every node is stopped, no process remembers what it contained.
//! So a node writes its last acknowledged writes into a small file, and looks for them when it
//! starts again. The file is replaced as a whole, at most once a second. After a crash it may lack
//! the writes of the last second: then it may miss a restore, but never reports one falsely.

use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use hapax_core::operation::Secret;
use hapax_core::scope::RecordId;
use hapax_core::time::Timestamp;
use sha2::{Digest, Sha256};

use super::shared::Shared;

/// The shortest time between two writes of the file.
const REST: Duration = Duration::from_secs(1);
const FIRST_LINE: &str = "hapax high water 1";
/// Larger than the file ever is.
const BYTES_MAX: u64 = 1 << 20;

/// The content of the file: how far the database had come when a node of this store last wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    /// The store, by a digest of its secret.
    store: String,
    /// The highest version or fence of any acknowledged write.
    pub(super) highest: u64,
    /// The last acknowledged writes, in order.
    pub(super) writes: Vec<Witness>,
}

/// An acknowledged write that the database must still have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Witness {
    pub(super) id: RecordId,
    pub(super) version: u64,
    /// After this time, a missing record proves nothing.
    pub(super) stays_until: Timestamp,
}

impl Mark {
    pub(super) fn new(secret: &Secret, highest: u64, writes: Vec<Witness>) -> Mark {
        Mark {
            store: name_of(secret),
            highest,
            writes,
        }
    }

    /// Whether the file belongs to the store with this secret.
    pub(super) fn is_of(&self, secret: &Secret) -> bool {
        self.store == name_of(secret)
    }

    fn to_text(&self) -> String {
        let mut text = format!(
            "{FIRST_LINE}\nstore {}\nhighest {}\n",
            self.store, self.highest
        );
        for Witness {
            id,
            version,
            stays_until,
        } in &self.writes
        {
            writeln!(text, "write {id} {version} {}", stays_until.as_micros())
                .expect("a string takes any text");
        }
        let checksum = checksum(&text);
        text + &format!("checksum {checksum}\n")
    }

    /// `None` if the text was damaged.
    fn parse(text: &str) -> Option<Mark> {
        let (content, sum) = text.rsplit_once("checksum ")?;
        if sum.strip_suffix('\n')? != checksum(content) {
            return None;
        }
        let mut lines = content.lines();
        if lines.next()? != FIRST_LINE {
            return None;
        }
        let store = lines.next()?.strip_prefix("store ")?.to_owned();
        let highest = lines.next()?.strip_prefix("highest ")?.parse().ok()?;
        let write = |line: &str| {
            let mut words = line.strip_prefix("write ")?.split(' ');
            let id = words.next()?.parse().ok()?;
            let (version, stays_until) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
            Some(Witness {
                id,
                version,
                stays_until: Timestamp::from_micros(stays_until),
            })
        };
        Some(Mark {
            store,
            highest,
            writes: lines.map(write).collect::<Option<_>>()?,
        })
    }
}

/// A name of the store that does not reveal its secret.
fn name_of(secret: &Secret) -> String {
    let mut digest = Sha256::new();
    digest.update(b"hapax high water");
    digest.update(secret.to_bytes());
    hex(&digest.finalize()[..16])
}

fn checksum(text: &str) -> String {
    hex(&Sha256::digest(text.as_bytes())[..8])
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Reads the file; `None` if there is none, or if it is invalid.
pub(super) fn read(path: &Path) -> Option<Mark> {
    let text = match File::open(path)
        .and_then(|file| io::read_to_string(io::Read::take(file, BYTES_MAX)))
    {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        Err(error) => {
            let path = path.display();
            tracing::warn!(%path, %error, "the high-water file cannot be read: that the database was restored since this process stopped cannot be told");
            return None;
        }
    };
    let mark = Mark::parse(&text);
    if mark.is_none() {
        let path = path.display();
        tracing::warn!(%path, "the high-water file is damaged, or none: that the database was restored since this process stopped cannot be told");
    }
    mark
}

/// Replaces the file atomically: after a crash either the old or the new one is there, whole.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    let beside = PathBuf::from(beside);
    let mut file = open_for_us_alone(&beside)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&beside, path)?;
    let directory = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    File::open(directory)?.sync_all()
}

fn open_for_us_alone(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

/// Writes the file now, and after each change while the store is in use.
pub(super) async fn keep(path: PathBuf, shared: &Arc<Shared>) {
    let mut keeper = Keeper {
        path,
        has_failed: false,
    };
    keeper.write(shared).await;
    let (changed, shared) = (shared.server_history.changed(), Arc::downgrade(shared));
    tokio::spawn(async move { keeper.run(&changed, &shared).await });
}

struct Keeper {
    path: PathBuf,
    has_failed: bool,
}

impl Keeper {
    async fn run(&mut self, changed: &tokio::sync::Notify, shared: &Weak<Shared>) {
        loop {
            changed.notified().await;
            let Some(shared) = shared.upgrade() else {
                return;
            };
            self.write(&shared).await;
            drop(shared);
            tokio::time::sleep(REST).await;
        }
    }

    /// Writes the file. A failure is logged once, until writing succeeds again.
    async fn write(&mut self, shared: &Shared) {
        let Some(secret) = shared.secret.get() else {
            return;
        };
        let (path, text) = (
            self.path.clone(),
            shared.server_history.mark(secret).to_text(),
        );
        let written = tokio::task::spawn_blocking(move || replace(&path, &text))
            .await
            .unwrap_or_else(|error| Err(io::Error::other(error)));
        let path = self.path.display();
        match &written {
            Err(error) if !self.has_failed => tracing::warn!(
                %path,
                %error,
                "the high-water file cannot be written: if the database is restored while this process is stopped, nobody will notice. Make the \
                 directory writable, or name another file"
            ),
            Ok(()) if self.has_failed => {
                tracing::info!(%path, "the high-water file can be written again");
            }
            _ => {}
        }
        self.has_failed = written.is_err();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark() -> Mark {
        let witness = |n| Witness {
            id: RecordId::from_bytes([n; 32]),
            version: u64::from(n),
            stays_until: Timestamp::from_micros(9),
        };
        Mark::new(
            &Secret::from_bytes([1; 32]),
            7,
            vec![witness(1), witness(2)],
        )
    }

    #[test]
    fn a_file_says_what_was_written_and_a_changed_one_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("high-water");
        assert_eq!(read(&path), None);
        replace(&path, "something older").unwrap();
        assert_eq!(read(&path), None);
        replace(&path, &mark().to_text()).unwrap();
        assert_eq!(read(&path), Some(mark()));
        assert!(
            mark().is_of(&Secret::from_bytes([1; 32]))
                && !mark().is_of(&Secret::from_bytes([2; 32]))
        );
        let text = mark().to_text();
        for at in 0..text.len() {
            let mut bytes = text.clone().into_bytes();
            bytes[at] ^= 1;
            assert_eq!(
                String::from_utf8(bytes)
                    .ok()
                    .and_then(|text| Mark::parse(&text)),
                None,
                "changed at {at}"
            );
            assert_eq!(Mark::parse(&text[..at]), None, "cut at {at}");
        }
    }
}
