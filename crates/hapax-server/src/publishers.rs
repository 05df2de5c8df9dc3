//! What sends messages to each [`Destination`], with the settings of a configuration.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hapax_flow::publish::cloud_events::CloudEvents;
use hapax_flow::publish::webhook::{self, Endpoint, Secret};
use hapax_flow::publish::{
    Kafka, KafkaCredentials, KafkaOptions, KafkaServers, KafkaTls, Nats, NatsCredentials,
    NatsOptions, Null, Publisher, RabbitMq, RabbitOptions, RabbitServers, RedisOptions,
    RedisStreams, RedisTrim, Stdout, Webhook,
};

use crate::config::{OnUnknown, Relay, Sasl};
use crate::destination::{Destination, KafkaUrl};

/// For the messages of this relay. Called on the runtime of the relays, once for each relay.
///
/// # Errors
///
/// If something about its destination cannot work, such as a file that it names. A destination that
/// cannot be reached now is no error.
pub(crate) fn of_relay(relay: &Relay) -> Result<Arc<dyn Publisher>, String> {
    Ok(match &relay.to {
        Destination::Stdout => Arc::new(Stdout::new()),
        Destination::Null => Arc::new(Null),
        Destination::Nats(servers) => Arc::new(nats(servers, relay)?),
        Destination::Kafka(url) => Arc::new(kafka(url, relay)?),
        Destination::RabbitMq(servers) => Arc::new(rabbitmq(servers, relay)?),
        Destination::Redis(url) => Arc::new(redis(url, relay)?),
        Destination::Webhook(url) => {
            let endpoint = Endpoint {
                allow_networks: relay.allow_networks.clone(),
                ca_file: relay.ca_file.clone(),
                ..Endpoint::new(url)
            };
            Arc::new(webhook(endpoint, &relay.secret_files, events(relay)?)?)
        }
    })
}

/// For requests about unknown outcomes.
///
/// # Errors
///
/// As [`of_relay`].
pub(crate) fn of_on_unknown(on_unknown: &OnUnknown) -> Result<Arc<dyn Publisher>, String> {
    let Destination::Webhook(url) = &on_unknown.url else {
        return Err(format!("{} is no webhook", on_unknown.url));
    };
    let endpoint = Endpoint {
        allow_networks: on_unknown.allow_networks.clone(),
        ca_file: on_unknown.ca_file.clone(),
        ..Endpoint::new(url)
    };
    let webhook = webhook(endpoint, &on_unknown.secret_files, CloudEvents::default())?;
    Ok(Arc::new(webhook))
}

fn events(relay: &Relay) -> Result<CloudEvents, String> {
    CloudEvents::new(&relay.source, relay.cloud_events).map_err(|error| error.to_string())
}

fn nats(servers: &[String], relay: &Relay) -> Result<Nats, String> {
    let mut options = NatsOptions::new(servers);
    options.subject.clone_from(&relay.subject);
    options.events = events(relay)?;
    let to = &mut options.servers;
    to.root_certificates.extend(relay.ca_file.clone());
    if let Some(file) = &relay.credentials_file {
        to.credentials = NatsCredentials::File(file.clone());
    }
    Nats::new(options).map_err(|error| error.to_string())
}

fn rabbitmq(servers: &[String], relay: &Relay) -> Result<RabbitMq, String> {
    let mut servers = RabbitServers::new(servers);
    servers.ca_file.clone_from(&relay.ca_file);
    let mut options = RabbitOptions::new(servers);
    options.exchange = relay.exchange.clone().unwrap_or_default();
    options.routing_key.clone_from(&relay.subject);
    options.events = events(relay)?;
    RabbitMq::new(options).map_err(|error| error.to_string())
}

fn redis(url: &str, relay: &Relay) -> Result<RedisStreams, String> {
    let mut options = RedisOptions::new(url);
    options.server.ca_file.clone_from(&relay.ca_file);
    options.stream.clone_from(&relay.stream);
    options.events = events(relay)?;
    options.trim = match (relay.stream_length_max, relay.stream_age_max) {
        (None, Duration::ZERO) => RedisTrim::Never,
        (Some(entries), Duration::ZERO) => RedisTrim::Length(entries),
        (None, age) => RedisTrim::Age(age),
        (Some(_), _) => {
            return Err(
                "a stream is trimmed by length or by age: leave out stream_length_max or stream_age_max"
                    .to_owned(),
            );
        }
    };
    RedisStreams::new(options).map_err(|error| error.to_string())
}

fn kafka(url: &str, relay: &Relay) -> Result<Kafka, String> {
    let parts = KafkaUrl::parse(url)?;
    let mut servers = KafkaServers::new(parts.servers);
    if let Some((name, password)) = parts.user {
        servers.credentials = match relay.sasl {
            Sasl::Plain => KafkaCredentials::Plain { name, password },
            Sasl::ScramSha256 => KafkaCredentials::ScramSha256 { name, password },
            Sasl::ScramSha512 => KafkaCredentials::ScramSha512 { name, password },
        };
    }
    servers.tls = parts.is_tls.then(|| KafkaTls {
        root_certificates: relay.ca_file.clone(),
        client_certificate: None,
    });
    let name = match &relay.transactional_id {
        Some(id) => id.clone(),
        None => format!("hapax-relay-{}", relay.reader),
    };
    let mut options = KafkaOptions::new(servers, name);
    options.topic = parts.topic;
    options.events = events(relay)?;
    Kafka::new(options).map_err(|error| error.to_string())
}

/// A webhook that is signed with the secrets in these files.
fn webhook(
    endpoint: Endpoint,
    secret_files: &[String],
    events: CloudEvents,
) -> Result<Webhook, String> {
    let secrets = secret_files.iter().map(|path| secret(Path::new(path)));
    let options = webhook::Options {
        secrets: secrets.collect::<Result<_, _>>()?,
        events,
        ..webhook::Options::new(endpoint)
    };
    Webhook::new(options).map_err(|error| error.to_string())
}

fn secret(path: &Path) -> Result<Secret, String> {
    let shown = path.display();
    let text = std::fs::read_to_string(path)
        .map_err(|error| format!("the secret in {shown} cannot be read: {error}"))?;
    let secret = text.trim().parse::<Secret>();
    secret.map_err(|error| format!("{shown}: {error}"))
}
