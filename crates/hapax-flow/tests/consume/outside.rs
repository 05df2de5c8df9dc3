//! Effects outside a database: each message is an operation.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use hapax::{BoxError, Hapax, Mode, Operation, Policy};
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

fn run(
    script: &Script,
    mails: &Mails,
    mode: Mode,
) -> (Arc<Progress>, CancellationToken, JoinHandle<()>, Hapax) {
    let hapax = Hapax::memory();
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
