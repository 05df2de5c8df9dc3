//! Receipts: the identity of a received message, and what becomes of it at its consumer.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use crate::digest::Parts;
use crate::time::Timestamp;

/// The shortest window of a consumer.
pub const WINDOW_MIN: Duration = Duration::from_secs(60 * 60);
/// The longest window that ends.
pub const WINDOW_MAX: Duration = Duration::from_secs(39 * 24 * 60 * 60);
/// The window of a consumer that never set one.
pub const WINDOW_DEFAULT: Duration = Duration::from_secs(14 * 24 * 60 * 60);
/// How far a message's time may be ahead of the clock.
pub const AHEAD_MAX: Duration = Duration::from_secs(5 * 60);
/// Bytes of a message's id, and of a consumer's name.
pub const RECEIVED_ID_BYTES_MAX: usize = 1024;

/// Identifies a message at a consumer: 128 bits of a digest of both names.
///
/// `hapax.receipt_id` in `0008_inbox.sql` computes the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReceiptId([u8; 16]);

impl ReceiptId {
    /// The receipt of a message at a consumer.
    pub fn of(consumer: &str, id: &str) -> ReceiptId {
        let mut parts = Parts::new("hapax receipt 1");
        parts.push(consumer.as_bytes());
        parts.push(id.as_bytes());
        ReceiptId(first_half(parts))
    }

    /// Its bytes.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

/// Identifies an entity at a consumer that compares its versions: 128 bits of a digest of both
/// names.
///
/// `hapax.entity_id` in `0008_inbox.sql` computes the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntityId([u8; 16]);

impl EntityId {
    /// The entity of this name at a consumer.
    pub fn of(consumer: &str, entity: &str) -> EntityId {
        let mut parts = Parts::new("hapax entity 1");
        parts.push(consumer.as_bytes());
        parts.push(entity.as_bytes());
        EntityId(first_half(parts))
    }

    /// An entity from its bytes.
    pub const fn from_bytes(bytes: [u8; 16]) -> EntityId {
        EntityId(bytes)
    }

    /// Its bytes.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

fn first_half(parts: Parts) -> [u8; 16] {
    let digest = parts.finish();
    std::array::from_fn(|place| digest[place])
}

/// What becomes of a received message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Receipt {
    /// It is new, and its receipt is written: apply it and commit.
    New,
    /// It was applied already: acknowledge it.
    Duplicate,
    /// It is older than the consumer's receipts, so nobody can tell whether it was applied: park it.
    TooOld,
    /// Its time is more than five minutes ahead of the clock: park it.
    Ahead,
    /// A later version of its entity was applied. Its receipt is written: acknowledge it.
    Stale,
    /// An earlier version of its entity was not applied yet: park it.
    Gap,
}

impl Receipt {
    /// The letter by which the database names it.
    pub const fn letter(self) -> u8 {
        match self {
            Receipt::New => b'n',
            Receipt::Duplicate => b'd',
            Receipt::TooOld => b'o',
            Receipt::Ahead => b'f',
            Receipt::Stale => b's',
            Receipt::Gap => b'g',
        }
    }

    /// The receipt that the database names by this letter.
    pub const fn from_letter(letter: u8) -> Option<Receipt> {
        match letter {
            b'n' => Some(Receipt::New),
            b'd' => Some(Receipt::Duplicate),
            b'o' => Some(Receipt::TooOld),
            b'f' => Some(Receipt::Ahead),
            b's' => Some(Receipt::Stale),
            b'g' => Some(Receipt::Gap),
            _ => None,
        }
    }

    /// Whether its receipt was written.
    pub const fn is_written(self) -> bool {
        matches!(self, Receipt::New | Receipt::Stale)
    }
}

/// What becomes of a message whose version is not the next one of its entity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Gaps {
    /// It is applied.
    #[default]
    Apply,
    /// It is parked until the versions before it are applied. The first version that is ever seen
    /// of an entity is applied, whatever it is.
    Park,
}

/// How long a consumer keeps receipts, by the time that the producer gave a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Window {
    /// From [`WINDOW_MIN`] to [`WINDOW_MAX`].
    Limited(Duration),
    /// For ever: for topics that keep everything.
    Forever,
}

impl Default for Window {
    fn default() -> Self {
        Window::Limited(WINDOW_DEFAULT)
    }
}

impl Window {
    /// Whether it is allowed.
    pub fn is_valid(self) -> bool {
        match self {
            Window::Limited(duration) => (WINDOW_MIN..=WINDOW_MAX).contains(&duration),
            Window::Forever => true,
        }
    }
}

/// The times of messages that a consumer accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// Earlier messages are too old.
    pub since: Timestamp,
    /// Later ones are ahead of the clock.
    pub until: Timestamp,
}

impl Accepted {
    /// The times that are accepted at this moment. Nothing before `since` is, because its receipts
    /// may be gone.
    pub fn at(now: Timestamp, window: Window, since: Timestamp) -> Accepted {
        let begin = match window {
            Window::Limited(duration) => {
                Timestamp::ZERO.after(now.since(Timestamp::ZERO).saturating_sub(duration))
            }
            Window::Forever => Timestamp::ZERO,
        };
        Accepted {
            since: since.max(begin),
            until: now.after(AHEAD_MAX),
        }
    }

    fn judge(&self, at: Timestamp) -> Receipt {
        if at < self.since {
            Receipt::TooOld
        } else if at > self.until {
            Receipt::Ahead
        } else {
            Receipt::New
        }
    }
}

