//! Kafka.
//!
//! ```no_run
//! # fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use hapax_flow::publish::{Kafka, KafkaOptions, KafkaServers};
//!
//! let mut options = KafkaOptions::new(KafkaServers::new(["localhost:9092"]), "shop-relay");
//! options.topic = "shop.{topic}".into();
//! let kafka = Kafka::new(options)?;
//! # Ok(())
//! # }
//! ```

use std::collections::HashSet;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::cloud_events::CloudEvents;
use super::template::Template;
use super::{Envelope, Outage, Publisher, Reply, Verdict};
use crate::kafka::{
    Entry, Fault, KafkaError, KafkaServers, Trouble, Writer, WriterOptions, check_name,
};

/// What names of attributes of CloudEvents begin with in the headers of Kafka.
const PREFIX: &str = "ce_";

/// How [`Kafka`] publishes.
#[derive(Clone, Debug)]
pub struct KafkaOptions {
    /// Where the servers are, and who the relay is there.
    pub servers: KafkaServers,
    /// The transactional id, and the topic of the relay's own in which it notes what it has
    /// published. Relays that publish the same messages have the same; no others have it.
    pub name: String,
    /// The topic of a message at Kafka, with `{topic}` where its topic stands: `{topic}` alone by
    /// default, `shop.{topic}` for a prefix.
    pub topic: String,
    /// How messages look.
    pub events: CloudEvents,
    /// How long a call may take to open a connection, and how long to publish.
    pub timeout: Duration,
}

impl KafkaOptions {
    /// The defaults, with these servers and this name.
    pub fn new(servers: KafkaServers, name: impl Into<String>) -> KafkaOptions {
        KafkaOptions {
            servers,
            name: name.into(),
            topic: "{topic}".to_owned(),
            events: CloudEvents::default(),
            timeout: Duration::from_secs(5),
        }
    }
}

/// Publishes to topics of Kafka: each batch in one transaction, in which it also notes what it has
/// published. So a consumer that reads under `read_committed` gets each message once, also when a
/// relay is killed or its connection breaks in the middle of a commit.
///
/// The key of a message is its key at Kafka, so that messages of one key are in one partition and
/// stay in their order.
pub struct Kafka {
    options: KafkaOptions,
    template: Template,
    writer: Mutex<Option<Writer>>,
}

impl Kafka {
    /// A publisher that is not connected yet.
    ///
    /// # Errors
    ///
    /// [`KafkaError`]: what is wrong with the options.
    pub fn new(options: KafkaOptions) -> Result<Kafka, KafkaError> {
        options.servers.check()?;
        check_name(&options.name).map_err(|_| KafkaError::Name(options.name.clone()))?;
        let wrong = |reason| KafkaError::Topic(options.topic.clone(), reason);
        let template = Template::parse(&options.topic).map_err(wrong)?;
        check_name(&template.name("topic")).map_err(wrong)?;
        Ok(Kafka {
            template,
            writer: Mutex::new(None),
            options,
        })
    }

    async fn open(&self) -> Result<Writer, Outage> {
        let limit = self.options.timeout;
        let options = WriterOptions {
            servers: self.options.servers.clone(),
            name: self.options.name.clone(),
            timeout: limit,
        };
        timeout(limit, Writer::open(&options))
            .await
            .unwrap_or_else(|_| Err(format!("Kafka was not ready within {limit:?}")))
            .map_err(Outage::new)
    }

    async fn publish_batch(&self, batch: &[Envelope]) -> Result<Vec<Verdict>, Outage> {
        if batch.is_empty() {
            return Ok(Vec::new());
        }
        let mut place = self.writer.lock().await;
        // What becomes of a transaction under way when this call fails or is dropped, only another
        // writer knows: so this one is put back only when the call has come to its end.
        let mut writer = match place.take() {
            Some(writer) => writer,
            None => self.open().await?,
        };
        let mut sending = Sending::new(self, batch);
        let limit = self.options.timeout;
        match timeout(limit, sending.run(&mut writer)).await {
            Ok(Ok(())) => {}
            Ok(Err(reason)) => return Err(Outage::new(reason)),
            Err(_) => return Err(Outage::new(format!("no answer of Kafka within {limit:?}"))),
        }
        *place = Some(writer);
        drop(place);
        sending.verdicts()
    }

    fn entry(&self, message: &Envelope) -> Result<Entry, String> {
        let topic = self.template.name(&message.topic);
        check_name(&topic)
            .map_err(|reason| format!("{topic:?} is no name of a topic of Kafka: {reason}"))?;
        if topic == self.options.name || topic.starts_with("__") {
            return Err(format!(
                "{topic:?} is a topic of the relay's or of Kafka's own"
            ));
        }
        Ok(entry_of(&self.options.events, message, topic))
    }
}

