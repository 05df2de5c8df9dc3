//! A member of a group.
//!
//! A task of its own stays in touch with the group and fetches messages, so that a member stays one
//! while messages are worked on, and its calls can be dropped at any time. Task and calls share the
//! [`Shelf`].
//!
//! When another member is to get a partition, the task first waits for what was handed out of it,
//! so that the new member does not get it again. It does not wait for ever.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use krafka::consumer::{Consumer, ConsumerRebalanceListener, OffsetAndMetadata, TopicPartition};
use krafka::{CloseOptions, ConsumerRecord, Kafka, KrafkaError};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{KafkaServers, QUIET_MAX, handed_out, member, probe, said};

/// The most messages that wait to be handed out. Then no more are fetched.
const WAITING_MAX: usize = 2000;
/// The most messages that are fetched at a time.
const FETCHED_MAX: i32 = 500;
const POLL: Duration = Duration::from_millis(500);
/// While nothing is fetched, it is looked this often whether there is room again.
const FULL_POLL: Duration = Duration::from_millis(20);
/// The pause after a failure.
const PAUSE: Duration = Duration::from_millis(200);
/// How long leaving the group may take.
const LEAVING_MAX: Duration = Duration::from_secs(1);

#[derive(Clone, Debug)]
pub(crate) struct ReaderOptions {
    pub(crate) servers: KafkaServers,
    pub(crate) group: String,
    pub(crate) topics: Vec<String>,
    pub(crate) timeout: Duration,
    /// After this the group gives up a member that is not heard of.
    pub(crate) session: Duration,
    /// How long other members wait for what was handed out, before they get it too.
    pub(crate) patience: Duration,
}

/// Identifies one delivery of one message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tag {
    topic: Arc<str>,
    partition: i32,
    offset: i64,
    /// Which time this member had the partition.
    turn: u64,
}

pub(crate) struct Reader {
    shared: Arc<Shared>,
    _stop: DropGuard,
}

impl Reader {
    /// Begins. It must be called in a runtime.
    pub(crate) fn start(options: ReaderOptions) -> Reader {
        let stop = CancellationToken::new();
        let shared = Arc::new(Shared::default());
        let task = Task {
            options,
            shared: shared.clone(),
            stop: stop.clone(),
        };
        tokio::spawn(task.run());
        Reader {
            shared,
            _stop: stop.drop_guard(),
        }
    }

    /// Waits for messages: at least one, and at most `max`.
    ///
    /// # Errors
    ///
    /// Why Kafka cannot be used now.
    pub(crate) async fn receive(&self, max: usize) -> Result<Vec<(Tag, ConsumerRecord)>, String> {
        loop {
            let changed = self.shared.arrived.notified();
            {
                let mut shelf = self.shared.shelf();
                let taken = shelf.hand_out(max);
                if !taken.is_empty() {
                    return Ok(taken);
                }
                if let Some(reason) = shelf.outage.take() {
                    return Err(reason);
                }
            }
            changed.await;
        }
    }

    /// Notes that deliveries are done with, and tells Kafka where the first one stands that is not.
    ///
    /// # Errors
    ///
    /// If Kafka cannot be reached. If it does not know this member any more, that is no error: then
    /// the messages are delivered again, and there is nothing to be done about it.
    pub(crate) async fn acknowledge(&self, tags: &[Tag]) -> Result<(), String> {
        self.shared.shelf().finish(tags);
        self.shared.done.notify_waiters();
        let consumer = self.shared.shelf().consumer.clone();
        match consumer {
            Some(consumer) => self.shared.commit(&consumer).await,
            // It is no member now, and what it had comes again.
            None => Ok(()),
        }
    }

    /// Hands these out again.
    pub(crate) fn give_back(&self, tags: &[Tag]) {
        self.shared.shelf().take_back(tags);
        self.shared.arrived.notify_waiters();
        self.shared.done.notify_waiters();
    }
}

