//! Work that fails.

use std::convert::Infallible;
use std::error::Error;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use hapax::{BoxError, Mode, NotDone, NotDoneExt, Operation, Rejection, RunError};
use hapax_core::Loss;
use hapax_core::record::State;

use crate::lines::Lines;
use crate::{common, memory, only_head, policy, succeed};

/// An error and all of its sources.
fn chain<'a>(error: &'a (dyn Error + 'static)) -> Vec<&'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |&error| error.source()).collect()
}

type Mark = fn(&Operation) -> BoxError;

/// The ways in which work can say that it was not done.
const MARKS: [(&str, Mark); 6] = [
    ("std", |operation| {
        offline().not_done(operation).unwrap_err().into()
    }),
    ("boxed", |operation| {
        let boxed: Result<(), BoxError> = offline().map_err(Into::into);
        boxed.not_done(operation).unwrap_err().into()
    }),
    ("anyhow inside", |operation| {
        let inside: anyhow::Result<()> = offline().context("connecting");
        inside.not_done(operation).unwrap_err().into()
    }),
    ("anyhow", |operation| {
        anyhow::Error::from(offline().not_done(operation).unwrap_err()).into()
    }),
    ("anyhow in context", |operation| {
        let marked = offline().not_done(operation).context("paying");
        marked.context("invoice 17").unwrap_err().into()
    }),
    ("a source of another error", |operation| {
        let marked = offline().not_done(operation).unwrap_err();
        common::Broken(marked.into()).into()
    }),
];

fn offline() -> io::Result<()> {
    Err(io::Error::new(io::ErrorKind::HostUnreachable, "offline"))
}

#[tokio::test]
async fn work_that_was_not_done_says_so_and_runs_again() {
    for (way, mark) in MARKS {
        let hapax = memory();
        let once = hapax.once("pay");
        let work = async move |operation: Operation| Err(mark(&operation));
        let error = once.run("k", "", work).await.unwrap_err();
        assert!(matches!(error, RunError::NotDone(_)), "{way}: {error:?}");
        assert_eq!(error.retry(), Some(Duration::from_secs(1)), "{way}");
        assert!(
            chain(&error)
                .iter()
                .filter_map(|error| error.downcast_ref::<io::Error>())
                .any(|error| error.kind() == io::ErrorKind::HostUnreachable),
            "{way}: the work's own error is lost in {error:?}"
        );
        assert_eq!(only_head(&hapax).await.state, State::Retryable, "{way}");
        assert!(!succeed(&once, "k").await.unwrap().replayed, "{way}");
    }
}

#[tokio::test]
async fn the_error_that_was_marked_comes_back_without_the_mark() {
    let once = memory().once("pay");
    let work = async |operation: Operation| {
        offline().not_done(&operation)?;
        Ok::<_, BoxError>("paid".into())
    };
    let Err(RunError::NotDone(error)) = once.run("k", "", work).await else {
        panic!("it was not done")
    };
    assert!(error.is::<io::Error>(), "{error:?}");

    // A text is an error too, and the mark may be all that the work returns.
    let work = async |operation: Operation| Err(NotDone::new(&operation, "offline"));
    let Err(RunError::NotDone(error)) = once.run("k", "", work).await else {
        panic!("it was not done")
    };
    assert_eq!(error.to_string(), "offline");
}

#[tokio::test]
async fn the_mark_of_another_operation_does_not_count() {
    let hapax = memory();
    let once = hapax.once("pay");
    let other = Arc::new(Mutex::new(None));
    let put = other.clone();
    let work = async move |operation| {
        *put.lock().unwrap() = Some(operation);
        Ok::<_, Infallible>("done".into())
    };
    once.run("other", "", work).await.unwrap();
    let other = other.lock().unwrap().clone().expect("it has run");
    for (way, mark) in MARKS {
        let other = other.clone();
        let work = async move |_| Err(mark(&other));
        let error = once.run(way, "", work).await.unwrap_err();
        assert!(
            matches!(error, RunError::Lost { repeat: false, .. }),
            "{way}: {error:?}"
        );
        assert!(
            matches!(
                succeed(&once, way).await,
                Err(RunError::Rejected(Rejection::OutcomeUnknown))
            ),
            "{way}"
        );
    }
}

/// A job within a job: the mark of the inner one does not count for the outer one.
#[tokio::test]
async fn what_was_not_done_of_a_job_within_says_nothing_of_the_job() {
    let hapax = memory();
    let (outer, inner) = (hapax.once("ship"), hapax.once("pay"));
    let work = async move |_| {
        let pay = async |operation: Operation| {
            offline().not_done(&operation).context("paying")?;
            Ok::<_, anyhow::Error>("paid".into())
        };
        let paid = inner.run("k", "", pay).await.context("shipping")?;
        Ok::<_, anyhow::Error>(paid.value)
    };
    assert!(matches!(
        outer.run("k", "", work).await,
        Err(RunError::Lost { .. })
    ));
    assert!(succeed(&outer, "k").await.is_err());
}

