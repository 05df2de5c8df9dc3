//! Where messages go, as it is written. Whoever adds a destination adds it here, and nowhere else
//! in this crate: a variant, how it is read, how it is shown, and its publisher.

use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use hapax_flow::publish::cloud_events::CloudEvents;
use hapax_flow::publish::webhook::{self, Endpoint, Secret};
use hapax_flow::publish::{
    Kafka, KafkaCredentials, KafkaOptions, KafkaServers, KafkaTls, Nats, NatsCredentials,
    NatsOptions, Null, Publisher, RedisOptions, RedisStreams, RedisTrim, Stdout, Webhook,
};

use percent_encoding::percent_decode_str;

use crate::config::{OnUnknown, Relay, Sasl};

/// Every form of a destination, for messages.
const FORMS: &str = "nats://HOST:PORT, tls://HOST:PORT for NATS with TLS, kafka://HOST:PORT/TOPIC, kafkas://HOST:PORT/TOPIC for Kafka with TLS, redis://HOST:PORT (rediss:// with TLS), https://HOST/PATH for webhooks, stdout: or null:";

/// A destination of messages.
#[derive(Clone, PartialEq, Eq)]
pub enum Destination {
    /// Standard output, a line of JSON for each message: `stdout:`.
    Stdout,
    /// Nowhere, for measuring: `null:`.
    Null,
    /// Servers of NATS with JetStream: `nats://` or `tls://`, several of them behind commas.
    Nats(Vec<String>),
    /// Topics of Kafka: `kafka://` or `kafkas://`, servers behind commas, and the topic.
    Kafka(String),
    /// Streams of a Redis or Valkey: `redis://` or `rediss://`.
    Redis(String),
    /// Webhooks: `https://`, or `http://` to this machine.
    Webhook(String),
}

impl Destination {
    /// The name of its reader, unless another is given.
    pub(crate) fn default_reader(&self) -> &'static str {
        match self {
            Destination::Stdout => "stdout",
            Destination::Null => "null",
            Destination::Nats(_) => "nats",
            Destination::Kafka(_) => "kafka",
            Destination::Redis(_) => "redis",
            Destination::Webhook(_) => "webhook",
        }
    }

    /// What sends messages there, with the settings of this relay. Called on the runtime of the
    /// relays, once for each relay.
    ///
    /// # Errors
    ///
    /// If something about it cannot work, such as a file that it names. A destination that cannot
    /// be reached now is no error.
    pub(crate) fn open(&self, relay: &Relay) -> Result<Arc<dyn Publisher>, String> {
        Ok(match self {
            Destination::Stdout => Arc::new(Stdout::new()),
            Destination::Null => Arc::new(Null),
            Destination::Nats(servers) => Arc::new(nats(servers, relay)?),
            Destination::Kafka(url) => Arc::new(kafka(url, relay)?),
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
}

impl OnUnknown {
    /// What sends requests to the receiver.
    ///
    /// # Errors
    ///
    /// As [`Destination::open`].
    pub(crate) fn open(&self) -> Result<Arc<dyn Publisher>, String> {
        let Destination::Webhook(url) = &self.url else {
            return Err(format!("{} is no webhook", self.url));
        };
        let endpoint = Endpoint {
            allow_networks: self.allow_networks.clone(),
            ca_file: self.ca_file.clone(),
            ..Endpoint::new(url)
        };
        let webhook = webhook(endpoint, &self.secret_files, CloudEvents::default())?;
        Ok(Arc::new(webhook))
    }
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

/// `kafka://USER:PASSWORD@HOST:PORT,HOST:PORT/TOPIC`.
struct KafkaUrl {
    is_tls: bool,
    user: Option<(String, String)>,
    servers: Vec<String>,
    topic: String,
}

impl KafkaUrl {
    /// # Errors
    ///
    /// What is wrong, without what may be secret.
    fn parse(url: &str) -> Result<KafkaUrl, String> {
        let (scheme, rest) = url.split_once("://").ok_or("write kafka://HOST:PORT")?;
        let (authority, topic) = rest.split_once('/').unwrap_or((rest, ""));
        let (user, hosts) = match authority.rsplit_once('@') {
            Some((user, hosts)) => (Some(user), hosts),
            None => (None, authority),
        };
        let plain = |text| percent_decode_str(text).decode_utf8_lossy().into_owned();
        let user = match user.map(|user| user.split_once(':')) {
            Some(Some((name, password))) => Some((plain(name), plain(password))),
            Some(None) => return Err("the user of Kafka has no password".to_owned()),
            None => None,
        };
        Ok(KafkaUrl {
            is_tls: scheme == "kafkas",
            user,
            servers: hosts
                .split(',')
                .map(|host| host.trim().to_owned())
                .collect(),
            topic: match topic {
                "" => "{topic}".to_owned(),
                topic => topic.to_owned(),
            },
        })
    }

    fn check(self) -> Result<(), String> {
        let mut options = KafkaOptions::new(KafkaServers::new(self.servers), "check");
        options.topic = self.topic;
        let checked = Kafka::new(options);
        checked.map(drop).map_err(|error| error.to_string())
    }
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

impl FromStr for Destination {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            Some(("stdout", "")) => Ok(Destination::Stdout),
            Some(("null", "")) => Ok(Destination::Null),
            Some((scheme @ ("stdout" | "null"), _)) => {
                Err(format!("nothing stands after the colon: write {scheme}:"))
            }
            Some(("nats" | "tls", _)) => {
                let servers: Vec<String> =
                    text.split(',').map(|url| url.trim().to_owned()).collect();
                let checked = Nats::new(NatsOptions::new(&servers));
                checked.map_err(|error| error.to_string())?;
                Ok(Destination::Nats(servers))
            }
            Some(("kafka" | "kafkas", _)) => {
                KafkaUrl::parse(text)?.check()?;
                Ok(Destination::Kafka(text.to_owned()))
            }
            Some(("redis" | "rediss", _)) => {
                let checked = RedisStreams::new(RedisOptions::new(text));
                checked.map_err(|error| error.to_string())?;
                Ok(Destination::Redis(text.to_owned()))
            }
            Some(("https" | "http", _)) => Ok(Destination::Webhook(text.to_owned())),
            None if matches!(text, "stdout" | "null") => Err(format!("write {text}: with a colon")),
            // What follows may contain a password.
            Some((scheme, _)) if scheme.bytes().all(|byte| byte.is_ascii_alphanumeric()) => Err(
                format!("there is no destination `{scheme}:`: write {FORMS}"),
            ),
            _ => Err(format!("this is no destination: write {FORMS}")),
        }
    }
}

/// Without what is secret: users and passwords, and the path of a webhook, which may be one.
impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Destination::Stdout => f.write_str("stdout:"),
            Destination::Null => f.write_str("null:"),
            Destination::Nats(servers) => {
                let shown: Vec<String> = servers.iter().map(|url| without_user(url)).collect();
                f.write_str(&shown.join(","))
            }
            Destination::Kafka(url) => f.write_str(&without_user(url)),
            Destination::Redis(url) => f.write_str(&without_user(url)),
            Destination::Webhook(url) => {
                let shown = without_user(url);
                let (scheme, rest) = shown.split_once("://").unwrap_or(("https", &shown));
                let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
                write!(f, "{scheme}://{host}/…")
            }
        }
    }
}

