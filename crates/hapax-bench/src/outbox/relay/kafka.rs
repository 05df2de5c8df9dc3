//! Kafka: one topic of four partitions, written in transactions.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::future::try_join_all;
use hapax_flow::publish::{Kafka as Publisher, KafkaOptions, KafkaServers};
use hapax_testkit::servers;
use krafka::admin::{
    CreateTopicsOptions, DeleteTopicsOptions, ListOffsetsOptions, NewTopic, OffsetSpec,
};
use krafka::consumer::{IsolationLevel, TopicPartition};
use krafka::producer::TransactionalProducer;
use krafka::{Kafka as Client, Record};
use uuid::Uuid;

use super::{Broker, attributes, key, payload};
use crate::Error;

const PARTITIONS: i32 = 4;
/// Messages of a transaction of the bare client: as many as a page of the relay has.
const TOGETHER: usize = 1000;

pub(super) struct Kafka {
    client: Client,
    producer: TransactionalProducer,
    /// Messages are removed with their topic, and a name is not free at once.
    topic: String,
    server: servers::Kafka,
}

impl Broker for Kafka {
    const NAME: &'static str = "Kafka";
    const BARE: &'static str = "transactions of 1,000";
    type Publisher = Publisher;

    async fn start() -> Result<Option<Kafka>, Error> {
        let Some(server) = servers::Kafka::start("") else {
            return Ok(None);
        };
        let client = Client::builder(server.bootstrap()).connect().await?;
        let producer = client.producer().linger(Duration::ZERO);
        let producer = producer.metrics_push(false).build_transactional("bare");
        Ok(Some(Kafka {
            producer: producer.await?,
            client,
            topic: String::new(),
            server,
        }))
    }

    async fn clear(&mut self) -> Result<(), Error> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let admin = self.client.admin();
        if !self.topic.is_empty() {
            let deleted = admin.delete_topics([&self.topic], DeleteTopicsOptions::default());
            for deleted in deleted.await?.into_values() {
                deleted?;
            }
        }
        self.topic = format!("orders-{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        let topic = NewTopic::new(&self.topic, PARTITIONS, 1)?;
        let made = admin.create_topics([topic], CreateTopicsOptions::default());
        for made in made.await?.into_values() {
            made?;
        }
        Ok(())
    }

    /// Reads them: a transaction leaves marks, which offsets count.
    async fn count(&mut self) -> Result<usize, Error> {
        let admin = self.client.admin();
        let places = (0..PARTITIONS).map(|number| TopicPartition::new(&*self.topic, number));
        let latest = places.map(|place| (place, OffsetSpec::Latest));
        let options = ListOffsetsOptions::default().read_committed(true);
        let ends = admin.list_offsets(latest, options).await?;
        let reader = self.client.consumer_without_group();
        let reader = reader.isolation_level(IsolationLevel::ReadCommitted);
        let reader = reader.metrics_push(false).build().await?;
        reader
            .assign(&self.topic, (0..PARTITIONS).collect())
            .await?;
        for place in ends.keys() {
            reader.seek(&self.topic, place.partition(), 0).await?;
        }
        let mut count = 0;
        for (place, end) in ends {
            let (number, end) = (place.partition(), end?.offset);
            let position = async || reader.fetch_position(&self.topic, number).await;
            while position().await.unwrap_or(0) < end {
                count += reader.poll(Duration::from_millis(100)).await?.len();
            }
        }
        // What was fetched with the last of it.
        loop {
            match reader.poll(Duration::from_millis(100)).await?.len() {
                0 => break,
                more => count += more,
            }
        }
        reader.close().await?;
        Ok(count)
    }

    fn publisher(&self) -> Result<Publisher, Error> {
        let servers = KafkaServers::new([self.server.bootstrap()]);
        let mut options = KafkaOptions::new(servers, "bench");
        options.topic.clone_from(&self.topic);
        Ok(Publisher::new(options)?)
    }

    async fn publish(&mut self, messages: usize) -> Result<(), Error> {
        let payload = payload();
        for first in (0..messages).step_by(TOGETHER) {
            self.producer.begin()?;
            let mut sent = Vec::with_capacity(TOGETHER);
            for number in first..messages.min(first + TOGETHER) {
                let (id, key) = (Uuid::new_v4().to_string(), key(number));
                let mut record = Record::new(&*self.topic, payload.clone());
                for (name, value) in attributes("ce_", &id, &key) {
                    record = record.header(name, value);
                }
                record = record.header("content-type", "application/json").key(key);
                sent.push(self.producer.enqueue(record).await?);
            }
            try_join_all(sent).await?;
            self.producer.commit().await?;
        }
        Ok(())
    }
}
