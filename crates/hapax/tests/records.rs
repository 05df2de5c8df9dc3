//! How many records there may be, and who may make them: forged credentials, long paths, a store
//! that fills up.
//!
//! `HAPAX_FORGED` sets how many forged credentials are tried, by default 4,000.

mod common;

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use common::{Broken, Got, Guarded, Ledger, by, charges, faulty, guard, post, send, spawn};
use hapax::{
    Body, Hapax, Limits, Operation, Part, Peer, Policy, Quotas, Store, Unverified, Velocity,
};
use hapax_core::Head;
use hapax_core::outcome::REFUSED_FOR;
use hapax_core::scope::PrincipalId;
use hapax_core::store::ListQuery;
use http::{Request, Response};
use http_body_util::Full;

/// The number of concurrent requests.
const AT_ONCE: usize = 50;
const SECOND: Duration = Duration::from_secs(1);

fn forged() -> usize {
    std::env::var("HAPAX_FORGED")
        .ok()
        .and_then(|count| count.parse().ok())
        .unwrap_or(4_000)
}

/// The same request from a client at this address, with an unverified credential.
fn from(mut request: Request<Full<Bytes>>, last: u8) -> Request<Full<Bytes>> {
    request
        .extensions_mut()
        .insert(Peer::new(Ipv4Addr::new(10, 0, 0, last).into()));
    request.extensions_mut().insert(Unverified);
    request
}

fn limited(store: Arc<dyn Store>, limits: Limits) -> Hapax {
    Hapax::builder_shared(store)
        .limits(limits)
        .sweep(None)
        .build()
}

/// A service that accepts every user whose name begins with `honest`.
fn checked(hapax: &Hapax, policy: Policy) -> (Guarded, Ledger) {
    let ledger = Ledger::default();
    let service = guard(hapax, policy, {
        let ledger = ledger.clone();
        move |request: Request<Body>| {
            let is_honest = request.headers()["x-user"]
                .to_str()
                .unwrap()
                .starts_with("honest");
            let operation: &Operation = request.extensions().get().unwrap();
            ledger.add(format!(
                "{} {}",
                operation.attempt(),
                operation.derive("charge")
            ));
            let status = if is_honest { 201 } else { 401 };
            async move {
                Ok::<_, Broken>(
                    Response::builder()
                        .status(status)
                        .body(Body::from("said"))
                        .unwrap(),
                )
            }
        }
    });
    (service, ledger)
}

async fn heads(store: &dyn Store) -> Vec<Head> {
    store
        .list(ListQuery {
            state: None,
            after: None,
            limit: 100_000,
        })
        .await
        .unwrap()
}

async fn sweep(store: &dyn Store) {
    while store.sweep(1_000).await.unwrap().total() > 0 {}
}

/// Sends `count` requests with forged credentials, all from the client at 10.0.0.1.
async fn attack(service: &Guarded, count: usize) -> Vec<Got> {
    let mut answers = Vec::new();
    for start in (0..count).step_by(AT_ONCE) {
        let request = |number: usize| {
            from(
                by(
                    post("/pay", &format!("key-{number}"), "5"),
                    &format!("forged-{number}"),
                ),
                1,
            )
        };
        let callers: Vec<_> = (start..count.min(start + AT_ONCE))
            .map(|number| spawn(service, request(number)))
            .collect();
        for caller in callers {
            answers.push(caller.await.unwrap());
        }
    }
    answers
}

