//! The write-ahead log: copied into the file by a thread of its own, and given back before it grows
//! long.
//!
//! Copying on the writer would make every hundredth caller wait; copying beside it alone never
//! catches up under load, and the log grows for ever. So this thread copies, again and again, until
//! little is left; then the writer, between two commits, copies the rest, which takes about as long
//! as a commit, and the log begins anew. A reader that stays in the log keeps it from that, so the
//! store's own readers are kept out for this moment. A reader outside cannot be: the log grows
//! until it ends, and then is cut back.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use rusqlite::Connection;

use super::OpenError;
use super::owner::with_suffix;
use super::shared::Shared;
use super::writer::Command;
use crate::store::sqlite_kit::Thread;
use crate::store::sqlite_kit::error::is_suspect;

/// A page of the file and its header in the log.
const FRAME_BYTES: u64 = 4096 + 24;
/// The log is promised not to be longer, unless a reader outside holds it.
pub(super) const LOG_BYTES_MAX: u64 = 64 << 20;
/// Copying begins: early, as the log grows meanwhile.
const COPY_FRAMES: u64 = (16 << 20) / FRAME_BYTES;
/// So little that the writer may copy it between two commits.
const REST_FRAMES: u64 = 256;
/// The writer no longer waits for the rest to be little.
const FORCE_FRAMES: u64 = (40 << 20) / FRAME_BYTES;
/// Tries to get the rest down, before the writer is asked to help anyway.
const PASSES_MAX: usize = 6;
/// At rest, how often to look whether something was left over.
const LOOK: Duration = Duration::from_secs(1);
/// The same while a reader holds the log.
const LOOK_HELD: Duration = Duration::from_millis(200);

/// How far the log has been copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Progress {
    frames: u64,
    copied: u64,
}

impl Progress {
    /// How far it is now, without copying.
    pub(super) fn read(connection: &Connection) -> rusqlite::Result<Progress> {
        Progress::query(connection, "PRAGMA wal_checkpoint(NOOP)")
    }

    /// Copies what can be copied without waiting for anybody.
    pub(super) fn copy(connection: &Connection) -> rusqlite::Result<Progress> {
        Progress::query(connection, "PRAGMA wal_checkpoint(PASSIVE)")
    }

    fn query(connection: &Connection, sql: &str) -> rusqlite::Result<Progress> {
        connection.prepare_cached(sql)?.query_row([], |row| {
            let number = |column| {
                row.get::<_, i64>(column)
                    .map(|number| u64::try_from(number).unwrap_or(0))
            };
            Ok(Progress {
                frames: number(1)?,
                copied: number(2)?,
            })
        })
    }

    pub(super) fn bytes(self) -> u64 {
        self.frames * FRAME_BYTES
    }

    fn rest(self) -> u64 {
        self.frames.saturating_sub(self.copied)
    }

    /// Whether copying should begin.
    pub(super) fn is_long(self) -> bool {
        self.rest() >= COPY_FRAMES
    }

    /// Whether the writer should stop and copy.
    pub(super) fn is_too_long(self) -> bool {
        self.frames >= FORCE_FRAMES
    }
}

/// The writer's part: copies the rest while nobody reads, so that the next write begins the log
/// anew. Says whether it could.
pub(super) fn reset(shared: &Shared, connection: &Connection) -> rusqlite::Result<bool> {
    let _alone = shared.alone();
    let progress = Progress::copy(connection)?;
    if progress.rest() > 0 {
        if progress.bytes() > LOG_BYTES_MAX {
            tracing::warn!(
                bytes = progress.bytes(),
                "a reader of the store file holds its log, which grows until that reader ends"
            );
        }
        return Ok(false);
    }
    if length(&shared.path) > LOG_BYTES_MAX {
        // What a reader outside made it grow to; with nothing left in it, it can be cut.
        cut(connection, Duration::ZERO)?;
    }
    shared.counters.log_resets.fetch_add(1, Ordering::Relaxed);
    shared.counters.log_bytes.store(0, Ordering::Relaxed);
    Ok(true)
}

/// Copies all of the log and leaves not a byte of it behind. Says whether it could: a reader
/// outside holds what it reads, and is waited for no longer than said.
pub(super) fn erase(
    shared: &Shared,
    connection: &Connection,
    stop: Duration,
) -> rusqlite::Result<bool> {
    let _alone = shared.alone();
    if !cut(connection, stop)? {
        return Ok(false);
    }
    // SQLite cuts the file, but does not wait for the disk: after a loss of power the old bytes
    // would be back.
    match std::fs::File::open(with_suffix(&shared.path, "-wal")).and_then(|file| file.sync_all()) {
        Ok(()) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => {
            tracing::warn!(%error, "the log was cut, but the disk does not confirm it");
            return Ok(false);
        }
    }
    shared.counters.log_resets.fetch_add(1, Ordering::Relaxed);
    shared.counters.log_bytes.store(0, Ordering::Relaxed);
    Ok(true)
}

