//! What the suite needs of a broker.

use std::time::Duration;

use hapax_flow::consume::Source;
use hapax_flow::publish::Envelope;

/// A broker of its own for one test, with one topic and one group of members.
pub(crate) trait Broker {
    type Source: Source;

    /// The topic.
    fn topic(&self) -> &'static str {
        "orders"
    }

    /// A member of the group. What it received, and neither acknowledged nor kept for `ack_time`,
    /// the broker may deliver to others.
    fn source(&self, ack_time: Duration) -> Self::Source;

    /// Publishes each of these once more, in this order, with the destination of this broker. It
    /// repeats what fails, also while the broker is down.
    async fn publish(&self, messages: &[Envelope]);

    /// Whether members that are there at the same time get different messages. If not, the second
    /// waits until the first is gone, as for one partition.
    fn shares(&self) -> bool {
        true
    }
}

/// A broker that can be down.
pub(crate) trait Mortal: Broker {
    /// Ends it at once. What it has accepted it has again after a restart.
    fn kill(&mut self);

    fn restart(&mut self);
}
