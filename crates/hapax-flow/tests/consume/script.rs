//! A source that delivers what a test says, for what no broker does when it is asked to.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hapax_core::flow::Outage;
use hapax_flow::consume::{Delivery, Incoming, Retention, Source};
use tokio::sync::Notify;

/// The other end of a [`Scripted`] source.
#[derive(Clone, Default)]
pub(crate) struct Script(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    ready: VecDeque<Incoming>,
    open: BTreeMap<u64, Incoming>,
    next: u64,
    acknowledged: usize,
    refused: usize,
    kept: usize,
    kept_ids: BTreeSet<String>,
    retention: Option<Retention>,
}

impl Script {
    pub(crate) fn source(&self) -> Scripted {
        Scripted {
            script: self.clone(),
            keep_every: None,
        }
    }

    /// A source of a broker that delivers again what is not kept.
    pub(crate) fn kept_source(&self, keep_every: Duration) -> Scripted {
        Scripted {
            keep_every: Some(keep_every),
            ..self.source()
        }
    }

    /// Delivers these, behind what is to be delivered already.
    pub(crate) fn deliver(&self, messages: impl IntoIterator<Item = Incoming>) {
        self.change(|state| state.ready.extend(messages));
    }

    /// Delivers everything again that is not acknowledged, as after a lost connection.
    pub(crate) fn deliver_open_again(&self) {
        self.change(|state| {
            state
                .ready
                .extend(std::mem::take(&mut state.open).into_values());
        });
    }

    /// Refuses the next acknowledgements: their messages are delivered again.
    pub(crate) fn refuse_acknowledgements(&self, calls: usize) {
        self.change(|state| state.refused = calls);
    }

    pub(crate) fn keeps_for(&self, retention: Retention) {
        self.change(|state| state.retention = Some(retention));
    }

    /// How often open deliveries were kept.
    pub(crate) fn kept(&self) -> usize {
        self.state().kept
    }

    /// From now on nothing was kept yet.
    pub(crate) fn forget_kept(&self) {
        self.change(|state| state.kept_ids.clear());
    }

    /// Whether an open delivery of this message was kept.
    pub(crate) fn has_kept(&self, id: &str) -> bool {
        self.state().kept_ids.contains(id)
    }

    pub(crate) fn open(&self) -> usize {
        self.state().open.len()
    }

    /// Returns when so many deliveries were acknowledged.
    pub(crate) async fn acknowledged(&self, count: usize) {
        self.until(|state| state.acknowledged >= count).await;
    }

    /// Returns when all that was delivered is acknowledged.
    pub(crate) async fn drained(&self) {
        self.until(|state| state.ready.is_empty() && state.open.is_empty())
            .await;
    }

    async fn until(&self, is_so: impl Fn(&State) -> bool) {
        let waiting = async {
            loop {
                let changed = self.0.changed.notified();
                tokio::pin!(changed);
                changed.as_mut().enable();
                if is_so(&self.state()) {
                    return;
                }
                changed.await;
            }
        };
        let waited = tokio::time::timeout(Duration::from_secs(60), waiting).await;
        let state = self.state();
        let (ready, open, done) = (state.ready.len(), state.open.len(), state.acknowledged);
        waited.unwrap_or_else(|_| panic!("{ready} ready, {open} open, {done} acknowledged"));
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.state.lock().expect("no test panics with it")
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let changed = change(&mut self.state());
        self.0.changed.notify_waiters();
        changed
    }
}

pub(crate) struct Scripted {
    script: Script,
    keep_every: Option<Duration>,
}

impl Source for Scripted {
    type Tag = u64;

    async fn receive(&mut self, max: usize) -> Result<Vec<Delivery<u64>>, Outage> {
        self.script.until(|state| !state.ready.is_empty()).await;
        let received = self.script.change(|state| {
            let count = max.min(state.ready.len());
            let messages: Vec<_> = state.ready.drain(..count).collect();
            let deliveries = messages.into_iter().map(|message| {
                state.next += 1;
                state.open.insert(state.next, message.clone());
                Delivery {
                    message,
                    tag: state.next,
                }
            });
            deliveries.collect()
        });
        Ok(received)
    }

    async fn acknowledge(&mut self, tags: &[u64]) -> Result<(), Outage> {
        self.script.change(|state| {
            if state.refused > 0 {
                state.refused -= 1;
                return Err(Outage::new("the test refuses it"));
            }
            let acknowledged = tags.iter().filter(|tag| state.open.remove(tag).is_some());
            state.acknowledged += acknowledged.count();
            Ok(())
        })
    }

    async fn give_back(&mut self, tags: &[u64]) -> Result<(), Outage> {
        self.script.change(|state| {
            let back = tags.iter().filter_map(|tag| state.open.remove(tag));
            state.ready.extend(back.collect::<Vec<_>>());
        });
        Ok(())
    }

    async fn keep(&mut self, tags: &[u64]) -> Result<(), Outage> {
        self.script.change(|state| {
            state.kept += tags.len();
            let kept = tags.iter().filter_map(|tag| state.open.get(tag));
            let ids = kept.filter_map(|message| message.id.clone());
            state.kept_ids.extend(ids);
        });
        Ok(())
    }

    fn keep_every(&self) -> Option<Duration> {
        self.keep_every
    }

    async fn retention(&mut self) -> Result<Retention, Outage> {
        let retention = self.script.state().retention;
        Ok(retention.unwrap_or(Retention::Limited(Duration::from_hours(24))))
    }

    async fn lag(&mut self) -> Result<Option<u64>, Outage> {
        Ok(Some(self.script.state().ready.len() as u64))
    }
}
