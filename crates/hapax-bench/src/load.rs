//! The load: callers that claim and complete random keys in sequence, directly against a store.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use hapax::core::store::{Change, Claim, Finish, Lifetime, Seen, Won, Written};
use hapax::core::{AttemptToken, Condition, Fingerprint, Put, State};
use hapax::{Answer, Key, Principal, RecordId, Scope, Store};
use uuid::Uuid;

use crate::Error;
use crate::stats::Latencies;

/// The size of every answer's body.
pub(crate) const ANSWER_BYTES: usize = 512;

/// Longer than any measurement, so that nothing expires by accident.
pub(crate) const LONG: Lifetime = Lifetime {
    retention: Duration::from_secs(30 * 24 * 60 * 60),
    tombstone: Duration::from_secs(30 * 24 * 60 * 60),
};

/// What all callers of a load share: the store and the parts of their records.
pub(crate) struct Load {
    store: Arc<dyn Store>,
    scope: Arc<Scope>,
    answer: Arc<Answer>,
    lifetime: Lifetime,
}

/// When a load ends.
#[derive(Clone, Copy)]
pub(crate) enum Until {
    /// After this time.
    Elapsed(Duration),
    /// After this many pairs of claim and completion.
    Pairs(usize),
}

impl Until {
    /// Whether a load goes on that began then and of which `taken` counts the pairs.
    pub(crate) fn goes_on(self, began: Instant, taken: &AtomicUsize) -> bool {
        match self {
            Until::Elapsed(duration) => began.elapsed() < duration,
            Until::Pairs(count) => taken.fetch_add(1, Ordering::Relaxed) < count,
        }
    }
}

/// The result of a load.
#[derive(Default)]
pub(crate) struct Done {
    pub(crate) elapsed: Duration,
    /// The records that were made.
    pub(crate) ids: Vec<RecordId>,
    /// The latencies of a claim with its completion.
    pub(crate) pairs: Latencies,
    /// The latencies of single writes: how long a caller waits for one commit.
    pub(crate) puts: Latencies,
}

impl Done {
    /// Pairs of claim and completion per second.
    pub(crate) fn rate(&self) -> f64 {
        self.ids.len() as f64 / self.elapsed.as_secs_f64()
    }
}

impl Load {
    pub(crate) fn new(store: Arc<dyn Store>, lifetime: Lifetime) -> Arc<Load> {
        let scope = Scope {
            namespace: "bench".into(),
            principal: Principal::named("ada"),
            method: "POST".into(),
            path: "/v1/charges".into(),
        };
        Arc::new(Load {
            store,
            scope: Arc::new(scope),
            answer: Arc::new(answer()),
            lifetime,
        })
    }

    /// Runs `callers` callers concurrently.
    pub(crate) async fn run(self: &Arc<Self>, callers: usize, until: Until) -> Result<Done, Error> {
        let (began, taken) = (Instant::now(), Arc::new(AtomicUsize::new(0)));
        let callers: Vec<_> = (0..callers)
            .map(|_| tokio::spawn(self.clone().call(until, began, taken.clone())))
            .collect();
        let mut all = Done::default();
        for caller in callers {
            let done = caller.await??;
            all.ids.extend(done.ids);
            all.pairs.merge(done.pairs);
            all.puts.merge(done.puts);
        }
        all.elapsed = began.elapsed();
        Ok(all)
    }

    async fn call(
        self: Arc<Self>,
        until: Until,
        began: Instant,
        taken: Arc<AtomicUsize>,
    ) -> Result<Done, Error> {
        let mut done = Done::default();
        while until.goes_on(began, &taken) {
            let asked = Instant::now();
            let claim = self.claim();
            let id = claim.id;
            let won = won(self.store.put_if(claim).await?)?;
            let claimed = Instant::now();
            self::won(self.store.put_if(self.completion(&won)).await?)?;
            done.puts.push(claimed - asked);
            done.puts.push(claimed.elapsed());
            done.pairs.push(asked.elapsed());
            done.ids.push(id);
        }
        Ok(done)
    }

