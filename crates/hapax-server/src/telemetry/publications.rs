//! The span of a publication, in the trace of the request that emitted the message.

use std::sync::Arc;
use std::time::SystemTime;

use hapax_flow::publish::{Envelope, Outage, Publisher, Reply, Verdict};

use super::Traces;

/// A destination whose publications are traced.
pub(crate) struct Traced {
    pub(crate) publisher: Arc<dyn Publisher>,
    pub(crate) traces: Traces,
    pub(crate) reader: String,
}

impl Publisher for Traced {
    fn publish<'a>(&'a self, batch: &'a [Envelope]) -> Reply<'a, Result<Vec<Verdict>, Outage>> {
        Box::pin(async move {
            let began = SystemTime::now();
            let published = self.publisher.publish(batch).await;
            if let Ok(verdicts) = &published {
                for (message, verdict) in batch.iter().zip(verdicts) {
                    self.traces.published(&self.reader, message, verdict, began);
                }
            }
            published
        })
    }

    fn batch_max(&self) -> usize {
        self.publisher.batch_max()
    }
}
