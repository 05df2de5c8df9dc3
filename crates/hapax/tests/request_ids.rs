//! The request id: accepted or made, passed to the service, stored in the record, logged with every
//! line, returned. Also the reason why an attempt was lost.

mod common;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use common::lines::Lines;
use common::{Got, Ledger, charged, gated, guard, post, quiet, send, spawn};
use hapax::middleware::OriginalRequestId;
use hapax::{
    Body, Hapax, Key, KeyRule, Limits, Operation, Policy, Principal, RecordId, RequestId, Scope,
    TimedOut,
};
use hapax_core::outcome::Loss;
use hapax_core::record::Head;
use hapax_core::store::ListQuery;
use http::{HeaderValue, Request, Response};
use http_body_util::Full;
use tower::{Layer, Service, ServiceExt, service_fn};
use tracing::{Level, Metadata};

fn under(id: &str, mut request: Request<Full<Bytes>>) -> Request<Full<Bytes>> {
    request
        .headers_mut()
        .insert("x-request-id", HeaderValue::try_from(id).unwrap());
    request
}

async fn only_head(hapax: &Hapax) -> Head {
    let mut heads = hapax
        .list(ListQuery {
            state: None,
            after: None,
            limit: 2,
        })
        .await
        .unwrap();
    assert_eq!(heads.len(), 1);
    heads.remove(0)
}

fn stored(head: &Head) -> Option<&str> {
    head.request_id.as_ref().map(RequestId::as_str)
}

/// A service that records the id from the field, the extensions and its operation, and sets one of
/// its own in the answer.
fn noting(hapax: &Hapax, policy: Policy) -> (common::Guarded, Ledger) {
    let ledger = Ledger::default();
    let service = guard(hapax, policy, {
        let ledger = ledger.clone();
        move |request: Request<Body>| {
            let ledger = ledger.clone();
            async move {
                let field = request
                    .headers()
                    .get("x-request-id")
                    .map(|id| id.to_str().unwrap());
                let extension = request
                    .extensions()
                    .get::<RequestId>()
                    .map(RequestId::as_str);
                let operation = request
                    .extensions()
                    .get::<Operation>()
                    .map(|operation| operation.request_id().unwrap().as_str());
                assert_eq!(field, extension);
                assert!(operation.is_none() || operation == field);
                let mut response = charged(ledger.add(field.unwrap()));
                response
                    .headers_mut()
                    .append("x-request-id", HeaderValue::from_static("of-the-service"));
                Ok(response)
            }
        }
    });
    (service, ledger)
}

#[tokio::test]
async fn an_id_goes_to_the_service_into_the_record_and_back() {
    let hapax = quiet(Arc::new(hapax::store::memory()));
    let (service, ledger) = noting(&hapax, Policy::default());
    let got = send(&service, under("client-7", post("/", "k", "x"))).await;
    assert_eq!(
        got.headers
            .get_all("x-request-id")
            .iter()
            .collect::<Vec<_>>(),
        ["client-7"],
        "and not what the service says"
    );
    assert_eq!(
        (ledger.lines(), stored(&only_head(&hapax).await)),
        (vec!["client-7".to_owned()], Some("client-7"))
    );

    // Without an id, or with one that would break a log line, a new id is made.
    for (number, request) in [
        post("/", "none", "x"),
        under("a b\"c", post("/", "odd", "x")),
    ]
    .into_iter()
    .enumerate()
    {
        let key = request.headers()["idempotency-key"]
            .to_str()
            .unwrap()
            .to_owned();
        let got = send(&service, request).await;
        let id = got.header("x-request-id").unwrap();
        assert!(RequestId::new(id).is_some() && id != "client-7", "{id}");
        assert_eq!(ledger.lines()[number + 1], id);
        let scope = Scope {
            namespace: "default".into(),
            principal: Principal::Anonymous,
            method: "POST".into(),
            path: "/".into(),
        };
        let (record, _) = hapax
            .look(RecordId::of(&scope, &Key::new(key).unwrap()))
            .await
            .unwrap();
        assert_eq!(stored(&record.head), Some(id));
    }
    let ids: std::collections::HashSet<_> = ledger.lines().into_iter().collect();
    assert_eq!(ids.len(), 3, "no two requests share a made one");
}

