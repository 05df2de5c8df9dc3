//! Writes batches, each in a transaction, and knows afterwards which of them are written.
//!
//! In the same transaction as the messages, their ids are written to a topic of the writer's own:
//! the journal. So both are there, or neither. Whoever opens a writer of the same name first fences
//! the one before and has its last transaction ended, one way or the other; then it reads the end of
//! the journal, and knows what need not be written again.
//!
//! The journal has one partition and this name. It is never read by others, and Kafka empties it
//! from the front.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use hapax_core::flow::MessageId;
use krafka::admin::{
    AdminClient, CreateTopicsOptions, DescribeTopicsOptions, ListOffsetsOptions, NewTopic,
    OffsetSpec,
};
use krafka::consumer::{AutoOffsetReset, IsolationLevel, TopicPartition};
use krafka::error::ErrorCode;
use krafka::producer::TransactionalProducer;
use krafka::{CloseOptions, Kafka, KrafkaError, Record};
use tokio::time::sleep;

use super::{KafkaServers, said};

/// So far back the journal is read. A relay marks its position after 5,000 messages or 250 ms, and
/// each transaction takes two places here, so that this is at least ten times as much as can be
/// published again after a crash.
const READ_BACK: i64 = 4096;
/// The most ids that are remembered. A relay may repeat 6,000.
const KNOWN_MAX: usize = 100_000;
/// The size of the journal from which on Kafka empties it.
const JOURNAL_BYTES: &str = "67108864";
const JOURNAL_SEGMENT_BYTES: &str = "16777216";
/// Larger than the largest message with its headers.
const REQUEST_BYTES_MAX: usize = 64 << 20;
/// The pause before a server that is not ready is asked again.
const PAUSE: Duration = Duration::from_millis(50);
/// Messages of one partition are sent together up to this size; a larger one is sent alone.
const TOGETHER_BYTES_MAX: usize = 16 << 10;

pub(crate) struct WriterOptions {
    pub(crate) servers: KafkaServers,
    /// The transactional id, and the name of the journal.
    pub(crate) name: String,
    /// How long a call may take.
    pub(crate) timeout: Duration,
}

/// A message to write.
pub(crate) struct Entry {
    pub(crate) id: MessageId,
    pub(crate) topic: String,
    pub(crate) key: Option<String>,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) payload: Bytes,
}

/// Why nothing of a batch is written.
pub(crate) enum Trouble {
    /// Because of these messages, by their places. The writer can be used again.
    Entries(Vec<(usize, Fault)>),
    /// Perhaps all of it is written, and the writer is of no use any more. Another one will know.
    Lost(String),
}

/// What is wrong with a message.
#[derive(Debug)]
pub(crate) enum Fault {
    /// It, or one that was sent together with it, is larger than the topic allows.
    TooLarge(String),
    /// It can never be written.
    Refused(String),
    /// It cannot be written now.
    Failed(String),
}

/// Writes as long as there is no other writer of its name.
pub(crate) struct Writer {
    producer: Arc<TransactionalProducer>,
    journal: String,
    /// Topics that are there.
    topics: HashSet<String>,
    known: Known,
}

impl Writer {
    /// Fences the writer before, and learns what it has written.
    ///
    /// # Errors
    ///
    /// Why that is not possible now.
    pub(crate) async fn open(options: &WriterOptions) -> Result<Writer, String> {
        let limit = options.timeout;
        let kafka = options.servers.connect(limit).await?;
        // The order is load-bearing: the journal is whole when nobody else can write to it.
        let producer = kafka
            .producer()
            .linger(Duration::ZERO)
            .max_block(limit / 2)
            .delivery_timeout(limit)
            .max_request_size(REQUEST_BYTES_MAX)
            .batch_size(TOGETHER_BYTES_MAX)
            // One that died must not keep readers waiting for long.
            .transaction_timeout((4 * limit).max(Duration::from_secs(10)))
            .metrics_push(false)
            .build_transactional(&options.name)
            .await
            .map_err(|error| format!("no transactions at Kafka: {error}"))?;
        let mut writer = Writer {
            producer: Arc::new(producer),
            journal: options.name.clone(),
            topics: HashSet::new(),
            known: Known::default(),
        };
        let read = read_journal(&kafka, &writer.journal, &mut writer.known).await;
        let journal = &options.name;
        read.map_err(|error| {
            format!("the topic {journal} of Kafka, which is the relay's: {error}")
        })?;
        Ok(writer)
    }

