//! How a consumer treats messages.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use hapax::inbox::{Gaps, Parked, Window};
use hapax_core::flow::{GiveUp, ReceiptId, RetryPolicy};
use hapax_core::planted::{self, Bug};

use super::received::Received;
use super::{Incoming, Retention};

/// What a consumer promises.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Guarantee {
    /// The effect of a message is applied once, however often the message is delivered: a receipt
    /// commits with it.
    #[default]
    Once,
    /// Every message is applied, and one that is delivered again is applied again. For effects that
    /// are the same when repeated; no receipts are written.
    AtLeastOnce,
    /// A message is acknowledged before it is handled: one that fails, or whose consumer ends, is
    /// lost. For what is worth less than a repeat, such as samples.
    AtMostOnce,
}

/// What versions are good for at this consumer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Versions {
    /// Nothing: messages are applied whatever their version is.
    #[default]
    Ignored,
    /// A message is skipped if a later version of its entity was applied.
    SkipStale,
    /// The same, and a message whose version is not the next one is parked until that has come.
    ParkGaps,
}

/// The rules of one consumer.
#[derive(Clone, Debug)]
pub(super) struct Rules {
    pub(super) name: Arc<str>,
    pub(super) guarantee: Guarantee,
    pub(super) window: Window,
    pub(super) versions: Versions,
    /// The most messages in one transaction.
    pub(super) batch_max: usize,
    /// The longest that handling a batch may take.
    pub(super) batch_time_max: Duration,
    pub(super) retry: RetryPolicy,
    /// What the user says of the age of first deliveries, in place of what the broker says.
    pub(super) retention: Option<Retention>,
    /// How long the producer's relay may be out.
    pub(super) relay_outage: Duration,
    pub(super) id: fn(&Incoming) -> Option<String>,
}

impl Rules {
    pub(super) fn new(name: &str) -> Rules {
        Rules {
            name: name.into(),
            guarantee: Guarantee::default(),
            window: Window::default(),
            versions: Versions::default(),
            batch_max: 100,
            batch_time_max: Duration::from_mins(5),
            retry: RetryPolicy {
                pause_min: Duration::from_millis(100),
                pause_max: Duration::from_secs(30),
                attempts_max: 5,
                give_up: GiveUp::Dead,
            },
            retention: None,
            relay_outage: Duration::from_hours(24),
            id: |message| message.id.clone(),
        }
    }

    pub(super) fn receive(&self, incoming: Incoming) -> Received {
        // A panic says that there is none: else one message would end every consumer.
        let id = catch_unwind(AssertUnwindSafe(|| (self.id)(&incoming)));
        let id = id.unwrap_or_default();
        Received::new(&self.name, id, incoming)
    }

    /// The entity and version of a message, as far as they count here.
    pub(super) fn entity(&self, message: &Received) -> Option<(String, i64)> {
        match self.versions {
            Versions::Ignored => None,
            Versions::SkipStale | Versions::ParkGaps => message.entity(),
        }
    }

    /// The receipt of a message, if this consumer writes receipts.
    pub(super) fn receipt(&self, message: Option<&Received>) -> Option<ReceiptId> {
        let message = message.filter(|_| self.guarantee == Guarantee::Once)?;
        Some(ReceiptId::of(&self.name, message.id()))
    }

    pub(super) fn gaps(&self) -> Gaps {
        match self.versions {
            Versions::Ignored | Versions::SkipStale => Gaps::Apply,
            Versions::ParkGaps => Gaps::Park,
        }
    }

    /// The message that was parked.
    pub(super) fn of_parked(&self, parked: Parked) -> Received {
        let incoming = Incoming {
            id: Some(parked.id.clone()),
            at: parked.at,
            topic: parked.topic.unwrap_or_default(),
            key: parked.key,
            version: parked.version,
            headers: parked.headers,
            payload: parked.payload,
            deliveries: None,
        };
        Received::new(&self.name, Some(parked.id), incoming)
    }

    /// Says what is wrong with the window, given how old a first delivery may be.
    ///
    /// A message may wait for its relay before the broker keeps it, so its age at the first delivery
    /// is more than the broker's retention.
    pub(super) fn check_window(&self, retention: Retention) -> Result<(), WindowError> {
        if self.guarantee != Guarantee::Once || planted::is(Bug::FlowWindowIsNotChecked) {
            return Ok(());
        }
        let (window, oldest) = match (self.window, self.retention.unwrap_or(retention)) {
            (Window::Forever, _) => return Ok(()),
            (Window::Limited(_), Retention::Unknown) => return Err(WindowError::Unknown),
            (Window::Limited(window), Retention::Forever) => (window, None),
            (Window::Limited(window), Retention::Limited(kept)) => {
                (window, Some(kept.saturating_add(self.relay_outage)))
            }
        };
        match oldest {
            Some(oldest) if window > oldest => Ok(()),
            oldest => Err(WindowError::Short { window, oldest }),
        }
    }
}

/// Why a window may be too short.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WindowError {
    /// The broker does not say how long it keeps messages.
    #[error(
        "the broker does not say how long it keeps messages: if that is longer than the window, old ones are parked. Say what is so with `first_deliveries_within`"
    )]
    Unknown,
    /// First deliveries may be older than the window.
    #[error(
        "receipts are kept for {window:?}, and a message may be {} when it comes for the first time: it would be parked. Make the window longer or `forever`, or say with `first_deliveries_within` how old messages are at most",
        old(*oldest)
    )]
    Short {
        /// How long receipts are kept.
        window: Duration,
        /// How old a first delivery may be. `None`: the broker keeps messages for ever.
        oldest: Option<Duration>,
    },
}

fn old(oldest: Option<Duration>) -> String {
    oldest.map_or_else(
        || "as old as the broker's topic".to_owned(),
        |oldest| format!("{oldest:?} old"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_hours(24);

    fn rules(window: Window) -> Rules {
        Rules {
            window,
            ..Rules::new("test")
        }
    }

    #[test]
    fn the_window_is_longer_than_what_the_broker_and_the_relay_may_keep() {
        let rules = rules(Window::Limited(8 * DAY));
        let check = |days| rules.check_window(Retention::Limited(days * DAY));
        assert_eq!(check(6), Ok(()));
        // With a day for the relay this is eight days.
        let short = WindowError::Short {
            window: 8 * DAY,
            oldest: Some(8 * DAY),
        };
        assert_eq!(check(7), Err(short));
        assert!(rules.check_window(Retention::Forever).is_err());
        assert_eq!(
            rules.check_window(Retention::Unknown),
            Err(WindowError::Unknown)
        );
    }

    #[test]
    fn no_retention_is_too_long_for_a_window_without_end() {
        let rules = rules(Window::Forever);
        assert_eq!(rules.check_window(Retention::Forever), Ok(()));
    }

    #[test]
    fn what_the_user_says_of_first_deliveries_counts() {
        let mut rules = rules(Window::Limited(8 * DAY));
        rules.retention = Some(Retention::Limited(DAY));
        assert_eq!(rules.check_window(Retention::Forever), Ok(()));
    }
}
