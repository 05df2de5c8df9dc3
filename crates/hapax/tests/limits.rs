//! Limits on new keys: how many per time, how guessable, how many and how many bytes for each
//! principal. Repeats count towards none of them.

mod common;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use common::{Guarded, Ledger, by, charges, faulty, gated, guard, post, quiet, send, spawn};
use hapax::{
    Body, BoxError, Event, Hapax, KeyRule, Limits, Part, Policy, Principal, Quotas, Settlement,
    Store, Usage, Velocity,
};
use hapax_core::record::{State, StateFilter};
use hapax_core::store::ListQuery;
use hapax_testkit::{Fault, Verb};
use http::{HeaderValue, Request, Response};
use http_body_util::{BodyExt, Full};

const MINUTE: Duration = Duration::from_secs(60);

fn velocity(by: Part, keys: u32) -> Policy {
    Policy {
        velocity: vec![Velocity {
            by,
            keys,
            per: MINUTE,
        }],
        ..Policy::default()
    }
}

fn with(
    mut request: Request<Full<Bytes>>,
    name: &'static str,
    value: &str,
) -> Request<Full<Bytes>> {
    request
        .headers_mut()
        .append(name, HeaderValue::try_from(value).unwrap());
    request
}

#[tokio::test(start_paused = true)]
async fn new_keys_are_limited_in_time_and_repeats_are_free() {
    let (store, _) = faulty();
    let (service, ledger) = charges(&quiet(store.clone()), velocity(Part::Principal, 3));
    let pay = |key: &str| send(&service, by(post("/charges", key, "5"), "ada"));
    for key in ["a", "b", "c"] {
        assert_eq!(pay(key).await.status, 201);
    }
    let refused = pay("d").await;
    assert_eq!(
        (refused.status.as_u16(), refused.problem().as_str()),
        (429, "too-many-keys")
    );
    assert_eq!(
        refused.header("retry-after"),
        Some("20"),
        "a third of a minute"
    );
    // Repeats cost nothing, whether they are in memory or only in the store.
    for _ in 0..100 {
        assert!(pay("a").await.is_replay());
    }
    let (elsewhere, _) = charges(&quiet(store.clone()), velocity(Part::Principal, 3));
    for _ in 0..10 {
        for key in ["a", "b", "c"] {
            assert!(
                send(&elsewhere, by(post("/charges", key, "5"), "ada"))
                    .await
                    .is_replay()
            );
        }
    }
    // Each node counts by itself, and no repeat was a new key there.
    assert_eq!(
        send(&elsewhere, by(post("/charges", "there", "5"), "ada"))
            .await
            .status,
        201
    );
    // Another principal has its own budget.
    assert_eq!(
        send(&service, by(post("/charges", "d", "5"), "bob"))
            .await
            .status,
        201
    );
    // A refused key leaves no record, and runs once the budget allows it.
    assert_eq!(
        store
            .list(ListQuery {
                state: None,
                after: None,
                limit: 100
            })
            .await
            .unwrap()
            .len(),
        5
    );
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert_eq!(pay("d").await.status, 201);
    assert_eq!(
        (pay("e").await.problem().as_str(), ledger.len()),
        ("too-many-keys", 5)
    );
}

#[tokio::test(start_paused = true)]
async fn a_key_that_is_tried_again_is_no_new_key() {
    let (store, _) = faulty();
    let (service, ledger, gate) = gated(&quiet(store.clone()), velocity(Part::Principal, 1), 503);
    gate.open(100);
    for _ in 0..5 {
        assert_eq!(send(&service, post("/charges", "k", "5")).await.status, 503);
    }
    assert_eq!(ledger.len(), 5);
    assert_eq!(
        send(&service, post("/charges", "other", "5"))
            .await
            .problem(),
        "too-many-keys"
    );
}

