//! NATS JetStream.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use hapax_flow::publish::{Nats, NatsOptions};
//!
//! let mut options = NatsOptions::new(["nats://localhost:4222"]);
//! options.subject = "shop.{topic}".into();
//! options.stream = Some("SHOP".into());
//! let nats = Nats::new(options)?;
//! nats.check().await?;
//! # Ok(())
//! # }
//! ```

mod check;
mod options;
mod subject;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::OnceLock;
use std::time::Duration;

use async_nats::header::{HeaderMap, HeaderName, HeaderValue, NATS_MESSAGE_ID};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use tokio::sync::Mutex;
use tokio::time::timeout;

pub use self::options::NatsOptions;
use self::subject::Template;
use super::cloud_events::CloudEvents;
use super::{Envelope, Outage, Publisher, Reply, Verdict};
use crate::nats::{Answer, ApiError, Connection, NatsError, Server};

/// The header with the key of a message.
const KEY_HEADER: &str = "Hapax-Key";

/// Messages that wait for their acknowledgement at a time. More would only wait in another queue.
const IN_FLIGHT_MAX: usize = 256;

/// How long a server that has not acknowledged a message may take to say that it lives.
const PROBE_LIMIT_MAX: Duration = Duration::from_secs(1);

/// Invalid operation on a sealed stream: of all errors that are the client's fault by their code,
/// the one that an operator can mend.
const SEALED: u64 = 10109;

/// Publishes to streams of NATS JetStream.
///
/// The id of a message is its `Nats-Msg-Id`: a stream recognises a repeat within its duplicate
/// window, two minutes by default. Its key is in the header `Hapax-Key`.
///
/// It connects by itself, at the first call and after each loss. TLS uses the provider that the
/// program has installed for rustls, or aws-lc-rs if no other one is built in.
pub struct Nats {
    options: NatsOptions,
    servers: Vec<Server>,
    template: Template,
    connection: Mutex<Option<Arc<Connection>>>,
}

impl Nats {
    /// A publisher that is not connected yet.
    ///
    /// # Errors
    ///
    /// [`NatsError::Server`] and [`NatsError::Subject`].
    pub fn new(options: NatsOptions) -> Result<Nats, NatsError> {
        Ok(Nats {
            servers: options.servers.parse()?,
            template: options.template()?,
            connection: Mutex::new(None),
            options,
        })
    }

    /// Checks at the start of the program that a server can be reached, and that the stream of the
    /// options can take the messages.
    ///
    /// # Errors
    ///
    /// [`NatsError::Unavailable`] if no server answers, which may pass; [`NatsError::Stream`] if
    /// somebody has to mend the stream.
    pub async fn check(&self) -> Result<(), NatsError> {
        let connection = self.connection().await;
        let connection = connection.map_err(|outage| NatsError::Unavailable(outage.reason))?;
        check::check(&connection, &self.options, &self.template).await
    }

    /// The connection, a new one if need be. Calls at the same time share it.
    async fn connection(&self) -> Result<Arc<Connection>, Outage> {
        let connected = async {
            let mut place = self.connection.lock().await;
            if let Some(connection) = place.as_ref().filter(|found| found.is_usable()) {
                return Ok(connection.clone());
            }
            *place = None;
            let connection =
                Connection::open(&self.servers, &self.options.servers, "hapax relay").await?;
            Ok(place.insert(Arc::new(connection)).clone())
        };
        let limit = self.options.servers.timeout;
        timeout(limit, connected)
            .await
            .unwrap_or_else(|_| Err(format!("no connection within {limit:?}")))
            .map_err(|reason| Outage::new(format!("NATS cannot be reached: {reason}")))
    }

    async fn publish_batch(&self, batch: &[Envelope]) -> Result<Vec<Verdict>, Outage> {
        if batch.is_empty() {
            return Ok(Vec::new());
        }
        let sending = Sending {
            nats: self,
            connection: self.connection().await?,
            batch,
            no_stream: OnceLock::new(),
        };
        let mut verdicts = vec![Verdict::NotSent; batch.len()];
        let chains = chains(batch).into_iter().map(|chain| sending.chain(chain));
        let mut chains = stream::iter(chains).buffer_unordered(IN_FLIGHT_MAX);
        while let Some(ended) = chains.next().await {
            for (place, verdict) in ended? {
                verdicts[place] = verdict;
            }
        }
        // A subject without a stream concerns its messages alone, as long as others arrive.
        match sending.no_stream.get() {
            Some(reason) if !verdicts.iter().any(Verdict::is_accepted) => Err(Outage::new(reason)),
            _ => Ok(verdicts),
        }
    }
}

impl std::fmt::Debug for Nats {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let addresses = self.servers.iter().map(ToString::to_string);
        f.debug_struct("Nats")
            .field("servers", &addresses.collect::<Vec<_>>())
            .field("subject", &self.options.subject)
            .finish_non_exhaustive()
    }
}

impl Publisher for Nats {
    fn publish<'a>(&'a self, batch: &'a [Envelope]) -> Reply<'a, Result<Vec<Verdict>, Outage>> {
        Box::pin(self.publish_batch(batch))
    }
}

