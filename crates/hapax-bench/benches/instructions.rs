//! Instruction counts by callgrind, which do not depend on other load on the machine.
//!
//! Run them with `cargo run --release -p hapax-bench -- instructions`, which compares them with the
//! saved counts.
//!
//! Code that stays on one thread is counted from entering its function to leaving it. The store's
//! own thread makes a claim on SQLite, so there the whole process is counted, with all its threads:
//! once with some claims and once with none. The difference is the cost of the claims.

// The macros generate public items without docs.
#![allow(missing_docs, unreachable_pub)]

use std::convert::Infallible;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::http::{Request, Response};
use gungraun::{
    Callgrind, EntryPoint, LibraryBenchmarkConfig, library_benchmark, library_benchmark_group, main,
};
use hapax::core::fingerprint::RequestHead;
use hapax::core::store::{Change, Claim, Finish, Lifetime, Written};
use hapax::core::{
    Ask, AttemptToken, Condition, Decision, Fingerprint, Fingerprinter, Head, Put, State,
    Timestamp, decide,
};
use hapax::{
    Answer, Body, FingerprintPolicy, Hapax, Idempotency, Key, Policy, Principal, RecordId, Scope,
    Sqlite, Store,
};
use tokio::runtime::Runtime;
use tower::{Layer, Service};

fn scope() -> Arc<Scope> {
    Arc::new(Scope {
        namespace: "bench".into(),
        principal: Principal::named("ada"),
        method: "POST".into(),
        path: "/v1/charges".into(),
    })
}

