//! Connections that are kept, and what happens when the server closes them.

use hapax_flow::publish::Verdict;
use hapax_testkit::origin::{Origin, Step, answer};

use super::world::{assert_unclear, impatient, message, publish, send, webhook};

fn accepts() -> Step {
    Step::Write(answer(200, "", "thanks"))
}

#[tokio::test]
async fn a_connection_is_kept_for_the_next_message() {
    let origin = Origin::start().await;
    let webhook = webhook(origin.address());
    for number in 0..10 {
        assert_eq!(send(&webhook, &number.to_string()).await, Verdict::ACCEPTED);
    }
    let batch: Vec<_> = (0..10)
        .map(|number| message("k", &format!("b{number}")))
        .collect();
    assert!(publish(&webhook, &batch).await.is_ok());
    assert_eq!(origin.ledger().all().len(), 20);
    assert_eq!(origin.ledger().connections(), 1);
}

#[tokio::test]
async fn a_connection_that_was_closed_between_messages_is_not_used() {
    let origin = Origin::start().await;
    let webhook = webhook(origin.address());
    for number in 1..=10 {
        origin.script([Step::Read, accepts(), Step::Close]);
        assert_eq!(send(&webhook, &number.to_string()).await, Verdict::ACCEPTED);
        origin.ledger().until_closed(number).await;
    }
    for number in 1..=10 {
        assert_eq!(origin.ledger().count(&number.to_string()), 1, "sent once");
    }
}

#[tokio::test]
async fn a_connection_that_the_server_ends_is_not_used_again() {
    let origin = Origin::start().await;
    let webhook = webhook(origin.address());
    origin.script([
        Step::Read,
        Step::Write(answer(200, "connection: close\r\n", "")),
    ]);
    assert_eq!(send(&webhook, "1").await, Verdict::ACCEPTED);
    assert_eq!(send(&webhook, "2").await, Verdict::ACCEPTED);
    assert_eq!(origin.ledger().connections(), 2);
}

#[tokio::test]
async fn a_kept_connection_that_is_lost_before_any_answer_is_tried_again_on_a_fresh_one() {
    for lost in [Step::Close, Step::Reset] {
        let origin = Origin::start().await;
        let webhook = webhook(origin.address());
        assert_eq!(send(&webhook, "1").await, Verdict::ACCEPTED);
        origin.script([Step::Read, lost]);
        assert_eq!(send(&webhook, "2").await, Verdict::ACCEPTED);
        // The server has seen it twice, and can tell by the id.
        let seen = origin.ledger().all();
        let ids: Vec<&str> = seen
            .iter()
            .filter(|seen| seen.key == "2")
            .map(|seen| {
                seen.head
                    .lines()
                    .find(|line| line.starts_with("webhook-id"))
                    .unwrap()
            })
            .collect();
        assert_eq!(ids.len(), 2);
        assert_eq!(ids[0], ids[1]);
        assert_eq!(origin.ledger().connections(), 2);
    }
}

#[tokio::test]
async fn the_second_try_is_the_last() {
    let origin = Origin::start().await;
    let webhook = webhook(origin.address());
    assert_eq!(send(&webhook, "1").await, Verdict::ACCEPTED);
    origin.script([Step::Read, Step::Close]);
    origin.script([Step::Read, Step::Close]);
    assert_unclear(&send(&webhook, "2").await, "lost");
    assert_eq!(origin.ledger().count("2"), 2);
}

#[tokio::test]
async fn a_kept_connection_that_is_lost_within_the_answer_is_unclear() {
    let origin = Origin::start().await;
    let webhook = webhook(origin.address());
    assert_eq!(send(&webhook, "1").await, Verdict::ACCEPTED);
    origin.script([Step::Read, Step::Write(b"HTTP".to_vec()), Step::Close]);
    assert_unclear(&send(&webhook, "2").await, "lost");
    assert_eq!(origin.ledger().count("2"), 1);
}

#[tokio::test]
async fn a_kept_connection_that_hangs_is_unclear_and_not_used_again() {
    let origin = Origin::start().await;
    let webhook = impatient(origin.address());
    assert_eq!(send(&webhook, "1").await, Verdict::ACCEPTED);
    origin.script([Step::Read, Step::Wait]);
    assert_unclear(&send(&webhook, "2").await, "no answer");
    assert_eq!(send(&webhook, "3").await, Verdict::ACCEPTED);
    assert_eq!(origin.ledger().count("2"), 1);
    assert_eq!(origin.ledger().connections(), 2);
}

#[tokio::test]
async fn a_call_that_is_dropped_closes_its_connection() {
    let origin = Origin::start().await;
    let webhook = webhook(origin.address());
    // `Echo` reads on, and so notices the end.
    origin.script([Step::Read, Step::Mark, Step::Echo]);
    let batch = [message("k", "1")];
    tokio::select! {
        _ = publish(&webhook, &batch) => panic!("nothing has answered"),
        () = origin.ledger().until_marks(1) => {}
    }
    origin.ledger().until_closed(1).await;
    assert_eq!(send(&webhook, "2").await, Verdict::ACCEPTED);
}