fn cut(connection: &Connection, stop: Duration) -> rusqlite::Result<bool> {
    connection.busy_timeout(stop)?;
    let is_busy = connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| {
        row.get::<_, bool>(0)
    });
    connection.busy_timeout(super::schema::BUSY_TIMEOUT)?;
    is_busy.map(|is_busy| !is_busy)
}

/// The length of the log's file: it keeps what it once had until it is cut.
fn length(path: &Path) -> u64 {
    std::fs::metadata(with_suffix(path, "-wal")).map_or(0, |file| file.len())
}

/// The copying thread.
pub(super) struct Copier {
    wake: Arc<Wake>,
    // Waited for when this is dropped, after it was told to stop.
    _thread: Thread,
}

/// What the copying thread waits for.
#[derive(Default)]
pub(super) struct Wake {
    asked: Mutex<Asked>,
    changed: Condvar,
    /// Whether a reader outside holds the log, so that the writer need not try.
    pub(super) is_held: AtomicBool,
    /// An error of the copying that makes the file suspect. The writer acts on it.
    pub(super) suspect: Mutex<Option<rusqlite::Error>>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Asked {
    #[default]
    Nothing,
    Copy,
    Stop,
}

impl Wake {
    pub(super) fn copy(&self) {
        self.ask(Asked::Copy);
    }

    fn ask(&self, what: Asked) {
        let mut asked = self.asked.lock();
        if *asked == Asked::Nothing || what == Asked::Stop {
            *asked = what;
            self.changed.notify_one();
        }
    }

    /// Waits to be asked, or for a while.
    fn wait(&self, at_most: Duration) -> Asked {
        let mut asked = self.asked.lock();
        self.changed
            .wait_while_for(&mut asked, |asked| *asked == Asked::Nothing, at_most);
        let what = *asked;
        if what == Asked::Copy {
            *asked = Asked::Nothing;
        }
        what
    }

    fn is_stopped(&self) -> bool {
        *self.asked.lock() == Asked::Stop
    }
}

impl Copier {
    pub(super) fn start(
        shared: Arc<Shared>,
        wake: Arc<Wake>,
        writer: SyncSender<Command>,
    ) -> Result<Copier, OpenError> {
        let path = shared.path.clone();
        let heard = wake.clone();
        let work = move || {
            loop {
                let look = if heard.is_held.load(Ordering::Relaxed) {
                    LOOK_HELD
                } else {
                    LOOK
                };
                if heard.wait(look) == Asked::Stop {
                    return;
                }
                if copy(&shared, &heard) {
                    // Refused when the queue is full; then the writer is busy, and will find the
                    // log too long by itself.
                    let _ = writer.try_send(Command::ResetLog);
                }
            }
        };
        Ok(Copier {
            wake,
            _thread: Thread::start("hapax-log", &path, work)?,
        })
    }
}

impl Drop for Copier {
    fn drop(&mut self) {
        self.wake.ask(Asked::Stop);
    }
}

/// Copies until little is left. Says whether it is the writer's turn.
fn copy(shared: &Shared, wake: &Wake) -> bool {
    for _ in 0..PASSES_MAX {
        let gate = shared.enter();
        let Some(connections) = &*gate else {
            return false;
        };
        match copy_once(&connections.checkpointer(), wake, &shared.path) {
            Ok(Next::Again) if !wake.is_stopped() => {}
            Ok(next) => return next == Next::Reset,
            Err(error) => {
                tracing::warn!(%error, "the log could not be copied into the store file");
                if is_suspect(&error) {
                    *wake.suspect.lock() = Some(error);
                    return true;
                }
                return false;
            }
        }
    }
    true
}

#[derive(PartialEq, Eq)]
enum Next {
    Rest,
    Again,
    Reset,
}

fn copy_once(connection: &Connection, wake: &Wake, path: &Path) -> rusqlite::Result<Next> {
    let before = Progress::read(connection)?;
    if before.rest() == 0 {
        return Ok(if length(path) > LOG_BYTES_MAX {
            Next::Reset
        } else {
            Next::Rest
        });
    }
    if Progress::copy(connection)?.rest() > 0 {
        // A reader is in the log. Whether it is one of ours only the writer can find out, by
        // keeping those out for a moment.
        return Ok(if wake.is_held.load(Ordering::Relaxed) {
            Next::Rest
        } else {
            Next::Reset
        });
    }
    wake.is_held.store(false, Ordering::Relaxed);
    let rest = Progress::read(connection)?.rest();
    Ok(if rest <= REST_FRAMES {
        Next::Reset
    } else {
        Next::Again
    })
}
