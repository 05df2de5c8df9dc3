//! The probe: asks an upstream what became of an attempt that was lost.

use std::pin::Pin;

use hapax_core::answer::Answer;

use crate::once::Operation;

/// What an upstream says of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Probed {
    /// It is done, and this was its answer.
    Done(Answer),
    /// It is not done, and everything with a fence below this attempt's is refused from now on.
    Barred,
    /// It cannot tell. Also what an upstream says that cannot be understood.
    Unknown,
}

impl Probed {
    /// The word for it.
    pub const fn word(&self) -> &'static str {
        match self {
            Probed::Done(_) => "done",
            Probed::Barred => "barred",
            Probed::Unknown => "unknown",
        }
    }
}

/// What a [`Probe`] finds out.
pub type Probing<'a> = Pin<Box<dyn Future<Output = Probed> + Send + 'a>>;

/// Asks an upstream what became of an operation of a route in
/// [`Mode::Probe`](hapax_core::Mode::Probe), before it is attempted again.
///
/// An upstream that answers [`Barred`](Probed::Barred) promises to refuse every lower
/// [fence](Operation::fence), also of an attempt that is still on its way; one that only looks and
/// finds nothing must answer [`Unknown`](Probed::Unknown). Be bounded in time: the attempt's lease
/// is running.
pub trait Probe: Send + Sync + 'static {
    /// Asks, with the fence of the attempt that is about to begin.
    fn probe<'a>(&'a self, operation: &'a Operation) -> Probing<'a>;
}

/// An asynchronous function of the operation.
impl<P, F> Probe for P
where
    P: Fn(Operation) -> F + Send + Sync + 'static,
    F: Future<Output = Probed> + Send + 'static,
{
    fn probe<'a>(&'a self, operation: &'a Operation) -> Probing<'a> {
        Box::pin(self(operation.clone()))
    }
}
