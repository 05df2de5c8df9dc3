//! The probe: asks an upstream what became of an attempt that was lost.

use std::pin::Pin;

use hapax_core::answer::Answer;

use crate::once::Operation;

/// An upstream's answer about an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Probed {
    /// The operation is done, and this was its answer.
    Done(Answer),
    /// The operation is not done, and from now on the upstream refuses every fence below this
    /// attempt's.
    Barred,
    /// The upstream cannot tell, or its answer cannot be understood.
    Unknown,
}

impl Probed {
    /// Its name in events and logs.
    pub const fn word(&self) -> &'static str {
        match self {
            Probed::Done(_) => "done",
            Probed::Barred => "barred",
            Probed::Unknown => "unknown",
        }
    }
}

/// The future of a [`Probe`].
pub type Probing<'a> = Pin<Box<dyn Future<Output = Probed> + Send + 'a>>;

/// Asks an upstream what became of an operation of a route in
/// [`Mode::Probe`](hapax_core::Mode::Probe), before it is attempted again.
///
/// An upstream that answers [`Barred`](Probed::Barred) promises to refuse every lower
/// [fence](Operation::fence), even of an attempt that is still on its way. An upstream that only
/// looks and finds nothing must answer [`Unknown`](Probed::Unknown). Bound the time: the attempt's
/// lease is running.
pub trait Probe: Send + Sync + 'static {
    /// Asks the upstream, with the fence of the attempt that is about to begin.
    fn probe<'a>(&'a self, operation: &'a Operation) -> Probing<'a>;
}

/// An async function of the operation is a probe.
impl<P, F> Probe for P
where
    P: Fn(Operation) -> F + Send + Sync + 'static,
    F: Future<Output = Probed> + Send + 'static,
{
    fn probe<'a>(&'a self, operation: &'a Operation) -> Probing<'a> {
        Box::pin(self(operation.clone()))
    }
}
