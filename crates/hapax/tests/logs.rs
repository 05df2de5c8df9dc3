//! What the log says: in which spans a handler's own lines are, and what is told of panics,
//! statuses and stores.

mod common;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use common::lines::Lines;
use common::{Got, charged, charges, faulty, guard, post, quiet, send};
use hapax::{Body, Key, Policy};
use http::{Request, Response};
use http_body_util::Full;
use tracing::{Instrument, Metadata};

fn everything(_: &Metadata<'_>) -> bool {
    true
}

/// As with `RUST_LOG=my_service=info`.
fn without_hapax(metadata: &Metadata<'_>) -> bool {
    !metadata.target().starts_with("hapax")
}

fn without_key() -> Request<Full<Bytes>> {
    Request::post("/orders").body(Full::from("x")).unwrap()
}

#[tokio::test]
async fn a_handler_is_in_the_span_of_its_request_with_a_key_and_without() {
    for filter in [everything, without_hapax] {
        let (lines, _guard) = Lines::listen(filter);
        let hapax = quiet(Arc::new(hapax::store::memory()));
        let service = guard(&hapax, Policy::default(), |_| async {
            let inner = tracing::info_span!("a span of the handler");
            async { tracing::info!("a line of the handler") }
                .instrument(inner)
                .await;
            Ok(charged(1))
        });
        for request in [post("/orders", "k", "x"), without_key()] {
            let span = tracing::info_span!("service", user = "ada");
            assert_eq!(send(&service, request).instrument(span).await.status, 201);
        }
        let words = [
            "a span of the handler",
            "service user=ada",
            "a line of the handler",
        ];
        assert_eq!(lines.count(&words), 2, "{:#?}", lines.all());
    }
}

#[tokio::test]
async fn work_without_http_is_in_the_span_of_its_caller() {
    for filter in [everything, without_hapax] {
        let (lines, _guard) = Lines::listen(filter);
        let hapax = quiet(Arc::new(hapax::store::memory()));
        let once = hapax.once("job");
        let work = async |_| {
            tracing::info!("a line of the work");
            Ok::<_, std::convert::Infallible>("done".into())
        };
        let span = tracing::info_span!("job", number = 17);
        let ran = once.run(Key::new("k").unwrap(), "x", work).instrument(span);
        ran.await.unwrap();
        lines.assert_one(&["job number=17", "a line of the work"]);
    }
}

#[tokio::test]
async fn a_panic_is_an_error_that_names_the_request() {
    let (lines, _guard) = Lines::listen(everything);
    let hapax = quiet(Arc::new(hapax::store::memory()));
    let service = guard(&hapax, Policy::default(), |_| async {
        panic!("table {} is missing", "orders")
    });
    assert_eq!(
        send(&service, post("/orders", "k-17", "x")).await.status,
        502
    );
    lines.assert_one(&[
        "ERROR",
        "the guarded work panicked",
        " method=POST",
        " path=/orders",
        " key=k-17",
        " operation=",
        " panic=table orders is missing",
    ]);
}

#[tokio::test]
async fn a_status_that_is_read_as_unknown_is_a_warning() {
    let (lines, _guard) = Lines::listen(everything);
    let hapax = quiet(Arc::new(hapax::store::memory()));
    let service = guard(&hapax, Policy::default(), |_| async {
        Ok(Response::builder().status(500).body(Body::empty()).unwrap())
    });
    assert_eq!(send(&service, post("/orders", "k", "x")).await.status, 500);
    lines.assert_one(&[
        "WARN",
        "the outcome of an attempt is unknown",
        "path=/orders",
        "cause=the service answered 500",
    ]);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_away_is_one_line_when_it_goes_and_one_when_it_is_back() {
    let (lines, _guard) = Lines::listen(everything);
    let (store, _) = faulty();
    let (service, ledger) = charges(&quiet(store.clone()), Policy::default());
    let send = async |key: String| -> Got { send(&service, post("/", &key, "x")).await };
    assert_eq!(send("before".into()).await.status, 201);
    store.down(true);
    for number in 0..20 {
        assert_eq!(
            send(format!("away-{number}")).await.problem(),
            "store-unavailable"
        );
    }
    store.down(false);
    tokio::time::advance(Duration::from_secs(2)).await;
    for number in 0..20 {
        assert_eq!(send(format!("back-{number}")).await.status, 201);
    }
    lines.assert_one(&["WARN", "the store is away"]);
    lines.assert_one(&["INFO", "the store is back", "refused=20"]);
    assert_eq!(lines.count(&["WARN"]) + lines.count(&["ERROR"]), 1);
    assert_eq!(ledger.len(), 21);
}
