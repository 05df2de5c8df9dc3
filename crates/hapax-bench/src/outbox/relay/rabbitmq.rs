//! RabbitMQ: one durable quorum queue.

use std::collections::VecDeque;

use hapax_flow::publish::{RabbitMq as Publisher, RabbitOptions, RabbitServers};
use hapax_testkit::servers;
use lapin::options::{
    BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions, QueueDeleteOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};
use uuid::Uuid;

use super::{Broker, attributes, key, payload};
use crate::Error;

const QUEUE: &str = "orders";
/// Messages of the bare client that are not confirmed yet: as many as of the relay.
const IN_FLIGHT: usize = 64;
const PERSISTENT: u8 = 2;

pub(super) struct RabbitMq {
    // In this order: the connection ends before its server.
    channel: Channel,
    _connection: Connection,
    url: String,
    _server: servers::RabbitMq,
}

impl Broker for RabbitMq {
    const NAME: &'static str = "RabbitMQ";
    const BARE: &'static str = "64 unconfirmed";
    type Publisher = Publisher;

    async fn start() -> Result<Option<RabbitMq>, Error> {
        let Some(server) = servers::RabbitMq::start() else {
            return Ok(None);
        };
        let url = server.virtual_host();
        let connection = Connection::connect(&url, ConnectionProperties::default()).await?;
        let channel = connection.create_channel().await?;
        channel
            .confirm_select(ConfirmSelectOptions::default())
            .await?;
        Ok(Some(RabbitMq {
            channel,
            _connection: connection,
            url,
            _server: server,
        }))
    }

    async fn clear(&mut self) -> Result<(), Error> {
        let options = QueueDeleteOptions::default();
        self.channel.queue_delete(QUEUE.into(), options).await?;
        let mut arguments = FieldTable::default();
        let kind = AMQPValue::LongString("quorum".into());
        arguments.insert("x-queue-type".into(), kind);
        let options = QueueDeclareOptions {
            durable: true,
            ..QueueDeclareOptions::default()
        };
        let declared = self.channel.queue_declare(QUEUE.into(), options, arguments);
        declared.await?;
        Ok(())
    }

    async fn count(&mut self) -> Result<usize, Error> {
        let options = QueueDeclareOptions {
            passive: true,
            ..QueueDeclareOptions::default()
        };
        let asked = self
            .channel
            .queue_declare(QUEUE.into(), options, FieldTable::default());
        Ok(asked.await?.message_count() as usize)
    }

    fn publisher(&self) -> Result<Publisher, Error> {
        let servers = RabbitServers::new([&self.url]);
        Ok(Publisher::new(RabbitOptions::new(servers))?)
    }

    async fn publish(&mut self, messages: usize) -> Result<(), Error> {
        let (options, payload) = (
            BasicPublishOptions {
                mandatory: true,
                ..BasicPublishOptions::default()
            },
            payload(),
        );
        let mut confirming = VecDeque::new();
        for number in 0..messages {
            if confirming.len() == IN_FLIGHT
                && let Some(oldest) = confirming.pop_front()
            {
                confirmed(oldest).await?;
            }
            let published = self.channel.basic_publish(
                "".into(),
                QUEUE.into(),
                options,
                &payload,
                properties(number),
            );
            confirming.push_back(published.await?);
        }
        for oldest in confirming {
            confirmed(oldest).await?;
        }
        Ok(())
    }
}

async fn confirmed(confirming: lapin::PublisherConfirm) -> Result<(), Error> {
    match confirming.await? {
        lapin::Confirmation::Ack(None) => Ok(()),
        other => Err(format!("RabbitMQ did not take a message: {other:?}").into()),
    }
}

fn properties(number: usize) -> BasicProperties {
    let (id, key) = (Uuid::new_v4().to_string(), key(number));
    let mut headers = FieldTable::default();
    for (name, value) in attributes("cloudEvents:", &id, &key) {
        headers.insert(name.into(), AMQPValue::LongString(value.into()));
    }
    BasicProperties::default()
        .with_delivery_mode(PERSISTENT)
        .with_message_id(id.into())
        .with_content_type("application/json".into())
        .with_headers(headers)
}
