//! Effects outside a database: each message is an operation.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use hapax::{
    Answer, Audit, BoxError, Hapax, ListQuery, Mode, Operation, Policy, Settlement, StateFilter,
};
use hapax_flow::consume::{Progress, Received};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::place::{consumer, keyed, message, with_payload};
use crate::script::Script;

/// Mails that were sent, by the id of their message.
#[derive(Clone, Default)]
struct Mails(Arc<Mutex<BTreeMap<String, usize>>>);

impl Mails {
    fn send(&self, id: &str) -> usize {
        let mut mails = self.0.lock().expect("no panic");
        let count = mails.entry(id.to_owned()).or_default();
        *count += 1;
        *count
    }

    fn counts(&self) -> Vec<(String, usize)> {
        self.0
            .lock()
            .expect("no panic")
            .clone()
            .into_iter()
            .collect()
    }
}

type Ran = (Arc<Progress>, CancellationToken, JoinHandle<()>, Hapax);

fn run(script: &Script, mails: &Mails, mode: Mode) -> Ran {
    run_on(Hapax::memory(), script, mails, mode)
}

fn run_on(hapax: Hapax, script: &Script, mails: &Mails, mode: Mode) -> Ran {
    let policy = Policy {
        mode,
        ..Policy::default()
    };
    let once = hapax.once("send-mail").policy(policy).expect("a policy");
    let mails = mails.clone();
    let handled = consumer().source(script.source()).once(once).handle(
        move |message: Received, _: Operation| {
            let mails = mails.clone();
            async move {
                let times = mails.send(message.id());
                match &message.payload[..] {
                    b"once" if times == 1 => Err(BoxError::from("the server is busy")),
                    _ => Ok(()),
                }
            }
        },
    );
    let (progress, stop) = (handled.progress(), CancellationToken::new());
    let task = tokio::spawn(handled.run(stop.clone()));
    (progress, stop, task, hapax)
}

#[tokio::test]
async fn a_mail_is_sent_once_however_often_its_message_is_delivered() {
    let (script, mails) = (Script::default(), Mails::default());
    script.deliver((0..200).map(|number| message(number % 50)));
    let (progress, stop, task, _hapax) = run(&script, &mails, Mode::Hold);
    script.drained().await;
    let counts = mails.counts();
    assert_eq!(counts.len(), 50);
    assert!(counts.iter().all(|(_, count)| *count == 1), "{counts:?}");
    assert_eq!(progress.counts().duplicates, 150);
    stop.cancel();
    task.await.expect("it ends");
}

#[tokio::test]
async fn a_mail_that_fails_is_sent_again_where_the_mode_allows_it() {
    let (script, mails) = (Script::default(), Mails::default());
    script.deliver([with_payload(keyed("a", "k"), "once"), keyed("b", "k")]);
    let (_, stop, task, _hapax) = run(&script, &mails, Mode::Rerun);
    script.drained().await;
    assert_eq!(mails.counts(), [("a".to_owned(), 2), ("b".to_owned(), 1)]);
    stop.cancel();
    task.await.expect("it ends");
}

#[tokio::test]
async fn a_mail_that_may_have_been_sent_waits_for_a_person() {
    let (script, mails) = (Script::default(), Mails::default());
    script.deliver([
        with_payload(keyed("a", "k"), "once"),
        keyed("b", "k"),
        keyed("c", "other"),
    ]);
    let (progress, stop, task, _hapax) = run(&script, &mails, Mode::Hold);
    script.acknowledged(1).await;
    while progress.waiting() < 2 {
        tokio::task::yield_now().await;
    }
    assert_eq!(mails.counts(), [("a".to_owned(), 1), ("c".to_owned(), 1)]);
    stop.cancel();
    task.await.expect("it ends");
    // It went back to the broker.
    assert_eq!(script.open(), 0);
}

#[tokio::test]
async fn a_mail_that_a_person_has_settled_is_done_with() {
    for settlement in [
        Settlement::DoneWithoutAnswer,
        Settlement::Done(Answer::new(201, "sent")),
    ] {
        let (script, mails) = (Script::default(), Mails::default());
        script.deliver([with_payload(keyed("a", "k"), "once"), keyed("b", "k")]);
        let (progress, stop, task, hapax) = run(&script, &mails, Mode::Hold);
        while progress.waiting() < 2 {
            tokio::task::yield_now().await;
        }
        stop.cancel();
        task.await.expect("it ends");
        let unknown = ListQuery {
            state: Some(StateFilter::Unknown),
            ..ListQuery::default()
        };
        let heads = hapax.list(unknown).await.expect("a list");
        let audit = Audit {
            by: "ada",
            reason: "it is in the outbox of the mail server",
        };
        let settled = hapax.settle(heads[0].id, settlement, audit).await;
        settled.expect("it was unknown");
        let (_, stop, task, _hapax) = run_on(hapax, &script, &mails, Mode::Hold);
        script.drained().await;
        assert_eq!(mails.counts(), [("a".to_owned(), 1), ("b".to_owned(), 1)]);
        stop.cancel();
        task.await.expect("it ends");
    }
}

#[tokio::test]
async fn any_id_can_be_that_of_a_mail_and_only_it_counts() {
    let (script, mails) = (Script::default(), Mails::default());
    let ids = ["größe".to_owned(), "x".repeat(700), "plain".to_owned()];
    for payload in ["{}", "{ }"] {
        script.deliver(ids.iter().map(|id| with_payload(message(id), payload)));
    }
    let (_, stop, task, _hapax) = run(&script, &mails, Mode::Hold);
    script.drained().await;
    let counts = mails.counts();
    assert_eq!(counts.len(), 3);
    assert!(counts.iter().all(|(_, count)| *count == 1), "{counts:?}");
    stop.cancel();
    task.await.expect("it ends");
}
