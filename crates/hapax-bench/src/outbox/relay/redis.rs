//! Redis Streams: one stream, on disk each second.

use hapax_flow::publish::{RedisOptions, RedisStreams};
use hapax_testkit::servers;
use redis::aio::MultiplexedConnection;
use uuid::Uuid;

use super::{Broker, attributes, key, payload};
use crate::Error;

const STREAM: &str = "orders";
const TOGETHER: usize = 256;

pub(super) struct Redis {
    server: servers::Redis,
    connection: MultiplexedConnection,
}

impl Broker for Redis {
    const NAME: &'static str = "Redis";
    const BARE: &'static str = "pipelines of 256 XADD";
    type Publisher = RedisStreams;

    async fn start() -> Result<Option<Redis>, Error> {
        let settings = [("appendonly", "yes"), ("appendfsync", "everysec")];
        let Some(server) = servers::Redis::start(&settings) else {
            return Ok(None);
        };
        let client = redis::Client::open(server.url())?;
        let connection = client.get_multiplexed_async_connection().await?;
        Ok(Some(Redis { server, connection }))
    }

    async fn clear(&mut self) -> Result<(), Error> {
        let mut delete = redis::cmd("DEL");
        Ok(delete.arg(STREAM).query_async(&mut self.connection).await?)
    }

    async fn count(&mut self) -> Result<usize, Error> {
        let mut count = redis::cmd("XLEN");
        Ok(count.arg(STREAM).query_async(&mut self.connection).await?)
    }

    fn publisher(&self) -> Result<RedisStreams, Error> {
        Ok(RedisStreams::new(RedisOptions::new(self.server.url()))?)
    }

    async fn publish(&mut self, messages: usize) -> Result<(), Error> {
        let payload = payload();
        for first in (0..messages).step_by(TOGETHER) {
            let mut pipeline = redis::pipe();
            for number in first..messages.min(first + TOGETHER) {
                let (id, key) = (Uuid::new_v4().to_string(), key(number));
                let added = pipeline.cmd("XADD").arg(STREAM).arg("*");
                for (name, value) in attributes("ce-", &id, &key) {
                    added.arg(name).arg(value);
                }
                added.arg("content-type").arg("application/json");
                added.arg("payload").arg(&payload).ignore();
            }
            let () = pipeline.query_async(&mut self.connection).await?;
        }
        Ok(())
    }
}
