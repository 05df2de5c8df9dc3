//! What a cluster tells about topics and groups.

use std::collections::HashMap;
use std::time::Duration;

use krafka::admin::{
    ConfigEntry, ConfigResource, DescribeConfigsOptions, DescribeTopicsOptions,
    ListConsumerGroupOffsetsOptions, ListOffsetsOptions, OffsetSpec,
};
use krafka::consumer::TopicPartition;
use krafka::{Kafka, KrafkaError};

use super::{KafkaServers, said};

/// Asks over a connection of its own.
pub(crate) struct Asked {
    kafka: Kafka,
    limit: Duration,
}

impl Asked {
    pub(crate) async fn connect(servers: &KafkaServers, limit: Duration) -> Result<Asked, String> {
        let kafka = servers.connect(limit).await?;
        Ok(Asked { kafka, limit })
    }

    /// For how long the longest-lived of these topics keeps messages. `None`: without an end.
    ///
    /// # Errors
    ///
    /// If a topic is not there, or nobody answers.
    pub(crate) async fn retention(&self, topics: &[String]) -> Result<Option<Duration>, String> {
        let options = DescribeConfigsOptions::default().timeout(self.limit);
        let resources = topics.iter().map(ConfigResource::topic);
        let admin = self.kafka.admin();
        let described = admin.describe_configs(resources, options);
        let mut longest = Duration::ZERO;
        for (topic, entries) in described.await.map_err(|error| said(&error))? {
            let entries =
                entries.map_err(|error| format!("the topic {} of Kafka: {error}", topic.name))?;
            match kept(&entries) {
                Some(kept) => longest = longest.max(kept),
                None => return Ok(None),
            }
        }
        Ok(Some(longest))
    }

    /// How many places there are behind what a group is done with: messages, and the marks of
    /// transactions.
    ///
    /// # Errors
    ///
    /// If a topic is not there, or nobody answers.
    pub(crate) async fn lag(&self, group: &str, topics: &[String]) -> Result<u64, String> {
        let admin = self.kafka.admin();
        let partitions = self.partitions(topics).await?;
        let options = ListConsumerGroupOffsetsOptions::default()
            .timeout(self.limit)
            .partitions(partitions.clone());
        let committed = admin.list_consumer_group_offsets(group, options);
        let committed = all(committed.await.map_err(|error| said(&error))?)?;
        let first = self.offsets(&partitions, OffsetSpec::Earliest).await?;
        let end = self.offsets(&partitions, OffsetSpec::Latest).await?;
        let behind = partitions.iter().map(|partition| {
            let done = committed.get(partition).and_then(|found| found.offset);
            let first = first.get(partition).copied().unwrap_or_default();
            let end = end.get(partition).copied().unwrap_or_default();
            u64::try_from(end - done.unwrap_or(first).max(first)).unwrap_or_default()
        });
        Ok(behind.sum())
    }

    async fn partitions(&self, topics: &[String]) -> Result<Vec<TopicPartition>, String> {
        let options = DescribeTopicsOptions::default().timeout(self.limit);
        let admin = self.kafka.admin();
        let described = admin.describe_topics(topics, options);
        let mut partitions = Vec::new();
        for (name, described) in described.await.map_err(|error| said(&error))? {
            let described =
                described.map_err(|error| format!("the topic {name} of Kafka: {error}"))?;
            let numbers = described.partitions.iter().map(|found| found.partition);
            partitions.extend(numbers.map(|number| TopicPartition::new(&*name, number)));
        }
        Ok(partitions)
    }

    async fn offsets(
        &self,
        partitions: &[TopicPartition],
        spec: OffsetSpec,
    ) -> Result<HashMap<TopicPartition, i64>, String> {
        let options = ListOffsetsOptions::default()
            .timeout(self.limit)
            .read_committed(true);
        let specs = partitions.iter().map(|partition| (partition.clone(), spec));
        let admin = self.kafka.admin();
        let listed = admin.list_offsets(specs, options);
        let listed = all(listed.await.map_err(|error| said(&error))?)?.into_iter();
        Ok(listed
            .map(|(partition, found)| (partition, found.offset))
            .collect())
    }
}

/// How long a topic keeps messages. `None`: without an end.
fn kept(entries: &[ConfigEntry]) -> Option<Duration> {
    let find = |name: &str| {
        let found = entries.iter().find(|entry| entry.name == name)?;
        found.value.as_deref()
    };
    let is_deleted = find("cleanup.policy").is_none_or(|policy| policy.contains("delete"));
    let millis: i64 = find("retention.ms")?.parse().ok()?;
    let kept = u64::try_from(millis).ok().map(Duration::from_millis);
    kept.filter(|_| is_deleted)
}

fn all<T>(
    answers: HashMap<TopicPartition, Result<T, KrafkaError>>,
) -> Result<HashMap<TopicPartition, T>, String> {
    let answers = answers.into_iter();
    answers
        .map(|(partition, answer)| Ok((partition, answer.map_err(|error| said(&error))?)))
        .collect()
}
