//! A store with many records in it, and what they should be.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hapax::store::sqlite::{Options, Sqlite};
use hapax_core::answer::Answer;
use hapax_core::fingerprint::Fingerprint;
use hapax_core::record::{AttemptToken, Head, State};
use hapax_core::store::{Change, Claim, Condition, Finish, Lifetime, Put, Written};
use hapax_core::{Key, Principal, RecordId, Scope, Store};
use hapax_testkit::ManualClock;
use tempfile::TempDir;
use tokio::task::JoinSet;

pub const HOUR: Duration = Duration::from_secs(60 * 60);
/// Gone after two hours.
pub const SHORT: Lifetime = Lifetime { retention: HOUR, tombstone: HOUR };

pub struct Shop {
    pub directory: TempDir,
    pub path: PathBuf,
    pub clock: ManualClock,
}

impl Shop {
    pub fn new() -> Shop {
        let directory = tempfile::tempdir().unwrap();
        Shop { path: directory.path().join("hapax.db"), directory, clock: ManualClock::new() }
    }

    pub async fn open(&self) -> Sqlite {
        self.open_at(&self.path).await.unwrap()
    }

    pub async fn open_at(&self, path: &Path) -> Result<Sqlite, hapax::store::sqlite::OpenError> {
        Sqlite::open_with(path, Options { clock: Some(Arc::new(self.clock.clone())), ..Options::default() }).await
    }

    pub fn beside(&self, end: &str) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(end);
        name.into()
    }

    /// The file through SQLite alone, with nobody else at it.
    pub fn raw(&self) -> rusqlite::Connection {
        rusqlite::Connection::open(&self.path).unwrap()
    }
}

pub fn claim(key: &str) -> Put {
    let scope = Scope { namespace: "n".into(), principal: Principal::Anonymous, method: "POST".into(), path: "/orders".into() };
    let (scope, key) = (Arc::new(scope), Key::new(key).unwrap());
    let id = RecordId::of(&scope, &key);
    let fingerprint = Fingerprint { digest: [1; 32], policy: Arc::default() };
    let claim = Claim { scope, key, fingerprint, token: AttemptToken::from_bytes([2; 16]), lease: HOUR };
    Put { id, condition: Condition::Absent, change: Change::Claim(claim) }
}

pub fn id(key: &str) -> RecordId {
    claim(key).id
}

pub fn finish(head: &Head, state: State, body: impl Into<bytes::Bytes>, lifetime: Lifetime) -> Put {
    let answer = (state == State::Completed).then(|| Arc::new(Answer::new(201, body)));
    let finish = Finish { state, status: Some(201), answer, lifetime };
    Put { id: head.id, condition: Condition::Held { fence: head.fence }, change: Change::Finish(finish) }
}

pub async fn win(store: &dyn Store, put: Put) -> Head {
    match store.put_if(put).await.unwrap() {
        Written::Won(won) => won.head,
        Written::Lost(seen) => panic!("lost to {seen:?}"),
    }
}

/// One record, completed.
pub async fn charge(store: &dyn Store, key: &str, body: impl Into<bytes::Bytes>, lifetime: Lifetime) -> Head {
    let head = win(store, claim(key)).await;
    win(store, finish(&head, State::Completed, body, lifetime)).await
}

/// Many records, each completed with its key as the answer.
pub async fn charge_many(store: &Arc<Sqlite>, keys: impl Iterator<Item = String>, lifetime: Lifetime) {
    let mut charges = JoinSet::new();
    for key in keys {
        let store = store.clone();
        charges.spawn(async move { charge(&*store, &key, key.clone(), lifetime).await });
        // Enough to share commits, and less than the queue takes.
        if charges.len() == 512 {
            charges.join_next().await.unwrap().unwrap();
        }
    }
    while let Some(charge) = charges.join_next().await {
        charge.unwrap();
    }
}

/// What a key's record answers.
pub async fn answer(store: &dyn Store, key: &str) -> Option<Vec<u8>> {
    let reading = store.get(vec![id(key)]).await.unwrap();
    reading.records[0].as_ref()?.answer.as_ref().map(|answer| answer.body.to_vec())
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

/// How often each id has a row. The file alone is asked, as nothing in it keeps an id from having two.
pub fn rows_by_id(raw: &rusqlite::Connection) -> BTreeMap<Vec<u8>, i64> {
    let mut statement = raw.prepare("SELECT id, count(*) FROM heads GROUP BY id").unwrap();
    statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap().map(Result::unwrap).collect()
}

/// The file makes sense to SQLite, and no id is in it twice.
pub fn assert_sound(raw: &rusqlite::Connection) {
    let verdict: String = raw.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(verdict, "ok");
    assert_eq!(rows_by_id(raw).into_iter().find(|(_, rows)| *rows > 1), None, "an id has two rows");
}
