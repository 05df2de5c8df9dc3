//! Fills a store with a record of every kind, and reads everything it holds.

use std::sync::Arc;
use std::time::Duration;

use hapax::core::answer::Answer;
use hapax::core::audit::{LogEntry, Note, Signed};
use hapax::core::fingerprint::{Fingerprint, FingerprintPolicy};
use hapax::core::record::{AttemptToken, Fence, Head, Record, State};
use hapax::core::store::{Change, Claim, Condition, Finish, Lifetime, ListQuery, Put, Written};
use hapax::core::time::Timestamp;
use hapax::core::transfer::{Account, Page, Standing};
use hapax::core::{Key, Principal, RecordId, RequestId, Scope, Secret, Store, Transfer};
use tokio::task::JoinSet;

use super::ends::Place;

const LEASE: Duration = Duration::from_secs(60);
/// Has passed before the next read.
const NOTHING: Duration = Duration::from_micros(1);
const LONG: Lifetime = Lifetime {
    retention: Duration::from_secs(3600),
    tombstone: Duration::from_secs(3600),
};
/// The record is a tombstone by the time it is copied.
const BURIED: Lifetime = Lifetime {
    retention: NOTHING,
    ..LONG
};
/// The record counts as absent by the time it is copied, but its row is still there.
const GONE: Lifetime = Lifetime {
    retention: NOTHING,
    tombstone: NOTHING,
};

/// A claim by one of a few principals, under one of a few policies.
pub fn claim(key: &str, lease: Duration) -> Put {
    let number = key.bytes().map(usize::from).sum::<usize>();
    let principal = if number.is_multiple_of(3) {
        Principal::Anonymous
    } else {
        Principal::named(format!("user-{}", number % 3))
    };
    let path = if key == "long-path" {
        &format!("/naïve/{}", "x".repeat(31_000))
    } else {
        "/naïve/orders"
    };
    let scope = Arc::new(Scope {
        namespace: "copy".into(),
        principal,
        method: "POST".into(),
        path: path.into(),
    });
    let key = Key::new(key).unwrap();
    let policy = if number.is_multiple_of(2) {
        FingerprintPolicy::default()
    } else {
        FingerprintPolicy::json()
    };
    let fingerprint = Fingerprint {
        digest: [number as u8; 32],
        policy: Arc::new(policy),
    };
    let id = RecordId::of(&scope, &key);
    let token = AttemptToken::from_bytes(std::array::from_fn(|i| id.as_bytes()[i]));
    let request_id = RequestId::new(if number.is_multiple_of(5) {
        ""
    } else {
        "request/7"
    });
    Put {
        id,
        condition: Condition::Absent,
        change: Change::Claim(Claim {
            scope: scope.stored(),
            key,
            fingerprint,
            token,
            lease,
            terms: None,
            request_id,
        }),
    }
}

pub async fn won(store: &dyn Store, put: Put) -> Head {
    match store.put_if(put.clone()).await.unwrap() {
        Written::Won(won) => won.head,
        Written::Lost(seen) => panic!("{put:?} lost to {seen:?}"),
    }
}

pub async fn finish(
    store: &dyn Store,
    head: &Head,
    state: State,
    body: Option<&str>,
    lifetime: Lifetime,
) -> Head {
    let mut answer = body.map(|body| Answer::new(201, body.to_owned()));
    answer.iter_mut().for_each(|answer| {
        answer
            .headers
            .push(("x-bytes".into(), bytes::Bytes::from_static(b"\xff\x00")));
    });
    let finish = Finish {
        state,
        status: Some(201),
        answer: answer.map(Arc::new),
        lifetime,
    };
    won(
        store,
        Put {
            id: head.id,
            condition: Condition::Held { fence: head.fence },
            change: Change::Finish(finish),
        },
    )
    .await
}

fn by(reason: &str) -> Signed {
    Signed::new("ada", reason).unwrap()
}

