//! Messages that wait for a relay, and a relay that publishes them.

use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use hapax::store::postgres::ConnectOptions;
use hapax_flow::outbox::PostgresOutbox;
use hapax_flow::publish::Publisher;
use hapax_flow::relay::{Options, Relay};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::Error;
use crate::postgres::connect;

/// The size of every payload, which is JSON.
pub(super) const PAYLOAD_BYTES: usize = 200;
/// More than a page of the relay has messages, so that the messages of a page are of different
/// keys.
const KEYS: usize = 10_007;
/// Messages of one transaction: less than may be of different keys.
const TRANSACTION: usize = 200;
/// Sessions that emit at the same time.
const SESSIONS: usize = 2;
/// A relay that takes longer than this does not publish.
const DRAINED_WITHIN: Duration = Duration::from_secs(600);

/// Emits this number of messages.
pub(super) async fn fill(url: &str, messages: usize) -> Result<(), Error> {
    let share = messages.div_ceil(SESSIONS);
    let emitted = (0..SESSIONS).map(|session| {
        let (first, last) = (session * share + 1, ((session + 1) * share).min(messages));
        emit(url, first, last)
    });
    try_join_all(emitted).await.map(drop)
}

async fn emit(url: &str, first: usize, last: usize) -> Result<(), Error> {
    let payload = format!("{{\"note\": \"{}\"}}", "x".repeat(PAYLOAD_BYTES - 12));
    let sql = format!(
        "DO $$ BEGIN
             FOR number IN {first} .. {last} LOOP
                 PERFORM hapax.emit('orders', 'order-' || (number * 7919::int8 % {KEYS}), '{payload}'::jsonb, '{{\"ce-type\": \"order.placed\"}}');
                 IF number % {TRANSACTION} = 0 THEN
                     COMMIT;
                 END IF;
             END LOOP;
         END $$"
    );
    Ok(connect(url).await?.batch_execute(&sql).await?)
}

/// Publishes what waits: at least this number of messages. Returns how long that took.
pub(super) async fn drain(
    url: &str,
    publisher: impl Publisher,
    messages: usize,
) -> Result<Duration, Error> {
    let relaying = Relaying::start(url, publisher)?;
    let began = Instant::now();
    relaying.published(messages as u64).await?;
    let took = began.elapsed();
    relaying.stop().await?;
    Ok(took)
}

/// A relay that runs.
pub(super) struct Relaying {
    progress: std::sync::Arc<hapax_flow::relay::Progress>,
    stop: CancellationToken,
    running: tokio::task::JoinHandle<()>,
}

impl Relaying {
    pub(super) fn start(url: &str, publisher: impl Publisher) -> Result<Relaying, Error> {
        let outbox = PostgresOutbox::new(ConnectOptions::parse(url)?);
        let relay = Relay::new(outbox, publisher, Options::new("bench"));
        let (progress, stop) = (relay.progress(), CancellationToken::new());
        let stopped = stop.clone();
        let running = tokio::spawn(async move { relay.run(stopped).await });
        Ok(Relaying {
            progress,
            stop,
            running,
        })
    }

    /// Returns when it has published this number of messages.
    pub(super) async fn published(&self, messages: u64) -> Result<(), Error> {
        let deadline = Instant::now() + DRAINED_WITHIN;
        while self.count() < messages {
            if Instant::now() > deadline {
                let count = self.count();
                return Err(format!("the relay has published {count} of {messages}").into());
            }
            sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    }

    pub(super) fn count(&self) -> u64 {
        self.progress.counts().published
    }

    pub(super) async fn stop(self) -> Result<(), Error> {
        self.stop.cancel();
        Ok(self.running.await?)
    }
}
