//! Reads topics as a member of a group, and writes what was made of it in the same transaction as
//! the group's position: readers under `read_committed` see both or neither.
//!
//! The group's generation is taken when messages are read. If the group has changed since, Kafka
//! refuses the position, and with it the transaction: so a member that others took for dead writes
//! nothing.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use krafka::consumer::{
    AutoOffsetReset, Consumer, ConsumerGroupMetadata, IsolationLevel, OffsetAndMetadata,
    PartitionAssignmentStrategy, TopicPartition,
};
use krafka::producer::TopicPartitionOffset;
use krafka::{CloseOptions, Kafka, KrafkaError};

use super::transaction::{Entry, Last, Transactions, Trouble};
use super::{Fetched, KafkaServers, said};

/// How long leaving the group may take.
const LEAVING_MAX: Duration = Duration::from_secs(1);

#[derive(Clone, Debug)]
pub(crate) struct CarrierOptions {
    pub(crate) servers: KafkaServers,
    pub(crate) group: String,
    pub(crate) topics: Vec<String>,
    /// A topic that must be there, though it may never be written to.
    pub(crate) parked: String,
    /// The transactional id: no other member of the group has it.
    pub(crate) name: String,
    pub(crate) batch_max: usize,
    pub(crate) timeout: Duration,
    /// After this the group gives up a member that is not heard of.
    pub(crate) session: Duration,
    /// After this the group gives up a member that works on a batch.
    pub(crate) patience: Duration,
}

/// One member. After an error it is of no use any more.
pub(crate) struct Carrier {
    consumer: Consumer,
    transactions: Transactions,
    /// Where the group stands, as far as this member moved it while there was nothing to read.
    caught_up: HashMap<TopicPartition, i64>,
}

/// What was read together.
pub(crate) struct Batch {
    pub(crate) records: Vec<Fetched>,
    member: ConsumerGroupMetadata,
}

impl Carrier {
    /// Joins the group.
    ///
    /// # Errors
    ///
    /// Why that is not possible now.
    pub(crate) async fn open(options: &CarrierOptions) -> Result<Carrier, String> {
        let kafka = options.servers.connect(options.timeout).await?;
        let mut transactions = Transactions::open(&kafka, &options.name, options.timeout).await?;
        transactions.need(&options.parked).await?;
        let consumer = consumer(&kafka, options).await;
        Ok(Carrier {
            consumer: consumer.map_err(|error| said(&error))?,
            transactions,
            caught_up: HashMap::new(),
        })
    }

    /// Waits so long for messages.
    ///
    /// # Errors
    ///
    /// Why there can be none now.
    pub(crate) async fn receive(&mut self, wait: Duration) -> Result<Option<Batch>, String> {
        let polled = self.consumer.poll(wait).await;
        let records = polled.map_err(|error| said(&error))?;
        if records.is_empty() {
            self.catch_up().await?;
            return Ok(None);
        }
        let member = self.consumer.group_metadata().await;
        let member = member.ok_or("messages came before the group was joined")?;
        Ok(Some(Batch { records, member }))
    }

    /// Moves the group behind the marks of transactions that stand behind the last message: all that
    /// was fetched is done with, so that what the client has passed besides are no messages. Else
    /// there would always be a lag.
    async fn catch_up(&mut self) -> Result<(), String> {
        let mut passed = Vec::new();
        for (topic, partitions) in self.consumer.assignment().await {
            for partition in partitions {
                let position = self.consumer.fetch_position(&topic, partition).await;
                let place = TopicPartition::new(&*topic, partition);
                if let Some(position) = position
                    && self.caught_up.get(&place) != Some(&position)
                {
                    passed.push((place, position));
                }
            }
        }
        if passed.is_empty() {
            return Ok(());
        }
        let offsets = passed.iter();
        let offsets = offsets.map(|(place, position)| (place, OffsetAndMetadata::new(*position)));
        let committed = self.consumer.commit_offsets(offsets).await;
        committed.map_err(|error| said(&error))?;
        self.caught_up.extend(passed);
        Ok(())
    }

    /// Writes what was made of a batch, and moves the group behind it.
    ///
    /// # Errors
    ///
    /// As [`Writer::write`](super::Writer::write).
    pub(crate) async fn write(
        &mut self,
        batch: &Batch,
        entries: &[&Entry],
        one_by_one: bool,
    ) -> Result<(), Trouble> {
        let positions = positions(&batch.records);
        let last = Last::Positions(&positions, &batch.member);
        self.transactions.write(entries, last, one_by_one).await
    }

    /// How many messages wait behind those that were read.
    pub(crate) async fn lag(&self) -> Option<u64> {
        let lags = self.consumer.lag().await;
        let mut sum = 0;
        for lag in lags.into_values() {
            sum += lag.lag?;
        }
        Some(sum)
    }

    /// Leaves the group, so that others need not wait until they miss this member.
    pub(crate) async fn close(self) {
        let options = CloseOptions::new().timeout(LEAVING_MAX);
        drop(self.consumer.close_with(options).await);
    }
}

async fn consumer(kafka: &Kafka, options: &CarrierOptions) -> Result<Consumer, KrafkaError> {
    let consumer = kafka
        .consumer(&options.group)
        .isolation_level(IsolationLevel::ReadCommitted)
        .auto_offset_reset(AutoOffsetReset::Earliest)
        .enable_auto_commit(false)
        .max_poll_records(i32::try_from(options.batch_max).unwrap_or(i32::MAX))
        .session_timeout(options.session)
        .heartbeat_interval(options.session / 5)
        .max_poll_interval(options.patience)
        .partition_assignment_strategy(PartitionAssignmentStrategy::CooperativeSticky)
        .metrics_push(false)
        .build()
        .await?;
    consumer.subscribe(&options.topics).await?;
    Ok(consumer)
}

/// The places behind the last message of each partition.
fn positions(records: &[Fetched]) -> Vec<TopicPartitionOffset> {
    let mut behind: BTreeMap<(&str, i32), i64> = BTreeMap::new();
    for record in records {
        let position = behind.entry((&record.topic, record.partition)).or_default();
        *position = (*position).max(record.offset + 1);
    }
    behind
        .into_iter()
        .map(|((topic, partition), position)| TopicPartitionOffset::new(topic, partition, position))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_group_moves_behind_the_last_message_of_each_partition() {
        let record = |partition, offset| Fetched::new("orders", partition, offset, None, None);
        let positions = positions(&[record(0, 7), record(1, 3), record(0, 8)]);
        let told: Vec<(i32, i64)> = positions
            .iter()
            .map(|position| (position.partition, position.next_offset))
            .collect();
        assert_eq!(told, [(0, 9), (1, 4)]);
    }
}
