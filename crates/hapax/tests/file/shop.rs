//! A store with many records, and checks of its content.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hapax::store::sqlite::{Options, Sqlite};
use hapax_core::answer::Answer;
use hapax_core::fingerprint::Fingerprint;
use hapax_core::record::{AttemptToken, Head, State};
use hapax_core::store::{Change, Claim, Condition, Finish, Lifetime, Put, Written};
use hapax_core::{Key, Principal, RecordId, RequestId, Scope, Store};
use hapax_testkit::ManualClock;
use tempfile::TempDir;
use tokio::task::JoinSet;

pub const HOUR: Duration = Duration::from_secs(60 * 60);
/// The timeout of background work that has no bound itself, on a busy machine.
pub const SOON: Duration = Duration::from_secs(60);
/// The record is gone after two hours.
pub const SHORT: Lifetime = Lifetime {
    retention: HOUR,
    tombstone: HOUR,
};

pub struct Shop {
    pub directory: TempDir,
    pub path: PathBuf,
    pub clock: ManualClock,
}

impl Shop {
    pub fn new() -> Shop {
        let directory = tempfile::tempdir().unwrap();
        Shop {
            path: directory.path().join("hapax.db"),
            directory,
            clock: ManualClock::new(),
        }
    }

    pub async fn open(&self) -> Sqlite {
        self.open_at(&self.path).await.unwrap()
    }

    pub async fn open_at(&self, path: &Path) -> Result<Sqlite, hapax::store::sqlite::OpenError> {
        Sqlite::open_with(
            path,
            Options {
                clock: Some(Arc::new(self.clock.clone())),
                ..Options::default()
            },
        )
        .await
    }

    pub fn beside(&self, end: &str) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(end);
        name.into()
    }

    /// A plain SQLite connection to the file. The store should be closed.
    pub fn raw(&self) -> rusqlite::Connection {
        rusqlite::Connection::open(&self.path).unwrap()
    }

    /// The keys of the rows that meet the condition, in order.
    pub fn keys(&self, condition: &str) -> Vec<String> {
        let raw = self.raw();
        let mut statement = raw
            .prepare(&format!("SELECT key FROM heads WHERE {condition}"))
            .unwrap();
        statement
            .query_map([], |row| row.get(0))
            .unwrap()
            .map(Result::unwrap)
            .collect()
    }

    /// Makes the writer wait for a lock until the returned connection is dropped. The writer gives
    /// up after a second, so a test must send its requests at once.
    pub async fn hold_up(&self, store: &Sqlite) -> rusqlite::Connection {
        let lock = self.raw();
        lock.execute_batch("BEGIN IMMEDIATE").unwrap();
        // The writer takes this renewal although its future is dropped, and everything else queues
        // behind it.
        drop(store.renew(Vec::new()));
        eventually("the writer waits", SOON, || store.stats().queue_bytes == 0).await;
        lock
    }
}

/// Waits until something that happens in the background is true.
pub async fn eventually(what: &str, within: Duration, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < within, "{what}, not within {within:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

pub fn claim(key: &str) -> Put {
    let scope = Scope {
        namespace: "n".into(),
        principal: Principal::Anonymous,
        method: "POST".into(),
        path: "/orders".into(),
    };
    let (scope, key) = (Arc::new(scope), Key::new(key).unwrap());
    let id = RecordId::of(&scope, &key);
    let fingerprint = Fingerprint {
        digest: [1; 32],
        policy: Arc::default(),
    };
    let claim = Claim {
        scope,
        key,
        fingerprint,
        token: AttemptToken::from_bytes([2; 16]),
        lease: HOUR,
        terms: None,
        request_id: RequestId::new("request-7"),
    };
    Put {
        id,
        condition: Condition::Absent,
        change: Change::Claim(claim),
    }
}

pub fn id(key: &str) -> RecordId {
    claim(key).id
}

pub fn finish(head: &Head, state: State, body: impl Into<bytes::Bytes>, lifetime: Lifetime) -> Put {
    let answer = (state == State::Completed).then(|| Arc::new(Answer::new(201, body)));
    let finish = Finish {
        state,
        status: Some(201),
        answer,
        lifetime,
    };
    Put {
        id: head.id,
        condition: Condition::Held { fence: head.fence },
        change: Change::Finish(finish),
    }
}

/// Another attempt at a key whose last attempt was released or has lapsed.
pub fn retry(head: &Head) -> Put {
    Put {
        condition: Condition::Lapsed { fence: head.fence },
        ..claim(head.key.as_str())
    }
}

pub async fn win(store: &dyn Store, put: Put) -> Head {
    match store.put_if(put).await.unwrap() {
        Written::Won(won) => won.head,
        Written::Lost(seen) => panic!("lost to {seen:?}"),
    }
}

/// Writes one completed record.
pub async fn charge(
    store: &dyn Store,
    key: &str,
    body: impl Into<bytes::Bytes>,
    lifetime: Lifetime,
) -> Head {
    let head = win(store, claim(key)).await;
    win(store, finish(&head, State::Completed, body, lifetime)).await
}

/// Writes many records, each completed with its key as the answer.
pub async fn charge_many(
    store: &Arc<Sqlite>,
    keys: impl Iterator<Item = String>,
    lifetime: Lifetime,
) {
    let charged = |key: String| {
        let store = store.clone();
        async move { charge(&*store, &key, key.clone(), lifetime).await }
    };
    many(keys.map(charged)).await;
}

/// Runs the futures concurrently: enough to share commits, and fewer than the queue holds.
pub async fn many<T: Send + 'static>(
    all: impl Iterator<Item = impl Future<Output = T> + Send + 'static>,
) -> Vec<T> {
    let (mut running, mut done) = (JoinSet::new(), Vec::new());
    for one in all {
        running.spawn(one);
        if running.len() == 512 {
            done.push(running.join_next().await.unwrap().unwrap());
        }
    }
    while let Some(one) = running.join_next().await {
        done.push(one.unwrap());
    }
    done
}

/// The body of the answer of a key.
pub async fn answer(store: &dyn Store, key: &str) -> Option<Vec<u8>> {
    let reading = store.get(vec![id(key)]).await.unwrap();
    reading.records[0]
        .as_ref()?
        .answer
        .as_ref()
        .map(|answer| answer.body.to_vec())
}

/// Sweeps until nothing is due.
pub async fn sweep_all(store: &dyn Store) -> usize {
    let mut sum = 0;
    loop {
        match store.sweep(4_096).await.unwrap().total() {
            0 => return sum,
            swept => sum += swept,
        }
    }
}

/// The number of rows of each id. Reads the file directly, since no constraint in it keeps an id
/// from having two rows.
pub fn rows_by_id(raw: &rusqlite::Connection) -> BTreeMap<Vec<u8>, i64> {
    let mut statement = raw
        .prepare("SELECT id, count(*) FROM heads GROUP BY id")
        .unwrap();
    statement
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))
        .unwrap()
        .map(Result::unwrap)
        .collect()
}

/// Checks that the file passes SQLite's check and that no id has two rows.
pub fn assert_sound(raw: &rusqlite::Connection) {
    let verdict: String = raw
        .query_row("PRAGMA integrity_check", [], |row| row.get(0))
        .unwrap();
    assert_eq!(verdict, "ok");
    assert_eq!(
        rows_by_id(raw).into_iter().find(|(_, rows)| *rows > 1),
        None,
        "an id has two rows"
    );
}
