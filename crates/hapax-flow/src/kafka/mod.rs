//! The client of Kafka. Nothing else knows it: destination and source use what is here.
//!
//! `transaction` is what Kafka takes all or none of; `writer` writes so and knows what it has
//! written; `reader` is a member of a group; `carrier` is a member that writes what it made of what
//! it read; `asked` is what a cluster tells about topics and groups.

mod asked;
mod carrier;
mod reader;
mod transaction;
mod writer;

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use krafka::admin::DescribeClusterOptions;
use krafka::auth::{AuthConfig, TlsConfig};
use krafka::consumer::{
    AutoOffsetReset, Consumer, ConsumerBuilder, IsolationLevel, PartitionAssignmentStrategy,
    TopicPartition,
};
use krafka::{Kafka, KrafkaError};

/// A message as it was fetched.
pub(crate) use krafka::ConsumerRecord as Fetched;

pub(crate) use asked::Asked;
pub(crate) use carrier::{Carrier, CarrierOptions};
pub(crate) use reader::{Reader, ReaderOptions, Tag};
pub(crate) use transaction::{Entry, Fault, Trouble};
pub(crate) use writer::{Writer, WriterOptions};

/// The servers of Kafka and who one is there.
#[derive(Clone, Debug)]
pub struct KafkaServers {
    /// Some servers of one cluster, `HOST:PORT` each. They tell where the others are.
    pub addresses: Vec<String>,
    /// Who one is.
    pub credentials: KafkaCredentials,
    /// For TLS: which certificates.
    pub tls: Option<KafkaTls>,
}

impl KafkaServers {
    /// Without credentials and TLS.
    pub fn new(addresses: impl IntoIterator<Item = impl Into<String>>) -> KafkaServers {
        KafkaServers {
            addresses: addresses.into_iter().map(Into::into).collect(),
            credentials: KafkaCredentials::None,
            tls: None,
        }
    }

    /// Checks what can be known without a connection.
    pub(crate) fn check(&self) -> Result<(), KafkaError> {
        if self.addresses.is_empty() {
            return Err(KafkaError::Server("none is given".to_owned()));
        }
        for address in &self.addresses {
            let parts = address.rsplit_once(':');
            let is_whole = parts.is_some_and(|(host, port)| {
                !host.is_empty() && !host.contains(['/', '@', ',']) && port.parse::<u16>().is_ok()
            });
            if !is_whole {
                // What is wrong may be that it has a password.
                let shown = address.rsplit('@').next().unwrap_or_default();
                let reason = format!("{shown:?} is not HOST:PORT");
                return Err(KafkaError::Server(reason));
            }
        }
        Ok(())
    }

    /// Connects to one of them.
    async fn connect(&self, limit: Duration) -> Result<Kafka, String> {
        let connecting = Kafka::builder(self.addresses.join(","))
            .client_id("hapax")
            .security(self.security())
            .connect_timeout(limit)
            .request_timeout(limit)
            .connect();
        match tokio::time::timeout(limit, connecting).await {
            Ok(connected) => connected.map_err(|error| self.unreachable(&error.to_string())),
            Err(_) => Err(self.unreachable(&format!("no connection within {limit:?}"))),
        }
    }

    fn unreachable(&self, reason: &str) -> String {
        let servers = self.addresses.join(",");
        format!("Kafka cannot be reached at {servers}: {reason}")
    }

    fn security(&self) -> AuthConfig {
        let credentials = match &self.credentials {
            KafkaCredentials::None => None,
            KafkaCredentials::Plain { name, password } => {
                Some(AuthConfig::sasl_plain(name, password))
            }
            KafkaCredentials::ScramSha256 { name, password } => {
                Some(AuthConfig::sasl_scram_sha256(name, password))
            }
            KafkaCredentials::ScramSha512 { name, password } => {
                Some(AuthConfig::sasl_scram_sha512(name, password))
            }
        };
        match (credentials, &self.tls) {
            (None, None) => AuthConfig::plaintext(),
            (None, Some(tls)) => AuthConfig::ssl(tls.config()),
            (Some(credentials), None) => credentials,
            (Some(credentials), Some(tls)) => credentials.with_tls(tls.config()),
        }
    }
}

/// Who one is at Kafka.
#[derive(Clone, Default)]
pub enum KafkaCredentials {
    /// One does not say.
    #[default]
    None,
    /// SASL `PLAIN`: the password goes over the wire. Use TLS.
    Plain {
        /// The name.
        name: String,
        /// The password.
        password: String,
    },
    /// SASL `SCRAM-SHA-256`.
    ScramSha256 {
        /// The name.
        name: String,
        /// The password.
        password: String,
    },
    /// SASL `SCRAM-SHA-512`.
    ScramSha512 {
        /// The name.
        name: String,
        /// The password.
        password: String,
    },
}

/// Without secrets.
impl fmt::Debug for KafkaCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KafkaCredentials::None => f.write_str("None"),
            KafkaCredentials::Plain { name, .. } => write!(f, "Plain({name:?})"),
            KafkaCredentials::ScramSha256 { name, .. } => write!(f, "ScramSha256({name:?})"),
            KafkaCredentials::ScramSha512 { name, .. } => write!(f, "ScramSha512({name:?})"),
        }
    }
}

