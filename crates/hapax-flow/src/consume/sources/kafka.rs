//! Messages from topics of Kafka.
//!
//! ```no_run
//! # fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use hapax_flow::consume::{KafkaServers, KafkaSource, KafkaSourceOptions};
//!
//! let servers = KafkaServers::new(["localhost:9092"]);
//! let source = KafkaSource::new(KafkaSourceOptions::new(servers, "inventory", ["orders"]))?;
//! # Ok(())
//! # }
//! ```

use std::time::Duration;

use bytes::Bytes;
use hapax_core::flow::Outage;

use crate::consume::source::{Delivery, Incoming, Retention, Source};
use crate::kafka::{
    Asked, Fetched, KafkaError, KafkaServers, Reader, ReaderOptions, Tag, check_topics,
};

/// How [`KafkaSource`] consumes.
#[derive(Clone, Debug)]
pub struct KafkaSourceOptions {
    /// Where the servers are, and who the consumer is there.
    pub servers: KafkaServers,
    /// The group. Each message goes to one of its members.
    pub group: String,
    /// The topics. A new group begins with the oldest message that is there.
    pub topics: Vec<String>,
    /// The header with the id of a message that is no CloudEvent. It must be the producer's.
    pub id_header: Option<String>,
    /// How long an answer of Kafka may take.
    pub timeout: Duration,
    /// A member that is silent for this long has died, and others get its messages. The
    /// servers have limits for it: from 6 s to 30 min, if nobody changed them.
    pub session: Duration,
    /// How long others wait for messages that this member works on, before they get them too: when
    /// a member comes, or this one becomes too slow.
    pub patience: Duration,
}

impl KafkaSourceOptions {
    /// The defaults, with these servers, this group and these topics.
    pub fn new(
        servers: KafkaServers,
        group: impl Into<String>,
        topics: impl IntoIterator<Item = impl Into<String>>,
    ) -> KafkaSourceOptions {
        KafkaSourceOptions {
            servers,
            group: group.into(),
            topics: topics.into_iter().map(Into::into).collect(),
            id_header: None,
            timeout: Duration::from_secs(5),
            session: Duration::from_secs(10),
            patience: Duration::from_mins(1),
        }
    }
}

/// Consumes topics of Kafka as a member of a group, under `read_committed`.
///
/// The group stands before the first message that is not acknowledged. So after a crash messages
/// may come again that were, and a message that is tried again for long holds the position back.
///
/// Versions, keys and ids are those of CloudEvents in binary mode (`ce_id`). A message that is none
/// has the key that it has at Kafka, and its id in the header of
/// [`id_header`](KafkaSourceOptions::id_header), if that is given.
pub struct KafkaSource {
    options: KafkaSourceOptions,
    reader: Option<Reader>,
    asked: Option<Asked>,
}

/// Identifies a delivery of Kafka.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KafkaTag(Tag);

impl KafkaSource {
    /// A source that is not connected yet.
    ///
    /// # Errors
    ///
    /// [`KafkaError`]: what is wrong with the options.
    pub fn new(options: KafkaSourceOptions) -> Result<KafkaSource, KafkaError> {
        options.servers.check()?;
        if options.group.is_empty() {
            return Err(KafkaError::Name(options.group));
        }
        check_topics(&options.topics)?;
        Ok(KafkaSource {
            options,
            reader: None,
            asked: None,
        })
    }

    fn reader(&mut self) -> &Reader {
        let options = &self.options;
        self.reader.get_or_insert_with(|| {
            Reader::start(ReaderOptions {
                servers: options.servers.clone(),
                group: options.group.clone(),
                topics: options.topics.clone(),
                timeout: options.timeout,
                session: options.session,
                patience: options.patience,
            })
        })
    }

    async fn asked(&mut self) -> Result<Asked, Outage> {
        match self.asked.take() {
            Some(asked) => Ok(asked),
            None => Asked::connect(&self.options.servers, self.options.timeout)
                .await
                .map_err(Outage::new),
        }
    }
}

