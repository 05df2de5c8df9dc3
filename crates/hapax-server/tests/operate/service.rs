//! The service behind the gateway: each request is an effect, which its ledger counts independently
//! of Hapax.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use crate::harness::{Asked, Gate, Reply, Serving, Upstream, whole, with};

/// The number of requests that reached the service, by key.
#[derive(Clone, Default)]
pub struct Ledger(Arc<Mutex<BTreeMap<String, usize>>>);

impl Ledger {
    /// Records one more effect. Returns the total number.
    fn enter(&self, key: &str) -> usize {
        let mut effects = self.0.lock().unwrap();
        *effects.entry(key.to_owned()).or_default() += 1;
        effects.values().sum()
    }

    pub fn count(&self, key: &str) -> usize {
        self.0.lock().unwrap().get(key).copied().unwrap_or(0)
    }

    /// The keys whose number of effects is not one.
    pub fn not_once(&self) -> Vec<(String, usize)> {
        self.0
            .lock()
            .unwrap()
            .iter()
            .filter(|(_, count)| **count != 1)
            .map(|(key, count)| (key.clone(), *count))
            .collect()
    }
}

/// A service that answers with its name and the number of the effect.
pub struct Service {
    upstream: Upstream,
    /// Where requests to `/slow` wait.
    pub slow: Arc<Gate>,
}

impl Service {
    pub fn start(name: &'static str, ledger: &Ledger) -> Service {
        let (ledger, slow) = (ledger.clone(), Arc::<Gate>::default());
        let gate = slow.clone();
        let upstream = Upstream::start(Serving::default(), move |arrived| {
            let (ledger, gate) = (ledger.clone(), gate.clone());
            async move {
                let asked = arrived.read().await?;
                if asked.uri.path() == "/slow" {
                    gate.pass().await;
                }
                Ok(effect(name, &ledger, &asked))
            }
        });
        Service { upstream, slow }
    }

    pub fn url(&self) -> String {
        self.upstream.url()
    }
}

fn effect(name: &str, ledger: &Ledger, asked: &Asked) -> Reply {
    let fields = ["idempotency-key", "x-key"].map(|name| asked.field(name));
    let key = fields.into_iter().find(|key| !key.is_empty());
    let key = key.unwrap_or_default();
    let number = ledger.enter(key);
    let status = if key.starts_with("lost") { 502 } else { 201 };
    let caller = asked.field("x-forwarded-for");
    let text = format!("{name} {key} effect {number} for {caller}");
    // An id of the service, which no caller must get.
    with(whole(status, text), "x-request-id", "the-services-own")
}