#[tokio::test(start_paused = true)]
async fn forged_credentials_leave_few_records_and_for_ten_minutes_only() {
    let (store, clock) = faulty();
    let limits = Limits {
        refused_records_max: Some(1_000),
        ..Limits::default()
    };
    let (service, _) = checked(&limited(store.clone(), limits), Policy::default());
    let pay = |user: &str, key: &str, last: u8| {
        send(&service, from(by(post("/pay", key, "5"), user), last))
    };
    assert_eq!(pay("honest-ann", "first", 1).await.status, 201);

    let answers = attack(&service, forged()).await;
    let refused = answers.iter().filter(|got| got.status == 429).count();
    assert!(
        answers
            .iter()
            .all(|got| got.status == 401 || got.problem() == "too-many-keys"),
        "{:?}",
        answers[0]
    );
    assert!(
        refused >= forged() - 1_000 - AT_ONCE,
        "{refused} were refused"
    );
    let records = heads(&*store).await.len();
    assert!(
        (1_000..=1_000 + AT_ONCE + 1).contains(&records),
        "{records} records"
    );

    // Others are not affected: neither a new caller at another address, nor a known caller at the
    // attacker's address.
    assert_eq!(pay("honest-bob", "first", 2).await.status, 201);
    assert_eq!(pay("honest-ann", "second", 1).await.status, 201);
    // A caller that is unknown at the attacker's address has to wait.
    let held_up = pay("honest-new", "first", 1).await;
    assert_eq!(
        (held_up.problem().as_str(), held_up.header("retry-after")),
        ("too-many-keys", Some("60"))
    );

    clock.advance(REFUSED_FOR);
    sweep(&*store).await;
    assert_eq!(
        heads(&*store).await.len(),
        3,
        "all that is left is what honest callers did"
    );
    tokio::time::advance(SECOND).await;
    assert_eq!(pay("honest-new", "first", 1).await.status, 201);
}

#[tokio::test]
async fn a_refused_key_is_the_same_operation_for_ten_minutes() {
    let (store, clock) = faulty();
    let (service, ledger) = checked(
        &limited(store.clone(), Limits::default()),
        Policy::default(),
    );
    let pay = |body: &'static str| send(&service, from(by(post("/pay", "k", body), "mallory"), 1));
    assert_eq!(pay("5").await.status, 401);
    clock.advance(REFUSED_FOR - SECOND);
    sweep(&*store).await;
    assert_eq!(
        pay("6").await.problem(),
        "key-reused",
        "it is remembered what was asked"
    );
    // The second refusal lasts as long as the first, so that two requests with a forged credential
    // leave no lasting record.
    assert_eq!(pay("5").await.status, 401);
    let [first, second] = &ledger.lines()[..] else {
        panic!("{:?}", ledger.lines())
    };
    assert_eq!((&first[..2], &second[..2]), ("1 ", "2 "));
    assert_eq!(
        first[2..],
        second[2..],
        "the key for the next service is the same"
    );

    clock.advance(REFUSED_FOR);
    assert_eq!(
        pay("6").await.status,
        401,
        "after that the key is as good as new, swept or not"
    );
    assert!(ledger.lines()[2].starts_with("1 "));
    clock.advance(REFUSED_FOR);
    sweep(&*store).await;
    assert_eq!(heads(&*store).await, []);
}

#[tokio::test(start_paused = true)]
async fn forged_credentials_take_no_velocity_from_others() {
    let (store, _) = faulty();
    let policy = Policy {
        velocity: vec![Velocity {
            by: Part::Principal,
            keys: 2,
            per: SECOND * 3_600,
        }],
        ..Policy::default()
    };
    // Room for fewer counters than there are forged credentials.
    let limits = Limits {
        velocity_entries_max: 1_000,
        ..Limits::default()
    };
    let (service, ledger) = checked(&limited(store.clone(), limits), policy);
    let pay = |user: &str, key: &str, last: u8| {
        send(&service, from(by(post("/pay", key, "5"), user), last))
    };
    assert_eq!(pay("honest-ann", "first", 1).await.status, 201);

    let answers = attack(&service, forged() / 2).await;
    assert_eq!(
        answers.iter().filter(|got| got.status == 401).count(),
        1,
        "new keys of unknown callers count for their client"
    );
    assert_eq!(
        pay("honest-bob", "first", 2).await.status,
        201,
        "another client has its own count"
    );
    assert_eq!(
        pay("honest-ann", "second", 1).await.status,
        201,
        "and so has who is known"
    );
    assert_eq!(
        pay("honest-ann", "third", 1).await.status,
        201,
        "whose keys counted for the client only while it was not known"
    );
    assert_eq!(
        pay("honest-ann", "fourth", 1).await.problem(),
        "too-many-keys"
    );
    assert_eq!(ledger.len(), 5);
}