#[derive(Default)]
struct Shared {
    shelf: parking_lot::Mutex<Shelf>,
    /// There are messages, or there is an outage.
    arrived: Notify,
    /// Messages are done with or were given back.
    done: Notify,
    /// Commits follow each other, so that an older one never comes last.
    committing: tokio::sync::Mutex<()>,
}

impl Shared {
    fn shelf(&self) -> parking_lot::MutexGuard<'_, Shelf> {
        self.shelf.lock()
    }

    fn fail(&self, reason: String) {
        self.shelf().outage = Some(reason);
        self.arrived.notify_waiters();
    }

    /// Commits what is done with since the last time.
    async fn commit(&self, consumer: &Consumer) -> Result<(), String> {
        let _turn = self.committing.lock().await;
        let offsets = self.shelf().uncommitted();
        if offsets.is_empty() {
            return Ok(());
        }
        let committed = consumer.commit_offsets(
            offsets
                .iter()
                .map(|(partition, offset)| (partition.clone(), OffsetAndMetadata::new(*offset))),
        );
        match committed.await {
            Ok(()) => {
                self.shelf().note_committed(&offsets);
                Ok(())
            }
            // The group has other plans; the task hears of them.
            Err(error @ (KrafkaError::Broker { .. } | KrafkaError::IllegalState { .. })) => {
                tracing::debug!(%error, "the group of Kafka did not take a position");
                Ok(())
            }
            Err(error) => Err(said(&error)),
        }
    }
}

/// The messages of this member's partitions.
#[derive(Default)]
struct Shelf {
    partitions: HashMap<(Arc<str>, i32), Partition>,
    /// What waits to be handed out, in its order. It may name what is no longer there.
    waiting: VecDeque<Tag>,
    turns: u64,
    outage: Option<String>,
    /// The one that has the partitions.
    consumer: Option<Arc<Consumer>>,
}

struct Partition {
    turn: u64,
    /// What is not done with, and what is but stands behind such.
    messages: BTreeMap<i64, Message>,
    /// The place behind the last message that came. Unknown until one has come.
    next: Option<i64>,
    /// Where the group stands, as far as this member knows.
    committed: Option<i64>,
}

enum Message {
    Waiting(ConsumerRecord),
    HandedOut(ConsumerRecord),
    Done,
}

impl Partition {
    /// The place of the first message that is not done with.
    fn position(&self) -> Option<i64> {
        let first = self.messages.first_key_value();
        first.map(|(offset, _)| *offset).or(self.next)
    }

    fn is_in_work(&self) -> bool {
        let mut messages = self.messages.values();
        messages.any(|message| matches!(message, Message::HandedOut(_)))
    }
}

impl Shelf {
    fn assign(&mut self, topic: &str, partition: i32) {
        self.turns += 1;
        let fresh = Partition {
            turn: self.turns,
            messages: BTreeMap::new(),
            next: None,
            committed: None,
        };
        self.partitions.insert((topic.into(), partition), fresh);
    }

    fn remove(&mut self, partitions: &[TopicPartition]) {
        for lost in partitions {
            let key = (Arc::from(lost.topic()), lost.partition());
            self.partitions.remove(&key);
        }
        let left = &self.partitions;
        self.waiting.retain(|tag| is_here(left, tag));
    }

    /// Keeps what waits in these partitions from being handed out.
    fn hold(&mut self, partitions: &[TopicPartition]) {
        let is_held = |tag: &Tag| {
            partitions
                .iter()
                .any(|held| held.topic() == &*tag.topic && held.partition() == tag.partition)
        };
        self.waiting.retain(|tag| !is_held(tag));
    }

    fn are_in_work(&self, partitions: &[TopicPartition]) -> bool {
        partitions.iter().any(|one| {
            let key = (Arc::from(one.topic()), one.partition());
            self.partitions.get(&key).is_some_and(Partition::is_in_work)
        })
    }

    fn put(&mut self, records: Vec<ConsumerRecord>) {
        for record in records {
            let key = (record.topic.clone(), record.partition);
            let Some(partition) = self.partitions.get_mut(&key) else {
                continue;
            };
            let offset = record.offset;
            self.waiting.push_back(Tag {
                topic: key.0,
                partition: key.1,
                offset,
                turn: partition.turn,
            });
            if partition.next.replace(offset + 1).is_none() {
                partition.committed = Some(offset);
            }
            partition.messages.insert(offset, Message::Waiting(record));
        }
    }

