//! Erasures: whoever has a record forgotten is told when not a byte of its answer is left.
//!
//! The commit has broken the answer's seal (`seal.rs`), but the log still has the page as it was.
//! So the log is copied and cut to nothing before anybody is told. A reader outside may hold it; it
//! is waited for, but not for ever. Others go on writing meanwhile, but for short stops: as long as
//! the log grows, readers that come one after the other would never all be out of it.

use std::time::{Duration, Instant};

use hapax_core::store::{StoreError, StoreErrorKind, Written};
use rusqlite::Connection;

use super::log;
use super::shared::Shared;
use super::writer::Answer;

/// How often to look whether a reader outside has ended: while somebody waits, and afterwards.
const LOOK: Duration = Duration::from_millis(20);
const LOOK_LATER: Duration = Duration::from_millis(500);
/// How long the writer stops to let readers get out of the log: longer with every try, up to what a
/// request can bear.
const STOP_STEP: Duration = Duration::from_millis(25);
const STOP_MAX: Duration = Duration::from_millis(250);

/// What has been forgotten and is not erased yet.
pub(super) struct Erasures {
    /// How long such a reader is waited for before whoever asked is told that bytes may be left.
    timeout: Duration,
    waiting: Vec<Waiting>,
    /// Whether somebody was told that bytes may be left: it is made good as soon as can be.
    is_late: bool,
    /// Tries since the log could last be cut.
    tries: u32,
}

/// A forgetting that is durable, to be answered once it is complete.
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

    /// When to look again, if there is anything to look after.
    pub(super) fn wait_max(&self) -> Option<Duration> {
        if self.waiting.is_empty() {
            self.is_late.then_some(LOOK_LATER)
        } else {
            Some(LOOK)
        }
    }

    /// Erases what is owed, if that can be done now, and tells whoever has waited for it or waited
    /// too long.
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

/// An answer that a file of format 2 brought along has no seal to be broken.
pub(super) fn unsealed() -> StoreError {
    let text = "an older version of Hapax kept the answer without a seal; its bytes are written over when the store needs the room";
    StoreError::new(StoreErrorKind::Unerased, text)
}

fn unerased() -> StoreError {
    let text = "another program reads the store file, and holds the log in which the bytes still are; they go when it ends";
    StoreError::new(StoreErrorKind::Unerased, text)
}
