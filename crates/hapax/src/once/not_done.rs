//! The mark on an error by which work says that its attempt had no effect.

use std::error::Error;
use std::fmt;

use hapax_core::operation::OperationId;
use hapax_core::record::Fence;

use super::BoxError;
use super::operation::Operation;

/// An error of an attempt that had no effect: a repeat may run the work again.
///
/// The mark speaks for one attempt of one operation. A function that does not have the operation
/// cannot make the mark, and a mark of another operation does not count: an error that says "not
/// done" of a smaller step must not release the whole operation.
///
/// The work may wrap the marked error, as anyhow's `context` does: Hapax looks for the mark among
/// the sources of the error. The original error is one of the sources too. So do not return a
/// marked error, or one that was caused by it, after you went on and did something else. Where you
/// asked the operation for another key ([`Operation::derive`]) or joined a transaction since, the
/// mark no longer counts.
///
/// For [jobs](super::Once) only. A handler says it with `Hapax-Outcome: none`, with
/// [`Class::Release`](hapax_core::Class), or a tower service with
/// [`NeverDispatched`](crate::NeverDispatched).
#[derive(Debug)]
pub struct NotDone(Mark);

/// The mark itself. It is the source of [`NotDone`], because an anyhow error that becomes a boxed
/// error hides the type of its outermost error, and not those of the sources.
#[derive(Debug)]
struct Mark {
    operation: OperationId,
    fence: Fence,
    /// How many steps the attempt had begun when the mark was made.
    steps: u32,
    error: BoxError,
}

impl NotDone {
    /// Marks an error of this attempt.
    pub fn new(operation: &Operation, error: impl Into<BoxError>) -> NotDone {
        NotDone(Mark {
            operation: operation.id().clone(),
            fence: operation.fence(),
            steps: operation.steps(),
            error: error.into(),
        })
    }

    /// The original error.
    pub fn into_inner(self) -> BoxError {
        self.0.error
    }
}

impl fmt::Display for NotDone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not done")
    }
}

impl Error for NotDone {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.0)
    }
}

impl Mark {
    /// Whether the mark is of this attempt, and nothing was begun since it was made: work that
    /// went on to a second step, and returns the error of the first, may have acted.
    fn speaks_for(&self, operation: &Operation) -> bool {
        self.operation == *operation.id()
            && self.fence == operation.fence()
            && self.steps == operation.steps()
    }
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the attempt had no effect")
    }
}

impl Error for Mark {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.error)
    }
}

/// Marks the error of a result as one of an attempt that had no effect.
pub trait NotDoneExt<T> {
    /// Marks the error, if the result is one: the attempt had no effect, and a repeat may run the
    /// work again. For a service that was not reached, or that refused before it acted.
    ///
    /// Call this only if nothing of the whole operation has happened. If one step was done and the
    /// next one failed, the attempt had an effect.
    fn not_done(self, operation: &Operation) -> Result<T, NotDone>;
}

impl<T, E: Into<BoxError>> NotDoneExt<T> for Result<T, E> {
    fn not_done(self, operation: &Operation) -> Result<T, NotDone> {
        self.map_err(|error| NotDone::new(operation, error))
    }
}

/// Whether an error, or one of its sources, says that this attempt had no effect.
pub(super) fn is_not_done(error: &(dyn Error + 'static), operation: &Operation) -> bool {
    std::iter::successors(Some(error), |&error| error.source())
        .filter_map(|error| error.downcast_ref::<Mark>())
        .any(|mark| mark.speaks_for(operation))
}

/// The work's own error. Removes the mark if it is the outermost error.
pub(super) fn remove_mark(error: BoxError) -> BoxError {
    match error.downcast::<NotDone>() {
        Ok(marked) => marked.into_inner(),
        Err(error) => error,
    }
}
