//! Retries of a write that could not be decided, because another transaction was changing its
//! record.

use std::borrow::Borrow;
use std::time::Duration;

use hapax_core::store::StoreError;
use tokio::time::Instant;
use tokio_postgres::Row;

use super::batch::left_out;
use super::error::{Failure, Fault};
use super::row::{self, Verdict};
use crate::backoff::Backoff;

const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(50);

/// The retries of one statement.
pub(super) struct Retries {
    until: Instant,
    pause: Backoff,
    is_alone: bool,
}

impl Retries {
    pub(super) fn new(timeout: Duration) -> Retries {
        Retries {
            until: Instant::now() + timeout,
            // The first retry comes at once: usually the other transaction has just ended.
            pause: Backoff::new(PAUSE_MIN, PAUSE_MAX).immediate(),
            is_alone: false,
        }
    }

    /// For a write that is sent alone from the start.
    pub(super) fn alone(timeout: Duration) -> Retries {
        Retries {
            is_alone: true,
            ..Retries::new(timeout)
        }
    }

    /// Whether it must be sent alone from now on: another part of its batch may have made it fail,
    /// or it may have made them fail.
    pub(super) fn is_alone(&self) -> bool {
        self.is_alone
    }

    /// When the retries end.
    pub(super) fn until(&self) -> Instant {
        self.until
    }

    /// Returns the rows if they decide the write. Returns `None` after a growing pause if it should
    /// be sent again.
    pub(super) async fn judge<R>(
        &mut self,
        sent: Result<Vec<R>, Failure>,
    ) -> Result<Option<Vec<R>>, StoreError> {
        let error = match sent {
            Ok(rows) => return Ok(Some(rows)),
            Err(Failure {
                fault: Fault::Undecided | Fault::Clock,
                error,
            }) => error,
            // Sent alone, so no other part is the cause.
            Err(Failure {
                fault: Fault::Part,
                error,
            }) if self.is_alone => return Err(error),
            Err(Failure {
                fault: Fault::Locked | Fault::Part,
                error,
            }) => {
                self.is_alone = true;
                error
            }
            Err(Failure { error, .. }) => return Err(error),
        };
        if Instant::now() >= self.until {
            return Err(error);
        }
        self.pause.pause().await;
        Ok(None)
    }
}

/// The rows, unless there are none or one of them says that it could not be decided.
pub(super) fn decided<R: Borrow<Row>>(rows: Vec<R>) -> Result<Vec<R>, Failure> {
    if rows.is_empty() {
        return Err(left_out());
    }
    match rows.iter().find_map(|row| undecided(row.borrow())) {
        Some(failure) => Err(failure),
        None => Ok(rows),
    }
}

fn undecided(row: &Row) -> Option<Failure> {
    let error =
        match row::verdict(row).and_then(|verdict| Ok((verdict, row::lacks_its_answer(row)?))) {
            Ok((Verdict::Lost | Verdict::Won, _)) => return None,
            // Usually the answer was just being written. If it stays missing, it is lost.
            Ok((Verdict::Again, true)) => {
                StoreError::corrupt("a record's answer is not where it was written")
            }
            Ok((Verdict::Again, false)) => StoreError::unavailable(
                "the record is being changed by a transaction that has not ended",
            ),
            Err(error) => {
                return Some(Failure {
                    fault: Fault::Server,
                    error,
                });
            }
        };
    Some(Failure {
        fault: Fault::Undecided,
        error,
    })
}