#[tokio::test]
async fn the_mark_of_an_earlier_attempt_does_not_count() {
    let once = memory().once("pay").policy(policy(Mode::Rerun)).unwrap();
    let earlier = Arc::new(Mutex::new(None));
    let put = earlier.clone();
    let work = async move |operation| {
        *put.lock().unwrap() = Some(operation);
        Err("reset")
    };
    assert!(once.run("k", "", work).await.is_err());
    let earlier = earlier.lock().unwrap().clone().expect("it has run");
    let work = async move |operation: Operation| {
        assert_eq!(operation.id(), earlier.id());
        Err(NotDone::new(&earlier, "offline"))
    };
    assert!(matches!(
        once.run("k", "", work).await,
        Err(RunError::Lost { repeat: true, .. })
    ));
}

#[tokio::test]
async fn any_other_error_is_lost_and_comes_back_whole() {
    let hapax = memory();
    let once = hapax.once("pay");
    let reset = || io::Error::new(io::ErrorKind::ConnectionReset, "reset");

    let error = once.run("std", "", async move |_| Err(reset())).await;
    let Err(error @ RunError::Lost { repeat: false, .. }) = error else {
        panic!("it is lost: {error:?}")
    };
    let source = error.source().expect("the work's own error");
    assert_eq!(
        source.downcast_ref::<io::Error>().map(io::Error::kind),
        Some(io::ErrorKind::ConnectionReset)
    );
    assert_eq!(error.retry(), None, "the key is held");
    assert!(matches!(
        succeed(&once, "std").await,
        Err(RunError::Rejected(Rejection::OutcomeUnknown))
    ));

    let work = async move |_| Err(anyhow::Error::from(reset()).context("paying"));
    let error = once.run("anyhow", "", work).await.unwrap_err();
    let said: Vec<_> = chain(&error)[1..].iter().map(ToString::to_string).collect();
    assert_eq!(said, ["paying", "reset"]);

    let error = once.run("text", "", async |_| Err("reset")).await;
    assert_eq!(error.unwrap_err().source().unwrap().to_string(), "reset");

    // Where the mode repeats what was lost, the caller is told that it may.
    let once = hapax.once("again").policy(policy(Mode::Rerun)).unwrap();
    let error = once.run("k", "", async |_| Err("reset")).await;
    let error = error.unwrap_err();
    assert!(matches!(error, RunError::Lost { repeat: true, .. }));
    assert_eq!(error.retry(), Some(Duration::from_secs(1)));
    assert!(!succeed(&once, "k").await.unwrap().replayed);
}

#[tokio::test(start_paused = true)]
async fn work_that_takes_too_long_is_lost() {
    let once = memory().once("pay");
    let work = async |_| std::future::pending::<Result<_, BoxError>>().await;
    let error = once.run("k", "", work).await.unwrap_err();
    assert!(
        matches!(error, RunError::Lost { repeat: false, .. }),
        "{error:?}"
    );
    let why = error.source().expect("a reason").to_string();
    assert!(why.contains("longest_attempt"), "{why}");
}

/// Users put it into anyhow, boxes and their own errors.
#[test]
fn the_error_is_one_like_any_other() {
    fn is_error<E: Error + Send + Sync + 'static>() {}
    is_error::<RunError>();
    is_error::<NotDone>();
}

#[tokio::test]
async fn a_panic_is_lost_with_its_message_and_logged_with_name_and_key() {
    let lines = Lines::listen();
    let hapax = memory();
    let once = hapax.once("pay");
    let work = async |operation: Operation| {
        assert_eq!(operation.attempt(), 2, "ledger out of balance");
        Ok::<_, Infallible>("paid".into())
    };
    let error = once.run("invoice-17", "", work).await.unwrap_err();
    assert!(matches!(error, RunError::Lost { repeat: false, .. }));
    let said = error.source().expect("the panic").to_string();
    assert!(
        said.starts_with("the work panicked: ") && said.contains("ledger out of balance"),
        "{said}"
    );
    let (record, state) = hapax.look(only_head(&hapax).await.id).await.unwrap();
    assert_eq!(record.head.loss(state), Some(Loss::Panicked));
    lines.assert_has(&["path=pay", "invoice-17", "ledger out of balance"]);
    assert!(matches!(
        succeed(&once, "invoice-17").await,
        Err(RunError::Rejected(Rejection::OutcomeUnknown))
    ));

    // One that panics before it has a future, and without words.
    let work = |_| -> std::future::Ready<Result<Bytes, Infallible>> {
        std::panic::panic_any(17);
    };
    let error = once.run("wordless", "", work).await.unwrap_err();
    assert!(matches!(error, RunError::Lost { .. }), "{error:?}");
}

/// The first bank was not reached, the second was asked: the error of the first says nothing about
/// the second.
#[tokio::test]
async fn a_mark_does_not_count_once_the_work_has_gone_on() {
    let hapax = memory();
    let once = hapax.once("pay");
    let work = async |operation: Operation| {
        operation.derive("first bank");
        let first = offline().not_done(&operation).unwrap_err();
        operation.derive("second bank");
        Err::<Bytes, _>(anyhow::Error::new(first).context("the second bank gave no answer"))
    };
    let error = once.run("k", "", work).await.unwrap_err();
    assert!(matches!(error, RunError::Lost { .. }), "{error:?}");
    assert_eq!(only_head(&hapax).await.state, State::Unknown);
}
