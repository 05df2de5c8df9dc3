//! The audit log: a change by hand and its entry are one step.

use std::sync::Arc;

use hapax_core::audit::{
    Action, BY_BYTES_MAX, LogEntry, LogQuery, Note, PAGE_MAX, REASON_BYTES_MAX, Signed, Start,
    Touched,
};
use hapax_core::record::Last;
use hapax_core::store::{Change, Won, Written};
use hapax_core::{Condition, Head, State};

use super::Bench;
use super::subject::{
    FADING, KEPT, LONG, SHORT, Subject, completed, completion, forgetting, released, settlement,
    signed, unknown, without_answer,
};

pub(super) async fn a_settlement_and_a_forgetting_are_written_down(bench: &Bench) {
    let (stranger, subject) = (bench.subject(), bench.subject());
    stranger
        .wins(
            at(&stranger.ended(completed("paid")).await),
            forgetting(KEPT),
        )
        .await;
    let lost = subject.ended(unknown(KEPT)).await;
    let settled = subject
        .wins(
            at(&lost),
            settlement(completion("found in the books", KEPT)),
        )
        .await;
    let forgotten = subject.wins(at(&settled.head), forgetting(KEPT)).await;

    let log = log_of(bench, &subject).await;
    assert_eq!(log.len(), 2, "{log:?}");
    assert_eq!(
        log[0],
        entry(&subject, &log[0], Action::Settle, State::Unknown, &settled)
    );
    assert_eq!(
        log[1],
        entry(
            &subject,
            &log[1],
            Action::Forget,
            State::Completed,
            &forgotten
        )
    );
    assert!(log[0].sequence < log[1].sequence);
}

/// An entry has the state of the record by the store's clock, not the state that was last written.
pub(super) async fn an_entry_says_what_the_record_was_by_the_stores_clock(bench: &Bench) {
    let (lapsed, expired) = (bench.subject(), bench.subject());
    let running = lapsed.running(SHORT).await;
    let paid = expired
        .ended(Change::Finish(completion("paid", FADING)))
        .await;
    bench.pass(SHORT).await;
    lapsed
        .wins(
            at(&running),
            settlement(without_answer(State::Retryable, KEPT)),
        )
        .await;
    expired.wins(at(&paid), forgetting(KEPT)).await;

    let before = async |subject| {
        log_of(bench, subject).await[0]
            .touched
            .clone()
            .expect("of a record")
            .before
    };
    assert_eq!(before(&lapsed).await, State::Unknown);
    assert_eq!(before(&expired).await, State::Expired(Last::Completed));
}

pub(super) async fn a_change_that_lost_is_not_written_down(bench: &Bench) {
    let (absent, running, paid) = (bench.subject(), bench.subject(), bench.subject());
    absent
        .loses(Condition::Version { version: 0 }, forgetting(KEPT))
        .await;
    running
        .loses(at(&running.running(LONG).await), forgetting(KEPT))
        .await;
    let head = paid.ended(completed("paid")).await;
    paid.loses(at(&head), settlement(completion("once more", KEPT)))
        .await;
    paid.loses(
        Condition::Version {
            version: head.version + 1,
        },
        forgetting(KEPT),
    )
    .await;
    for subject in [absent, running, paid] {
        assert_eq!(log_of(bench, &subject).await, []);
    }
}

pub(super) async fn what_attempts_do_is_not_written_down(bench: &Bench) {
    let subject = bench.subject();
    let lost = subject.ended(unknown(KEPT)).await;
    let second = subject.taken_over(lost.fence, LONG).await;
    subject.renew(second.fence, LONG).await;
    subject
        .wins(
            Condition::Held {
                fence: second.fence,
            },
            released(KEPT),
        )
        .await;
    assert_eq!(log_of(bench, &subject).await, []);
}

pub(super) async fn of_64_settlements_one_is_written_down(bench: &Bench) {
    let subject = bench.subject();
    let lost = subject.ended(unknown(KEPT)).await;
    let mut racers = tokio::task::JoinSet::new();
    for number in 0..64 {
        let (subject, condition) = (subject.clone(), at(&lost));
        let signed =
            Signed::new(&format!("racer {number}"), "it was quicker").expect("both are said");
        racers.spawn(async move {
            let written = subject
                .put(
                    condition,
                    Change::Settle(completion("settled", KEPT), signed.clone()),
                )
                .await;
            matches!(written, Written::Won(_)).then_some(signed)
        });
    }
    let winners: Vec<_> = racers.join_all().await.into_iter().flatten().collect();
    let written: Vec<_> = log_of(bench, &subject)
        .await
        .into_iter()
        .map(|entry| entry.signed)
        .collect();
    assert_eq!((winners.len(), written), (1, winners));
}

pub(super) async fn a_note_is_written_down(bench: &Bench) {
    let noted = note(bench, "reload").await;
    assert_eq!(
        (&noted.action, &noted.signed, &noted.touched),
        (&Action::Other("reload".into()), &signed(), &None)
    );
    let log = bench
        .store
        .log(LogQuery::after(noted.sequence - 1, 1))
        .await
        .expect("log");
    assert_eq!(log, [noted]);
}

