//! Private servers, and stores on them.

use std::sync::Arc;
use std::time::Duration;

use hapax::store::redis::{Options, Redis};
use hapax_contract::{Bench, ManualClock};
use hapax_core::audit::{LogEntry, LogQuery, Note};
use hapax_core::fingerprint::FingerprintPolicy;
use hapax_core::scope::PrincipalId;
use hapax_core::store::{
    Change, Claim, Finish, KnownPrincipal, Lifetime, ListQuery, Put, Reading, Renewal, Reply,
    StoreInfo, Swept, Written,
};
use hapax_core::{
    Answer, AttemptToken, Condition, Fingerprint, Head, Key, Principal, Record, RecordId, Scope,
    State, Store,
};
use hapax_testkit::servers;

pub(crate) async fn open(url: &str) -> Redis {
    let options = Options::best_effort(url).unwrap_or_else(|error| panic!("{error}"));
    Redis::open(options)
        .await
        .unwrap_or_else(|error| panic!("{error}"))
}

/// A bench on a store that other tests use at the same time.
pub(crate) async fn shared_bench(url: &str) -> Bench {
    Bench::in_real_time(Arc::new(open(url).await)).shared()
}

/// A store whose server's clock stands still until a test turns it.
pub(crate) struct ByHand {
    store: Redis,
    clock: ManualClock,
    started: hapax_core::time::Timestamp,
    file: std::path::PathBuf,
    // In this order: the server ends before its directory is removed.
    server: servers::Redis,
    _directory: tempfile::TempDir,
}

impl ByHand {
    pub(crate) async fn open() -> Option<ByHand> {
        loop {
            let store = ByHand::start().await?;
            // The server began between two microseconds. If that was just before the next one, its
            // clock is one ahead of ours: another server begins at another time.
            store.turn();
            if store.store.info().await.expect("info").now == store.started {
                return Some(store);
            }
        }
    }

    async fn start() -> Option<ByHand> {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("offset");
        std::fs::write(&file, "+0 x0").expect("a directory of our own");
        // The server may run as another user.
        let readable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(directory.path(), readable).expect("a directory of our own");
        let environment = servers::faketime_file(&file)?;
        let program = servers::RedisProgram::Redis;
        let server = servers::Redis::start_with(program, &[], &environment)?;
        let store = open(&server.url()).await;
        let started = store.info().await.expect("info").now;
        Some(ByHand {
            store,
            started,
            clock: ManualClock::starting_at(started),
            file,
            server,
            _directory: directory,
        })
    }

    /// The clock to turn.
    pub(crate) fn clock(&self) -> ManualClock {
        self.clock.clone()
    }

    /// The server, for other nodes.
    pub(crate) fn url(&self) -> String {
        self.server.url()
    }

    /// Sets the server's clock ahead by as much as the manual clock was turned.
    fn turn(&self) {
        let ahead = self.clock.now().since(self.started);
        let (seconds, micros) = (ahead.as_secs(), ahead.subsec_micros());
        // A speed of zero: the clock stands. The last digits, two nanoseconds, outweigh what a
        // fraction loses when it is read.
        let next = self.file.with_extension("next");
        std::fs::write(&next, format!("+{seconds}.{micros:06}002 x0")).expect("a file");
        std::fs::rename(&next, &self.file).expect("a file");
    }
}

macro_rules! at_the_time {
    ($self:ident.$verb:ident($($argument:expr)?)) => {{
        $self.turn();
        $self.store.$verb($($argument)?)
    }};
}

impl Store for ByHand {
    fn get(&self, ids: Vec<RecordId>) -> Reply<'_, Reading> {
        at_the_time!(self.get(ids))
    }

    fn put_if(&self, put: Put) -> Reply<'_, Written> {
        at_the_time!(self.put_if(put))
    }

    fn renew(&self, renewals: Vec<Renewal>) -> Reply<'_, Vec<bool>> {
        at_the_time!(self.renew(renewals))
    }

    fn list(&self, query: ListQuery) -> Reply<'_, Vec<Head>> {
        at_the_time!(self.list(query))
    }

    fn sweep(&self, limit: usize) -> Reply<'_, Swept> {
        at_the_time!(self.sweep(limit))
    }

    fn info(&self) -> Reply<'_, StoreInfo> {
        at_the_time!(self.info())
    }

    fn remember(&self, principals: Vec<KnownPrincipal>) -> Reply<'_, ()> {
        at_the_time!(self.remember(principals))
    }

    fn knows(&self, principal: PrincipalId) -> Reply<'_, bool> {
        at_the_time!(self.knows(principal))
    }

    fn log(&self, query: LogQuery) -> Reply<'_, Vec<LogEntry>> {
        at_the_time!(self.log(query))
    }

    fn note(&self, note: Note) -> Reply<'_, LogEntry> {
        at_the_time!(self.note(note))
    }
}