    /// Whether a message was written, here or by a writer before.
    pub(crate) fn knows(&self, id: &MessageId) -> bool {
        self.known.ids.contains(id)
    }

    /// Writes messages, in their order, and returns when all of them are committed.
    ///
    /// A broker refuses what was sent in one go if one of them is too large. `one_by_one` tells
    /// which one it is.
    ///
    /// # Errors
    ///
    /// [`Trouble`]: none of them is written, or it is not known.
    pub(crate) async fn write(
        &mut self,
        entries: &[&Entry],
        one_by_one: bool,
    ) -> Result<(), Trouble> {
        let producer = self.producer.clone();
        let missing = self.missing(&producer, entries).await?;
        if !missing.is_empty() {
            return Err(Trouble::Entries(missing));
        }
        producer.begin().map_err(|error| lost(&error))?;
        let faults = match one_by_one {
            true => self.send_one_by_one(&producer, entries).await?,
            false => self.send_all(&producer, entries).await?,
        };
        if !faults.is_empty() {
            producer.abort().await.map_err(|error| lost(&error))?;
            return Err(Trouble::Entries(faults));
        }
        producer.commit().await.map_err(|error| lost(&error))?;
        for entry in entries {
            self.known.add(entry.id);
        }
        Ok(())
    }

    /// The messages whose topics are not there. Asks only for topics that are new here, since each
    /// that is missing takes its time.
    async fn missing(
        &mut self,
        producer: &TransactionalProducer,
        entries: &[&Entry],
    ) -> Result<Vec<(usize, Fault)>, Trouble> {
        let topics: HashSet<&str> = entries.iter().map(|entry| entry.topic.as_str()).collect();
        let new = topics
            .into_iter()
            .filter(|topic| !self.topics.contains(*topic));
        let asked =
            join_all(new.map(|topic| async move { (topic, producer.partitions_for(topic).await) }));
        let mut faults = Vec::new();
        for (topic, found) in asked.await {
            let Err(error) = found else {
                self.topics.insert(topic.to_owned());
                continue;
            };
            let Some(Fault::Failed(reason)) = fault(&error, topic, 0) else {
                return Err(lost(&error));
            };
            let places = (0..entries.len()).filter(|place| entries[*place].topic == topic);
            faults.extend(places.map(|place| (place, Fault::Failed(reason.clone()))));
        }
        Ok(faults)
    }

    async fn send_all(
        &self,
        producer: &TransactionalProducer,
        entries: &[&Entry],
    ) -> Result<Vec<(usize, Fault)>, Trouble> {
        let mut faults = Vec::new();
        let mut sent = Vec::with_capacity(entries.len());
        for (place, entry) in entries.iter().enumerate() {
            match producer.enqueue(record(entry)).await {
                Ok(delivery) => sent.push(async move { (place, delivery.await) }),
                Err(error) => {
                    // If it is not at fault, one before it is.
                    faults.extend(fault_of(&error, entry).map(|fault| (place, fault)));
                    break;
                }
            }
        }
        let journaled = match sent.len() == entries.len() {
            true => producer.enqueue(self.journal_line(entries)).await.ok(),
            false => None,
        };
        for (place, ended) in join_all(sent).await {
            if let Err(error) = ended {
                match fault_of(&error, entries[place]) {
                    Some(fault) => faults.push((place, fault)),
                    None if is_cut_short(&error) => {}
                    None => return Err(lost(&error)),
                }
            }
        }
        match journaled {
            _ if !faults.is_empty() => Ok(faults),
            Some(delivery) => match delivery.await {
                Ok(_) => Ok(faults),
                Err(error) => Err(lost(&error)),
            },
            None => Err(Trouble::Lost(
                "a transaction of Kafka was cut short".to_owned(),
            )),
        }
    }

    async fn send_one_by_one(
        &self,
        producer: &TransactionalProducer,
        entries: &[&Entry],
    ) -> Result<Vec<(usize, Fault)>, Trouble> {
        for (place, entry) in entries.iter().enumerate() {
            if let Err(error) = producer.send(record(entry)).await {
                let fault = fault_of(&error, entry).ok_or_else(|| lost(&error))?;
                return Ok(vec![(place, fault)]);
            }
        }
        match producer.send(self.journal_line(entries)).await {
            Ok(_) => Ok(Vec::new()),
            Err(error) => Err(lost(&error)),
        }
    }

