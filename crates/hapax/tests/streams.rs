//! Answers that are streams: sent as they come, and not kept.

mod common;

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use common::lines::Lines;
use common::{Guarded, Ledger, guard, post, quiet, send};
use hapax::{Body, Policy};
use http::Response;
use http_body::Frame;
use http_body_util::BodyExt;
use tokio::sync::mpsc::{self, Receiver, Sender};
use tower::ServiceExt;

/// A body of whatever is sent to it, that ends with its sender.
struct Events(Receiver<Bytes>);

impl http_body::Body for Events {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0
            .poll_recv(cx)
            .map(|event| event.map(|event| Ok(Frame::data(event))))
    }
}

/// A service that answers its first request with a stream of this type.
fn streaming(content_type: &'static str) -> (Guarded, Ledger, Sender<Bytes>) {
    let (events, receiver) = mpsc::channel(8);
    let receiver = Arc::new(Mutex::new(Some(Events(receiver))));
    let ledger = Ledger::default();
    let counter = ledger.clone();
    let hapax = quiet(Arc::new(hapax::store::memory()));
    let service = guard(&hapax, Policy::default(), move |_| {
        counter.add("effect");
        let body = receiver.lock().unwrap().take().expect("it ran twice");
        let response = Response::builder()
            .header("content-type", content_type)
            .body(Body::streamed(body))
            .unwrap();
        async { Ok(response) }
    });
    (service, ledger, events)
}

/// Ends instead of waiting for ever: the clock stands still, so that nothing else ends it.
async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), future)
        .await
        .expect("it was held back")
}

#[tokio::test(start_paused = true)]
async fn a_stream_is_sent_as_it_comes_and_not_kept() {
    for content_type in [
        "text/event-stream",
        "Text/Event-Stream; charset=utf-8",
        "application/x-ndjson",
        "application/jsonl",
        "multipart/x-mixed-replace; boundary=frame",
    ] {
        let (lines, _guard) = Lines::listen(|_| true);
        let (service, ledger, events) = streaming(content_type);
        events.send("one".into()).await.unwrap();
        let first = soon(service.clone().oneshot(post("/", "k", "x"))).await;
        let mut body = first.unwrap().into_body();
        let mut next = async || {
            let frame = soon(body.frame()).await?;
            Some(frame.unwrap().into_data().unwrap())
        };
        assert_eq!(next().await.unwrap(), "one", "{content_type}");
        // The stream is open, and the operation is done.
        for _ in 0..2 {
            let repeat = soon(send(&service, post("/", "k", "x"))).await;
            assert_eq!(
                (repeat.status.as_u16(), &*repeat.problem()),
                (409, "answer-not-kept")
            );
        }
        events.send("two".into()).await.unwrap();
        assert_eq!(next().await.unwrap(), "two");
        drop(events);
        assert_eq!(next().await, None);
        assert_eq!(ledger.len(), 1);
        lines.assert_one(&["WARN", "an answer is a stream", "answer-not-kept"]);
    }
}

#[tokio::test(start_paused = true)]
async fn what_does_not_call_itself_a_stream_is_kept() {
    for content_type in [
        "application/json",
        "text/plain",
        "multipart/mixed; boundary=b",
    ] {
        let (service, ledger, events) = streaming(content_type);
        events.send("all of it".into()).await.unwrap();
        drop(events);
        let first = soon(send(&service, post("/", "k", "x"))).await;
        let repeat = soon(send(&service, post("/", "k", "x"))).await;
        assert_eq!(
            (&first.body[..], &repeat.body[..]),
            (&b"all of it"[..], &b"all of it"[..])
        );
        assert!(repeat.is_replay(), "{content_type}");
        assert_eq!(ledger.len(), 1);
    }
}

/// A list of lines that is there as a whole is an answer like any other.
#[tokio::test]
async fn lines_of_known_length_are_kept() {
    let hapax = quiet(Arc::new(hapax::store::memory()));
    let service = guard(&hapax, Policy::default(), |_| async {
        Ok(Response::builder()
            .header("content-type", "application/x-ndjson")
            .body(Body::from("{}\n{}\n"))
            .unwrap())
    });
    send(&service, post("/", "k", "x")).await;
    assert!(send(&service, post("/", "k", "x")).await.is_replay());
}