/// A claim of a key in a namespace of these tests.
pub(crate) fn claim(key: &str, request: u8) -> Put {
    let scope = Scope {
        namespace: "redis".into(),
        principal: Principal::named("ada"),
        method: "POST".into(),
        path: "/orders".into(),
    };
    let key = Key::new(key).expect("a key");
    Put {
        id: RecordId::of(&scope, &key),
        condition: Condition::Absent,
        change: Change::Claim(Claim {
            scope: Arc::new(scope),
            key,
            fingerprint: Fingerprint {
                digest: [request; 32],
                policy: Arc::new(FingerprintPolicy::default()),
            },
            token: AttemptToken::from_bytes(*uuid::Uuid::new_v4().as_bytes()),
            lease: Duration::from_secs(60),
            terms: None,
            request_id: None,
        }),
    }
}

/// Claims a new key. A call that fails because a connection was just lost is repeated.
pub(crate) async fn claimed(store: &Redis, key: &str) -> Head {
    let put = claim(key, 1);
    match until_it_answers(store, &put).await {
        Written::Won(won) => won.head,
        Written::Lost(seen) => panic!("the key is new: {seen:?}"),
    }
}

/// Claims a new key whose lease is over at once. Returns its record.
pub(crate) async fn lapsed(store: &Redis, key: &str) -> RecordId {
    let mut put = claim(key, 1);
    if let Change::Claim(claim) = &mut put.change {
        claim.lease = Duration::ZERO;
    }
    let written = store.put_if(put.clone()).await.expect("put_if");
    assert!(matches!(written, Written::Won(_)), "{written:?}");
    put.id
}

/// Sends the same write until it is answered: the token makes that harmless.
async fn until_it_answers(store: &Redis, put: &Put) -> Written {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
    loop {
        match store.put_if(put.clone()).await {
            Ok(written) => return written,
            Err(error) => assert!(tokio::time::Instant::now() < deadline, "{error}"),
        }
    }
}

/// The record of a key, as a repeat sees it.
pub(crate) async fn repeat(store: &Redis, key: &str) -> Option<Record> {
    match until_it_answers(store, &claim(key, 1)).await {
        Written::Won(won) => panic!("the key ran again: {won:?}"),
        Written::Lost(seen) => seen.record,
    }
}

pub(crate) async fn complete(store: &Redis, head: &Head, body: &str) {
    let answer = Arc::new(Answer::new(201, body.to_owned()));
    end(store, head, State::Completed, Some(answer)).await;
}

pub(crate) async fn end(store: &Redis, head: &Head, state: State, answer: Option<Arc<Answer>>) {
    end_for(store, head, state, answer, Lifetime::default()).await;
}

/// Ends an attempt. The record is remembered for this long.
pub(crate) async fn end_for(
    store: &Redis,
    head: &Head,
    state: State,
    answer: Option<Arc<Answer>>,
    lifetime: Lifetime,
) {
    let put = Put {
        id: head.id,
        condition: Condition::Held { fence: head.fence },
        change: Change::Finish(Finish {
            state,
            status: answer.as_ref().map(|answer| answer.status),
            answer,
            lifetime,
        }),
    };
    let ended = until_it_answers(store, &put).await;
    assert!(matches!(ended, Written::Won(_)), "{ended:?}");
}

/// The key of a record's head in Redis.
pub(crate) fn head_key(id: &RecordId) -> Vec<u8> {
    let mut key = format!("hapax:{{{:02}}}:h:", id.as_bytes()[0] / 4).into_bytes();
    key.extend_from_slice(id.as_bytes());
    key
}
