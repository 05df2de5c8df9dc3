//! Where messages are consumed from.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use hapax_core::flow::{MessageId, Outage};
use hapax_core::time::Timestamp;

/// A message as a source delivers it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Incoming {
    /// The producer's id: the same in every delivery of the message, and in no other message.
    /// `None` if the message does not say. Never a number that the broker gave.
    pub id: Option<String>,
    /// The producer's time: the same in every delivery. `None` if the message does not say.
    pub at: Option<Timestamp>,
    /// The topic, subject, queue or stream that it was read from.
    pub topic: String,
    /// What it is about.
    pub key: Option<String>,
    /// The version of the entity that it is about, if the producer counts them.
    pub version: Option<i64>,
    /// Names in lower case. The attributes of CloudEvents are called `ce-NAME`, whatever the
    /// broker's binding calls them.
    pub headers: Vec<(String, String)>,
    /// Its content.
    pub payload: Bytes,
    /// How often the broker has delivered it, this time included, if the broker counts.
    pub deliveries: Option<u32>,
}

impl Incoming {
    /// A message of CloudEvents in binary mode: id, time, key and version are read from its
    /// headers, whose names are in lower case and begin with `ce-`. A message that is none has no
    /// id and no time.
    pub fn from_cloud_event(
        topic: impl Into<String>,
        headers: Vec<(String, String)>,
        payload: Bytes,
    ) -> Incoming {
        let find = |name: &str| {
            let found = headers.iter().find(|(given, _)| given == name);
            found.map(|(_, value)| value.clone())
        };
        Incoming {
            id: find("ce-id").filter(|id| !id.is_empty()),
            at: find("ce-time").as_deref().and_then(time),
            topic: topic.into(),
            key: find("ce-partitionkey").or_else(|| find("ce-subject")),
            version: find("ce-entityversion").and_then(|version| version.parse().ok()),
            headers,
            payload,
            deliveries: None,
        }
    }

    /// The header of this name.
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(given, _)| given == name);
        found.map(|(_, value)| value.as_str())
    }

    /// Its id, if a relay of Hapax published it.
    pub fn message_id(&self) -> Option<MessageId> {
        self.id.as_deref()?.parse().ok()
    }
}

/// A time as CloudEvents writes it: RFC 3339.
fn time(text: &str) -> Option<Timestamp> {
    let format = &time::format_description::well_known::Rfc3339;
    let time = time::OffsetDateTime::parse(text, format).ok()?;
    let micros = time.unix_timestamp_nanos() / 1000;
    u64::try_from(micros).ok().map(Timestamp::from_micros)
}

/// One delivery of a message.
#[derive(Clone, Debug)]
pub struct Delivery<T> {
    /// The message.
    pub message: Incoming,
    /// What the source acknowledges this delivery by.
    pub tag: T,
}

/// For how long a broker keeps messages that it may still deliver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retention {
    /// At most this long after they were published.
    Limited(Duration),
    /// With no end.
    Forever,
    /// The broker does not say.
    Unknown,
}

/// Delivers messages of a broker, each at least once, until it is acknowledged.
///
/// A source must pass the suite in `tests/sources/`.
///
/// It connects by itself, and again after it lost its connection. What it had delivered until then
/// and what was not acknowledged, it delivers again; acknowledging an earlier delivery does nothing
/// then.
///
/// All methods may be dropped at any time. No message is lost by that.
pub trait Source: Send + 'static {
    /// Identifies a delivery.
    type Tag: Clone + fmt::Debug + Send + Sync + 'static;

    /// Waits for messages and returns at least one, and at most `max`. Deliveries of one key are in
    /// the order of the broker. More are delivered while earlier ones are not acknowledged yet.
    ///
    /// # Errors
    ///
    /// [`Outage`] if the broker cannot be reached or used now. The next call tries again; the
    /// caller pauses before.
    fn receive(
        &mut self,
        max: usize,
    ) -> impl Future<Output = Result<Vec<Delivery<Self::Tag>>, Outage>> + Send;

    /// Tells the broker that these deliveries are done with, in any order. A broker that knows only
    /// a position is told the one before the first that is still open.
    ///
    /// # Errors
    ///
    /// [`Outage`]: the broker may deliver these messages again.
    fn acknowledge(
        &mut self,
        tags: &[Self::Tag],
    ) -> impl Future<Output = Result<(), Outage>> + Send;

    /// Has these deliveries delivered again, soon, to this member or another one.
    ///
    /// # Errors
    ///
    /// [`Outage`]: the broker will deliver them again later.
    fn give_back(&mut self, tags: &[Self::Tag]) -> impl Future<Output = Result<(), Outage>> + Send;

    /// Keeps the broker from delivering these again while they are still worked on.
    ///
    /// # Errors
    ///
    /// [`Outage`]: the broker may deliver these messages again.
    fn keep(&mut self, tags: &[Self::Tag]) -> impl Future<Output = Result<(), Outage>> + Send;

    /// How often [`keep`](Source::keep) is needed. `None` if it never is.
    fn keep_every(&self) -> Option<Duration>;

    /// How old a message may be when it is delivered for the first time.
    ///
    /// # Errors
    ///
    /// [`Outage`] if the broker cannot be asked now.
    fn retention(&mut self) -> impl Future<Output = Result<Retention, Outage>> + Send;

    /// How many messages wait to be delivered, if the broker can tell.
    ///
    /// # Errors
    ///
    /// [`Outage`] if the broker cannot be asked now.
    fn lag(&mut self) -> impl Future<Output = Result<Option<u64>, Outage>> + Send {
        async { Ok(None) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(name: &str, value: &str) -> (String, String) {
        (name.to_owned(), value.to_owned())
    }

    #[test]
    fn a_cloud_event_says_what_it_is() {
        let headers = vec![
            header("ce-id", "7"),
            header("ce-time", "1970-01-01T00:00:01.5Z"),
            header("ce-subject", "order-1"),
            header("ce-entityversion", "3"),
        ];
        let incoming = Incoming::from_cloud_event("orders", headers, Bytes::new());
        assert_eq!(incoming.id.as_deref(), Some("7"));
        assert_eq!(incoming.at, Some(Timestamp::from_micros(1_500_000)));
        assert_eq!(incoming.key.as_deref(), Some("order-1"));
        assert_eq!(incoming.version, Some(3));
    }

    #[test]
    fn what_is_no_cloud_event_has_no_id() {
        let incoming = Incoming::from_cloud_event("orders", Vec::new(), Bytes::new());
        assert_eq!((incoming.id, incoming.at), (None, None));
    }
}
