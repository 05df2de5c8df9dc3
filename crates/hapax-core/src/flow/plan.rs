//! What the relay does after a batch was published.

use std::collections::HashSet;

use super::Envelope;

/// What a destination said of one message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It has the message. `duplicate`: it had it already.
    Accepted {
        /// Whether the destination recognised a repeat.
        duplicate: bool,
    },
    /// It refuses this message, and would refuse it again.
    Refused(String),
    /// It does not have the message.
    Failed(String),
    /// It may have the message or not: no answer came.
    Unclear(String),
    /// The message was not sent, because an earlier one of its key was not accepted.
    NotSent,
}

impl Verdict {
    /// The destination took the message for the first time, as far as it says.
    pub const ACCEPTED: Verdict = Verdict::Accepted { duplicate: false };

    /// Whether the destination has the message.
    pub fn is_accepted(&self) -> bool {
        matches!(self, Verdict::Accepted { .. })
    }

    /// Why it was not accepted.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Verdict::Refused(reason) | Verdict::Failed(reason) | Verdict::Unclear(reason) => {
                Some(reason)
            }
            Verdict::Accepted { .. } | Verdict::NotSent => None,
        }
    }
}

/// The destination as a whole cannot be used now. Nothing is said of the messages of the batch: any
/// of them may have arrived.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Outage {
    /// What is wrong.
    pub reason: String,
    /// The destination says that it wants no more messages: the reader stops until an operator
    /// starts it again.
    pub permanent: bool,
}

impl Outage {
    /// An outage for this reason.
    pub fn new(reason: impl Into<String>) -> Outage {
        Outage {
            reason: reason.into(),
            permanent: false,
        }
    }

    /// The end of the destination, for this reason.
    pub fn for_good(reason: impl Into<String>) -> Outage {
        Outage {
            reason: reason.into(),
            permanent: true,
        }
    }
}

/// What becomes of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Plan {
    /// Go on behind the batch. The messages at these places of it are set aside: each with the
    /// reason why it failed, or `None` if it only waits for an earlier one of its key.
    GoOn {
        /// Places in the batch, in order.
        aside: Vec<(usize, Option<Verdict>)>,
    },
    /// Try the whole batch again later: the destination takes nothing at all.
    Repeat(Outage),
}

impl Plan {
    /// Decides by the verdicts, one for each message of the batch.
    ///
    /// If a batch of several keys gets nothing but failures, the destination is down: to set every
    /// message aside would only move the backlog to another table.
    ///
    /// # Panics
    ///
    /// If there is not one verdict for each message.
    pub fn after(batch: &[Envelope], verdicts: &[Verdict]) -> Plan {
        assert_eq!(batch.len(), verdicts.len(), "each message has a verdict");
        if let Some(outage) = outage(batch, verdicts) {
            return Plan::Repeat(outage);
        }
        let mut stopped: HashSet<(&str, &str)> = HashSet::new();
        let mut aside = Vec::new();
        for (place, (message, verdict)) in batch.iter().zip(verdicts).enumerate() {
            let key = message.ordered_key();
            if key.is_some_and(|key| stopped.contains(&key)) {
                // Accepted or not: it must follow the earlier one, so it is sent again after it.
                aside.push((place, None));
            } else if !verdict.is_accepted() {
                stopped.extend(key);
                aside.push((place, Some(verdict.clone())));
            }
        }
        Plan::GoOn { aside }
    }
}

fn outage(batch: &[Envelope], verdicts: &[Verdict]) -> Option<Outage> {
    let is_down =
        |verdict: &Verdict| !matches!(verdict, Verdict::Accepted { .. } | Verdict::Refused(_));
    if !verdicts.iter().all(is_down) {
        return None;
    }
    // A message without a place in an order counts by itself.
    let ordered: HashSet<_> = batch.iter().filter_map(Envelope::ordered_key).collect();
    let alone = batch
        .iter()
        .filter(|message| message.ordered_key().is_none());
    let keys = ordered.len() + alone.count();
    let reason = verdicts.iter().find_map(Verdict::reason)?;
    (keys > 1).then(|| Outage::new(reason))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow::MessageId;
    use crate::time::Timestamp;
    use bytes::Bytes;

    fn message(key: Option<&str>) -> Envelope {
        Envelope {
            sequence: 0,
            id: MessageId::from_bytes([0; 16]),
            at: Timestamp::ZERO,
            topic: "orders".into(),
            key: key.map(Into::into),
            ordered: true,
            version: None,
            headers: Vec::new(),
            payload: Bytes::new(),
        }
    }

    fn failed() -> Verdict {
        Verdict::Failed("no".into())
    }

    #[test]
    fn a_failing_message_stops_the_later_ones_of_its_key_only() {
        let batch = [Some("a"), Some("b"), Some("a"), None].map(message);
        let verdicts = [
            failed(),
            Verdict::ACCEPTED,
            Verdict::NotSent,
            Verdict::ACCEPTED,
        ];
        let aside = vec![(0, Some(failed())), (2, None)];
        assert_eq!(Plan::after(&batch, &verdicts), Plan::GoOn { aside });
    }

    #[test]
    fn a_later_message_that_was_sent_all_the_same_is_sent_again() {
        let batch = [Some("a"), Some("a"), Some("b")].map(message);
        let verdicts = [failed(), Verdict::ACCEPTED, Verdict::ACCEPTED];
        let aside = vec![(0, Some(failed())), (1, None)];
        assert_eq!(Plan::after(&batch, &verdicts), Plan::GoOn { aside });
    }

    #[test]
    fn failures_of_several_keys_and_nothing_else_are_an_outage() {
        let batch = [Some("a"), Some("b")].map(message);
        let outage = Plan::Repeat(Outage::new("no"));
        assert_eq!(Plan::after(&batch, &[failed(), failed()]), outage);
    }

    #[test]
    fn one_key_that_fails_alone_is_set_aside() {
        let batch = [Some("a"), Some("a")].map(message);
        let aside = vec![(0, Some(failed())), (1, None)];
        let plan = Plan::after(&batch, &[failed(), Verdict::NotSent]);
        assert_eq!(plan, Plan::GoOn { aside });
    }

    #[test]
    fn refusals_are_no_outage() {
        let batch = [Some("a"), Some("b")].map(message);
        let refused = Verdict::Refused("400".into());
        let plan = Plan::after(&batch, &[refused.clone(), refused.clone()]);
        let aside = vec![(0, Some(refused.clone())), (1, Some(refused))];
        assert_eq!(plan, Plan::GoOn { aside });
    }

    #[test]
    fn messages_without_an_order_stop_nobody() {
        let mut batch = [Some("a"), Some("a"), Some("b")].map(message);
        batch[0].ordered = false;
        let plan = Plan::after(&batch, &[failed(), Verdict::ACCEPTED, Verdict::ACCEPTED]);
        let aside = vec![(0, Some(failed()))];
        assert_eq!(plan, Plan::GoOn { aside });
    }
}