/// A message of a batch, as it is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Its identity.
    pub id: ReceiptId,
    /// Its time, or the present if it has none.
    pub at: Timestamp,
    /// Its entity and the version of that.
    pub entity: Option<(EntityId, i64)>,
}

/// What becomes of each message of a batch, in their order. `known` are the receipts that are there
/// already. `last` has the versions that were applied last, and is moved on.
///
/// `hapax.receive_here` in `0008_inbox.sql` decides the same for Postgres.
pub fn judge(
    batch: &[Candidate],
    known: &HashSet<ReceiptId>,
    accepted: &Accepted,
    last: &mut HashMap<EntityId, i64>,
    gaps: Gaps,
) -> Vec<Receipt> {
    let mut first: HashMap<ReceiptId, Receipt> = HashMap::new();
    let mut judged = Vec::with_capacity(batch.len());
    for message in batch {
        let receipt = match first.get(&message.id) {
            Some(repeated) if repeated.is_written() => Receipt::Duplicate,
            Some(repeated) => *repeated,
            None if known.contains(&message.id) => Receipt::Duplicate,
            None => match accepted.judge(message.at) {
                Receipt::New => judge_version(message.entity, last, gaps),
                refused => refused,
            },
        };
        first.entry(message.id).or_insert(receipt);
        judged.push(receipt);
    }
    judged
}

fn judge_version(
    entity: Option<(EntityId, i64)>,
    last: &mut HashMap<EntityId, i64>,
    gaps: Gaps,
) -> Receipt {
    let Some((entity, version)) = entity else {
        return Receipt::New;
    };
    match last.get(&entity) {
        Some(last) if version <= *last => return Receipt::Stale,
        Some(last) if gaps == Gaps::Park && version > last.saturating_add(1) => {
            return Receipt::Gap;
        }
        _ => {}
    }
    last.insert(entity, version);
    Receipt::New
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(id: &str, at: u64, entity: Option<(&str, i64)>) -> Candidate {
        Candidate {
            id: ReceiptId::of("c", id),
            at: Timestamp::from_micros(at),
            entity: entity.map(|(name, version)| (EntityId::of("c", name), version)),
        }
    }

    fn letters(batch: &[Candidate], known: &[&str], gaps: Gaps, last: &[(&str, i64)]) -> String {
        let accepted = Accepted {
            since: Timestamp::from_micros(100),
            until: Timestamp::from_micros(200),
        };
        let known = known.iter().map(|id| ReceiptId::of("c", id)).collect();
        let mut last = last
            .iter()
            .map(|(name, version)| (EntityId::of("c", name), *version))
            .collect();
        let judged = judge(batch, &known, &accepted, &mut last, gaps);
        judged
            .iter()
            .map(|receipt| char::from(receipt.letter()))
            .collect()
    }

    #[test]
    fn ids_are_pinned() {
        // A change here would make every redelivered message a new one.
        let hex = |bytes: &[u8; 16]| crate::digest::hex(bytes);
        assert_eq!(
            hex(ReceiptId::of("inventory", "m-1").as_bytes()),
            "6c2bcde75e764b1b3ff99d3b6e984c19"
        );
        assert_eq!(
            hex(EntityId::of("inventory", "order-17").as_bytes()),
            "1d2a65c40a3ff7234136da208cb718b1"
        );
        // The boundary between the two names counts.
        assert_ne!(ReceiptId::of("ab", "c"), ReceiptId::of("a", "bc"));
    }

    #[test]
    fn a_batch_is_judged_by_receipt_then_time() {
        let batch = [
            candidate("a", 150, None),
            candidate("a", 150, None),
            candidate("known", 150, None),
            candidate("old", 99, None),
            candidate("old", 99, None),
            candidate("ahead", 201, None),
            candidate("known and old", 1, None),
        ];
        let known = ["known", "known and old"];
        assert_eq!(letters(&batch, &known, Gaps::Apply, &[]), "nddoofd");
    }

    #[test]
    fn versions_are_judged_in_the_order_of_the_batch() {
        let batch = [
            candidate("a", 150, Some(("e", 5))),
            candidate("b", 150, Some(("e", 7))),
            candidate("c", 150, Some(("e", 6))),
            candidate("b", 150, Some(("e", 7))),
            candidate("d", 150, Some(("f", 9))),
        ];
        assert_eq!(letters(&batch, &[], Gaps::Apply, &[("e", 4)]), "nnsdn");
        assert_eq!(letters(&batch, &[], Gaps::Park, &[("e", 4)]), "ngngn");
        assert_eq!(
            letters(&batch, &[], Gaps::Park, &[("e", 7), ("f", 7)]),
            "sssdg"
        );
    }

    #[test]
    fn nothing_before_since_is_accepted() {
        let now = Timestamp::ZERO.after(100 * WINDOW_MAX);
        let accepted = Accepted::at(now, Window::default(), Timestamp::ZERO);
        assert_eq!(now.since(accepted.since), WINDOW_DEFAULT);
        assert_eq!(accepted.until.since(now), AHEAD_MAX);
        let accepted = Accepted::at(now, Window::default(), now);
        assert_eq!(accepted.since, now);
        let accepted = Accepted::at(now, Window::Forever, Timestamp::ZERO);
        assert_eq!(accepted.since, Timestamp::ZERO);
    }

    #[test]
    fn letters_go_both_ways() {
        for receipt in [
            Receipt::New,
            Receipt::Duplicate,
            Receipt::TooOld,
            Receipt::Ahead,
            Receipt::Stale,
            Receipt::Gap,
        ] {
            assert_eq!(Receipt::from_letter(receipt.letter()), Some(receipt));
        }
        assert_eq!(Receipt::from_letter(b'x'), None);
    }
}