    fn journal_line(&self, entries: &[&Entry]) -> Record {
        let ids: Vec<u8> = entries
            .iter()
            .flat_map(|entry| *entry.id.as_bytes())
            .collect();
        Record::new(&*self.journal, ids)
    }
}

impl Drop for Writer {
    /// Lets the connections go, and an open transaction end early. If that does not succeed, the
    /// next writer of the name ends it, or Kafka after a while.
    fn drop(&mut self) {
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let producer = self.producer.clone();
            runtime.spawn(async move {
                let options = CloseOptions::new().timeout(Duration::from_secs(2));
                drop(producer.close_with(options).await);
            });
        }
    }
}

/// The ids of the last messages.
#[derive(Default)]
struct Known {
    ids: HashSet<MessageId>,
    order: VecDeque<MessageId>,
}

impl Known {
    fn add(&mut self, id: MessageId) {
        if self.ids.insert(id) {
            self.order.push_back(id);
        }
        while self.order.len() > KNOWN_MAX {
            if let Some(oldest) = self.order.pop_front() {
                self.ids.remove(&oldest);
            }
        }
    }

    fn add_line(&mut self, line: &[u8]) {
        for id in line.chunks_exact(16) {
            if let Ok(id) = id.try_into() {
                self.add(MessageId::from_bytes(id));
            }
        }
    }
}

/// Reads the end of the journal. Makes the journal if there is none.
async fn read_journal(kafka: &Kafka, journal: &str, known: &mut Known) -> Result<(), KrafkaError> {
    let admin = kafka.admin();
    make_journal(&admin, journal).await?;
    let end = loop {
        match end(&admin, journal).await {
            // A server that has just started, or does not know a new topic yet.
            Err(KrafkaError::Broker { code, .. }) if code.is_retriable() => sleep(PAUSE).await,
            ended => break ended?,
        }
    };
    if end == 0 {
        return Ok(());
    }
    let reader = kafka
        .consumer_without_group()
        .isolation_level(IsolationLevel::ReadCommitted)
        .auto_offset_reset(AutoOffsetReset::Earliest)
        .metrics_push(false)
        .build()
        .await?;
    reader.assign(journal, vec![0]).await?;
    reader.seek(journal, 0, (end - READ_BACK).max(0)).await?;
    while reader.fetch_position(journal, 0).await.unwrap_or(0) < end {
        for line in reader.poll(Duration::from_millis(100)).await? {
            known.add_line(&line.value.unwrap_or_default());
        }
    }
    reader.close().await
}

/// The place behind the last line. No transaction of this name is open, and nobody else writes to
/// the journal, so that nothing comes before it any more.
async fn end(admin: &AdminClient, journal: &str) -> Result<i64, KrafkaError> {
    let partition = TopicPartition::new(journal, 0);
    let latest = [(partition.clone(), OffsetSpec::Latest)];
    let options = ListOffsetsOptions::default().read_committed(true);
    let mut ends = admin.list_offsets(latest, options).await?;
    let end = ends.remove(&partition).transpose()?;
    Ok(end.map_or(0, |end| end.offset))
}

async fn make_journal(admin: &AdminClient, journal: &str) -> Result<(), KrafkaError> {
    let described = admin
        .describe_topics([journal], DescribeTopicsOptions::default())
        .await?;
    match described.into_values().next() {
        Some(Err(KrafkaError::Broker {
            code: ErrorCode::UnknownTopicOrPartition,
            ..
        })) => {}
        Some(Err(error)) => return Err(error),
        _ => return Ok(()),
    }
    let topic = NewTopic::new(journal, 1, -1)?
        .with_config("cleanup.policy", "delete")
        .with_config("retention.ms", "-1")
        .with_config("retention.bytes", JOURNAL_BYTES)
        .with_config("segment.bytes", JOURNAL_SEGMENT_BYTES);
    let made = admin
        .create_topics([topic], CreateTopicsOptions::default())
        .await?;
    match made.into_values().next() {
        Some(Err(KrafkaError::Broker {
            code: ErrorCode::TopicAlreadyExists,
            ..
        })) => Ok(()),
        Some(Err(error)) => Err(error),
        _ => Ok(()),
    }
}