    fn hand_out(&mut self, max: usize) -> Vec<(Tag, ConsumerRecord)> {
        let mut taken = Vec::new();
        while taken.len() < max
            && let Some(tag) = self.waiting.pop_front()
        {
            let Some(message) = self.find(&tag) else {
                continue;
            };
            if let Message::Waiting(record) = message {
                let record = record.clone();
                *message = Message::HandedOut(record.clone());
                taken.push((tag, record));
            }
        }
        taken
    }

    fn find(&mut self, tag: &Tag) -> Option<&mut Message> {
        let partition = self.partitions.get_mut(&(tag.topic.clone(), tag.partition));
        let partition = partition.filter(|found| found.turn == tag.turn)?;
        partition.messages.get_mut(&tag.offset)
    }

    fn finish(&mut self, tags: &[Tag]) {
        for tag in tags {
            if let Some(message) = self.find(tag) {
                *message = Message::Done;
            }
        }
        for partition in self.partitions.values_mut() {
            while let Some(first) = partition.messages.first_entry()
                && matches!(first.get(), Message::Done)
            {
                first.remove();
            }
        }
    }

    fn take_back(&mut self, tags: &[Tag]) {
        for tag in tags.iter().rev() {
            if let Some(message) = self.find(tag)
                && let Message::HandedOut(record) = message
            {
                *message = Message::Waiting(record.clone());
                self.waiting.push_front(tag.clone());
            }
        }
    }

    /// Moves behind the marks of transactions that stand behind the last message.
    fn skip(&mut self, topic: &str, partition: i32, position: i64) {
        if let Some(partition) = self.partitions.get_mut(&(topic.into(), partition)) {
            partition.next = partition.next.max(Some(position));
        }
    }

    fn uncommitted(&self) -> Vec<(TopicPartition, i64)> {
        let partitions = self.partitions.iter().filter_map(|((topic, number), one)| {
            let position = one.position()?;
            let is_new = one.committed.is_none_or(|committed| committed < position);
            is_new.then(|| (TopicPartition::new(&**topic, *number), position))
        });
        partitions.collect()
    }

    fn note_committed(&mut self, offsets: &[(TopicPartition, i64)]) {
        for (partition, offset) in offsets {
            let key = (Arc::from(partition.topic()), partition.partition());
            if let Some(partition) = self.partitions.get_mut(&key) {
                partition.committed = Some(*offset);
            }
        }
    }
}

fn is_here(partitions: &HashMap<(Arc<str>, i32), Partition>, tag: &Tag) -> bool {
    let found = partitions.get(&(tag.topic.clone(), tag.partition));
    found.is_some_and(|found| found.turn == tag.turn)
}

/// What stays in touch with the group.
struct Task {
    options: ReaderOptions,
    shared: Arc<Shared>,
    stop: CancellationToken,
}

impl Task {
    /// Until the reader is dropped: as a member, and again as a new one when that ended.
    async fn run(self) {
        while !self.stop.is_cancelled() {
            if let Err(reason) = self.be_a_member().await {
                self.shared.fail(reason);
                self.pause().await;
            }
        }
    }

    async fn pause(&self) {
        tokio::select! {
            () = sleep(PAUSE) => {}
            () = self.stop.cancelled() => {}
        }
    }

    async fn be_a_member(&self) -> Result<(), String> {
        let kafka = tokio::select! {
            kafka = self.options.servers.connect(self.options.timeout) => kafka?,
            () = self.stop.cancelled() => return Ok(()),
        };
        let consumer = Arc::new(self.consumer(&kafka).await.map_err(|error| said(&error))?);
        self.shared.shelf().consumer = Some(consumer.clone());
        let ended = tokio::select! {
            ended = self.fetch(&kafka, &consumer) => ended,
            () = self.stop.cancelled() => Ok(()),
        };
        {
            let mut shelf = self.shared.shelf();
            shelf.consumer = None;
            shelf.partitions.clear();
            shelf.waiting.clear();
        }
        // Others need not wait until they miss this member.
        let options = CloseOptions::new().timeout(LEAVING_MAX);
        drop(consumer.close_with(options).await);
        ended
    }

