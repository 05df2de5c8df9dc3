//! Erasures: `forget` is answered only when no byte of the answer is left.
//!
//! The commit has erased the answer's seal (`seal.rs`), but the log still contains the old page. So
//! the log is copied and truncated before the caller is answered. A reader outside may hold the
//! log; the writer waits for it, up to a timeout. Other writes continue meanwhile, except for short
//! stops: while the log grows, overlapping readers would never all be out of it.

use std::time::{Duration, Instant};

use hapax_core::store::{StoreError, StoreErrorKind, Written};
use rusqlite::Connection;

use super::log;
use super::shared::Shared;
use super::writer::Answer;

/// How often to check whether a reader outside has ended: while callers wait, and afterwards.
const LOOK: Duration = Duration::from_millis(20);
const LOOK_LATER: Duration = Duration::from_millis(500);
/// How long the writer stops to let readers leave the log: longer with every try, up to what a
/// request can tolerate.
const STOP_STEP: Duration = Duration::from_millis(25);
const STOP_MAX: Duration = Duration::from_millis(250);

/// Forgotten answers that are not erased yet.
pub(super) struct Erasures {
    /// How long to wait for a reader outside before the caller is told that bytes may be left.
    timeout: Duration,
    waiting: Vec<Waiting>,
    /// Whether a caller was told that bytes may be left: the erasure is completed as soon as
    /// possible.
    is_late: bool,
    /// Tries since the log was last truncated.
    tries: u32,
}

/// A durable `forget`, to be answered when the erasure is complete.
pub(super) struct Forgotten {
    pub(super) reply: Answer<Written>,
    pub(super) written: Written,
}

struct Waiting {
    forgotten: Forgotten,
    until: Instant,
}

impl Erasures {
    pub(super) fn new(timeout: Duration) -> Erasures {
        Erasures {
            timeout,
            waiting: Vec::new(),
            is_late: false,
            tries: 0,
        }
    }

    pub(super) fn owe(&mut self, forgotten: Forgotten) {
        self.waiting.push(Waiting {
            forgotten,
            until: Instant::now() + self.timeout,
        });
    }

    /// When to check again; `None` if nothing is left to erase.
    pub(super) fn wait_max(&self) -> Option<Duration> {
        if self.waiting.is_empty() {
            self.is_late.then_some(LOOK_LATER)
        } else {
            Some(LOOK)
        }
    }

    /// Completes the pending erasures if that is possible now, and answers the callers whose
    /// erasure is complete or whose time is over.
    pub(super) fn work(
        &mut self,
        shared: &Shared,
        connection: Option<&Connection>,
    ) -> rusqlite::Result<()> {
        if self.wait_max().is_none() {
            return Ok(());
        }
        let stop = (STOP_STEP * self.tries).min(if self.waiting.is_empty() {
            STOP_STEP
        } else {
            STOP_MAX
        });
        self.tries += 1;
        let erased =
            connection.map_or(Ok(false), |connection| log::erase(shared, connection, stop));
        if matches!(erased, Ok(true)) {
            self.tries = 0;
            if std::mem::take(&mut self.is_late) {
                tracing::info!("what was forgotten is erased from the disk now");
            }
            for Waiting { forgotten, .. } in self.waiting.drain(..) {
                let _ = forgotten.reply.send(Ok(forgotten.written));
            }
            return Ok(());
        }
        let now = Instant::now();
        for late in self.waiting.extract_if(.., |waiting| waiting.until <= now) {
            self.is_late = true;
            tracing::error!(
                "a forgotten answer may still be on the disk: another program reads the store file and holds its log"
            );
            let _ = late.forgotten.reply.send(Err(unerased()));
        }
        erased.map(drop)
    }
}

/// The error for an answer from a file of format 2, which has no seal to erase.
pub(super) fn unsealed() -> StoreError {
    let text = "an older version of Hapax kept the answer without a seal; its bytes are written over when the store needs the room";
    StoreError::new(StoreErrorKind::Unerased, text)
}

fn unerased() -> StoreError {
    let text = "another program reads the store file, and holds the log in which the bytes still are; they go when it ends";
    StoreError::new(StoreErrorKind::Unerased, text)
}
