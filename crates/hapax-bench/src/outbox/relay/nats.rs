//! NATS JetStream: a stream in files, as by default.

use async_nats::header::{HeaderMap, NATS_MESSAGE_ID};
use async_nats::jetstream::stream::{Config, StorageType};
use async_nats::jetstream::{self, Context};
use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use hapax_flow::publish::{Nats as Publisher, NatsOptions};
use hapax_testkit::servers;
use uuid::Uuid;

use super::{Broker, attributes, key, payload};
use crate::Error;

const STREAM: &str = "ORDERS";
/// Messages of the bare client that wait for their acknowledgement at a time: as many as of the
/// relay.
const IN_FLIGHT: usize = 256;

pub(super) struct Nats {
    server: servers::Nats,
    context: Context,
}

impl Broker for Nats {
    const NAME: &'static str = "NATS";
    const BARE: &'static str = "256 unacknowledged";
    type Publisher = Publisher;

    async fn start() -> Result<Option<Nats>, Error> {
        let Some(server) = servers::Nats::start("") else {
            return Ok(None);
        };
        let context = jetstream::new(async_nats::connect(server.url()).await?);
        Ok(Some(Nats { server, context }))
    }

    async fn clear(&mut self) -> Result<(), Error> {
        // The first time there is none.
        drop(self.context.delete_stream(STREAM).await);
        let config = Config {
            name: STREAM.to_owned(),
            subjects: vec!["orders".to_owned()],
            storage: StorageType::File,
            ..Config::default()
        };
        self.context.create_stream(config).await?;
        Ok(())
    }

    async fn count(&mut self) -> Result<usize, Error> {
        let stream = self.context.get_stream(STREAM).await?;
        Ok(stream.cached_info().state.messages as usize)
    }

    fn publisher(&self) -> Result<Publisher, Error> {
        Ok(Publisher::new(NatsOptions::new([self.server.url()]))?)
    }

    async fn publish(&mut self, messages: usize) -> Result<(), Error> {
        let (context, payload) = (&self.context, Bytes::from(payload()));
        let sent = stream::iter(0..messages).map(|number| {
            let (headers, payload) = (headers(number), payload.clone());
            async move {
                let acknowledged = context.publish_with_headers("orders", headers, payload);
                acknowledged.await?.await?;
                Ok::<_, Error>(())
            }
        });
        let mut sent = sent.buffer_unordered(IN_FLIGHT);
        while sent.try_next().await?.is_some() {}
        Ok(())
    }
}

fn headers(number: usize) -> HeaderMap {
    let (id, key) = (Uuid::new_v4().to_string(), key(number));
    let mut headers = HeaderMap::new();
    headers.insert(NATS_MESSAGE_ID, id.as_str());
    headers.insert("Hapax-Key", key.as_str());
    headers.insert("content-type", "application/json");
    for (name, value) in attributes("ce-", &id, &key) {
        headers.insert(name.as_str(), value.as_str());
    }
    headers
}