/// A reader continues after the last number it has seen, so it would never see an entry that
/// appeared with a lower number.
pub(super) async fn whoever_reads_on_misses_no_entry(bench: &Bench) {
    let first = note(bench, "begun").await.sequence;
    let mut writers = tokio::task::JoinSet::new();
    for number in 0..100 {
        let bench = bench.clone();
        writers.spawn(async move { note(&bench, &format!("note-{number}")).await });
    }
    let (mut seen, mut last) = (Vec::new(), first);
    let mut is_over = false;
    loop {
        // Checked before the page is read, so that a page read after the last write has every
        // entry.
        while writers.try_join_next().is_some() {}
        let was_over = std::mem::replace(&mut is_over, writers.is_empty());
        let page = bench
            .store
            .log(LogQuery::after(last, 7))
            .await
            .expect("log");
        if page.is_empty() && was_over {
            break;
        }
        assert!(page.len() <= 7 && page.is_sorted_by(|a, b| a.sequence < b.sequence));
        assert!(
            page.first().is_none_or(|entry| entry.sequence > last),
            "after {last} comes what came before"
        );
        last = page.last().map_or(last, |entry| entry.sequence);
        seen.extend(page);
        tokio::task::yield_now().await;
    }
    let mine = seen
        .iter()
        .filter(|entry| entry.action.word().starts_with("note-"))
        .count();
    assert!(mine >= 100, "only {mine} of 100 were seen");
    let numbers: Vec<_> = seen.iter().map(|entry| entry.sequence).collect();
    let expected: Vec<_> = (first + 1..).take(numbers.len()).collect();
    assert_eq!(numbers, expected, "counted up without gaps");
}

pub(super) async fn the_log_is_read_from_either_end(bench: &Bench) {
    let subject = bench.subject();
    let mut head = subject.ended(completed("paid")).await;
    for _ in 0..5 {
        head = subject.wins(at(&head), forgetting(KEPT)).await.head;
    }
    let read = async |from, limit| {
        let query = LogQuery {
            record: Some(subject.id),
            from,
            limit,
        };
        let log = bench.store.log(query).await.expect("log");
        log.iter().map(|entry| entry.sequence).collect::<Vec<_>>()
    };
    let all = read(Start::After(0), 100).await;
    assert!(all.len() == 5 && all.is_sorted_by(|a, b| a < b), "{all:?}");
    let back: Vec<_> = all.iter().rev().copied().collect();
    assert_eq!(read(Start::End, 100).await, back);
    assert_eq!(read(Start::End, 2).await, back[..2]);
    assert_eq!(read(Start::Before(all[3]), 2).await, [all[2], all[1]]);
    assert_eq!(read(Start::Before(all[0]), 2).await, []);
    assert_eq!(read(Start::After(all[0]), 2).await, all[1..3]);
    assert_eq!(read(Start::After(all[4]), 2).await, []);
    assert_eq!(read(Start::After(u64::MAX), 2).await, []);
    assert_eq!(read(Start::Before(u64::MAX), 1).await, back[..1]);
    assert_eq!(read(Start::End, 0).await, []);
}

pub(super) async fn a_page_of_the_log_is_bounded(bench: &Bench) {
    let mut writers = tokio::task::JoinSet::new();
    for _ in 0..PAGE_MAX + 1 {
        let bench = bench.clone();
        writers.spawn(async move { note(&bench, "one of many").await });
    }
    writers.join_all().await;
    for query in [LogQuery::latest(usize::MAX), LogQuery::after(0, usize::MAX)] {
        assert_eq!(bench.store.log(query).await.expect("log").len(), PAGE_MAX);
    }
}

pub(super) async fn words_survive_whatever_they_are_made_of(bench: &Bench) {
    let words = [
        "ada",
        "'; DROP TABLE audit; --",
        "<script>alert(1)</script>",
        "\u{202e}backwards\u{2066}",
        "line\r\nline\tand \u{0}\u{7} and \u{1b}[31m",
        "naïve 日本語 🦀",
        "%s {} {{}} $1 ?1 \\u0000",
        " spaces around ",
    ];
    let longest = [("b".repeat(BY_BYTES_MAX), "r".repeat(REASON_BYTES_MAX))];
    let pairs = words
        .iter()
        .map(|word| ((*word).to_owned(), (*word).to_owned()))
        .chain(longest);
    for (by, reason) in pairs {
        let subject = bench.subject();
        let head = subject.ended(completed("paid")).await;
        let signed = Signed::new(&by, &reason).expect("both are said");
        subject
            .wins(at(&head), Change::Forget(KEPT, signed.clone()))
            .await;
        assert_eq!(log_of(bench, &subject).await[0].signed, signed);
    }
}

/// The entries of a record, oldest first.
pub(super) async fn log_of(bench: &Bench, subject: &Subject) -> Vec<LogEntry> {
    bench
        .store
        .log(LogQuery::after(0, 100).of(subject.id))
        .await
        .expect("log")
}

pub(super) async fn note(bench: &Bench, action: &str) -> LogEntry {
    bench
        .store
        .note(Note::new(action, signed()).expect("a note"))
        .await
        .expect("note")
}

fn entry(
    subject: &Subject,
    numbered: &LogEntry,
    action: Action,
    before: State,
    won: &Won,
) -> LogEntry {
    let Head {
        status,
        fence,
        version,
        state,
        created_at,
        ..
    } = won.head;
    let touched = Touched {
        id: subject.id,
        scope: Arc::clone(&subject.scope),
        key: subject.key.clone(),
        created_at,
        before,
        after: state,
        status,
        fence,
        version,
    };
    LogEntry {
        sequence: numbered.sequence,
        at: won.now,
        action,
        signed: signed(),
        touched: Some(touched),
    }
}

fn at(head: &Head) -> Condition {
    Condition::Version {
        version: head.version,
    }
}