impl std::fmt::Debug for KafkaSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KafkaSource")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl Source for KafkaSource {
    type Tag = KafkaTag;

    async fn receive(&mut self, max: usize) -> Result<Vec<Delivery<KafkaTag>>, Outage> {
        let received = self.reader().receive(max).await.map_err(Outage::new)?;
        let id_header = self.options.id_header.as_deref();
        let deliveries = received.into_iter().map(|(tag, record)| Delivery {
            message: incoming(record, id_header),
            tag: KafkaTag(tag),
        });
        Ok(deliveries.collect())
    }

    async fn acknowledge(&mut self, tags: &[KafkaTag]) -> Result<(), Outage> {
        let tags: Vec<Tag> = tags.iter().map(|tag| tag.0.clone()).collect();
        let acknowledged = self.reader().acknowledge(&tags).await;
        acknowledged.map_err(Outage::new)
    }

    async fn give_back(&mut self, tags: &[KafkaTag]) -> Result<(), Outage> {
        let tags: Vec<Tag> = tags.iter().map(|tag| tag.0.clone()).collect();
        self.reader().give_back(&tags);
        Ok(())
    }

    /// The member keeps in touch with the group by itself.
    async fn keep(&mut self, _tags: &[KafkaTag]) -> Result<(), Outage> {
        Ok(())
    }

    fn keep_every(&self) -> Option<Duration> {
        None
    }

    async fn retention(&mut self) -> Result<Retention, Outage> {
        let asked = self.asked().await?;
        let kept = asked.retention(&self.options.topics).await;
        let kept = kept.map_err(Outage::new)?;
        self.asked = Some(asked);
        Ok(kept.map_or(Retention::Forever, Retention::Limited))
    }

    async fn lag(&mut self) -> Result<Option<u64>, Outage> {
        let asked = self.asked().await?;
        let lag = asked.lag(&self.options.group, &self.options.topics).await;
        let lag = lag.map_err(Outage::new)?;
        self.asked = Some(asked);
        Ok(Some(lag))
    }
}

pub(in crate::consume) fn incoming(record: Fetched, id_header: Option<&str>) -> Incoming {
    let text = |bytes: Bytes| String::from_utf8_lossy(&bytes).into_owned();
    let headers = record.headers.iter().map(|(name, value)| {
        let value = value.clone().map_or_else(String::new, text);
        (header_name(name), value)
    });
    let payload = record.value.unwrap_or_default();
    let mut incoming = Incoming::from_cloud_event(&*record.topic, headers.collect(), payload);
    if incoming.key.is_none() {
        incoming.key = record.key.map(text);
    }
    if let (None, Some(name)) = (&incoming.id, id_header) {
        let id = incoming.header(&name.to_ascii_lowercase());
        incoming.id = id.filter(|id| !id.is_empty()).map(str::to_owned);
    }
    incoming
}

/// The binding of CloudEvents for Kafka calls an attribute `ce_NAME`.
fn header_name(name: &str) -> String {
    let name = name.to_ascii_lowercase();
    match name.strip_prefix("ce_") {
        Some(attribute) => format!("ce-{attribute}"),
        None => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(headers: &[(&str, &str)]) -> Fetched {
        let key = Bytes::from_static(b"order-1");
        let mut record = Fetched::new("orders", 0, 0, Some(key), None);
        let headers = headers.iter().map(|(name, value)| {
            let value = Bytes::copy_from_slice(value.as_bytes());
            ((*name).to_owned(), Some(value))
        });
        record.headers = headers.collect();
        record
    }

    #[test]
    fn attributes_are_called_as_everywhere() {
        let headers = [("ce_id", "7"), ("ce_subject", "1"), ("X-Shop", "ü")];
        let incoming = incoming(record(&headers), Some("x-shop"));
        assert_eq!(incoming.id.as_deref(), Some("7"));
        assert_eq!(incoming.key.as_deref(), Some("1"));
        assert_eq!(incoming.header("x-shop"), Some("ü"));
    }

    #[test]
    fn what_is_no_cloud_event_has_its_id_in_a_header() {
        let headers = [("Message-Id", "7")];
        assert_eq!(incoming(record(&headers), None).id, None);
        let incoming = incoming(record(&headers), Some("Message-Id"));
        assert_eq!(incoming.id.as_deref(), Some("7"));
        assert_eq!(incoming.key.as_deref(), Some("order-1"));
    }
}