/// The places of the messages that must follow each other, for each ordered key. A message without
/// a place in an order is alone.
fn chains(batch: &[Envelope]) -> Vec<Vec<usize>> {
    let mut chains: Vec<Vec<usize>> = Vec::new();
    let mut chain_of: HashMap<(&str, &str), usize> = HashMap::new();
    for (place, message) in batch.iter().enumerate() {
        let known = message
            .ordered_key()
            .map(|key| *chain_of.entry(key).or_insert(chains.len()));
        match known.and_then(|number| chains.get_mut(number)) {
            Some(chain) => chain.push(place),
            None => chains.push(vec![place]),
        }
    }
    chains
}

/// One call, on one connection.
struct Sending<'a> {
    nats: &'a Nats,
    connection: Arc<Connection>,
    batch: &'a [Envelope],
    no_stream: OnceLock<String>,
}

impl Sending<'_> {
    /// Publishes messages one after the other, up to the first that is not accepted. The server
    /// would keep the order of a pipeline too, but would store a message after one that it refused.
    async fn chain(&self, chain: Vec<usize>) -> Result<Vec<(usize, Verdict)>, Outage> {
        let mut verdicts = Vec::with_capacity(chain.len());
        for place in chain {
            let verdict = self.one(&self.batch[place]).await?;
            let is_accepted = verdict.is_accepted();
            verdicts.push((place, verdict));
            if !is_accepted {
                break;
            }
        }
        Ok(verdicts)
    }

    async fn one(&self, message: &Envelope) -> Result<Verdict, Outage> {
        let ready = self
            .nats
            .template
            .subject(&message.topic)
            .and_then(|subject| Ok((subject, wrapped(message, &self.nats.options.events)?)));
        let (subject, (headers, payload)) = match ready {
            Ok(ready) => ready,
            Err(reason) => return Ok(Verdict::Refused(reason)),
        };
        let limit = self.nats.options.servers.timeout;
        let answer = self
            .connection
            .publish(subject.clone(), headers, payload, limit)
            .await;
        self.verdict(answer, &subject).await
    }

    async fn verdict(&self, answer: Answer, subject: &str) -> Result<Verdict, Outage> {
        match answer {
            Answer::Stored { duplicate } => Ok(Verdict::Accepted { duplicate }),
            Answer::Error(error) => Ok(of_error(&error)),
            Answer::TooLarge(reason) => Ok(Verdict::Refused(format!(
                "{reason}: raise max_payload in the configuration of NATS"
            ))),
            Answer::NoStream => {
                let reason = no_stream(subject);
                self.no_stream.get_or_init(|| reason.clone());
                Ok(Verdict::Failed(reason))
            }
            Answer::Foreign => Ok(Verdict::Unclear(format!(
                "something that listens on the subject {subject} of NATS answered in place of \
                 JetStream: it must not answer messages there"
            ))),
            Answer::Missing if self.is_alive().await => Ok(self.unclear(subject)),
            Answer::Missing => Err(self.outage("NATS does not answer")),
            Answer::Lost => Err(self.outage("the connection to NATS was lost")),
        }
    }

    /// Whether JetStream answers anything: if so, the missing answer concerns one message.
    async fn is_alive(&self) -> bool {
        let limit = self.nats.options.servers.timeout.min(PROBE_LIMIT_MAX);
        self.connection.ask("INFO", Vec::new(), limit).await.is_ok()
    }

    fn unclear(&self, subject: &str) -> Verdict {
        let limit = self.nats.options.servers.timeout;
        let complaint = self.connection.complaint();
        let complaint = complaint.map_or_else(String::new, |text| format!("; it says: {text}"));
        Verdict::Unclear(format!(
            "NATS did not acknowledge a message for {subject} within {limit:?}{complaint}"
        ))
    }

    fn outage(&self, what: &str) -> Outage {
        self.connection.give_up();
        Outage::new(format!("{what}: {}", self.connection.server()))
    }
}

fn of_error(error: &ApiError) -> Verdict {
    let reason = format!("NATS: {} (error {})", error.description, error.err_code);
    match error.code {
        400 if error.err_code != SEALED => Verdict::Refused(reason),
        _ => Verdict::Failed(reason),
    }
}

fn no_stream(subject: &str) -> String {
    format!(
        "no stream of NATS takes the subject {subject}. \
         Make one: nats stream add NAME --subjects '{subject}' --defaults"
    )
}

/// The headers and the body of a message at NATS.
fn wrapped(message: &Envelope, events: &CloudEvents) -> Result<(HeaderMap, Bytes), String> {
    let (described, body) = events.wrap(message);
    let mut headers = HeaderMap::new();
    headers.insert(NATS_MESSAGE_ID, message.id.to_string());
    if let Some(key) = &message.key {
        headers.insert(KEY_HEADER, value(KEY_HEADER, key)?);
    }
    // Names that mean something to the server are not for users to say.
    let described = described
        .into_iter()
        .filter(|(name, _)| !name.to_ascii_lowercase().starts_with("nats-"));
    for (name, text) in described {
        let parsed: HeaderName = name
            .parse()
            .map_err(|_| format!("{name:?} is no name of a header of NATS"))?;
        headers.insert(parsed, value(&name, &text)?);
    }
    Ok((headers, body))
}

fn value(name: &str, text: &str) -> Result<HeaderValue, String> {
    text.parse()
        .map_err(|_| format!("the header {name} has a line break"))
}
