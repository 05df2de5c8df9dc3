//! Messages that Kafka takes all or none.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use hapax_core::flow::MessageId;
use krafka::consumer::ConsumerGroupMetadata;
use krafka::error::ErrorCode;
use krafka::producer::{TopicPartitionOffset, TransactionalProducer};
use krafka::{CloseOptions, Kafka, KrafkaError, Record};

use super::said;

/// Larger than the largest message with its headers.
const REQUEST_BYTES_MAX: usize = 64 << 20;
/// Messages of one partition are sent together up to this size; a larger one is sent alone.
const TOGETHER_BYTES_MAX: usize = 16 << 10;

/// A message to write.
pub(crate) struct Entry {
    pub(crate) id: MessageId,
    pub(crate) topic: String,
    pub(crate) key: Option<Bytes>,
    pub(crate) headers: Vec<(String, Option<Bytes>)>,
    /// `None` is a tombstone.
    pub(crate) payload: Option<Bytes>,
}

/// Why nothing of a batch is written.
pub(crate) enum Trouble {
    /// Because of these messages, by their places. The writer can be used again.
    Entries(Vec<(usize, Fault)>),
    /// Perhaps all of it is written, and the writer is of no use any more. Another one will know.
    Lost(String),
}

/// What is wrong with a message.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// It, or one that was sent together with it, is larger than the topic allows.
    TooLarge(String),
    /// It can never be written.
    Refused(String),
    /// It cannot be written now.
    Failed(String),
}

/// What a transaction ends with.
pub(super) enum Last<'a> {
    /// One more record.
    Record(Record),
    /// The positions of a group, behind what was read.
    Positions(&'a [TopicPartitionOffset], &'a ConsumerGroupMetadata),
}

/// Writes transactions until somebody else opens the same transactional id.
pub(super) struct Transactions {
    producer: Arc<TransactionalProducer>,
    /// Topics that are there.
    topics: HashSet<String>,
}

impl Transactions {
    /// Takes the transactional id: whoever had it can write no more, and its last transaction ends.
    pub(super) async fn open(
        kafka: &Kafka,
        name: &str,
        limit: Duration,
    ) -> Result<Transactions, String> {
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
            .build_transactional(name)
            .await
            .map_err(|error| format!("no transactions at Kafka: {error}"))?;
        Ok(Transactions {
            producer: Arc::new(producer),
            topics: HashSet::new(),
        })
    }

    /// Writes messages, in their order, and then the last part, and returns when all of it is
    /// committed.
    ///
    /// A broker refuses what was sent in one go if one of them is too large. `one_by_one` tells
    /// which one it is.
    ///
    /// # Errors
    ///
    /// [`Trouble`]: none of it is written, or it is not known.
    pub(super) async fn write(
        &mut self,
        entries: &[&Entry],
        last: Last<'_>,
        one_by_one: bool,
    ) -> Result<(), Trouble> {
        let producer = self.producer.clone();
        let missing = self.missing(&producer, entries).await?;
        if !missing.is_empty() {
            return Err(Trouble::Entries(missing));
        }
        let (also, positions) = match last {
            Last::Record(record) => (Some(record), None),
            Last::Positions(offsets, member) => (None, Some((offsets, member))),
        };
        producer.begin().map_err(|error| lost(&error))?;
        let faults = match one_by_one {
            true => send_one_by_one(&producer, entries, also).await?,
            false => send_all(&producer, entries, also).await?,
        };
        if !faults.is_empty() {
            producer.abort().await.map_err(|error| lost(&error))?;
            return Err(Trouble::Entries(faults));
        }
        if let Some((offsets, member)) = positions {
            let sent = producer.send_offsets(offsets, member).await;
            sent.map_err(|error| lost(&error))?;
        }
        producer.commit().await.map_err(|error| lost(&error))
    }

    /// Checks that a topic is there.
    pub(super) async fn need(&mut self, topic: &str) -> Result<(), String> {
        match self.producer.partitions_for(topic).await {
            Ok(_) => {
                self.topics.insert(topic.to_owned());
                Ok(())
            }
            Err(error) => Err(match fault(&error, topic, 0) {
                Some(Fault::Failed(reason)) => reason,
                _ => said(&error),
            }),
        }
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
            let fault = fault(&error, topic, 0).ok_or_else(|| lost(&error))?;
            let places = (0..entries.len()).filter(|place| entries[*place].topic == topic);
            faults.extend(places.map(|place| (place, fault.clone())));
        }
        Ok(faults)
    }
}

/// Sends all of them at once, and one more record behind them.
async fn send_all(
    producer: &TransactionalProducer,
    entries: &[&Entry],
    also: Option<Record>,
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
    let is_whole = sent.len() == entries.len();
    let also = match also.filter(|_| is_whole) {
        Some(record) => Some(producer.enqueue(record).await),
        None => None,
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
    if !faults.is_empty() {
        return Ok(faults);
    }
    if !is_whole {
        let reason = "a transaction of Kafka was cut short";
        return Err(Trouble::Lost(reason.to_owned()));
    }
    if let Some(enqueued) = also {
        let delivery = enqueued.map_err(|error| lost(&error))?;
        let written = delivery.await.map(drop);
        written.map_err(|error| lost(&error))?;
    }
    Ok(faults)
}

/// Sends each when the one before is there.
async fn send_one_by_one(
    producer: &TransactionalProducer,
    entries: &[&Entry],
    also: Option<Record>,
) -> Result<Vec<(usize, Fault)>, Trouble> {
    for (place, entry) in entries.iter().enumerate() {
        if let Err(error) = producer.send(record(entry)).await {
            let fault = fault_of(&error, entry).ok_or_else(|| lost(&error))?;
            return Ok(vec![(place, fault)]);
        }
    }
    if let Some(record) = also {
        let written = producer.send(record).await.map(drop);
        written.map_err(|error| lost(&error))?;
    }
    Ok(Vec::new())
}

impl Drop for Transactions {
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

fn record(entry: &Entry) -> Record {
    let mut record = Record::new(&*entry.topic, Bytes::new());
    record.key.clone_from(&entry.key);
    record.value.clone_from(&entry.payload);
    record.headers.clone_from(&entry.headers);
    record
}

fn fault_of(error: &KrafkaError, entry: &Entry) -> Option<Fault> {
    let bytes = entry.payload.as_ref().map_or(0, Bytes::len);
    fault(error, &entry.topic, bytes)
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
                "somebody else has taken over the transactional id at Kafka. If that goes on, two have \
                 the same: each outbox, and each member of a pipe, needs its own ({error})"
            ),
            false => said(error),
        },
    )
}