fn claim(at: u64) -> Put {
    let (scope, key) = (
        scope(),
        Key::new(format!("8e03978e-40d5-43e8-bc93-{at:012x}")).expect("a UUID is a key"),
    );
    let (id, fingerprint) = (RecordId::of(&scope, &key), fingerprint());
    let token = AttemptToken::from_bytes([7; 16]);
    let claim = Claim {
        scope,
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

fn completion(head: &Head) -> Put {
    let answer = Some(Arc::new(Answer::new(201, vec![7; 512])));
    let finish = Finish {
        state: State::Completed,
        status: Some(201),
        answer,
        lifetime: Lifetime::default(),
    };
    Put {
        id: head.id,
        condition: Condition::Held { fence: head.fence },
        change: Change::Finish(finish),
    }
}

fn fingerprint() -> Fingerprint {
    Fingerprint {
        digest: [7; 32],
        policy: Arc::default(),
    }
}

/// One thread, so that the order of events is the same in every run.
fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime can be started")
}

struct Question {
    head: Option<Head>,
    fingerprint: Fingerprint,
    policy: Policy,
    now: Timestamp,
}

fn fresh() -> Question {
    Question {
        head: None,
        fingerprint: fingerprint(),
        policy: Policy::default(),
        now: Timestamp::from_micros(1),
    }
}

fn completed() -> Question {
    let (store, runtime) = (hapax::store::memory(), runtime());
    let mut won = None;
    for _ in 0..2 {
        let put = won.as_ref().map_or_else(|| claim(0), completion);
        let Ok(Written::Won(written)) = runtime.block_on(store.put_if(put)) else {
            panic!("an empty store takes a claim")
        };
        won = Some(written.head);
    }
    Question {
        now: won.as_ref().expect("written").finished_at,
        head: won,
        ..fresh()
    }
}

#[library_benchmark]
#[bench::fresh_claim(setup = fresh)]
#[bench::replay(setup = completed)]
fn decision(question: Question) -> Decision {
    let ask = Ask {
        fingerprint: &question.fingerprint,
        deadline: None,
        token_until: None,
    };
    let decision = black_box(decide(
        black_box(question.head.as_ref()),
        &ask,
        question.now,
        &question.policy,
    ));
    // Freeing the setup is not part of the decision.
    std::mem::forget(question);
    decision
}

/// An order of 1024 bytes with the mix of names, texts and numbers that orders have.
fn order() -> (Arc<FingerprintPolicy>, Arc<Scope>, String) {
    let item = |at: usize| {
        format!(
            r#"{{"sku":"sku_{at:04}","quantity":{at},"price":{{"amount":"{at}9.95","currency":"EUR"}},"gift":false}}"#
        )
    };
    let items: Vec<_> = (0..10).map(item).collect();
    let order = format!(
        r#"{{"customer":"cus_9s6XKzkNRiz8i3","capture":true,"items":[{}],"note":""#,
        items.join(",")
    );
    let note = "n".repeat(1024 - order.len() - 2);
    (
        Arc::new(FingerprintPolicy::json()),
        scope(),
        format!("{order}{note}\"}}"),
    )
}

#[library_benchmark]
#[bench::json_of_1_kib(setup = order)]
fn fingerprint_of(
    (policy, scope, body): (Arc<FingerprintPolicy>, Arc<Scope>, String),
) -> Fingerprint {
    let head = RequestHead {
        scope: &scope,
        target: "/v1/charges",
        headers: vec![("content-type", b"application/json")],
    };
    let mut fingerprinter = Fingerprinter::new(&policy, &head);
    fingerprinter.update(black_box(body.as_bytes()));
    fingerprinter.finish()
}

// Counts the whole process, with all its threads. `instructions.txt` has the difference, divided by
// the count.
#[library_benchmark(config = LibraryBenchmarkConfig::default().tool(Callgrind::default().entry_point(EntryPoint::None)))]
#[bench::none(0)]
#[bench::hundred(100)]
fn claims_on_sqlite(count: u64) {
    let directory = tempfile::tempdir().expect("a directory");
    runtime().block_on(async {
        let store = Sqlite::open(directory.path().join("hapax.db"))
            .await
            .expect("a new file");
        for at in 0..count {
            let Ok(Written::Won(_)) = store.put_if(claim(at)).await else {
                panic!("an empty store takes a claim")
            };
        }
    });
}

type Handler = tower::util::BoxCloneService<Request<Body>, Response<Body>, Infallible>;

/// A service that has answered this request twice: first from the handler, then from memory.
fn answered() -> (Runtime, Idempotency<Handler>, Request<Body>) {
    let runtime = runtime();
    let handler =
        tower::service_fn(async |_| Ok(Response::new(Body::from(Bytes::from_static(&[7; 512])))));
    let hapax = Hapax::builder(hapax::store::memory()).sweep(None).build();
    let mut service = hapax
        .guard()
        .anonymous()
        .build()
        .unwrap()
        .layer(Handler::new(handler));
    for _ in 0..2 {
        runtime
            .block_on(service.call(request(0)))
            .expect("an answer");
    }
    (runtime, service, request(0))
}

/// A service that has answered other requests.
fn warm() -> (Runtime, Idempotency<Handler>, Request<Body>) {
    let (runtime, service, _) = answered();
    (runtime, service, request(1))
}

fn request(at: u64) -> Request<Body> {
    let body = Bytes::from_static(&[b'7'; 200]);
    let request = Request::post("/v1/charges")
        .header("host", "localhost")
        .header("content-type", "application/json");
    let request = request
        .header(
            "idempotency-key",
            format!("8e03978e-40d5-43e8-bc93-{at:012x}"),
        )
        .header("content-length", "200");
    request.body(Body::from(body)).expect("a request")
}

// Everything runs on one thread, including the tasks that the layer starts.
#[library_benchmark]
#[bench::fresh(setup = warm)]
#[bench::replay(setup = answered)]
fn layer_in_memory(
    (runtime, mut service, request): (Runtime, Idempotency<Handler>, Request<Body>),
) -> bool {
    let response = runtime.block_on(service.call(request)).expect("an answer");
    let is_replay = response.headers().contains_key("idempotent-replayed");
    // Dropping the service is not part of the answer.
    std::mem::forget((runtime, service, response));
    is_replay
}

library_benchmark_group!(name = counts; benchmarks = decision, fingerprint_of, claims_on_sqlite, layer_in_memory);
main!(library_benchmark_groups = counts);