/// Certificates for connections to Kafka.
#[derive(Clone, Debug, Default)]
pub struct KafkaTls {
    /// A file with the only certificate authorities to trust, in PEM. If there is none, those of
    /// the system are trusted.
    pub root_certificates: Option<PathBuf>,
    /// Files with one's own certificate and its key, in PEM.
    pub client_certificate: Option<(PathBuf, PathBuf)>,
}

impl KafkaTls {
    fn config(&self) -> TlsConfig {
        let text = |path: &PathBuf| path.to_string_lossy().into_owned();
        let config = match &self.root_certificates {
            Some(file) => TlsConfig::new().with_ca_cert(text(file)),
            None => TlsConfig::new().with_native_roots(),
        };
        match &self.client_certificate {
            Some((certificate, key)) => config.with_client_cert(text(certificate), text(key)),
            None => config,
        }
    }
}

/// Why Kafka cannot be used as it is said.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KafkaError {
    /// The servers are wrong.
    #[error("servers of Kafka: {0}")]
    Server(String),
    /// The template of topics is wrong.
    #[error("topic {0:?} of Kafka: {1}")]
    Topic(String, &'static str),
    /// Others would get a message before this member gives it up.
    #[error("patience must be longer than {0:?}: twice what all tries of a message may take")]
    Patience(Duration),
    /// A name is wrong.
    #[error("{0:?} cannot be a name at Kafka: it has 1 to 249 letters, digits, `.`, `_` and `-`")]
    Name(String),
}

/// When nothing comes for this long, it is asked whether the servers are there at all.
const QUIET_MAX: Duration = Duration::from_secs(2);

/// Asks whether the servers are there: the client waits in silence for those that are gone.
async fn probe(kafka: &Kafka, limit: Duration) -> Result<(), String> {
    let options = DescribeClusterOptions::default().timeout(limit);
    match tokio::time::timeout(limit, kafka.admin().describe_cluster(options)).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(said(&error)),
        Err(_) => Err(format!("Kafka did not answer within {limit:?}")),
    }
}

/// A member of a group that reads what is committed and moves the group only when it is told to.
fn member(kafka: &Kafka, group: &str, session: Duration) -> ConsumerBuilder {
    kafka
        .consumer(group)
        .isolation_level(IsolationLevel::ReadCommitted)
        .auto_offset_reset(AutoOffsetReset::Earliest)
        .enable_auto_commit(false)
        .session_timeout(session)
        .heartbeat_interval(session / 5)
        // A partition that stays with its member does not make a pause when others move.
        .partition_assignment_strategy(PartitionAssignmentStrategy::CooperativeSticky)
        .metrics_push(false)
}

/// The place in each partition up to which the client has handed out messages, or passed marks of
/// transactions. Never that of the next fetch: while a group changes, a poll comes back empty though
/// the client has fetched messages, and these may go to another member.
async fn handed_out(consumer: &Consumer) -> Vec<(TopicPartition, i64)> {
    let places = consumer.lag().await.into_iter();
    places
        .filter_map(|(place, lag)| Some((place, lag.position?)))
        .collect()
}

fn said(error: &KrafkaError) -> String {
    format!("Kafka: {error}")
}

/// Checks the topics that somebody is to read.
pub(crate) fn check_topics(topics: &[String]) -> Result<(), KafkaError> {
    if topics.is_empty() {
        return Err(KafkaError::Topic(String::new(), "none is given"));
    }
    for topic in topics {
        check_name(topic).map_err(|reason| KafkaError::Topic(topic.clone(), reason))?;
    }
    Ok(())
}

/// Checks what Kafka allows in the name of a topic.
pub(crate) fn check_name(name: &str) -> Result<(), &'static str> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    match name {
        "" => Err("it is empty"),
        "." | ".." => Err("it is . or .."),
        _ if name.len() > 249 => Err("it is longer than 249 bytes"),
        _ if !name.bytes().all(is_plain) => {
            Err("it has other characters than letters, digits, `.`, `_` and `-`")
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_address_is_refused_without_its_password() {
        for address in ["", "a", ":1", "user:secret@a", "a:x", "secret@a:b", "a/b:1"] {
            let error = KafkaServers::new([address]).check().unwrap_err();
            assert!(!error.to_string().contains("secret"), "{error}");
        }
        assert!(KafkaServers::new(["a:9092", "[::1]:9092"]).check().is_ok());
    }

    #[test]
    fn credentials_are_shown_without_the_password() {
        let credentials = KafkaCredentials::Plain {
            name: "relay".to_owned(),
            password: "secret".to_owned(),
        };
        assert_eq!(format!("{credentials:?}"), "Plain(\"relay\")");
    }

    #[test]
    fn names_are_what_kafka_allows() {
        for name in ["orders", "a.b_c-D9"] {
            assert!(check_name(name).is_ok(), "{name}");
        }
        let long = "x".repeat(250);
        for name in ["", ".", "..", "a b", "größe", "a/b", &long] {
            assert!(check_name(name).is_err(), "{name}");
        }
    }
}