/// Repeats hold no budget even during a claim: otherwise many repeats of one key could have others'
/// new keys refused.
#[tokio::test(start_paused = true)]
async fn a_repeat_of_what_only_the_store_knows_takes_nothing_that_a_new_key_needs() {
    for (policy, limits) in [
        (velocity(Part::Principal, 10), Limits::default()),
        (
            Policy::default(),
            Limits {
                records_per_principal_max: Some(10),
                ..Limits::default()
            },
        ),
    ] {
        let (store, _) = faulty();
        let hapax = Hapax::builder_shared(store.clone())
            .limits(limits)
            .sweep(None)
            .build();
        let service = guard(&hapax, policy, |_| async {
            Ok(Response::builder()
                .status(502)
                .body(Body::from("lost"))
                .unwrap())
        });
        send(&service, post("/charges", "k", "5")).await;
        store.fail_next(Verb::PutIf, Fault::ErrorBefore, 1_000);
        assert_eq!(
            send(&service, post("/charges", "k", "5")).await.problem(),
            "outcome-unknown",
            "it is read, and not claimed"
        );
        assert_eq!(
            send(&service, post("/charges", "new", "5")).await.problem(),
            "store-unavailable",
            "as every claim now"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_the_store_did_not_take_gives_its_token_back() {
    let (store, _) = faulty();
    let (service, ledger) = charges(&quiet(store.clone()), velocity(Part::Principal, 1));
    store.fail_next(Verb::PutIf, Fault::ErrorBefore, 1_000);
    for key in ["a", "b", "c"] {
        assert_eq!(
            send(&service, post("/charges", key, "5")).await.problem(),
            "store-unavailable"
        );
    }
    // The background releases of the failed claims use up the scripted faults.
    while send(&service, post("/charges", "d", "5")).await.status != 201 {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(ledger.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn many_at_once_get_as_many_as_there_are_tokens() {
    let (store, _) = faulty();
    let (service, ledger) = charges(&quiet(store), velocity(Part::Principal, 7));
    let callers: Vec<_> = (0..50)
        .map(|number| spawn(&service, post("/charges", &format!("key-{number}"), "5")))
        .collect();
    let mut refused = 0;
    for caller in callers {
        refused += usize::from(caller.await.unwrap().status == 429);
    }
    assert_eq!((ledger.len(), refused), (7, 43));
}

#[tokio::test(start_paused = true)]
async fn new_keys_are_counted_by_a_header_and_by_a_value_of_the_body() {
    let (store, _) = faulty();
    let policy = Policy {
        velocity: vec![
            Velocity {
                by: Part::Header("x-merchant".into()),
                keys: 2,
                per: MINUTE,
            },
            Velocity {
                by: Part::Body("/card/number".parse().unwrap()),
                keys: 2,
                per: MINUTE,
            },
        ],
        ..Policy::default()
    };
    let (service, ledger) = charges(&quiet(store), policy);
    let mut next = 0;
    let mut pay = |merchant: &str, body: &'static str| {
        next += 1;
        let service = service.clone();
        let request = with(
            post("/charges", &format!("key-{next}"), body),
            "x-merchant",
            merchant,
        );
        async move { send(&service, request).await.status.as_u16() }
    };
    let card = r#"{"card":{"number":"4242"}}"#;
    assert_eq!((pay("m1", card).await, pay("m2", card).await), (201, 201));
    // The same card at another merchant, with another spelling; a number is a different value.
    assert_eq!(
        pay("m3", r#"{ "card": { "number": "\u0034242" } }"#).await,
        429
    );
    assert_eq!(pay("m1", r#"{"card":{"number":4242}}"#).await, 201);
    assert_eq!(
        pay("m1", r#"{"card":{"number":"5555"}}"#).await,
        429,
        "the merchant has had two"
    );
    // A key refused by one rule was not counted by the other.
    assert_eq!(
        (
            pay("m4", r#"{"card":{"number":"5555"}}"#).await,
            pay("m5", r#"{"card":{"number":"5555"}}"#).await
        ),
        (201, 201)
    );
    // Without a value no limit applies. Ambiguous bodies all count as one value.
    for merchant in ["m6", "m7", "m8", "m9"] {
        assert_eq!(pay(merchant, "{}").await, 201);
    }
    let odd = [
        r#"{"card":{"number":"1"},"card":{}}"#,
        r#"{"card":{"number":"2"},"#,
        "\u{feff}{\"card\":{\"number\":\"3\"}}",
    ];
    let mut statuses = Vec::new();
    for (merchant, body) in ["m10", "m11", "m12"].into_iter().zip(odd) {
        statuses.push(pay(merchant, body).await);
    }
    assert_eq!((statuses, ledger.len()), (vec![201, 201, 429], 11));
}

#[tokio::test(start_paused = true)]
async fn counts_survive_a_new_layer_with_the_same_rule_and_names_set_them_apart() {
    let (store, _) = faulty();
    let hapax = quiet(store);
    let layer = |name: &str, policy: Policy| {
        let layer = hapax
            .guard()
            .name(name)
            .policy(policy)
            .anonymous()
            .build()
            .unwrap();
        let handler = |_: Request<Body>| async {
            Ok::<_, std::convert::Infallible>(Response::new(Body::empty()))
        };
        tower::Layer::layer(&layer, tower::service_fn(handler))
    };
    let first = layer("pay", velocity(Part::Principal, 1));
    assert_eq!(send(&first, post("/a", "k1", "")).await.status, 200);
    // A reload makes a layer with the same name; its other settings may have changed.
    let reloaded = layer(
        "pay",
        Policy {
            lease: MINUTE,
            key: KeyRule::Required,
            ..velocity(Part::Principal, 1)
        },
    );
    assert_eq!(
        send(&reloaded, post("/a", "k2", "")).await.problem(),
        "too-many-keys"
    );
    assert_eq!(
        send(
            &layer("refund", velocity(Part::Principal, 1)),
            post("/a", "k3", "")
        )
        .await
        .status,
        200
    );
    assert_eq!(
        send(
            &layer("pay", velocity(Part::Principal, 2)),
            post("/a", "k4", "")
        )
        .await
        .status,
        200,
        "another rule"
    );
    // Work without HTTP is counted by its principal.
    let once = hapax
        .once("job")
        .policy(velocity(Part::Principal, 1))
        .unwrap();
    let run = async |key: &str| {
        once.run(key, "", async |_| Ok::<_, BoxError>(Bytes::new()))
            .await
    };
    assert!(run("a").await.is_ok());
    assert!(run("a").await.is_ok());
    assert_eq!(
        run("b").await.unwrap_err().to_string(),
        "more new keys came in a short time than velocity allows: nothing was begun; run it again later with the same key"
    );
}

#[tokio::test]
async fn a_new_key_that_can_be_guessed_is_refused_and_a_known_one_is_not() {
    let (store, _) = faulty();
    let (before, ledger) = charges(&quiet(store.clone()), Policy::default());
    assert_eq!(
        send(&before, post("/charges", "order-17", "5"))
            .await
            .status,
        201
    );
    let hapax = quiet(store.clone());
    let (service, later) = charges(
        &hapax,
        Policy {
            key_bits_min: 100,
            ..Policy::default()
        },
    );
    // The key was accepted before the rule existed. Refusing it now would make its caller retry
    // under a new key.
    assert!(
        send(&service, post("/charges", "order-17", "5"))
            .await
            .is_replay()
    );
    assert_eq!(
        send(&service, post("/charges", "order-17", "6"))
            .await
            .problem(),
        "key-reused"
    );
    let refused = send(&service, post("/charges", "order-18", "5")).await;
    assert_eq!(
        (refused.status.as_u16(), refused.problem().as_str()),
        (400, "key-guessable")
    );
    assert_eq!(refused.header("x-should-retry"), Some("false"));
    assert_eq!(
        send(
            &service,
            post("/charges", "8e03978e-40d5-43e8-bc93-6894a57f9324", "5")
        )
        .await
        .status,
        201
    );
    assert_eq!((ledger.len(), later.len()), (1, 1));
    assert_eq!(
        store
            .list(ListQuery {
                state: None,
                after: None,
                limit: 9
            })
            .await
            .unwrap()
            .len(),
        2
    );
}

#[tokio::test]
async fn new_keys_that_look_like_counters_or_clocks_are_told_to_the_observer_once() {
    let (store, _) = faulty();
    let told = Arc::new(Mutex::new(Vec::new()));
    let log = told.clone();
    let hapax = Hapax::builder_shared(store)
        .sweep(None)
        .observer(move |event: &Event<'_>| {
            if let Event::GuessableKey { kind, .. } = event {
                log.lock().unwrap().push(kind.word());
            }
        })
        .build();
    let (service, _) = charges(&hapax, Policy::default());
    for key in [
        "order-17",
        "order-17",
        "1731692779123",
        "8e03978e-40d5-43e8-bc93-6894a57f9324",
        "payment",
    ] {
        send(&service, post("/charges", key, "5")).await;
    }
    assert_eq!(*told.lock().unwrap(), ["counter", "clock"]);
}

fn limited(store: Arc<dyn Store>, records: Option<u64>, bytes: Option<u64>) -> Hapax {
    let limits = Limits {
        records_per_principal_max: records,
        bytes_per_principal_max: bytes,
        ..Limits::default()
    };
    Hapax::builder_shared(store)
        .sweep(None)
        .limits(limits)
        .build()
}

/// Waits until the records already in the store have been counted.
async fn counted(hapax: &Hapax, principal: &Principal) -> Usage {
    loop {
        match hapax.usage(principal).unwrap() {
            usage if usage.is_complete => return usage,
            _ => tokio::task::yield_now().await,
        }
    }
}

#[tokio::test]
async fn over_its_quota_of_records_a_principal_begins_nothing_new_and_repeats_are_free() {
    let (store, clock) = faulty();
    let hapax = limited(store.clone(), Some(2), None);
    let (service, ledger) = charges(&hapax, Policy::default());
    let pay = |user: &str, key: &str| send(&service, by(post("/charges", key, "5"), user));
    assert_eq!(
        (
            pay("ada", "a").await.status.as_u16(),
            pay("ada", "b").await.status.as_u16()
        ),
        (201, 201)
    );
    let refused = pay("ada", "c").await;
    assert_eq!(
        (refused.status.as_u16(), refused.problem().as_str()),
        (429, "quota-reached")
    );
    assert_eq!(
        (
            refused.header("x-should-retry"),
            refused.header("retry-after")
        ),
        (Some("false"), None)
    );
    assert!(pay("ada", "a").await.is_replay());
    assert_eq!(pay("bob", "c").await.status, 201, "each has their own");
    assert_eq!(
        send(&service, post("/charges", "c", "5")).await.status,
        201,
        "and nobody in particular has one"
    );
    // Raises everyone's quota at run time and then lowers it: no record is removed.
    hapax.set_quotas(Quotas {
        records_per_principal_max: Some(3),
        ..Quotas::default()
    });
    assert_eq!(pay("ada", "c").await.status, 201);
    hapax.set_quotas(Quotas {
        records_per_principal_max: Some(1),
        ..Quotas::default()
    });
    assert_eq!(pay("ada", "d").await.problem(), "quota-reached");
    assert!(pay("ada", "a").await.is_replay());
    assert_eq!(ledger.len(), 5);
    // After the retention there is room again.
    clock.advance(Duration::from_secs(24 * 60 * 60));
    let (later, _) = charges(&limited(store.clone(), Some(1), None), Policy::default());
    assert_eq!(
        send(&later, by(post("/charges", "d", "5"), "ada"))
            .await
            .status,
        201
    );
    // Without a quota nothing is counted.
    hapax.set_quotas(Quotas::default());
    assert_eq!(hapax.usage(&Principal::named("ada")), None);
}

#[tokio::test]
async fn many_at_once_get_as_many_records_as_the_quota_has() {
    let (store, _) = faulty();
    let (service, ledger) = charges(&limited(store, Some(7), None), Policy::default());
    let callers: Vec<_> = (0..50)
        .map(|number| spawn(&service, post("/charges", &format!("key-{number}"), "5")))
        .collect();
    let mut refused = 0;
    for caller in callers {
        refused += usize::from(caller.await.unwrap().status == 429);
    }
    assert_eq!((ledger.len(), refused), (7, 43));
}

#[tokio::test]
async fn what_was_in_the_store_before_is_counted_too() {
    let (store, _) = faulty();
    let (before, _) = charges(&quiet(store.clone()), Policy::default());
    for number in 0..300 {
        send(
            &before,
            by(post("/charges", &format!("key-{number}"), "5"), "ada"),
        )
        .await;
    }
    let hapax = limited(store.clone(), Some(301), None);
    let (service, _) = charges(&hapax, Policy::default());
    assert_eq!(
        send(&service, by(post("/charges", "one more", "5"), "ada"))
            .await
            .problem(),
        "key-malformed"
    );
    assert_eq!(
        send(&service, by(post("/charges", "one-more", "5"), "ada"))
            .await
            .status,
        201
    );
    assert_eq!(counted(&hapax, &Principal::named("ada")).await.records, 301);
    assert_eq!(
        send(&service, by(post("/charges", "another", "5"), "ada"))
            .await
            .problem(),
        "quota-reached"
    );
}

/// Answers with the number of bytes that the body names.
fn answers(hapax: &Hapax) -> (Guarded, Ledger) {
    let ledger = Ledger::default();
    let log = ledger.clone();
    let service = guard(hapax, Policy::default(), move |request: Request<Body>| {
        let log = log.clone();
        async move {
            let body = request.into_body().collect().await.unwrap().to_bytes();
            let length: usize = std::str::from_utf8(&body).unwrap().parse().unwrap();
            log.add("effect");
            Ok(Response::new(Body::from(vec![b'x'; length])))
        }
    });
    (service, ledger)
}

#[tokio::test]
async fn an_answer_over_the_quota_of_bytes_is_sent_and_not_kept() {
    let (store, _) = faulty();
    let hapax = limited(store, None, Some(1_000));
    let (service, ledger) = answers(&hapax);
    assert_eq!(send(&service, post("/a", "a", "800")).await.body.len(), 800);
    let over = send(&service, post("/a", "b", "800")).await;
    assert_eq!(
        (over.body.len(), over.header("idempotency-expires")),
        (800, None)
    );
    assert_eq!(
        send(&service, post("/a", "b", "800")).await.problem(),
        "answer-not-kept"
    );
    assert!(send(&service, post("/a", "a", "800")).await.is_replay());
    // A small answer still fits; when there is no room at all, no new key is begun.
    let left = 1_000 - hapax.usage(&Principal::Anonymous).unwrap().bytes - 27;
    assert!(
        send(&service, post("/a", "c", left.to_string()))
            .await
            .header("idempotency-expires")
            .is_some()
    );
    assert_eq!(hapax.usage(&Principal::Anonymous).unwrap().bytes, 1_000);
    assert_eq!(
        (
            send(&service, post("/a", "d", "1"))
                .await
                .problem()
                .as_str(),
            ledger.len()
        ),
        ("quota-reached", 3)
    );
}

/// A fixed pseudo-random sequence; only its spread matters.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

/// The records and bytes of a principal, from the store itself.
async fn in_store(store: &dyn Store, user: &str) -> (u64, u64) {
    let heads = store
        .list(ListQuery {
            state: None,
            after: None,
            limit: 10_000,
        })
        .await
        .unwrap();
    let now = store.info().await.unwrap().now;
    let is_live = |head: &hapax_core::Head| !matches!(head.state_at(now), State::Expired(_));
    let ids: Vec<_> = heads
        .iter()
        .filter(|head| head.scope.principal == Principal::named(user) && is_live(head))
        .map(|head| head.id)
        .collect();
    let records = store.get(ids).await.unwrap().records;
    let bytes = records
        .iter()
        .flatten()
        .filter_map(|record| record.answer.as_ref())
        .map(|answer| answer.encoded_len() as u64);
    (records.len() as u64, bytes.sum())
}

#[tokio::test(start_paused = true)]
async fn after_any_history_the_books_agree_with_the_store() {
    for seed in 0..20 {
        let (store, clock) = faulty();
        let mut dice = Dice(seed);
        // Whole seconds, which is the resolution of the counts. The store has records before the
        // counting begins.
        let policy = || Policy {
            retention: Duration::from_secs(100),
            tombstone: Duration::from_secs(50),
            ..Policy::default()
        };
        let handler = |request: Request<Body>| async move {
            let status = request.headers()["x-status"]
                .to_str()
                .unwrap()
                .parse::<u16>()
                .unwrap();
            let body = request.into_body().collect().await.unwrap().to_bytes();
            Ok(Response::builder()
                .status(status)
                .body(Body::from(body))
                .unwrap())
        };
        let before = guard(&quiet(store.clone()), policy(), handler);
        let hapax = limited(store.clone(), Some(1_000), Some(1 << 20));
        let counting = guard(&hapax, policy(), handler);
        for step in 0..120 {
            let service = if step < 30 { &before } else { &counting };
            match dice.below(10) {
                0 => clock.advance(Duration::from_secs(dice.below(30))),
                1 if step > 30 => drop(hapax.sweep_once().await.unwrap()),
                2 | 3 if step > 30 => settle_or_forget(&hapax, &store, &mut dice).await,
                _ => {
                    let user = ["ada", "bob"][dice.below(2) as usize];
                    let status = ["201", "404", "503", "502"][dice.below(4) as usize];
                    let body = "x".repeat(dice.below(200) as usize);
                    let request = by(post("/a", &format!("key-{}", dice.below(40)), body), user);
                    send(service, with(request, "x-status", status)).await;
                }
            }
        }
        for user in ["ada", "bob"] {
            // One more call, in case the sweep has marked attempts as lost.
            send(
                &counting,
                with(by(post("/a", "last", ""), "carl"), "x-status", "201"),
            )
            .await;
            let usage = counted(&hapax, &Principal::named(user)).await;
            assert_eq!(
                (usage.records, usage.bytes),
                in_store(&*store, user).await,
                "seed {seed}, {user}"
            );
        }
    }
}

/// Settles or forgets a record, if its state allows it.
async fn settle_or_forget(hapax: &Hapax, store: &Arc<hapax_testkit::Faulty>, dice: &mut Dice) {
    let audit = hapax::Audit {
        by: "ada",
        reason: "a test",
    };
    let state = if dice.below(2) == 0 {
        Some(StateFilter::Unknown)
    } else {
        None
    };
    let heads = store
        .list(ListQuery {
            state,
            after: None,
            limit: 1_000,
        })
        .await
        .unwrap();
    if heads.is_empty() {
        return;
    }
    let id = heads[dice.below(heads.len() as u64) as usize].id;
    let _ = match dice.below(3) {
        0 => hapax.forget(id, audit).await,
        1 => hapax
            .settle(
                id,
                Settlement::Done(hapax::Answer::new(201, "by hand")),
                audit,
            )
            .await
            .map(drop),
        _ => hapax.settle(id, Settlement::NotDone, audit).await.map(drop),
    };
}

#[tokio::test(start_paused = true)]
async fn what_a_sweep_found_lost_is_counted_until_it_expires_and_no_longer() {
    let (store, clock) = faulty();
    // A process that has died: its attempt never ends.
    let (gone, _, gate) = gated(&quiet(store.clone()), Policy::default(), 201);
    let caller = spawn(&gone, by(post("/a", "k", "5"), "ada"));
    gate.wait_for(1).await;
    caller.abort();
    let hapax = limited(store.clone(), Some(10), None);
    let (service, _) = charges(&hapax, Policy::default());
    let ada = Principal::named("ada");
    send(&service, post("/a", "other", "5")).await;
    assert_eq!(counted(&hapax, &ada).await.records, 1);
    // The sweep marks the attempt as lost without telling which principal it belonged to.
    clock.advance(Duration::from_secs(11));
    assert_eq!(hapax.sweep_once().await.unwrap().lost, 1);
    tokio::time::sleep(MINUTE).await;
    send(&service, post("/a", "other", "5")).await;
    assert_eq!(counted(&hapax, &ada).await.records, 1);
    clock.advance(Duration::from_secs(24 * 60 * 60));
    send(&service, post("/b", "another", "5")).await;
    assert_eq!(hapax.usage(&ada).unwrap().records, 0);
}

#[tokio::test]
async fn a_write_whose_reply_was_lost_is_counted_once_it_is_found_done() {
    let (store, clock) = faulty();
    let hapax = limited(store.clone(), Some(10), Some(10_000));
    let (service, ledger) = charges(&hapax, Policy::default());
    store.let_through(Verb::PutIf, 1);
    store.fail_next(Verb::PutIf, Fault::ErrorAfter, 1);
    assert_eq!(
        send(&service, by(post("/a", "k", "5"), "ada")).await.status,
        201
    );
    let usage = counted(&hapax, &Principal::named("ada")).await;
    assert_eq!((usage.records, usage.bytes), in_store(&*store, "ada").await);
    clock.advance(Duration::from_secs(24 * 60 * 60));
    send(&service, by(post("/a", "other", "5"), "bob")).await;
    assert_eq!(
        (
            hapax.usage(&Principal::named("ada")).unwrap().records,
            ledger.len()
        ),
        (0, 2)
    );
}

#[tokio::test(start_paused = true)]
async fn what_is_forgotten_counts_no_longer() {
    let (store, _) = faulty();
    let hapax = limited(store.clone(), Some(1), None);
    let (service, _) = charges(&hapax, Policy::default());
    send(&service, post("/a", "a", "5")).await;
    assert_eq!(
        send(&service, post("/a", "b", "5")).await.problem(),
        "quota-reached"
    );
    let id = store
        .list(ListQuery {
            state: None,
            after: None,
            limit: 1,
        })
        .await
        .unwrap()[0]
        .id;
    hapax
        .forget(
            id,
            hapax::Audit {
                by: "ada",
                reason: "a test",
            },
        )
        .await
        .unwrap();
    assert_eq!(send(&service, post("/a", "b", "5")).await.status, 201);
    assert_eq!(counted(&hapax, &Principal::Anonymous).await.records, 1);
}
