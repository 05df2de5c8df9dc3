//! The write-ahead log: a separate thread copies it into the file, and it is reset before it grows
//! long.
//!
//! If the writer copied the log, every hundredth caller would wait. If only another thread did, it
//! would never catch up under load, and the log would grow for ever. So this thread copies
//! repeatedly until little is left. Then the writer copies the rest between two commits, which
//! takes about as long as a commit, and the log starts again from its beginning. A reader in the
//! log would prevent that, so the store's own readers are kept out for this moment. A reader
//! outside cannot be kept out: the log grows until that reader ends, and is then truncated.

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
/// The longest log, unless a reader outside holds it.
pub(super) const LOG_BYTES_MAX: u64 = 64 << 20;
/// The length at which copying begins: early, because the log grows meanwhile.
const COPY_FRAMES: u64 = (16 << 20) / FRAME_BYTES;
/// The length that the writer may copy between two commits.
const REST_FRAMES: u64 = 256;
/// The length at which the writer copies, however much is left.
const FORCE_FRAMES: u64 = (40 << 20) / FRAME_BYTES;
/// Passes of the copying thread before the writer is asked to help anyway.
const PASSES_MAX: usize = 6;
/// How often an idle thread checks for something left to copy.
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
    /// The current progress, without copying.
    pub(super) fn read(connection: &Connection) -> rusqlite::Result<Progress> {
        Progress::query(connection, "PRAGMA wal_checkpoint(NOOP)")
    }

    /// Copies as much as possible without waiting.
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

/// The writer's part: copies the rest while no reader is active, so that the next write starts the
/// log again. Returns whether it succeeded.
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
        // A reader outside made the file grow. It contains nothing more to copy, so it can be
        // truncated.
        cut(connection, Duration::ZERO)?;
    }
    shared.counters.log_resets.fetch_add(1, Ordering::Relaxed);
    shared.counters.log_bytes.store(0, Ordering::Relaxed);
    Ok(true)
}

/// Copies the whole log and leaves no byte of it. Returns whether it succeeded: a reader outside
/// may hold the log, and is waited for up to `stop`.
pub(super) fn erase(
    shared: &Shared,
    connection: &Connection,
    stop: Duration,
) -> rusqlite::Result<bool> {
    let _alone = shared.alone();
    if !cut(connection, stop)? {
        return Ok(false);
    }
    // SQLite truncates the file without a sync: after a power loss the old bytes could be back.
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

/// The length of the log file, which does not shrink until it is truncated.
fn length(path: &Path) -> u64 {
    std::fs::metadata(with_suffix(path, "-wal")).map_or(0, |file| file.len())
}

/// The copying thread.
pub(super) struct Copier {
    wake: Arc<Wake>,
    // Joined when this is dropped, after the thread was told to stop.
    _thread: Thread,
}

/// The state by which other threads wake the copying thread.
#[derive(Default)]
pub(super) struct Wake {
    asked: Mutex<Asked>,
    changed: Condvar,
    /// Whether a reader outside holds the log, so that the writer need not try.
    pub(super) is_held: AtomicBool,
    /// An error during copying after which the file cannot be trusted. The writer handles it.
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

    /// Waits for a request, up to `at_most`.
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
                    // Refused if the queue is full. Then the writer is busy, and notices by itself
                    // that the log is too long.
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

/// Copies until little is left. Returns whether the writer should continue.
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
        // A reader is in the log. Only the writer can find out whether it is one of ours, by
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
