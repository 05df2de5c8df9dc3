//! Callers that charge and retry until they have a definite answer; and the books of the tests:
//! effects as counted by the work itself, and the answers that callers got.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use hapax::{
    BoxError, Hapax, Key, Limits, Once, Operation, Principal, RecordId, Rejection, RunError, Scope,
    Store,
};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use super::campaign::STUCK;

/// A caller's pause before it sends its key again.
const PAUSE: Duration = Duration::from_millis(20);

/// The number of keys that are checked concurrently at the end.
const AT_A_TIME: usize = 128;

/// The effects as counted by the work, and the answers as received by the callers.
#[derive(Default)]
pub(crate) struct Books {
    /// The fences of a key's effects, in their order.
    effects: Mutex<HashMap<String, Vec<u64>>>,
    acknowledged: Mutex<Vec<(String, Bytes)>>,
    count: watch::Sender<usize>,
    refused: AtomicU64,
    longest_us: AtomicU64,
}

/// What became of the acknowledged answers.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Replays {
    /// Replayed byte for byte.
    pub(crate) same: usize,
    /// The record was gone: the key ran again.
    pub(crate) ran_again: usize,
    /// The claim was there, the end was not: the key is held as unknown.
    pub(crate) held: usize,
}

impl Replays {
    pub(crate) fn lost(&self) -> usize {
        self.ran_again + self.held
    }
}

impl Books {
    /// Records one more effect of the key, and returns its answer.
    fn charge(&self, key: &str, operation: &Operation) -> Bytes {
        let fence = operation.fence().as_u64();
        let mut effects = self.effects.lock().unwrap();
        effects.entry(key.to_owned()).or_default().push(fence);
        answer(key, fence)
    }

    fn acknowledge(&self, key: &str, body: Bytes) {
        let mut acknowledged = self.acknowledged.lock().unwrap();
        acknowledged.push((key.to_owned(), body));
        self.count.send_replace(acknowledged.len());
    }

    /// Waits until callers have been told of `charges` more charges.
    pub(crate) async fn more(&self, charges: usize) {
        let mut count = self.count.subscribe();
        let wanted = *count.borrow() + charges;
        let waited = tokio::time::timeout(STUCK, count.wait_for(|count| *count >= wanted)).await;
        assert!(
            waited.is_ok_and(|count| count.is_ok()),
            "no {charges} charges in {STUCK:?}: the store does not come back"
        );
    }

    /// The longest time that a caller waited for an answer or a refusal.
    pub(crate) fn longest(&self) -> Duration {
        Duration::from_micros(self.longest_us.load(Ordering::Relaxed))
    }

    /// How often a caller was told to come back.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    pub(crate) fn acknowledged(&self) -> usize {
        *self.count.borrow()
    }

    /// The acknowledged keys from this one on.
    pub(crate) fn acknowledged_from(&self, first: usize) -> Vec<String> {
        let acknowledged = self.acknowledged.lock().unwrap();
        let keys = acknowledged[first..].iter().map(|(key, _)| key.clone());
        keys.collect()
    }

    /// How many effects a key had.
    pub(crate) fn effects(&self, key: &str) -> usize {
        let effects = self.effects.lock().unwrap();
        effects.get(key).map_or(0, Vec::len)
    }

    /// The keys that ran more than once.
    pub(crate) fn ran_twice(&self) -> Vec<String> {
        let effects = self.effects.lock().unwrap();
        let twice = effects.iter().filter(|(_, fences)| fences.len() > 1);
        twice.map(|(key, _)| key.clone()).collect()
    }

    /// Checks that fences of a key only grow, and that every acknowledged answer is that of the
    /// key's latest effect. An attempt that ends under an old fence would break the second.
    pub(crate) fn judge_fences(&self) {
        let effects = self.effects.lock().unwrap();
        for (key, fences) in effects.iter() {
            let grow = fences.windows(2).all(|pair| pair[0] < pair[1]);
            assert!(grow, "the fences of {key} go back: {fences:?}");
        }
        for (key, body) in self.acknowledged.lock().unwrap().iter() {
            let fences = effects.get(key).unwrap_or_else(|| {
                panic!("{key} was acknowledged, and never had an effect");
            });
            let latest = *fences.last().expect("an effect");
            assert_eq!(*body, answer(key, latest), "{key} ran under {fences:?}");
        }
    }

    /// Sends every acknowledged key again, through a node without a cache.
    pub(crate) async fn replay_all(&self, store: Arc<dyn Store>) -> Replays {
        let acknowledged = self.acknowledged.lock().unwrap().clone();
        let shop = Shop::on(store, &Arc::default());
        let mut found = Replays::default();
        let mut replays = JoinSet::new();
        let mut count = |replayed: Replayed| match replayed {
            Replayed::Same => found.same += 1,
            Replayed::RanAgain => found.ran_again += 1,
            Replayed::Held => found.held += 1,
        };
        for (key, body) in acknowledged {
            if replays.len() == AT_A_TIME {
                count(replays.join_next().await.expect("there are some").unwrap());
            }
            let shop = shop.clone();
            replays.spawn(async move { shop.replay(&key, &body).await });
        }
        replays.join_all().await.into_iter().for_each(count);
        found
    }
}

enum Replayed {
    Same,
    RanAgain,
    Held,
}

/// The answer to a charge. It says which effect it is of.
fn answer(key: &str, fence: u64) -> Bytes {
    format!("{key} was charged under {fence}").into()
}

