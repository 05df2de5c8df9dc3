//! Versions of answers: an answer that was kept under another version is not replayed, and its
//! effect does not happen again. On both stores.

mod common;

use std::sync::Arc;

use common::{charges, gated, post, quiet, ready_to_wait, send, spawn};
use hapax::{
    Answer, Audit, BoxError, Event, Hapax, Limits, Policy, Rejection, RunError, Settlement, Store,
};
use hapax_core::StateFilter;
use hapax_core::store::ListQuery;
use http::Response;
use tokio::sync::watch;

fn version(version: Option<&str>) -> Policy {
    Policy {
        answer_version: version.map(Into::into),
        ..Policy::default()
    }
}

/// Both stores, and the directory that holds the file of one.
async fn stores() -> Vec<(Arc<dyn Store>, Option<tempfile::TempDir>)> {
    let directory = tempfile::tempdir().unwrap();
    let sqlite = hapax::Sqlite::open(directory.path().join("hapax.db"))
        .await
        .unwrap();
    vec![
        (Arc::new(hapax::store::memory()), None),
        (Arc::new(sqlite), Some(directory)),
    ]
}

/// A Hapax without a cache, so that every replay comes from the store.
fn forgetful(store: Arc<dyn Store>) -> Hapax {
    Hapax::builder_shared(store)
        .sweep(None)
        .limits(Limits {
            cache_bytes_max: 0,
            ..Limits::default()
        })
        .build()
}

#[tokio::test]
async fn an_answer_of_another_version_is_neither_sent_nor_made_again() {
    for (store, _directory) in stores().await {
        for hapax in [quiet(store.clone()), forgetful(store.clone())] {
            for (number, (kept, now)) in
                [(Some("1"), Some("2")), (Some("1"), None), (None, Some("1"))]
                    .into_iter()
                    .enumerate()
            {
                let (first, effects) = charges(&hapax, version(kept));
                let (changed, again) = charges(&hapax, version(now));
                let path = format!(
                    "/charges/{number}/{}",
                    store.info().await.unwrap().now.as_micros()
                );
                let ask = || post(&path, "k", "5");
                let got = send(&first, ask()).await;
                assert_eq!(got.status, 201);
                let replay = send(&first, ask()).await;
                assert!(replay.is_replay() && replay.body == got.body);
                assert!(
                    replay
                        .headers
                        .keys()
                        .all(|name| !name.as_str().starts_with("hapax-")),
                    "the version is sent to nobody"
                );

                let refused = send(&changed, ask()).await;
                assert_eq!(
                    (refused.status.as_u16(), refused.problem().as_str()),
                    (409, "answer-not-kept"),
                    "{kept:?} {now:?}"
                );
                let text = std::str::from_utf8(&refused.body).unwrap();
                assert!(
                    text.contains("\"original_status\":201") && text.contains("\"finished_at\":\""),
                    "{text}"
                );
                assert_eq!(refused.header("x-should-retry"), Some("false"));
                // A different request still learns only that the key is reused; and under the old
                // version the answer is replayed.
                assert_eq!(
                    send(&changed, post(&path, "k", "6")).await.problem(),
                    "key-reused"
                );
                assert!(send(&first, ask()).await.is_replay());
                assert_eq!((effects.len(), again.len()), (1, 0));
            }
        }
    }
}

#[tokio::test]
async fn whoever_waits_under_another_version_gets_no_answer_of_the_old_one() {
    for (store, _directory) in stores().await {
        let waiting = Arc::new(watch::Sender::new(0));
        let counter = waiting.clone();
        let observer = move |event: &Event<'_>| {
            counter.send_modify(|count| *count += usize::from(matches!(event, Event::Waiting(_))));
        };
        let hapax = Hapax::builder_shared(store)
            .sweep(None)
            .observer(observer)
            .build();
        let (first, ledger, gate) = gated(&hapax, version(Some("1")), 201);
        let (changed, again) = charges(&hapax, version(Some("2")));
        let caller = spawn(&first, post("/charges", "k", "5"));
        gate.wait_for(1).await;
        let (same, other) = (
            spawn(&first, ready_to_wait(post("/charges", "k", "5"), 30)),
            spawn(&changed, ready_to_wait(post("/charges", "k", "5"), 30)),
        );
        waiting
            .subscribe()
            .wait_for(|count| *count == 2)
            .await
            .unwrap();
        gate.open(1);
        assert_eq!(caller.await.unwrap().status, 201);
        assert!(same.await.unwrap().is_replay());
        assert_eq!(other.await.unwrap().problem(), "answer-not-kept");
        assert_eq!((ledger.len(), again.len()), (1, 0));
    }
}

#[tokio::test]
async fn a_service_cannot_set_the_version_and_an_operator_can() {
    for (store, _directory) in stores().await {
        let hapax = forgetful(store.clone());
        let forging = common::guard(&hapax, version(Some("1")), |_| async {
            Ok(Response::builder()
                .header("hapax-answer-version", "2")
                .body("x".into())
                .unwrap())
        });
        let first = send(&forging, post("/a", "k", "5")).await;
        assert_eq!(
            (first.status.as_u16(), first.header("hapax-answer-version")),
            (200, None)
        );
        assert!(send(&forging, post("/a", "k", "5")).await.is_replay());

        let lost = common::guard(&hapax, version(Some("1")), |_| async {
            Ok(Response::builder().status(502).body("x".into()).unwrap())
        });
        let audit = Audit {
            by: "ada",
            reason: "in the books",
        };
        for (path, stamp, expected) in [
            ("/b", Some("1"), None),
            ("/c", None, Some("answer-not-kept")),
        ] {
            send(&lost, post(path, "k", "5")).await;
            let unknown = store
                .list(ListQuery {
                    state: Some(StateFilter::Unknown),
                    after: None,
                    limit: 9,
                })
                .await
                .unwrap();
            let answer = Answer::new(201, "by hand").under(stamp);
            hapax
                .settle(unknown[0].id, Settlement::Done(answer), audit)
                .await
                .unwrap();
            let got = send(&lost, post(path, "k", "5")).await;
            match expected {
                None => assert_eq!((got.is_replay(), &got.body[..]), (true, &b"by hand"[..])),
                Some(problem) => assert_eq!(got.problem(), problem),
            }
        }
    }
}

#[tokio::test]
async fn work_without_http_has_versions_too() {
    for (store, _directory) in stores().await {
        let hapax = forgetful(store);
        let run = async |policy: Policy| {
            let once = hapax.once("job").policy(policy).unwrap();
            once.run("k", "5", async |_| Ok::<_, BoxError>("done".into()))
                .await
        };
        assert!(!run(version(Some("1"))).await.unwrap().replayed);
        assert!(run(version(Some("1"))).await.unwrap().replayed);
        assert!(matches!(
            run(version(Some("2"))).await,
            Err(RunError::Rejected(Rejection::AnswerNotKept {
                status: Some(200),
                ..
            }))
        ));
    }
}
