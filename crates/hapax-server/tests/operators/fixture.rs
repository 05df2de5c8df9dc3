//! A store with one key in each situation, and the program to inspect it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hapax::core::fingerprint::{Fingerprinter, RequestHead};
use hapax::core::outcome::Loss;
use hapax::core::record::{AttemptToken, Fence, State};
use hapax::core::store::{Change, Claim, Finish, Lifetime, Written};
use hapax::core::{Condition, Put};
use hapax::{Answer, Key, Principal, RecordId, RequestId, Scope, Sqlite, Store};

use super::harness::{self, Said, said_to};

/// Runs `hapax` in a directory.
pub fn hapax(directory: &Path, args: &[&str]) -> Said {
    hapax_with_input(directory, args, b"")
}

pub fn hapax_with_input(directory: &Path, args: &[&str], input: &[u8]) -> Said {
    let mut command = harness::hapax();
    said_to(
        command.args(args).current_dir(directory).env("USER", "ada"),
        input,
    )
}

/// The scope of a record.
pub fn scope(principal: Principal, method: &str, path: &str) -> Arc<Scope> {
    Arc::new(Scope {
        namespace: "default".into(),
        principal,
        method: method.into(),
        path: path.into(),
    })
}

pub fn id(scope: &Scope, key: &str) -> RecordId {
    RecordId::of(scope, &Key::new(key).unwrap())
}

/// Begins an attempt.
pub async fn claim(store: &dyn Store, scope: &Arc<Scope>, key: &str, lease: Duration) -> Fence {
    let head = RequestHead {
        scope,
        target: &scope.path,
        headers: vec![("content-type", b"application/json")],
    };
    let mut fingerprinter = Fingerprinter::new(&Arc::default(), &head);
    fingerprinter.update(br#"{"amount":5}"#);
    let claim = Claim {
        scope: scope.clone(),
        key: Key::new(key).unwrap(),
        fingerprint: fingerprinter.finish(),
        token: AttemptToken::from_bytes([7; 16]),
        lease,
        terms: None,
        request_id: RequestId::new("request-7"),
    };
    let put = Put {
        id: id(scope, key),
        condition: Condition::Absent,
        change: Change::Claim(claim),
    };
    match store.put_if(put).await.expect("the store works") {
        Written::Won(won) => won.head.fence,
        Written::Lost(_) => panic!("{key} is there already"),
    }
}

/// Begins an attempt and ends it.
pub async fn ended(
    store: &dyn Store,
    scope: &Arc<Scope>,
    key: &str,
    state: State,
    answer: Option<Answer>,
) {
    let status = answer.as_ref().map(|answer| answer.status);
    finish(
        store,
        scope,
        key,
        Finish {
            state,
            status,
            answer: answer.map(Arc::new),
            lifetime: Lifetime::default(),
        },
    )
    .await;
}

/// Begins an attempt and loses it.
pub async fn lost(store: &dyn Store, scope: &Arc<Scope>, key: &str, loss: Loss) {
    let lifetime = Lifetime::default();
    finish(
        store,
        scope,
        key,
        Finish {
            state: State::Unknown,
            status: loss.code(),
            answer: None,
            lifetime,
        },
    )
    .await;
}

async fn finish(store: &dyn Store, scope: &Arc<Scope>, key: &str, finish: Finish) {
    let fence = claim(store, scope, key, Duration::from_secs(60)).await;
    let put = Put {
        id: id(scope, key),
        condition: Condition::Held { fence },
        change: Change::Finish(finish),
    };
    assert!(
        matches!(
            store.put_if(put).await.expect("the store works"),
            Written::Won(_)
        ),
        "{key}"
    );
}

pub fn charges() -> Arc<Scope> {
    scope(Principal::Anonymous, "POST", "/v1/charges")
}

pub fn refunds() -> Arc<Scope> {
    scope(Principal::Anonymous, "POST", "/v1/refunds")
}

pub fn orders() -> Arc<Scope> {
    scope(
        Principal::named("eve\u{202e}\u{1b}[2J"),
        "PATCH",
        "/v1/orders/7",
    )
}

/// One of each: a completed charge, two charges and a refund with unknown outcome, a refused order,
/// and an answer of raw bytes. The last attempt is left running.
pub async fn fill(store: &dyn Store) {
    let created = Answer {
        headers: vec![
            ("content-type".to_owned(), "application/json".into()),
            ("x-odd".to_owned(), "a\u{1b}b".into()),
        ],
        ..Answer::new(201, "{\"id\":\"ch_1\",\n\"note\":\"\u{1b}[31m\"}")
    };
    ended(
        store,
        &charges(),
        "order-1",
        State::Completed,
        Some(created),
    )
    .await;
    ended(store, &charges(), "order-2", State::Unknown, None).await;
    ended(store, &charges(), "order-3", State::Unknown, None).await;
    ended(store, &refunds(), "order-3", State::Unknown, None).await;
    ended(
        store,
        &orders(),
        "k 4",
        State::Failed,
        Some(Answer::new(404, "no")),
    )
    .await;
    ended(
        store,
        &refunds(),
        "bytes",
        State::Completed,
        Some(Answer::new(200, &b"\xff\x00"[..])),
    )
    .await;
    claim(store, &refunds(), "killed", Duration::from_secs(600)).await;
}

/// Keys of callers that several sources name bob, and of another caller.
pub async fn fill_people(store: &dyn Store) {
    for (principal, key) in [
        ("header:x-user bob", "b-1"),
        ("header:x-user bob", "b-2"),
        ("jwt:sub https://id.example.com bob", "b-1"),
        ("header:x-user bobby", "b-1"),
        ("jwt:sub https://id.example.com eve", "e-1"),
    ] {
        let scope = scope(Principal::named(principal), "POST", "/v1/charges");
        ended(
            store,
            &scope,
            key,
            State::Completed,
            Some(Answer::new(201, principal.to_owned())),
        )
        .await;
    }
    let eve = scope(
        Principal::named("jwt:sub https://id.example.com eve"),
        "POST",
        "/v1/charges",
    );
    ended(store, &eve, "e-2", State::Unknown, None).await;
    ended(
        store,
        &eve,
        "e-3",
        State::Failed,
        Some(Answer::new(404, "no")),
    )
    .await;
}

/// A directory with such a store in `hapax.db`, which no process has open.
pub async fn directory() -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    let store = Sqlite::open(directory.path().join("hapax.db"))
        .await
        .expect("a store");
    fill(&store).await;
    directory
}

/// Lines without their sixth column, the age.
pub fn without_age(table: &str) -> Vec<String> {
    let line = |line: &str| {
        line.split('\t')
            .enumerate()
            .filter(|(column, _)| *column != 5)
            .map(|(_, cell)| cell)
            .collect::<Vec<_>>()
            .join(" ")
    };
    table.lines().map(line).collect()
}