    async fn consumer(&self, kafka: &Kafka) -> Result<Consumer, KrafkaError> {
        let options = &self.options;
        let listener = Listener {
            shared: self.shared.clone(),
            patience: options.patience,
        };
        let consumer = member(kafka, &options.group, options.session)
            .max_poll_records(FETCHED_MAX)
            .max_poll_interval(options.patience + Duration::from_mins(1))
            .rebalance_listener(listener)
            .build()
            .await?;
        consumer.subscribe(&options.topics).await?;
        Ok(consumer)
    }

    /// Fetches messages until the member has to be given up.
    async fn fetch(&self, kafka: &Kafka, consumer: &Consumer) -> Result<(), String> {
        let mut heard = Instant::now();
        let mut is_full = false;
        loop {
            let was_full = is_full;
            is_full = self.shared.shelf().waiting.len() >= WAITING_MAX;
            if is_full != was_full {
                set_paused(consumer, is_full).await;
            }
            let polled = match is_full {
                true => consumer.poll(FULL_POLL).await,
                false => consumer.poll(POLL).await,
            };
            match polled {
                Ok(records) if records.is_empty() => {
                    if !is_full {
                        self.skip_marks(consumer).await;
                    }
                    if heard.elapsed() >= QUIET_MAX {
                        probe(kafka, self.options.timeout).await?;
                        heard = Instant::now();
                    }
                }
                Ok(records) => {
                    heard = Instant::now();
                    self.shared.shelf().put(records);
                    self.shared.arrived.notify_waiters();
                }
                // The group is about to change, say.
                Err(error @ KrafkaError::Broker { .. }) if !error.is_fatal() => {
                    self.shared.fail(said(&error));
                    sleep(PAUSE).await;
                }
                // What this member had comes again, to its next life or to another one.
                Err(error) => return Err(said(&error)),
            }
            self.shared.commit(consumer).await?;
        }
    }

    /// What the client has handed out is here, so that what it has passed besides are no messages.
    async fn skip_marks(&self, consumer: &Consumer) {
        for (place, position) in handed_out(consumer).await {
            let (topic, partition) = (place.topic(), place.partition());
            self.shared.shelf().skip(topic, partition, position);
        }
    }
}

async fn set_paused(consumer: &Consumer, is_paused: bool) {
    for (topic, partitions) in consumer.assignment().await {
        match is_paused {
            true => consumer.pause(&topic, &partitions).await,
            false => consumer.resume(&topic, &partitions).await,
        }
    }
}

/// Hears which partitions this member has.
struct Listener {
    shared: Arc<Shared>,
    patience: Duration,
}

impl ConsumerRebalanceListener for Listener {
    async fn on_partitions_assigned(&self, partitions: &[TopicPartition]) {
        let mut shelf = self.shared.shelf();
        for assigned in partitions {
            shelf.assign(assigned.topic(), assigned.partition());
        }
    }

    async fn on_partitions_revoked(&self, partitions: &[TopicPartition]) {
        self.shared.shelf().hold(partitions);
        let worked_off = async {
            loop {
                let done = self.shared.done.notified();
                if !self.shared.shelf().are_in_work(partitions) {
                    return;
                }
                done.await;
            }
        };
        drop(timeout(self.patience, worked_off).await);
        let consumer = self.shared.shelf().consumer.clone();
        if let Some(consumer) = consumer
            && let Err(reason) = self.shared.commit(&consumer).await
        {
            tracing::debug!(reason, "a partition of Kafka is left without its position");
        }
        self.shared.shelf().remove(partitions);
    }

    async fn on_partitions_lost(&self, partitions: &[TopicPartition]) {
        self.shared.shelf().remove(partitions);
    }
}
