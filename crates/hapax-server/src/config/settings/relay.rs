//! The settings of a relay.

use std::path::PathBuf;
use std::time::Duration;

use hapax::core::flow::GiveUp;
use hapax_flow::publish::cloud_events::Mode;
use hapax_flow::publish::webhook::{Network, NetworkError};

use super::Settings;
use super::declare::{
    choice, count, display, duration, file, list, settings, shown_text, text, texts,
};
use crate::config::file::value::parse_texts;
use crate::destination::Destination;

settings! {
    /// Where messages are published, and how: `[relay.NAME]`.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Relay {
        /// where messages go: `nats://HOST:PORT` (`tls://` for TLS; several with commas), to streams
        /// of JetStream; `kafka://HOST:PORT/TOPIC` (`kafkas://` for TLS; several servers with commas),
        /// in transactions, where `{topic}` stands for the topic of a message, and is all of it by
        /// default; `amqp://USER:PASSWORD@HOST/VHOST` (`amqps://` for TLS; several with commas), to an
        /// exchange of RabbitMQ; `redis://HOST:PORT` (`rediss://` for TLS), to Redis Streams;
        /// `https://HOST/PATH`, as webhooks; `stdout:`, a line of JSON for each;
        /// `null:`, nowhere, for measuring
        to: Destination = required,
            shown_text(|text| text.parse(), display).compared_by(compared).at_start(),
            "nats://127.0.0.1:4222";
        /// what happens to a message that the destination refuses, or that was tried `attempts_max`
        /// times: `hold`, it waits for an operator, and so do the later ones of its key; `dead`, it
        /// is kept to be seen, and later ones go on
        give_up: GiveUp = is "hold",
            choice(&["hold", "dead"], give_up, |give_up| Some(word(*give_up).to_owned()))
            .at_start(),
            "dead";
        /// tries of a message, the first one included, with pauses that double from a second to ten
        /// minutes: 12 take about 47 minutes
        attempts_max: u32 = is "12", count(1, 1_000_000).at_start(), "20";
        /// how often an empty outbox is looked at; at most `60s`
        poll: Duration = is "20ms",
            duration(
                false,
                Duration::from_secs(60),
                "every message may wait for this: write at most \"60s\"",
            )
            .at_start(),
            "1s";
        /// the source of messages in the sense of CloudEvents
        source: String = is "/hapax", text(|text| Ok(text.to_owned())).at_start(), "/shop";
        /// how NATS, Kafka, RabbitMQ, Redis and webhooks carry messages: `binary`, the payload as it is, with the rest in
        /// headers; `structured`, all in one JSON object
        cloud_events: Mode = is "binary",
            choice(&["binary", "structured"], mode, |mode| Some(mode_word(*mode).to_owned()))
            .at_start(),
            "structured";
        /// files with a secret each (`whsec_…` or `whsk_…`), by whole paths. Webhooks are signed with
        /// each of them: two are a rotation
        secret_files: Vec<String> = none,
            texts(|value, _| parse_texts("/etc/hapax/webhook.secret", whole_path, value), list)
            .at_start(),
            "[\"/etc/hapax/webhook.secret\"]";
        /// networks that webhooks may go to although they are not of the open internet
        allow_networks: Vec<Network> = none,
            texts(
                |value, _| {
                    parse_texts("10.0.0.0/8", |text| text.parse().map_err(|error: NetworkError| error.to_string()), value)
                },
                list,
            )
            .at_start(),
            "[\"10.0.0.0/8\"]";
        /// the subject of a message at NATS, its routing key at RabbitMQ; `{topic}` stands for its
        /// topic
        subject: String = is "{topic}", text(|text| Ok(text.to_owned())).at_start(), "shop.{topic}";
        /// the exchange of a message at RabbitMQ; `{topic}` stands for its topic. Without one, its
        /// routing key names a queue
        exchange: Option<String> = none,
            shown_text(|text| Ok(Some(text.to_owned())), Clone::clone).at_start(), "events";
        /// the credentials of a user of NATS: the file that `nsc` makes
        credentials_file: Option<PathBuf> = none, file().at_start(), "relay.creds";
        /// the name of the relay at Kafka, and of the topic in which it notes what it has published: by
        /// default `hapax-relay-` and the reader. Each outbox has its own
        transactional_id: Option<String> = none,
            shown_text(|text| Ok(Some(text.to_owned())), Clone::clone).at_start(), "shop-relay";
        /// how a user and a password in the URL of Kafka are sent: `plain` only with TLS
        sasl: Sasl = is "scram-sha-512",
            choice(&["plain", "scram-sha-256", "scram-sha-512"], sasl, |sasl| Some(sasl_word(*sasl).to_owned()))
            .at_start(),
            "plain";
        /// the stream of a message at Redis; `{topic}` stands for its topic
        stream: String = is "{topic}", text(|text| Ok(text.to_owned())).at_start(), "shop:{topic}";
        /// entries that a stream of Redis keeps, somewhat more: older ones are removed, whether they
        /// were consumed or not
        stream_length_max: Option<u64> = none, count(1, 1 << 50).at_start(), "1000000";
        /// how long a stream of Redis keeps entries, somewhat more; `0s`: for ever
        stream_age_max: Duration = is "0s",
            duration(true, Duration::from_secs(10 * 365 * 24 * 60 * 60), "write at most \"87600h\"").at_start(),
            "168h";
        /// certificate authorities that NATS, Kafka, RabbitMQ, Redis and webhooks may have, in PEM
        ca_file: Option<PathBuf> = none, file().at_start(), "ca.pem";
    }
    and {
        /// The name of the reader: relays with the same one share its work, and one is active.
        reader: String,
    }
}

