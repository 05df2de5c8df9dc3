//! A source in this process: there is always another message, and no broker.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use hapax::core::Timestamp;
use hapax_flow::consume::{Delivery, Incoming, Retention, Source};
use hapax_flow::publish::Outage;
use uuid::Uuid;

const PAYLOAD_BYTES: usize = 200;

pub(super) struct Endless {
    payload: Bytes,
}

impl Endless {
    pub(super) fn new() -> Endless {
        Endless {
            payload: Bytes::from(vec![b'x'; PAYLOAD_BYTES]),
        }
    }

    /// New messages, as a relay would publish them.
    pub(super) fn next(&mut self, count: usize) -> Vec<Delivery<()>> {
        let at = Timestamp::from_system_time(SystemTime::now());
        let messages = (0..count).map(|_| {
            let id = Uuid::new_v4().to_string();
            let message = Incoming {
                at: Some(at),
                topic: "orders".to_owned(),
                key: Some(id.clone()),
                id: Some(id),
                payload: self.payload.clone(),
                ..Incoming::default()
            };
            Delivery { message, tag: () }
        });
        messages.collect()
    }
}

impl Source for Endless {
    type Tag = ();

    async fn receive(&mut self, max: usize) -> Result<Vec<Delivery<()>>, Outage> {
        Ok(self.next(max))
    }

    async fn acknowledge(&mut self, _: &[()]) -> Result<(), Outage> {
        Ok(())
    }

    async fn give_back(&mut self, _: &[()]) -> Result<(), Outage> {
        Ok(())
    }

    async fn keep(&mut self, _: &[()]) -> Result<(), Outage> {
        Ok(())
    }

    fn keep_every(&self) -> Option<Duration> {
        None
    }

    async fn retention(&mut self) -> Result<Retention, Outage> {
        Ok(Retention::Limited(Duration::from_secs(24 * 60 * 60)))
    }
}
