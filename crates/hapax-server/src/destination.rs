//! Where messages go, as it is written: how it is read, and how it is shown. `publishers` opens it.
//! Whoever adds a destination adds it in these two files, and nowhere else in this crate.

use std::fmt;
use std::str::FromStr;

use hapax_flow::publish::{
    Kafka, KafkaOptions, KafkaServers, Nats, NatsOptions, RabbitMq, RabbitOptions, RabbitServers,
    RedisOptions, RedisStreams,
};
use percent_encoding::percent_decode_str;

/// Every form of a destination, for messages.
const FORMS: &str = "nats://HOST:PORT, tls://HOST:PORT for NATS with TLS, kafka://HOST:PORT/TOPIC, kafkas://HOST:PORT/TOPIC for Kafka with TLS, amqp://HOST/VHOST or amqps:// for RabbitMQ, redis://HOST:PORT (rediss:// with TLS), https://HOST/PATH for webhooks, stdout: or null:";

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
    /// Servers of RabbitMQ: `amqp://` or `amqps://`, several of them behind commas.
    RabbitMq(Vec<String>),
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
            Destination::RabbitMq(_) => "rabbitmq",
            Destination::Webhook(_) => "webhook",
        }
    }
}

/// `kafka://USER:PASSWORD@HOST:PORT,HOST:PORT/TOPIC`.
pub(crate) struct KafkaUrl {
    pub(crate) is_tls: bool,
    pub(crate) user: Option<(String, String)>,
    pub(crate) servers: Vec<String>,
    pub(crate) topic: String,
}

impl KafkaUrl {
    /// # Errors
    ///
    /// What is wrong, without what may be secret.
    pub(crate) fn parse(url: &str) -> Result<KafkaUrl, String> {
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
                let servers = split(text);
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
            Some(("amqp" | "amqps", _)) => {
                let servers = split(text);
                let options = RabbitOptions::new(RabbitServers::new(&servers));
                RabbitMq::new(options).map_err(|error| error.to_string())?;
                Ok(Destination::RabbitMq(servers))
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

/// The servers of one destination.
fn split(text: &str) -> Vec<String> {
    text.split(',').map(|url| url.trim().to_owned()).collect()
}

/// Without what is secret: users and passwords, and the path of a webhook, which may be one.
impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Destination::Stdout => f.write_str("stdout:"),
            Destination::Null => f.write_str("null:"),
            Destination::Nats(servers) | Destination::RabbitMq(servers) => {
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
            Destination::RabbitMq(vec!["amqp://a/shop".into(), "amqps://b:5671/shop".into()]),
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
                "amqp://user:word@a/shop,amqps://user:word@b/shop",
                "amqp://a/shop,amqps://b/shop",
            ),
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
            ("amqp://u:secret@a:x", "servers of RabbitMQ"),
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
