//! A relay that reads the messages of an example, beside its services and gateways.

use std::sync::{Arc, Mutex};

use hapax::store::postgres::ConnectOptions;
use hapax_flow::outbox::PostgresOutbox;
use hapax_flow::publish::{Envelope, Outage, Publisher, Reply, Verdict};
use hapax_flow::relay::{Options, Relay};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::world::Database;

/// Takes every message and keeps it.
#[derive(Clone, Default)]
struct Inbox(Arc<Mutex<Vec<Envelope>>>);

impl Publisher for Inbox {
    fn publish<'a>(&'a self, batch: &'a [Envelope]) -> Reply<'a, Result<Vec<Verdict>, Outage>> {
        self.0.lock().unwrap().extend_from_slice(batch);
        Box::pin(async move { Ok(vec![Verdict::ACCEPTED; batch.len()]) })
    }
}

/// A relay at work, as the gateway's role.
pub struct Relaying {
    url: String,
    inbox: Inbox,
    stop: CancellationToken,
    running: JoinHandle<()>,
}

impl Relaying {
    pub fn start(database: &Database) -> Relaying {
        let (url, inbox) = (database.url("hapax"), Inbox::default());
        let (relay, stop) = (relay(&url, &inbox), CancellationToken::new());
        let stopped = stop.clone();
        let running = tokio::spawn(async move { relay.run(stopped).await });
        Relaying {
            url,
            inbox,
            stop,
            running,
        }
    }

    /// Publishes what is left, and returns every message in the order in which it came.
    pub async fn end(self) -> Vec<Envelope> {
        self.stop.cancel();
        self.running.await.unwrap();
        relay(&self.url, &self.inbox).run_once().await.unwrap();
        std::mem::take(&mut *self.inbox.0.lock().unwrap())
    }
}

fn relay(url: &str, inbox: &Inbox) -> Relay<PostgresOutbox> {
    let outbox = PostgresOutbox::new(ConnectOptions::parse(url).unwrap());
    Relay::new(outbox, inbox.clone(), Options::new("inbox"))
}