    /// Claims and completes one record.
    pub(crate) async fn put_one(&self) -> Result<RecordId, Error> {
        let won = won(self.store.put_if(self.claim()).await?)?;
        Ok(self::won(self.store.put_if(self.completion(&won)).await?)?
            .head
            .id)
    }

    /// A first claim of a random key, as clients make them.
    fn claim(&self) -> Put {
        let key = Key::new(Uuid::new_v4().to_string()).expect("a UUID is a key");
        let id = RecordId::of(&self.scope, &key);
        let fingerprint = Fingerprint {
            digest: *id.as_bytes(),
            policy: Arc::default(),
        };
        let token = AttemptToken::from_bytes(Uuid::new_v4().into_bytes());
        let claim = Claim {
            scope: self.scope.clone(),
            key,
            fingerprint,
            token,
            lease: Duration::from_secs(10),
            terms: None,
            request_id: None,
        };
        Put {
            id,
            condition: Condition::Absent,
            change: Change::Claim(claim),
        }
    }

    fn completion(&self, won: &Won) -> Put {
        let answer = Some(self.answer.clone());
        let finish = Finish {
            state: State::Completed,
            status: Some(201),
            answer,
            lifetime: self.lifetime,
        };
        Put {
            id: won.head.id,
            condition: Condition::Held {
                fence: won.head.fence,
            },
            change: Change::Finish(finish),
        }
    }

    /// Reads these records repeatedly until the time is up; each caller reads its share. Returns
    /// the reads per second.
    pub(crate) async fn read(
        self: &Arc<Self>,
        callers: usize,
        ids: &[RecordId],
        duration: Duration,
    ) -> Result<f64, Error> {
        let began = Instant::now();
        let shares = ids
            .chunks(ids.len().div_ceil(callers).max(1))
            .map(<[_]>::to_vec);
        let callers: Vec<_> = shares
            .map(|ids| tokio::spawn(self.clone().read_share(ids, began, duration)))
            .collect();
        let mut read = 0;
        for caller in callers {
            read += caller.await??;
        }
        Ok(read as f64 / began.elapsed().as_secs_f64())
    }

    async fn read_share(
        self: Arc<Self>,
        ids: Vec<RecordId>,
        began: Instant,
        duration: Duration,
    ) -> Result<usize, Error> {
        let mut read = 0;
        for id in ids.into_iter().cycle() {
            if began.elapsed() >= duration {
                break;
            }
            let mut reading = self.store.get(vec![id]).await?;
            reading
                .records
                .pop()
                .flatten()
                .and_then(|record| record.answer)
                .ok_or("a record that was completed has no answer")?;
            read += 1;
        }
        Ok(read)
    }

    /// The minimum size of a record: its answer as stored, and the fields of its head.
    pub(crate) fn live_bytes(&self) -> usize {
        let (id, key, fingerprint, token) = (32, 36, 32, 16);
        let (fence, version, attempts, times, status, state) = (8, 8, 4, 6 * 8, 2, 1);
        let head =
            id + key + fingerprint + token + fence + version + attempts + times + status + state;
        let scope = self.scope.namespace.len()
            + "ada".len()
            + self.scope.method.len()
            + self.scope.path.len();
        head + scope + self.answer_bytes()
    }

    /// The size of an answer as stored: its body, status and headers.
    pub(crate) fn answer_bytes(&self) -> usize {
        self.answer.encode(&RecordId::from_bytes([0; 32])).len()
    }
}

fn answer() -> Answer {
    Answer {
        headers: vec![("content-type".into(), "application/json".into())],
        ..Answer::new(201, answer_body())
    }
}

/// The body of an answer, of incompressible bytes.
pub(crate) fn answer_body() -> Vec<u8> {
    std::iter::repeat_with(|| Uuid::new_v4().into_bytes())
        .flatten()
        .take(ANSWER_BYTES)
        .collect()
}

fn won(written: Written) -> Result<Won, Error> {
    match written {
        Written::Won(won) => Ok(won),
        Written::Lost(Seen { record, .. }) => {
            Err(format!("a write to a record of our own was refused: {record:?}").into())
        }
    }
}
