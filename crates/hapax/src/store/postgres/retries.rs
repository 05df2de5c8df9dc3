//! Retries: how long a write is sent again that could not be decided, because somebody else was at
//! its record.

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

/// How often a statement was sent in vain, and until when that goes on.
pub(super) struct Retries {
    until: Instant,
    pause: Backoff,
    is_alone: bool,
}

impl Retries {
    pub(super) fn new(timeout: Duration) -> Retries {
        Retries {
            until: Instant::now() + timeout,
            // At once the first time: mostly the other one was just done.
            pause: Backoff::new(PAUSE_MIN, PAUSE_MAX).immediate(),
            is_alone: false,
        }
    }

    /// For what is sent by itself anyway.
    pub(super) fn alone(timeout: Duration) -> Retries {
        Retries {
            is_alone: true,
            ..Retries::new(timeout)
        }
    }

    /// Whether it has to be sent by itself from now on: what it was sent with may be what stood in
    /// its way, or the other way round.
    pub(super) fn is_alone(&self) -> bool {
        self.is_alone
    }

    /// Until when there is any.
    pub(super) fn until(&self) -> Instant {
        self.until
    }

    /// The rows, if they decide the matter. `None` if it is to be sent again, after a pause that
    /// grows.
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
            // Nobody else's part is to blame any more.
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

/// The rows, unless one of them says that it could not be decided, or there is none to say
/// anything.
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
            // Mostly it was just being written. If it stays so, it is gone.
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