#[tokio::test(start_paused = true)]
async fn the_last_records_are_for_principals_who_have_some() {
    let (store, clock) = faulty();
    let hapax = limited(
        store.clone(),
        Limits {
            records_max: Some(100),
            ..Limits::default()
        },
    );
    let (service, ledger) = charges(&hapax, Policy::default());
    let pay =
        |user: &str, key: usize| send(&service, by(post("/pay", &format!("key-{key}"), "5"), user));
    for key in 0..90 {
        assert_eq!(pay("ann", key).await.status, 201);
    }
    let refused = pay("bob", 0).await;
    assert_eq!(
        (refused.status.as_u16(), refused.problem().as_str()),
        (429, "quota-reached")
    );
    assert_eq!(refused.header("retry-after"), Some("60"));
    assert_eq!(
        send(&service, post("/pay", "k", "5")).await.problem(),
        "quota-reached",
        "nobody in particular has no records"
    );
    for key in 90..100 {
        assert_eq!(pay("ann", key).await.status, 201);
    }
    assert_eq!(pay("ann", 100).await.problem(), "quota-reached");
    assert!(pay("ann", 0).await.is_replay() && pay("ann", 99).await.is_replay());
    // A node that has seen none of this relies on the store's counts.
    let (elsewhere, _) = charges(
        &limited(
            store.clone(),
            Limits {
                records_max: Some(110),
                ..Limits::default()
            },
        ),
        Policy::default(),
    );
    tokio::time::sleep(SECOND * 2).await;
    let ann = PrincipalId::of(&heads(&*store).await[0].scope).unwrap();
    assert!(store.knows(ann).await.unwrap());
    assert_eq!(
        send(&elsewhere, by(post("/pay", "key-100", "5"), "ann"))
            .await
            .status,
        201
    );
    assert_eq!(
        send(&elsewhere, by(post("/pay", "key-0", "5"), "bob"))
            .await
            .problem(),
        "quota-reached"
    );
    // The limit can be raised at run time, and expired records make room.
    hapax.set_quotas(Quotas {
        records_max: Some(1_000),
        ..Quotas::default()
    });
    assert_eq!(pay("bob", 0).await.status, 201);
    hapax.set_quotas(Quotas {
        records_max: Some(100),
        ..Quotas::default()
    });
    assert_eq!(pay("bob", 1).await.problem(), "quota-reached");
    clock.advance(SECOND * 60 * 60 * 24 * 8);
    sweep(&*store).await;
    tokio::time::advance(SECOND).await;
    assert_eq!(pay("bob", 1).await.status, 201);
    assert_eq!(ledger.len(), 102);
}

/// Records stay small and are found however long their paths are.
#[cfg(feature = "sqlite")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_paths_do_not_fill_the_store() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("hapax.db");
    let store = Arc::new(hapax::Sqlite::open(&path).await.unwrap());
    let (service, ledger) = charges(
        &limited(store.clone(), Limits::default()),
        Policy::default(),
    );
    let long = |number: usize| format!("/pay/{number:04}/{}/{number:04}", "x".repeat(31_000));
    for replays in [false, true] {
        for start in (0..1_000).step_by(AT_ONCE) {
            let callers: Vec<_> = (start..start + AT_ONCE)
                .map(|number| spawn(&service, post(&long(number), "k", "5")))
                .collect();
            for caller in callers {
                let got = caller.await.unwrap();
                assert_eq!((got.status.as_u16(), got.is_replay()), (201, replays));
            }
        }
    }
    assert_eq!(
        ledger.len(),
        1_000,
        "the end of a path tells it from others"
    );
    for head in heads(&*store).await {
        assert!(
            head.scope.path.starts_with("/pay/") && head.scope.path.contains("…sha256:"),
            "{}",
            head.scope.path
        );
        assert!(head.scope.path.len() <= hapax_core::scope::STORED_BYTES_MAX);
    }
    drop((service, store));
    let store = common::open_when_free(&path).await;
    let (service, _) = charges(
        &limited(Arc::new(store), Limits::default()),
        Policy::default(),
    );
    assert!(
        send(&service, post(&long(17), "k", "5")).await.is_replay(),
        "also after a restart"
    );
    drop(service);
    drop(common::open_when_free(&path).await);
    let bytes = std::fs::metadata(&path).unwrap().len();
    assert!(bytes < 2 << 20, "{bytes} bytes");
}