impl fmt::Debug for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

fn without_user(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else {
        return "…".to_owned();
    };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let host = authority.rsplit('@').next().unwrap_or_default();
    format!("{scheme}://{host}{path}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_is_read_again() {
        for destination in [
            Destination::Stdout,
            Destination::Null,
            Destination::Nats(vec!["nats://a:4222".into(), "tls://b:4222".into()]),
            Destination::Kafka("kafkas://a:9092,b:9092/shop.{topic}".into()),
            Destination::Redis("rediss://a:6379/2".into()),
        ] {
            assert_eq!(destination.to_string().parse(), Ok(destination));
        }
    }

    #[test]
    fn secrets_are_not_shown() {
        for (text, shown) in [
            ("nats://user:word@host:4222", "nats://host:4222"),
            ("kafka://u:s3cret@a:9092,b:9092", "kafka://a:9092,b:9092"),
            ("redis://:word@host:6379/1", "redis://host:6379/1"),
            (
                "https://u:p@example.com/hooks/s3cret?key=1",
                "https://example.com/…",
            ),
            ("http://127.0.0.1:80", "http://127.0.0.1:80/…"),
        ] {
            let destination: Destination = text.parse().expect(text);
            assert_eq!(destination.to_string(), shown);
            assert_eq!(format!("{destination:?}"), shown);
        }
    }

    #[test]
    fn what_is_no_destination_is_refused_with_what_to_write() {
        for (text, said) in [
            ("stdout", "write stdout: with a colon"),
            ("stdout:x", "nothing stands after the colon"),
            (
                "carrier:pigeon@secret",
                "there is no destination `carrier:`",
            ),
            ("nats://", "servers of NATS"),
            ("kafka://a", "\"a\" is not HOST:PORT"),
            ("kafka://u:secret@a", "is not HOST:PORT"),
            ("kafka://secret@a:1", "has no password"),
            ("kafka://a:1/{key}", "only {topic} may stand in braces"),
            ("redis://:secret@", "write redis://HOST:PORT"),
            ("", "this is no destination"),
        ] {
            let refused = text.parse::<Destination>().unwrap_err();
            assert!(
                refused.contains(said) && !refused.contains("secret"),
                "{refused}"
            );
        }
    }
}
