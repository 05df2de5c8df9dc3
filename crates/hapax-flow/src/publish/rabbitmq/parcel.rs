//! A message as RabbitMQ carries it.

use bytes::Bytes;
use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable, ShortString};

use super::RabbitOptions;
use crate::publish::Envelope;
use crate::publish::cloud_events::CloudEvents;
use crate::publish::template::Template;
use crate::rabbitmq::RabbitError;

/// What attributes of CloudEvents are called in headers. The published readers of AMQP know this
/// prefix, and `cloudEvents_` for clients that cannot name a colon.
const PREFIX: &str = "cloudEvents:";

/// A message that a restart of the server keeps.
const PERSISTENT: u8 = 2;

/// Room for what is in a frame beside the headers.
const FRAME_BYTES_OWN: usize = 2048;

/// Makes a parcel of each message.
pub(super) struct Parcels {
    /// `None`: the exchange without a name.
    exchange: Option<Template>,
    routing_key: Template,
    events: CloudEvents,
}

pub(super) struct Parcel {
    pub(super) exchange: ShortString,
    pub(super) routing_key: ShortString,
    pub(super) properties: BasicProperties,
    pub(super) payload: Bytes,
}

impl Parcels {
    pub(super) fn new(options: &RabbitOptions) -> Result<Parcels, RabbitError> {
        let exchange = match options.exchange.as_str() {
            "" => None,
            exchange => Some(template(exchange)?),
        };
        Ok(Parcels {
            exchange,
            routing_key: template(&options.routing_key)?,
            events: options.events.clone(),
        })
    }

    /// # Errors
    ///
    /// Why RabbitMQ can never carry this message.
    pub(super) fn wrap(
        &self,
        message: &Envelope,
        frame_bytes_max: usize,
    ) -> Result<Parcel, String> {
        let name = |template: &Template| short(&template.name(&message.topic));
        let exchange = self.exchange.as_ref().map(name).transpose()?;
        let (described, payload) = self.events.wrap_plainly(message, PREFIX);
        let mut properties = BasicProperties::default()
            .with_delivery_mode(PERSISTENT)
            .with_message_id(short(&message.id.to_string())?)
            .with_timestamp(message.at.as_micros() / 1_000_000);
        let mut headers = FieldTable::default();
        let mut bytes = FRAME_BYTES_OWN;
        for (header, value) in described {
            if header == "content-type" {
                properties = properties.with_content_type(short(&value)?);
                continue;
            }
            bytes += header.len() + value.len() + 8;
            let value = AMQPValue::LongString(value.into_owned().into());
            headers.insert(short(&header)?, value);
        }
        // The server would cut the connection, again and again.
        if bytes > frame_bytes_max {
            return Err(format!(
                "its headers take {bytes} bytes, and a frame of RabbitMQ has {frame_bytes_max}: \
                 raise frame_max in the configuration of RabbitMQ"
            ));
        }
        Ok(Parcel {
            exchange: exchange.unwrap_or_default(),
            routing_key: name(&self.routing_key)?,
            properties: properties.with_headers(headers),
            payload,
        })
    }
}

impl Parcel {
    /// Where it goes, for messages.
    pub(super) fn address(&self) -> String {
        let (exchange, key) = (self.exchange.as_str(), self.routing_key.as_str());
        match exchange {
            "" => format!("the queue {key:?}"),
            exchange => format!("the exchange {exchange:?} with the routing key {key:?}"),
        }
    }
}

fn template(text: &str) -> Result<Template, RabbitError> {
    Template::parse(text).map_err(|reason| RabbitError::Name(text.to_owned(), reason.to_owned()))
}

fn short(text: &str) -> Result<ShortString, String> {
    ShortString::try_new(text).map_err(|_| {
        let beginning: String = text.chars().take(40).collect();
        format!("{beginning:?}… is longer than the 255 bytes that RabbitMQ allows here")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rabbitmq::RabbitServers;
    use hapax_core::flow::MessageId;
    use hapax_core::time::Timestamp;

    fn message(topic: &str, headers: &[(&str, &str)]) -> Envelope {
        Envelope {
            sequence: 1,
            id: MessageId::from_bytes([1; 16]),
            at: Timestamp::from_micros(1_794_950_675_000_042),
            topic: topic.to_owned(),
            key: Some("17".to_owned()),
            ordered: true,
            version: None,
            headers: headers
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect(),
            payload: Bytes::from_static(b"{}"),
        }
    }

    fn parcels() -> Parcels {
        let servers = RabbitServers::new(["amqp://a"]);
        Parcels::new(&RabbitOptions::new(servers)).unwrap()
    }

    #[test]
    fn a_message_is_a_cloud_event_with_the_properties_of_amqp() {
        let message = message(
            "orders",
            &[("content-type", "application/json"), ("x-a", "ü")],
        );
        let parcel = parcels().wrap(&message, 131_072).unwrap();
        assert_eq!(parcel.exchange.as_str(), "");
        assert_eq!(parcel.routing_key.as_str(), "orders");
        let properties = &parcel.properties;
        assert_eq!(*properties.delivery_mode(), Some(2));
        assert_eq!(*properties.timestamp(), Some(1_794_950_675));
        let id = "01010101-0101-0101-0101-010101010101";
        assert_eq!(*properties.message_id(), Some(id.into()));
        assert_eq!(*properties.content_type(), Some("application/json".into()));
        let headers = properties.headers().as_ref().unwrap().inner();
        let text = |name: &str| headers[name].as_long_string().unwrap().to_string();
        assert_eq!(text("cloudEvents:id"), id);
        assert_eq!(text("cloudEvents:subject"), "17");
        assert_eq!(text("x-a"), "ü");
    }

    #[test]
    fn what_rabbitmq_cannot_carry_is_refused() {
        let long = "x".repeat(300);
        for (topic, headers, frame_bytes_max) in [
            (&*long, vec![], 131_072),
            ("orders", vec![(&*long, "1")], 131_072),
            ("orders", vec![("content-type", &*long)], 131_072),
            ("orders", vec![("x-a", &*"y".repeat(4096))], 4096),
        ] {
            let refused = parcels().wrap(&message(topic, &headers), frame_bytes_max);
            assert!(refused.is_err(), "{topic} {headers:?}");
        }
    }
}
