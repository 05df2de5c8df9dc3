//! The baseline: `SET NX` and `SET` for each pair, `GET` for each replay, by callers that share one
//! connection. The connection sends together what arrives together, as the store does.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant};

use hapax_testkit::servers;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client};
use uuid::Uuid;

use crate::Error;
use crate::load::{ANSWER_BYTES, Until, answer_body};
use crate::stats::Latencies;

/// The database beside that of the store, which is the first.
const DATABASE: u8 = 1;
/// The size of what `SET NX` writes: the token of an attempt.
const TOKEN_BYTES: usize = 16;

#[derive(Clone)]
pub(super) struct Floor {
    connection: MultiplexedConnection,
    answer: Arc<[u8]>,
}

/// The result of writing.
#[derive(Default)]
pub(super) struct Done {
    pub(super) elapsed: Duration,
    pub(super) keys: Vec<Uuid>,
    pub(super) latencies: Latencies,
}

impl Done {
    pub(super) fn rate(&self) -> f64 {
        self.keys.len() as f64 / self.elapsed.as_secs_f64()
    }
}

impl Floor {
    pub(super) async fn connect(server: &servers::Redis) -> Result<Floor, Error> {
        let client = Client::open(format!("{}/{DATABASE}", server.url()))?;
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let connection = client.get_multiplexed_async_connection_with_config(&config);
        Ok(Floor {
            connection: connection.await?,
            answer: answer_body().into(),
        })
    }

    /// Writes random keys, each twice, with `callers` callers.
    pub(super) async fn write(&self, callers: usize, until: Until) -> Result<Done, Error> {
        let began = Instant::now();
        let taken = Arc::new(AtomicUsize::new(0));
        let callers: Vec<_> = (0..callers)
            .map(|_| tokio::spawn(self.clone().write_share(until, began, taken.clone())))
            .collect();
        let mut all = Done::default();
        for caller in callers {
            let done = caller.await??;
            all.keys.extend(done.keys);
            all.latencies.merge(done.latencies);
        }
        all.elapsed = began.elapsed();
        Ok(all)
    }

    async fn write_share(
        mut self,
        until: Until,
        began: Instant,
        taken: Arc<AtomicUsize>,
    ) -> Result<Done, Error> {
        let mut done = Done::default();
        while until.goes_on(began, &taken) {
            let asked = Instant::now();
            let key = Uuid::new_v4();
            let token = [0_u8; TOKEN_BYTES];
            let set: bool = redis::cmd("SET")
                .arg(key.as_bytes())
                .arg(&token)
                .arg("NX")
                .query_async(&mut self.connection)
                .await?;
            if !set {
                return Err("a random key was there already".into());
            }
            redis::cmd("SET")
                .arg(key.as_bytes())
                .arg(&*self.answer)
                .exec_async(&mut self.connection)
                .await?;
            done.latencies.push(asked.elapsed());
            done.keys.push(key);
        }
        Ok(done)
    }

    /// Reads these keys repeatedly until the time is up; each caller reads its share. Returns the
    /// reads per second.
    pub(super) async fn read(
        &self,
        callers: usize,
        keys: &[Uuid],
        duration: Duration,
    ) -> Result<f64, Error> {
        let began = Instant::now();
        let shares = keys.chunks(keys.len().div_ceil(callers).max(1));
        let callers: Vec<_> = shares
            .map(|keys| tokio::spawn(self.clone().read_share(keys.to_vec(), began + duration)))
            .collect();
        let mut read = 0;
        for caller in callers {
            read += caller.await??;
        }
        Ok(read as f64 / began.elapsed().as_secs_f64())
    }

    async fn read_share(mut self, keys: Vec<Uuid>, end: Instant) -> Result<usize, Error> {
        let mut read = 0;
        for key in keys.into_iter().cycle() {
            if Instant::now() >= end {
                break;
            }
            let answer: Vec<u8> = redis::cmd("GET")
                .arg(key.as_bytes())
                .query_async(&mut self.connection)
                .await?;
            if answer.len() != ANSWER_BYTES {
                return Err("a key that was written has no answer".into());
            }
            read += 1;
        }
        Ok(read)
    }

    /// Removes all keys that were written.
    pub(super) async fn clear(&self) -> Result<(), Error> {
        let mut connection = self.connection.clone();
        Ok(redis::cmd("FLUSHDB").exec_async(&mut connection).await?)
    }
}