/// Writes one record of every kind.
pub async fn fill(store: &dyn Store) {
    for (key, state, body, lifetime) in [
        ("completed", State::Completed, Some("{\"id\":1}"), LONG),
        ("completed-empty", State::Completed, Some(""), LONG),
        ("completed-unkept", State::Completed, None, LONG),
        ("failed", State::Failed, Some("no"), LONG),
        ("long-path", State::Completed, Some("{}"), LONG),
        ("retryable", State::Retryable, None, LONG),
        ("unknown", State::Unknown, None, LONG),
        ("unknown-buried", State::Unknown, None, BURIED),
        ("buried", State::Completed, Some("old"), BURIED),
        ("gone", State::Completed, Some("older"), GONE),
        ("large", State::Completed, Some(&"x".repeat(1 << 20)), LONG),
    ] {
        let head = won(store, claim(key, LEASE)).await;
        finish(store, &head, state, body, lifetime).await;
    }
    won(store, claim("running", NOTHING)).await;
    taken_over(store).await;
    settled(store).await;
    forgotten(store).await;
    store
        .note(Note::new("reload", by("a note")).unwrap())
        .await
        .unwrap();
    // Waits until the short lifetimes are over, so that these records have expired when they are
    // copied.
    let now = store.info().await.unwrap().now;
    while store.info().await.unwrap().now <= now.after(Duration::from_millis(1)) {
        tokio::task::yield_now().await;
    }
}

async fn taken_over(store: &dyn Store) {
    let head = won(store, claim("taken-over", LEASE)).await;
    let head = finish(store, &head, State::Retryable, None, LONG).await;
    let Put { id, change, .. } = claim("taken-over", NOTHING);
    let head = won(
        store,
        Put {
            id,
            condition: Condition::Lapsed { fence: head.fence },
            change,
        },
    )
    .await;
    assert_eq!(head.attempts, 2);
    finish(store, &head, State::Completed, Some("second"), LONG).await;
}

async fn settled(store: &dyn Store) {
    let head = won(store, claim("settled", LEASE)).await;
    let head = finish(store, &head, State::Unknown, None, LONG).await;
    let finish = Finish {
        state: State::Completed,
        status: Some(200),
        answer: Some(Arc::new(Answer::new(200, "so"))),
        lifetime: LONG,
    };
    let change = Change::Settle(finish, by("it is in the books"));
    won(
        store,
        Put {
            id: head.id,
            condition: Condition::Version {
                version: head.version,
            },
            change,
        },
    )
    .await;
}

async fn forgotten(store: &dyn Store) {
    let head = won(store, claim("forgotten", LEASE)).await;
    let head = finish(store, &head, State::Completed, Some("a secret"), LONG).await;
    let change = Change::Forget(LONG, by("they asked"));
    let put = Put {
        id: head.id,
        condition: Condition::Version {
            version: head.version,
        },
        change,
    };
    assert!(matches!(store.put_if(put).await.unwrap(), Written::Won(_)));
}

/// Adds `count` completed records, so that there are several pages.
pub async fn fill_pages(store: &Arc<dyn Store>, count: usize) {
    let mut tasks = JoinSet::new();
    for number in 0..count {
        let store = store.clone();
        tasks.spawn(async move {
            let head = won(&*store, claim(&format!("page-{number}"), LEASE)).await;
            finish(&*store, &head, State::Completed, Some("{}"), LONG).await;
        });
        if tasks.len() >= 256 {
            tasks.join_next().await.unwrap().unwrap();
        }
    }
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }
}

/// Everything that a store returns through its two traits.
#[derive(Debug, PartialEq)]
pub struct Content {
    /// The records as `Transfer` returns them.
    pub stored: Vec<Record>,
    /// The same rows as `Store` returns them.
    pub seen: Vec<Option<Record>>,
    pub heads: Vec<Head>,
    pub log: Vec<LogEntry>,
    pub secret: Secret,
    pub lives_since: Timestamp,
    pub epoch: u64,
    pub logged: u64,
}

