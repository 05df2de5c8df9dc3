//! Reads topics as a member of a group, and writes what was made of it in the same transaction as
//! the group's position: readers under `read_committed` see both or neither.
//!
//! A member that the group took for dead has another name in it when it comes back. What it read under
//! the old one it does not write; and if it does not know yet, Kafka refuses the position, and with it
//! the transaction.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use krafka::consumer::{Consumer, ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition};
use krafka::producer::TopicPartitionOffset;
use krafka::{CloseOptions, Kafka, KrafkaError};
use tokio::time::Instant;

use super::transaction::{Entry, Last, Transactions, Trouble};
use super::{Fetched, KafkaServers, QUIET_MAX, handed_out, member, probe, said};

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
    kafka: Kafka,
    consumer: Consumer,
    transactions: Transactions,
    /// Where the group stands, as far as this member moved it while there was nothing to read.
    caught_up: HashMap<TopicPartition, i64>,
    /// The name that the group gave to this member.
    member: Option<String>,
    heard: Instant,
    timeout: Duration,
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
            member: None,
            heard: Instant::now(),
            timeout: options.timeout,
            kafka,
        })
    }

    /// Waits for messages, for this long at most.
    ///
    /// # Errors
    ///
    /// Why there can be none now.
    pub(crate) async fn receive(&mut self, wait: Duration) -> Result<Vec<Fetched>, String> {
        let polled = self.consumer.poll(wait).await;
        let records = polled.map_err(|error| said(&error))?;
        let has_joined = self.check_membership().await?.is_some();
        if !records.is_empty() {
            self.heard = Instant::now();
            return Ok(records);
        }
        if has_joined {
            self.catch_up().await?;
        }
        if self.heard.elapsed() > QUIET_MAX {
            probe(&self.kafka, self.timeout).await?;
            self.heard = Instant::now();
        }
        Ok(records)
    }

    /// Fails if the group has taken this member for dead meanwhile: then what it has read may be
    /// another member's. `None`: the group has given it no name yet.
    async fn check_membership(&mut self) -> Result<Option<ConsumerGroupMetadata>, String> {
        let now = self.consumer.group_metadata().await;
        let name = now.as_ref().map(|now| now.member_id());
        if self.member.is_none() {
            self.member = name.map(str::to_owned);
        }
        match self.member.as_deref() == name {
            true => Ok(now),
            false => Err("the group of Kafka has taken this member for dead".to_owned()),
        }
    }

    /// Moves the group behind the marks of transactions that stand behind the last message. Else
    /// there would always be a lag.
    async fn catch_up(&mut self) -> Result<(), String> {
        let mut passed = handed_out(&self.consumer).await;
        passed.retain(|(place, position)| self.caught_up.get(place) != Some(position));
        if passed.is_empty() {
            return Ok(());
        }
        let offsets = passed.iter();
        let offsets = offsets.map(|(place, position)| (place, OffsetAndMetadata::new(*position)));
        match self.consumer.commit_offsets(offsets).await {
            Ok(()) => {
                self.caught_up.extend(passed);
                Ok(())
            }
            // The group has other plans; the next poll hears of them.
            Err(KrafkaError::Broker { .. } | KrafkaError::IllegalState { .. }) => Ok(()),
            Err(error) => Err(said(&error)),
        }
    }

    /// Writes what was made of these messages, and moves the group behind them.
    ///
    /// # Errors
    ///
    /// As [`Writer::write`](super::Writer::write).
    pub(crate) async fn write(
        &mut self,
        read: &[Fetched],
        entries: &[&Entry],
        one_by_one: bool,
    ) -> Result<(), Trouble> {
        // A group that has changed since they were read has left them with this member, as long as it
        // is the same member: its partitions go to others only when it polls.
        let member = self.check_membership().await.map_err(Trouble::Lost)?;
        let member = member.ok_or_else(|| Trouble::Lost("the group was not joined".to_owned()))?;
        let positions = positions(read);
        let last = Last::Positions(&positions, &member);
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
    let consumer = member(kafka, &options.group, options.session)
        .max_poll_records(i32::try_from(options.batch_max).unwrap_or(i32::MAX))
        .max_poll_interval(options.patience)
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
