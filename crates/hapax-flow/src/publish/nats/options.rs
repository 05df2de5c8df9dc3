//! What a user says of publishing to NATS.

use super::subject::Template;
use crate::nats::{NatsError, NatsServers};
use crate::publish::cloud_events::CloudEvents;

/// How [`Nats`](super::Nats) publishes.
#[derive(Clone, Debug)]
pub struct NatsOptions {
    /// Where the servers are. Their `timeout` is also how long a message may wait for its
    /// acknowledgement.
    pub servers: NatsServers,
    /// The subject of a message, with `{topic}` where its topic stands: `{topic}` alone by default,
    /// `shop.{topic}` for a prefix.
    pub subject: String,
    /// The stream that [`Nats::check`](super::Nats::check) looks at.
    pub stream: Option<String>,
    /// How messages look.
    pub events: CloudEvents,
}

impl NatsOptions {
    /// The defaults, with these servers.
    pub fn new(urls: impl IntoIterator<Item = impl Into<String>>) -> NatsOptions {
        NatsOptions {
            servers: NatsServers::new(urls),
            subject: "{topic}".to_owned(),
            stream: None,
            events: CloudEvents::default(),
        }
    }

    pub(super) fn template(&self) -> Result<Template, NatsError> {
        Template::parse(&self.subject)
    }
}