#[tokio::test]
async fn a_replay_carries_its_own_id_and_names_the_one_of_the_first() {
    // Replays from memory, and from the store.
    for cache_bytes_max in [Limits::default().cache_bytes_max, 0] {
        let limits = Limits {
            cache_bytes_max,
            ..Limits::default()
        };
        let hapax = Hapax::builder(hapax::store::memory())
            .sweep(None)
            .limits(limits)
            .build();
        let (service, ledger) = noting(&hapax, Policy::default());
        assert_eq!(
            send(&service, under("first", post("/", "k", "x")))
                .await
                .header("x-request-id"),
            Some("first")
        );

        let replay = service
            .clone()
            .oneshot(under("second", post("/", "k", "x")))
            .await
            .unwrap();
        let original = replay.extensions().get::<OriginalRequestId>().cloned();
        assert_eq!(
            original,
            Some(OriginalRequestId(RequestId::new("first").unwrap()))
        );
        let replay = Got::read(replay).await;
        assert!(replay.is_replay());
        assert_eq!(
            replay
                .headers
                .get_all("x-request-id")
                .iter()
                .collect::<Vec<_>>(),
            ["second"]
        );

        let head = only_head(&hapax).await;
        assert_eq!(
            (stored(&head), ledger.len()),
            (Some("first"), 1),
            "a replay changes nothing"
        );
        let answer = hapax.look(head.id).await.unwrap().0.answer.unwrap();
        assert!(
            answer
                .headers
                .iter()
                .all(|(name, _)| name != "x-request-id"),
            "{:?}",
            answer.headers
        );
        // A rejection carries its own request's id too.
        let refused = send(&service, under("third", post("/", "k", "another"))).await;
        assert_eq!(
            (refused.problem().as_str(), refused.header("x-request-id")),
            ("key-reused", Some("third"))
        );
    }
}

#[tokio::test]
async fn whoever_waits_gets_an_id_of_its_own() {
    let hapax = quiet(Arc::new(hapax::store::memory()));
    let (service, _, gate) = gated(&hapax, Policy::default(), 201);
    let first = spawn(&service, under("first", post("/", "k", "x")));
    gate.wait_for(1).await;
    let waiter = spawn(
        &service,
        under("waiter", common::ready_to_wait(post("/", "k", "x"), 30)),
    );
    let impatient = send(&service, under("impatient", post("/", "k", "x"))).await;
    assert_eq!(
        (
            impatient.problem().as_str(),
            impatient.header("x-request-id")
        ),
        ("in-flight", Some("impatient"))
    );
    gate.open(1);
    assert_eq!(first.await.unwrap().header("x-request-id"), Some("first"));
    let waited = waiter.await.unwrap();
    assert_eq!(
        (waited.is_replay(), waited.header("x-request-id")),
        (true, Some("waiter"))
    );
}

#[tokio::test]
async fn what_passes_and_what_is_refused_has_one_too() {
    let hapax = quiet(Arc::new(hapax::store::memory()));
    let required = Policy {
        key: KeyRule::Required,
        ..Policy::default()
    };
    let (service, ledger) = noting(&hapax, required);
    let get = Request::get("/").body(Full::new(Bytes::new())).unwrap();
    assert_eq!(
        send(&service, under("passed", get))
            .await
            .header("x-request-id"),
        Some("passed")
    );
    assert_eq!(ledger.lines(), ["passed"]);
    let keyless = Request::post("/").body(Full::new(Bytes::new())).unwrap();
    for (request, problem) in [
        (keyless, "key-missing"),
        (post("/", "a, b", "x"), "key-malformed"),
    ] {
        let refused = send(&service, under("refused", request)).await;
        assert_eq!(
            (refused.problem().as_str(), refused.header("x-request-id")),
            (problem, Some("refused"))
        );
    }
    let (watching, ledger) = noting(
        &hapax,
        Policy {
            shadow: true,
            ..Policy::default()
        },
    );
    for id in ["one", "two"] {
        assert_eq!(
            send(&watching, under(id, post("/", "k", "x")))
                .await
                .header("x-request-id"),
            Some(id)
        );
    }
    assert_eq!(
        (ledger.lines(), stored(&only_head(&hapax).await)),
        (vec!["one".to_owned(), "two".to_owned()], Some("one"))
    );
}

#[tokio::test]
async fn each_attempt_has_the_id_of_the_request_that_made_it() {
    let hapax = quiet(Arc::new(hapax::store::memory()));
    let service = guard(
        &hapax,
        Policy::default(),
        |request: Request<Body>| async move {
            let attempt = request.extensions().get::<Operation>().unwrap().attempt();
            Ok(Response::builder()
                .status(if attempt == 1 { 503 } else { 201 })
                .body(Body::from("said"))
                .unwrap())
        },
    );
    for id in ["first", "second", "replayed"] {
        send(&service, under(id, post("/", "k", "x"))).await;
        let expected = if id == "first" { "first" } else { "second" };
        assert_eq!(stored(&only_head(&hapax).await), Some(expected));
    }
}

#[tokio::test]
async fn work_without_http_has_no_id() {
    let hapax = quiet(Arc::new(hapax::store::memory()));
    let work = async |operation: Operation| {
        assert_eq!(operation.request_id(), None);
        Ok::<_, hapax::BoxError>("done".into())
    };
    hapax.once("job").run("k", "x", work).await.unwrap();
    assert_eq!(stored(&only_head(&hapax).await), None);
}

/// Simulates a service with a low log level: the spans must exist nevertheless.
fn is_heard(metadata: &Metadata<'_>) -> bool {
    *metadata.level() <= Level::WARN || metadata.target().starts_with("hapax::middleware")
}