/// How the relay says at Kafka who it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sasl {
    /// The password itself.
    Plain,
    /// A proof that it knows the password.
    ScramSha256,
    /// The same, with another digest.
    ScramSha512,
}

impl Default for Relay {
    fn default() -> Self {
        Relay::read(None)
    }
}

/// What becomes of a message that is given up, by its name in the configuration.
pub(crate) fn give_up(text: &str) -> Result<GiveUp, String> {
    match text {
        "hold" => Ok(GiveUp::Hold),
        "dead" => Ok(GiveUp::Dead),
        _ => Err(format!(
            "`{text}` is not known here: write \"hold\" or \"dead\""
        )),
    }
}

fn mode(text: &str) -> Result<Mode, String> {
    match text {
        "binary" => Ok(Mode::Binary),
        "structured" => Ok(Mode::Structured),
        _ => Err(format!(
            "`{text}` is not known here: write \"binary\" or \"structured\""
        )),
    }
}

fn mode_word(mode: Mode) -> &'static str {
    match mode {
        Mode::Binary => "binary",
        Mode::Structured => "structured",
    }
}

fn sasl(text: &str) -> Result<Sasl, String> {
    match text {
        "plain" => Ok(Sasl::Plain),
        "scram-sha-256" => Ok(Sasl::ScramSha256),
        "scram-sha-512" => Ok(Sasl::ScramSha512),
        _ => Err(format!(
            "`{text}` is not known here: write \"plain\", \"scram-sha-256\" or \"scram-sha-512\""
        )),
    }
}

fn sasl_word(sasl: Sasl) -> &'static str {
    match sasl {
        Sasl::Plain => "plain",
        Sasl::ScramSha256 => "scram-sha-256",
        Sasl::ScramSha512 => "scram-sha-512",
    }
}

pub(super) fn whole_path(text: &str) -> Result<String, String> {
    match text.starts_with('/') {
        true => Ok(text.to_owned()),
        false => Err(format!("`{text}` is not a whole path: begin it with /")),
    }
}

/// A destination with what is secret in it.
#[expect(clippy::unnecessary_wraps, reason = "a declaration wants this type")]
pub(super) fn compared(to: &Destination) -> Option<String> {
    Some(match to {
        Destination::Nats(servers) | Destination::RabbitMq(servers) => servers.join(","),
        Destination::Kafka(url) | Destination::Redis(url) | Destination::Webhook(url) => {
            url.clone()
        }
        other => other.to_string(),
    })
}

fn word(give_up: GiveUp) -> &'static str {
    match give_up {
        GiveUp::Hold => "hold",
        GiveUp::Dead => "dead",
    }
}
