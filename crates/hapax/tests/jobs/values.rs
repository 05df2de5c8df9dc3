//! Keys and values of work in bytes.

use bytes::Bytes;
use hapax::{BoxError, Done, Key, Policy, Rejection, RunError};
use hapax_core::key::KeyError;

use crate::common::Ledger;
use crate::{done, memory, only_head, succeed};

#[tokio::test]
async fn work_runs_once_and_its_value_is_replayed() {
    let once = memory().once("send-invoice");
    let ledger = Ledger::default();
    let run = async |request: &'static str| {
        let ledger = ledger.clone();
        let work = async move |_| {
            ledger.add("sent");
            Ok::<_, BoxError>("sent".into())
        };
        once.run("2026-11/17", request, work).await
    };
    let first = run("invoice 17").await.unwrap();
    let expected = Done {
        value: Bytes::from("sent"),
        replayed: false,
    };
    assert_eq!(first, expected);
    let again = run("invoice 17").await.unwrap();
    assert_eq!(
        again,
        Done {
            replayed: true,
            ..first
        }
    );
    assert!(matches!(
        run("invoice 18").await,
        Err(RunError::Rejected(Rejection::KeyReused))
    ));
    assert_eq!(ledger.len(), 1);
}

#[tokio::test]
async fn whatever_becomes_a_key_is_one_and_what_does_not_says_why() {
    let hapax = memory();
    let once = hapax.once("work");
    assert!(!succeed(&once, "k").await.unwrap().replayed);
    let text = "k".to_owned();
    let key: Key = text.parse().unwrap();
    assert!(once.run(&text, "", done).await.unwrap().replayed);
    assert!(once.run(text, "", done).await.unwrap().replayed);
    assert!(once.run(key, "", done).await.unwrap().replayed);

    let long = "k".repeat(256);
    for (key, expected) in [
        ("", KeyError::Empty),
        ("caf\u{e9}", KeyError::NotPrintable),
        (long.as_str(), KeyError::TooLong),
    ] {
        let error = succeed(&once, key).await.unwrap_err();
        assert!(matches!(error, RunError::Key(why) if why == expected));
        assert!(error.to_string().contains(&expected.to_string()), "{error}");
        assert_eq!(error.retry(), None);
    }
    assert_eq!(only_head(&hapax).await.key.as_str(), "k");
}

#[tokio::test]
async fn a_value_that_is_not_kept_is_returned_once() {
    let kept_none = Policy {
        keep_answers: false,
        ..Policy::default()
    };
    let kept_small = Policy {
        answer_bytes_max: 3,
        ..Policy::default()
    };
    for policy in [kept_none, kept_small] {
        let once = memory().once("work").policy(policy).unwrap();
        assert_eq!(succeed(&once, "k").await.unwrap().value, "done");
        assert!(matches!(
            succeed(&once, "k").await,
            Err(RunError::Rejected(Rejection::AnswerNotKept { .. }))
        ));
    }
}