/// What is written to a topic of a message.
pub(crate) fn entry_of(events: &CloudEvents, message: &Envelope, topic: String) -> Entry {
    let (headers, payload) = events.wrap_plainly(message, PREFIX);
    Entry {
        id: message.id,
        topic,
        key: message.key.clone().map(Bytes::from),
        headers: headers
            .into_iter()
            .map(|(name, value)| (name.into_owned(), Some(value.into_owned().into())))
            .collect(),
        payload: Some(payload),
    }
}

impl std::fmt::Debug for Kafka {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kafka")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl Publisher for Kafka {
    fn publish<'a>(&'a self, batch: &'a [Envelope]) -> Reply<'a, Result<Vec<Verdict>, Outage>> {
        Box::pin(self.publish_batch(batch))
    }
}

/// One call.
struct Sending<'a> {
    batch: &'a [Envelope],
    /// What is written to Kafka for each message; nothing for one that cannot be.
    entries: Vec<Option<Entry>>,
    verdicts: Vec<Option<Verdict>>,
}

impl<'a> Sending<'a> {
    fn new(kafka: &Kafka, batch: &'a [Envelope]) -> Sending<'a> {
        let mut sending = Sending {
            batch,
            entries: Vec::with_capacity(batch.len()),
            verdicts: vec![None; batch.len()],
        };
        for (place, message) in batch.iter().enumerate() {
            let entry = kafka.entry(message);
            if let Err(reason) = &entry {
                sending.verdicts[place] = Some(Verdict::Refused(reason.clone()));
            }
            sending.entries.push(entry.ok());
        }
        sending
    }

    /// Writes what can be written. A transaction that fails because of some messages is tried again
    /// without them.
    async fn run(&mut self, writer: &mut Writer) -> Result<(), String> {
        let mut one_by_one = false;
        loop {
            self.decide(writer);
            let places: Vec<usize> = (0..self.batch.len())
                .filter(|place| self.verdicts[*place].is_none())
                .collect();
            let entries: Vec<&Entry> = places
                .iter()
                .filter_map(|place| self.entries[*place].as_ref())
                .collect();
            if entries.is_empty() {
                return Ok(());
            }
            let faults = match writer.write(&entries, one_by_one).await {
                Ok(()) => {
                    for place in places {
                        self.verdicts[place] = Some(Verdict::ACCEPTED);
                    }
                    return Ok(());
                }
                Err(Trouble::Lost(reason)) => return Err(reason),
                Err(Trouble::Entries(faults)) => faults,
            };
            // Of several that were sent together, perhaps only one is too large.
            let too_large = |fault: &Fault| matches!(fault, Fault::TooLarge(_));
            let are_alone = one_by_one || faults.len() == 1;
            one_by_one |= faults.iter().filter(|(_, fault)| too_large(fault)).count() > 1;
            for (place, fault) in faults {
                self.verdicts[places[place]] = match fault {
                    Fault::TooLarge(_) if !are_alone => None,
                    Fault::TooLarge(reason) | Fault::Refused(reason) => {
                        Some(Verdict::Refused(reason))
                    }
                    Fault::Failed(reason) => Some(Verdict::Failed(reason)),
                };
            }
        }
    }

    /// Says of messages what is known without sending: that they are there already, or that one
    /// before them in their order is not.
    fn decide(&mut self, writer: &Writer) {
        let mut stopped: HashSet<(&str, &str)> = HashSet::new();
        for (place, message) in self.batch.iter().enumerate() {
            let verdict = &mut self.verdicts[place];
            let key = message.ordered_key();
            if verdict.is_none() && key.is_some_and(|key| stopped.contains(&key)) {
                *verdict = Some(Verdict::NotSent);
            }
            if verdict.is_none() && writer.knows(&message.id) {
                *verdict = Some(Verdict::Accepted { duplicate: true });
            }
            if verdict
                .as_ref()
                .is_some_and(|verdict| !verdict.is_accepted())
            {
                stopped.extend(key);
            }
        }
    }

    fn verdicts(self) -> Result<Vec<Verdict>, Outage> {
        let verdicts: Vec<Verdict> = self
            .verdicts
            .into_iter()
            .map(|verdict| verdict.unwrap_or(Verdict::NotSent))
            .collect();
        // A topic that is not there concerns its messages alone, as long as others arrive.
        let failed = verdicts.iter().find_map(|verdict| match verdict {
            Verdict::Failed(reason) => Some(reason),
            _ => None,
        });
        match failed {
            Some(reason) if !verdicts.iter().any(Verdict::is_accepted) => Err(Outage::new(reason)),
            _ => Ok(verdicts),
        }
    }
}