#[tokio::test]
async fn every_line_of_an_operation_carries_the_id() {
    let (lines, _guard) = Lines::listen(is_heard);
    let hapax = quiet(Arc::new(hapax::store::memory()));
    let service = guard(
        &hapax,
        Policy::default(),
        |request: Request<Body>| async move {
            tracing::warn!("a line of the handler");
            assert_ne!(request.uri().path(), "/panics", "planned");
            Ok(charged(1))
        },
    );
    send(&service, under("logged-1", post("/", "k", "x"))).await;
    lines.assert_one(&[
        "request_id=logged-1",
        "fence=",
        "attempt=1",
        "a line of the handler",
    ]);
    send(&service, under("logged-2", post("/", "k", "x"))).await;
    lines.assert_one(&[
        " request_id=logged-2",
        "original_request_id=logged-1",
        "a stored answer is sent again",
    ]);
    send(&service, under("logged-3", post("/panics", "k", "x"))).await;
    lines.assert_one(&[
        "request_id=logged-3",
        "attempt=1",
        "WARN",
        "the work panicked",
    ]);
}

/// The answer and the record's loss after one request to this service.
async fn loss_of<S>(policy: Policy, service: S) -> (Got, Option<Loss>)
where
    S: Service<
            Request<Body>,
            Response = Response<Body>,
            Error = Box<dyn std::error::Error + Send + Sync>,
        >,
    S: Clone + Send + Sync + 'static,
    S::Future: Send + 'static,
{
    let hapax = quiet(Arc::new(hapax::store::memory()));
    let layer = hapax.guard().policy(policy).anonymous().build().unwrap();
    let got = send(&layer.layer(service), post("/", "k", "x")).await;
    let (record, state) = hapax.look(only_head(&hapax).await.id).await.unwrap();
    assert_eq!(
        record.head.answered().is_some(),
        matches!(record.head.loss(state), None | Some(Loss::Answered(_)))
    );
    (got, record.head.loss(state))
}

/// A body that ends in an error.
fn breaking(error: Box<dyn std::error::Error + Send + Sync>) -> Body {
    let frames = [Ok(http_body::Frame::data(Bytes::from("half"))), Err(error)];
    Body::streamed(http_body_util::StreamBody::new(Frames(frames.into())))
}

struct Frames(
    std::collections::VecDeque<
        Result<http_body::Frame<Bytes>, Box<dyn std::error::Error + Send + Sync>>,
    >,
);

impl futures_core::Stream for Frames {
    type Item = Result<http_body::Frame<Bytes>, Box<dyn std::error::Error + Send + Sync>>;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        std::task::Poll::Ready(self.0.pop_front())
    }
}

#[tokio::test]
async fn a_record_says_why_its_attempt_was_lost() {
    let late = || TimedOut {
        after: Duration::from_secs(5),
        limit: "answer",
    };
    let respond = |status: u16| async move {
        Ok(Response::builder()
            .status(status)
            .body(Body::from("said"))
            .unwrap())
    };
    let unknown = || Policy {
        classes: [(502, hapax::Class::Unknown)].into(),
        ..Policy::default()
    };
    let (_, loss) = loss_of(unknown(), service_fn(move |_| respond(502))).await;
    assert_eq!(loss, Some(Loss::Answered(502)));
    assert_eq!(
        loss.unwrap().to_string(),
        "the service answered 502, which does not say whether it acted"
    );

    let (got, loss) = loss_of(
        Policy::default(),
        service_fn(move |_| async move { Err(late().into()) }),
    )
    .await;
    assert_eq!(
        (got.status.as_u16(), got.problem().as_str(), loss),
        (504, "outcome-unknown", Some(Loss::TimedOut))
    );

    let (got, loss) = loss_of(
        Policy::default(),
        service_fn(|_| async { Err("reset".into()) }),
    )
    .await;
    assert_eq!((got.status.as_u16(), loss), (502, Some(Loss::NoAnswer)));

    let panics = service_fn(|request: Request<Body>| async move {
        assert_ne!(request.uri().path(), "/", "planned");
        Err("unreachable".into())
    });
    assert_eq!(
        loss_of(Policy::default(), panics).await.1,
        Some(Loss::Panicked)
    );

    let breaks = service_fn(|_| async { Ok(Response::new(breaking("reset".into()))) });
    assert_eq!(
        loss_of(Policy::default(), breaks).await.1,
        Some(Loss::BrokeOff)
    );
    let stalls = service_fn(move |_| async move { Ok(Response::new(breaking(late().into()))) });
    assert_eq!(
        loss_of(Policy::default(), stalls).await.1,
        Some(Loss::TimedOut)
    );

    let (_, loss) = loss_of(Policy::default(), service_fn(move |_| respond(201))).await;
    assert_eq!(loss, None, "nothing is lost of what is done");
}
