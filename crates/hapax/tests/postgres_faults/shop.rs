//! Callers that charge and retry until they have a definite answer; and the books of the tests:
//! effects as counted by the work itself, and the answers that callers got.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use hapax::{BoxError, Hapax, Observer, Once, Rejection, RunError, Store};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

/// The longest time until a key has a definite answer, whatever happened to its server: a lease,
/// and time for a slow machine.
const STUCK: Duration = Duration::from_secs(40);
/// A caller's pause before it sends its key again.
const PAUSE: Duration = Duration::from_millis(20);

/// The number of keys that are checked concurrently at the end.
const AT_A_TIME: usize = 256;

/// The effects as counted by the work, and the answers as received by the callers.
#[derive(Default)]
pub(crate) struct Books {
    effects: Mutex<HashMap<String, u32>>,
    acknowledged: Mutex<HashMap<String, Bytes>>,
    count: watch::Sender<usize>,
    unavailable: AtomicU64,
    unknown: AtomicU64,
    longest_us: AtomicU64,
}

impl Books {
    /// Records one more effect of the key, and returns its answer.
    fn charge(&self, key: &str) -> Bytes {
        let mut effects = self.effects.lock().unwrap();
        *effects.entry(key.to_owned()).or_default() += 1;
        format!("{key} was charge {}", effects.len()).into()
    }

    fn acknowledge(&self, key: &str, body: Bytes) {
        let mut acknowledged = self.acknowledged.lock().unwrap();
        assert!(
            acknowledged.insert(key.to_owned(), body).is_none(),
            "{key} is asked for by one caller"
        );
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

    /// The longest time that an answered caller waited.
    pub(crate) fn longest(&self) -> Duration {
        Duration::from_micros(self.longest_us.load(Ordering::Relaxed))
    }

    /// How often a caller was told that the store is unavailable or that the key is in flight.
    pub(crate) fn unavailable(&self) -> u64 {
        self.unavailable.load(Ordering::Relaxed)
    }

    /// Checks that each key has at most one effect, and each acknowledged key exactly one. Returns
    /// the number of acknowledged keys.
    pub(crate) fn judge(&self) -> usize {
        let (effects, acknowledged) = (
            self.effects.lock().unwrap(),
            self.acknowledged.lock().unwrap(),
        );
        let twice: Vec<_> = effects.iter().filter(|(_, count)| **count > 1).collect();
        assert!(
            twice.is_empty(),
            "{} keys had more than one effect: {twice:?}",
            twice.len()
        );
        let without: Vec<_> = acknowledged
            .keys()
            .filter(|key| !effects.contains_key(*key))
            .collect();
        assert!(
            without.is_empty(),
            "acknowledged, and never had an effect: {without:?}"
        );
        acknowledged.len()
    }

    /// Checks that a node without a cache replays every acknowledged answer from the store.
    pub(crate) async fn replay_all(&self, store: Arc<dyn Store>) {
        let acknowledged = self.acknowledged.lock().unwrap().clone();
        let shop = Shop::new(
            &Hapax::builder_shared(store).sweep(None).build(),
            Arc::default(),
        );
        let mut replays = JoinSet::new();
        for (key, body) in acknowledged {
            if replays.len() == AT_A_TIME {
                replays.join_next().await.expect("there are some").unwrap();
            }
            let shop = shop.clone();
            replays.spawn(async move {
                assert_eq!(shop.charge(&key).await, body, "{key} was acknowledged");
                assert_eq!(
                    shop.books.effects.lock().unwrap().get(&key),
                    None,
                    "{key} was acknowledged, and ran again"
                );
            });
        }
        replays.join_all().await;
    }
}

/// A node that accepts charges.
#[derive(Clone)]
pub(crate) struct Shop {
    once: Once,
    books: Arc<Books>,
}

impl Shop {
    pub(crate) fn new(hapax: &Hapax, books: Arc<Books>) -> Shop {
        Shop {
            once: hapax.once("charge"),
            books,
        }
    }

    /// A node on this store.
    pub(crate) fn on(store: Arc<dyn Store>, books: &Arc<Books>) -> Shop {
        Shop::new(&Hapax::builder_shared(store).build(), books.clone())
    }

    /// A node that reports to an observer and does not sweep.
    pub(crate) fn told(store: Arc<dyn Store>, books: &Arc<Books>, observer: impl Observer) -> Shop {
        Shop::new(
            &Hapax::builder_shared(store)
                .observer(observer)
                .sweep(None)
                .build(),
            books.clone(),
        )
    }

    /// Sends a key until there is a definite answer, as a patient client does, and records the
    /// answer.
    pub(crate) async fn charge(&self, key: &str) -> Bytes {
        let begun = Instant::now();
        loop {
            let sent = Instant::now();
            let ran = self.send(key).await;
            self.books.longest_us.fetch_max(
                u64::try_from(sent.elapsed().as_micros()).unwrap_or(u64::MAX),
                Ordering::Relaxed,
            );
            let rejection = match ran {
                Ok(body) => {
                    self.books.acknowledge(key, body.clone());
                    return body;
                }
                Err(rejection) => rejection,
            };
            match rejection {
                Rejection::StoreUnavailable | Rejection::InFlight { .. } => &self.books.unavailable,
                // The attempt is still running, and may end later.
                Rejection::OutcomeUnknown => &self.books.unknown,
                _ => panic!("{key} got {rejection:?}"),
            }
            .fetch_add(1, Ordering::Relaxed);
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
        let work = async move |_| Ok::<_, BoxError>(books.charge(&name));
        match self.once.run(key, key.to_owned(), work).await {
            Ok(done) => Ok(done.value),
            Err(RunError::Rejected(rejection)) => Err(rejection),
            Err(error) => panic!("{key}: {error}"),
        }
    }
}

/// Callers that charge one key after the other.
pub(crate) struct Load {
    callers: Vec<JoinHandle<()>>,
    is_over: Arc<AtomicBool>,
}

impl Load {
    /// Starts `callers` callers at each of these nodes. Their keys begin with `name`.
    pub(crate) fn start(name: &str, shops: &[Shop], callers: usize) -> Load {
        let is_over = Arc::new(AtomicBool::new(false));
        let begin = |(node, shop): (usize, &Shop)| {
            let name = |caller| format!("{name}-{node}-{caller}");
            (0..callers)
                .map(|caller| tokio::spawn(call(shop.clone(), name(caller), is_over.clone())))
                .collect::<Vec<_>>()
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

async fn call(shop: Shop, name: String, is_over: Arc<AtomicBool>) {
    for number in 0.. {
        if is_over.load(Ordering::Relaxed) {
            return;
        }
        shop.charge(&format!("{name}-{number}")).await;
    }
}