fn record(entry: &Entry) -> Record {
    let mut record = Record::new(&*entry.topic, entry.payload.clone());
    if let Some(key) = &entry.key {
        record = record.key(key.clone());
    }
    for (name, value) in &entry.headers {
        record = record.header(&**name, value.clone());
    }
    record
}

fn fault_of(error: &KrafkaError, entry: &Entry) -> Option<Fault> {
    fault(error, &entry.topic, entry.payload.len())
}

/// What an error says of a message. `None`: nothing.
fn fault(error: &KrafkaError, topic: &str, bytes: usize) -> Option<Fault> {
    let reason = said(error);
    Some(match (error, code(error)?) {
        (_, ErrorCode::MessageTooLarge | ErrorCode::RecordListTooLarge) => {
            let reason = format!(
                "{reason}: raise max.message.bytes of the topic {topic}, or message.max.bytes of \
                 the brokers"
            );
            match bytes > TOGETHER_BYTES_MAX {
                true => Fault::Refused(reason),
                false => Fault::TooLarge(reason),
            }
        }
        (_, ErrorCode::UnknownTopicOrPartition) => Fault::Failed(format!(
            "Kafka has no topic {topic}. Make one: kafka-topics.sh --bootstrap-server HOST:PORT \
             --create --topic {topic} --partitions 12"
        )),
        (_, ErrorCode::InvalidRecord | ErrorCode::InvalidTopic) => Fault::Refused(reason),
        (_, ErrorCode::TopicAuthorizationFailed | ErrorCode::PolicyViolation) => {
            Fault::Failed(reason)
        }
        _ => return None,
    })
}

/// Why a broker did not take a message. In a transaction the client says that only in words.
fn code(error: &KrafkaError) -> Option<ErrorCode> {
    match error {
        KrafkaError::Broker { code, .. } => Some(*code),
        KrafkaError::UnknownTopic { .. } => Some(ErrorCode::UnknownTopicOrPartition),
        // Larger than the largest request.
        KrafkaError::Config { .. } => Some(ErrorCode::MessageTooLarge),
        KrafkaError::Fenced { .. } => Some(ErrorCode::ProducerFenced),
        KrafkaError::TransactionAbortable { message } => {
            let words = message.strip_prefix("produce to ")?;
            let (_, word) = words.rsplit_once("failed with ")?;
            let codes = [
                ErrorCode::InvalidProducerEpoch,
                ErrorCode::InvalidRecord,
                ErrorCode::InvalidTopic,
                ErrorCode::MessageTooLarge,
                ErrorCode::PolicyViolation,
                ErrorCode::ProducerFenced,
                ErrorCode::RecordListTooLarge,
                ErrorCode::TopicAuthorizationFailed,
                ErrorCode::UnknownTopicOrPartition,
            ];
            codes.into_iter().find(|code| format!("{code:?}") == word)
        }
        _ => None,
    }
}

/// Whether it was not sent because one before it failed.
fn is_cut_short(error: &KrafkaError) -> bool {
    matches!(error, KrafkaError::TransactionAbortable { .. }) && code(error).is_none()
}

fn lost(error: &KrafkaError) -> Trouble {
    let fenced = [ErrorCode::ProducerFenced, ErrorCode::InvalidProducerEpoch];
    Trouble::Lost(
        match code(error).is_some_and(|code| fenced.contains(&code)) {
            true => format!(
                "another relay has taken over at Kafka. If that goes on, two have the same name there: \
             give each outbox its own ({error})"
            ),
            false => said(error),
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_ids_are_known_and_the_oldest_are_forgotten() {
        let mut known = Known::default();
        let id = |number: u128| MessageId::from_bytes(number.to_be_bytes());
        for number in 0..KNOWN_MAX as u128 + 5 {
            known.add(id(number));
            known.add(id(number));
        }
        assert_eq!(known.ids.len(), KNOWN_MAX);
        assert!(!known.ids.contains(&id(4)) && known.ids.contains(&id(5)));
    }

    #[test]
    fn a_line_of_the_journal_has_ids() {
        let mut known = Known::default();
        let ids = [
            MessageId::from_bytes([1; 16]),
            MessageId::from_bytes([2; 16]),
        ];
        let line: Vec<u8> = ids.iter().flat_map(|id| *id.as_bytes()).collect();
        known.add_line(&line);
        assert_eq!(known.ids, HashSet::from(ids));
    }
}
