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
use std::time::Duration;

use hapax_core::flow::MessageId;
use krafka::admin::{
    AdminClient, CreateTopicsOptions, DescribeTopicsOptions, ListOffsetsOptions, NewTopic,
    OffsetSpec,
};
use krafka::consumer::{AutoOffsetReset, IsolationLevel, TopicPartition};
use krafka::error::ErrorCode;
use krafka::{Kafka, KrafkaError, Record};
use tokio::time::sleep;

use super::KafkaServers;
use super::transaction::{Entry, Last, Transactions, Trouble};

/// So far back the journal is read. A relay marks its position after 5,000 messages or 250 ms, and
/// each transaction takes two places here, so that this is at least ten times as much as can be
/// published again after a crash.
const READ_BACK: i64 = 4096;
/// The most ids that are remembered. A relay may repeat 6,000.
const KNOWN_MAX: usize = 100_000;
/// The size of the journal from which on Kafka empties it.
const JOURNAL_BYTES: &str = "67108864";
const JOURNAL_SEGMENT_BYTES: &str = "16777216";
/// The pause before a server that is not ready is asked again.
const PAUSE: Duration = Duration::from_millis(50);

pub(crate) struct WriterOptions {
    pub(crate) servers: KafkaServers,
    /// The transactional id, and the name of the journal.
    pub(crate) name: String,
    /// How long a call may take.
    pub(crate) timeout: Duration,
}

/// Writes as long as there is no other writer of its name.
pub(crate) struct Writer {
    transactions: Transactions,
    journal: String,
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
        let mut writer = Writer {
            transactions: Transactions::open(&kafka, &options.name, limit).await?,
            journal: options.name.clone(),
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
        let last = Last::Record(self.journal_line(entries));
        self.transactions.write(entries, last, one_by_one).await?;
        for entry in entries {
            self.known.add(entry.id);
        }
        Ok(())
    }

    fn journal_line(&self, entries: &[&Entry]) -> Record {
        let ids: Vec<u8> = entries
            .iter()
            .flat_map(|entry| *entry.id.as_bytes())
            .collect();
        Record::new(&*self.journal, ids)
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