impl Content {
    pub async fn of(place: &Place) -> Content {
        let store = place.open_to_copy().await;
        let mut stored: Vec<Record> = Vec::new();
        loop {
            let page = store
                .export(
                    stored.last().map(|record| record.head.id),
                    Page {
                        records: 700,
                        bytes: 3 << 20,
                    },
                )
                .await
                .unwrap();
            if page.is_empty() {
                break;
            }
            stored.extend(page);
        }
        assert!(stored.is_sorted_by(|a, b| a.head.id < b.head.id));
        let (log, account) = (
            store.entries(0).await.unwrap(),
            store.survey().await.unwrap().account,
        );
        drop(store);
        // A store that is out of use does not open as a `Store`, so only its stored records can be
        // read.
        let (mut seen, mut heads) = (Vec::new(), Vec::new());
        if let Ok(store) = place.open().await {
            (seen, heads) = read(&*store, &stored).await;
        }
        let Account {
            secret,
            lives_since,
            epoch,
            logged,
            ..
        } = account;
        Content {
            stored,
            seen,
            heads,
            log,
            secret,
            lives_since,
            epoch,
            logged,
        }
    }

    /// The highest fence of all records.
    pub fn fence(&self) -> Fence {
        self.stored
            .iter()
            .map(|record| record.head.fence)
            .max()
            .unwrap()
    }

    /// Compares record by record, so that a failure names the record and does not print both
    /// stores.
    pub fn assert_same(&self, other: &Content) {
        let keys = |content: &Content| {
            content
                .stored
                .iter()
                .map(|record| record.head.key.clone())
                .collect::<Vec<_>>()
        };
        assert_eq!(keys(self), keys(other));
        for (mine, theirs) in self.stored.iter().zip(&other.stored) {
            assert!(
                mine == theirs,
                "stored:\n{:?}\n{:?}",
                mine.head,
                theirs.head
            );
        }
        for (mine, theirs) in self.seen.iter().zip(&other.seen) {
            assert!(
                mine == theirs,
                "read:\n{:?}\n{:?}",
                mine.as_ref().map(|r| &r.head),
                theirs.as_ref().map(|r| &r.head)
            );
        }
        for (mine, theirs) in self.heads.iter().zip(&other.heads) {
            assert_eq!(mine, theirs, "listed");
        }
        assert_eq!(
            (self.seen.len(), self.heads.len()),
            (self.stored.len(), self.stored.len()),
            "taken of a store in use"
        );
        assert_eq!(self.log, other.log);
        assert!(
            self == other,
            "the secret, the epoch or the number of the last entry"
        );
    }
}

async fn read(store: &dyn Store, stored: &[Record]) -> (Vec<Option<Record>>, Vec<Head>) {
    let ids: Vec<_> = stored.iter().map(|record| record.head.id).collect();
    let (mut seen, mut heads) = (Vec::new(), Vec::<Head>::new());
    for ids in ids.chunks(100) {
        seen.extend(store.get(ids.to_vec()).await.unwrap().records);
    }
    loop {
        let after = heads.last().map(|head| head.id);
        let page = store
            .list(ListQuery {
                state: None,
                after,
                limit: 1_000,
            })
            .await
            .unwrap();
        if page.is_empty() {
            break;
        }
        heads.extend(page);
    }
    seen.iter_mut()
        .flatten()
        .map(|record| &mut record.head)
        .chain(&mut heads)
        .for_each(unheld);
    (seen, heads)
}

/// A copy carries no leases: no process holds one in the new store.
fn unheld(head: &mut Head) {
    head.lease_until = Timestamp::ZERO;
}

pub async fn standing(store: &dyn Transfer) -> Standing {
    store.survey().await.unwrap().standing
}