/// The work that is guarded.
const WORK: &str = "charge";

/// The record of a key of the shop.
pub(crate) fn record(key: &str) -> RecordId {
    let scope = Scope {
        namespace: "default".into(),
        principal: Principal::Anonymous,
        method: "RUN".into(),
        path: WORK.into(),
    };
    RecordId::of(&scope, &Key::new(key).expect("a key"))
}

/// A node that accepts charges.
#[derive(Clone)]
pub(crate) struct Shop {
    once: Once,
    books: Arc<Books>,
}

impl Shop {
    /// A node on this store. It keeps no answers in memory: every repeat asks the store.
    pub(crate) fn on(store: Arc<dyn Store>, books: &Arc<Books>) -> Shop {
        let limits = Limits {
            cache_bytes_max: 0,
            ..Limits::default()
        };
        let hapax = Hapax::builder_shared(store).limits(limits).build();
        Shop {
            once: hapax.once(WORK),
            books: books.clone(),
        }
    }

    pub(crate) fn once(&self) -> &Once {
        &self.once
    }

    /// Sends a key until there is a definite answer, as a patient client does, and records the
    /// answer.
    pub(crate) async fn charge(&self, key: &str) -> Bytes {
        let begun = Instant::now();
        loop {
            let sent = Instant::now();
            let ran = self.send(key).await;
            let took = u64::try_from(sent.elapsed().as_micros()).unwrap_or(u64::MAX);
            self.books.longest_us.fetch_max(took, Ordering::Relaxed);
            let rejection = match ran {
                Ok(body) => {
                    self.books.acknowledge(key, body.clone());
                    return body;
                }
                Err(rejection) => rejection,
            };
            // An attempt whose end is being written may count as unknown for a while.
            let may_end = matches!(
                rejection,
                Rejection::StoreUnavailable
                    | Rejection::InFlight { .. }
                    | Rejection::OutcomeUnknown
            );
            assert!(may_end, "{key} got {rejection:?}");
            self.books.refused.fetch_add(1, Ordering::Relaxed);
            assert!(
                begun.elapsed() < STUCK,
                "{key} has no definite answer after {STUCK:?}, only {rejection:?}"
            );
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Sends a key once.
    pub(crate) async fn send(&self, key: &str) -> Result<Bytes, Rejection> {
        let (books, name) = (self.books.clone(), key.to_owned());
        let work = async move |operation| Ok::<_, BoxError>(books.charge(&name, &operation));
        match self.once.run(key, key.to_owned(), work).await {
            Ok(done) => Ok(done.value),
            Err(RunError::Rejected(rejection)) => Err(rejection),
            // The lease of the attempt was lost with its record.
            Err(RunError::Lost { .. }) => Err(Rejection::OutcomeUnknown),
            Err(error) => panic!("{key}: {error}"),
        }
    }

    async fn replay(&self, key: &str, body: &Bytes) -> Replayed {
        let begun = Instant::now();
        loop {
            match self.send(key).await {
                Ok(replayed) if self.has_run(key) => {
                    assert_ne!(replayed, body, "a fence was given twice");
                    return Replayed::RanAgain;
                }
                Ok(replayed) => {
                    assert_eq!(replayed, body, "{key} was acknowledged");
                    return Replayed::Same;
                }
                Err(Rejection::OutcomeUnknown) => return Replayed::Held,
                Err(Rejection::StoreUnavailable | Rejection::InFlight { .. }) => {}
                Err(rejection) => panic!("{key} was acknowledged, and got {rejection:?}"),
            }
            assert!(begun.elapsed() < STUCK, "{key} has no definite answer");
            tokio::time::sleep(PAUSE).await;
        }
    }

    fn has_run(&self, key: &str) -> bool {
        self.books.effects.lock().unwrap().contains_key(key)
    }
}

/// Callers that charge one key after the other.
pub(crate) struct Load {
    callers: Vec<JoinHandle<()>>,
    is_over: Arc<AtomicBool>,
}

impl Load {
    /// Starts `callers` callers at each of these nodes. `name` makes a key of the name of a caller
    /// and a number.
    pub(crate) fn start(
        shops: &[Shop],
        callers: usize,
        name: impl Fn(&str, usize) -> String + Clone + Send + 'static,
    ) -> Load {
        let is_over = Arc::new(AtomicBool::new(false));
        let begin = |(node, shop): (usize, &Shop)| {
            let begin = |caller: usize| {
                let (shop, is_over, name) = (shop.clone(), is_over.clone(), name.clone());
                tokio::spawn(async move {
                    let caller = format!("{node}-{caller}");
                    for number in 0.. {
                        if is_over.load(Ordering::Relaxed) {
                            return;
                        }
                        shop.charge(&name(&caller, number)).await;
                    }
                })
            };
            (0..callers).map(begin).collect::<Vec<_>>()
        };
        Load {
            callers: shops.iter().enumerate().flat_map(begin).collect(),
            is_over,
        }
    }

    /// Waits for the last answer of every caller.
    pub(crate) async fn end(self) {
        self.is_over.store(true, Ordering::Relaxed);
        for caller in self.callers {
            caller.await.unwrap();
        }
    }
}

/// Keys that are spread over all partitions.
pub(crate) fn spread(caller: &str, number: usize) -> String {
    format!("{caller}-{number}")
}
