//! Messages that fail, destinations that are away, relays that take over from each other.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hapax_core::flow::{Envelope, GiveUp, RetryPolicy};
use hapax_flow::outbox::{Outbox, OutboxError, Take};
use hapax_flow::publish::{Outage, Verdict};
use hapax_flow::relay::{Options, Relay};
use tokio_util::sync::CancellationToken;

use crate::place::{self, Database, Inbox};

/// Retries at once, so that no test waits for time.
fn options(give_up: GiveUp, attempts_max: u32) -> Options {
    Options {
        retry: RetryPolicy {
            pause_min: Duration::ZERO,
            pause_max: Duration::ZERO,
            attempts_max,
            give_up,
        },
        ..Options::new("inbox")
    }
}

fn relay(database: &Database, inbox: &Inbox, options: Options) -> Relay<impl Outbox + use<>> {
    Relay::new(place::outbox(&database.url), inbox.clone(), options)
}

fn refuse(texts: &[&str], verdict: Verdict) -> Inbox {
    let texts: HashSet<String> = texts.iter().map(|text| (*text).to_owned()).collect();
    Inbox::judging(move |message: &Envelope| {
        let is_bad = texts.contains(&*String::from_utf8_lossy(&message.payload));
        Ok(if is_bad {
            verdict.clone()
        } else {
            Verdict::ACCEPTED
        })
    })
}

async fn emit(database: &Database, sql: &str) {
    let session = database.session().await;
    session.batch_execute(sql).await.expect("emits");
}

const FIVE: &str =
    "SELECT hapax.emit('t', 'a', 'a1'), hapax.emit('t', 'b', 'b1'), hapax.emit('t', 'a', 'a2'),
                    hapax.emit('t', 'b', 'b2'), hapax.emit('u', 'a', 'other topic')";

#[tokio::test]
async fn a_message_that_is_refused_holds_only_its_key() {
    let Some(database) = Database::new().await else {
        return;
    };
    let inbox = refuse(&["a1"], Verdict::Refused("no".into()));
    let relay = relay(&database, &inbox, options(GiveUp::Hold, 3));
    emit(&database, FIVE).await;
    relay.run_once().await.expect("a round");
    emit(
        &database,
        "SELECT hapax.emit('t', 'a', 'a3'), hapax.emit('t', 'b', 'b3')",
    )
    .await;
    relay.run_once().await.expect("a round");
    assert_eq!(inbox.texts(), ["b1", "b2", "other topic", "b3"]);
    let session = database.session().await;
    let sql = "SELECT string_agg(convert_from(payload, 'UTF8') || state || coalesce(reason, ''), ' ' ORDER BY seq) FROM hapax.deliveries";
    let aside: String = session.query_one(sql, &[]).await.expect("rows").get(0);
    assert_eq!(aside, "a12no a21 a31");
    // An operator takes it out: the others go, in order.
    let skip = "SELECT hapax.delivery_skip('inbox', (SELECT id FROM hapax.deliveries ORDER BY seq LIMIT 1), 'ada', 'the order was cancelled')";
    let skipped: i32 = session.query_one(skip, &[]).await.expect("skips").get(0);
    assert_eq!(skipped, 1);
    for _ in 0..2 {
        relay.run_once().await.expect("a round");
    }
    assert_eq!(inbox.texts(), ["b1", "b2", "other topic", "b3", "a2", "a3"]);
    let audit = "SELECT convert_from(action, 'UTF8') || ' ' || convert_from(signed_by, 'UTF8') FROM hapax.audit";
    assert_eq!(
        session
            .query_one(audit, &[])
            .await
            .expect("an entry")
            .get::<_, String>(0),
        "outbox-skip ada"
    );
    let aside: i64 = session
        .query_one("SELECT set_aside FROM hapax.readers", &[])
        .await
        .expect("a reader")
        .get(0);
    assert_eq!(aside, 0);
    // And the key is free: what comes goes straight.
    emit(&database, "SELECT hapax.emit('t', 'a', 'a4')").await;
    let counts = relay.run_once().await.expect("a round");
    assert_eq!((counts.published, counts.set_aside), (1, 0));
}

#[tokio::test]
async fn a_dead_message_holds_up_nobody_and_can_be_sent_again() {
    let Some(database) = Database::new().await else {
        return;
    };
    let is_mended = Arc::new(AtomicBool::new(false));
    let mended = is_mended.clone();
    let inbox = Inbox::judging(move |message| {
        let is_bad = &*message.payload == b"a1" && !mended.load(Ordering::SeqCst);
        Ok(if is_bad {
            Verdict::Refused("no".into())
        } else {
            Verdict::ACCEPTED
        })
    });
    let relay = relay(&database, &inbox, options(GiveUp::Dead, 3));
    emit(&database, FIVE).await;
    for _ in 0..2 {
        relay.run_once().await.expect("a round");
    }
    assert_eq!(inbox.texts(), ["b1", "b2", "other topic", "a2"]);
    is_mended.store(true, Ordering::SeqCst);
    let session = database.session().await;
    let retry = "SELECT hapax.delivery_retry('inbox', (SELECT id FROM hapax.deliveries), 'ada', 'the service is mended')";
    assert_eq!(
        session
            .query_one(retry, &[])
            .await
            .expect("retries")
            .get::<_, i32>(0),
        1
    );
    relay.run_once().await.expect("a round");
    assert_eq!(inbox.texts().last().map(String::as_str), Some("a1"));
}

#[tokio::test]
async fn a_message_that_fails_is_tried_again_in_the_order_of_its_key() {
    let Some(database) = Database::new().await else {
        return;
    };
    let tries = Arc::new(AtomicUsize::new(0));
    let counted = tries.clone();
    let inbox = Inbox::judging(move |message| {
        let fails = &*message.payload == b"a1" && counted.fetch_add(1, Ordering::SeqCst) < 3;
        Ok(if fails {
            Verdict::Failed("busy".into())
        } else {
            Verdict::ACCEPTED
        })
    });
    let relay = relay(&database, &inbox, options(GiveUp::Hold, 10));
    emit(&database, FIVE).await;
    for _ in 0..6 {
        relay.run_once().await.expect("a round");
    }
    assert_eq!(inbox.texts(), ["b1", "b2", "other topic", "a1", "a2"]);
    assert_eq!(tries.load(Ordering::SeqCst), 4);
}

#[tokio::test]
async fn a_message_without_an_order_holds_up_nobody() {
    let Some(database) = Database::new().await else {
        return;
    };
    let inbox = refuse(&["bad"], Verdict::Refused("no".into()));
    let relay = relay(&database, &inbox, options(GiveUp::Hold, 3));
    emit(&database, "SELECT hapax.emit('t', 'a', 'bad', ordered => false), hapax.emit('t', 'a', 'good'), hapax.emit('t', NULL, 'bad'), hapax.emit('t', NULL, 'fine')").await;
    relay.run_once().await.expect("a round");
    emit(&database, "SELECT hapax.emit('t', 'a', 'later')").await;
    relay.run_once().await.expect("a round");
    assert_eq!(inbox.texts(), ["good", "fine", "later"]);
}

#[tokio::test]
async fn one_poison_message_among_many_keeps_only_its_key() {
    let Some(database) = Database::new().await else {
        return;
    };
    let inbox = refuse(&["777"], Verdict::Failed("it always fails".into()));
    let relay = relay(&database, &inbox, options(GiveUp::Hold, 2));
    emit(
        &database,
        "SELECT hapax.emit('t', (n % 250)::text, n::text) FROM generate_series(1, 20000) AS n",
    )
    .await;
    for _ in 0..3 {
        relay.run_once().await.expect("a round");
    }
    let before = |n: &usize| n % 250 != 777 % 250 || *n < 777;
    let expected: Vec<usize> = (1..=20_000).filter(before).collect();
    let mut published: Vec<usize> = inbox
        .texts()
        .iter()
        .map(|text| text.parse().expect("a number"))
        .collect();
    published.sort_unstable();
    assert!(
        published == expected,
        "{} of {}",
        published.len(),
        expected.len()
    );
}

/// A destination that takes nothing: the page is repeated, and nothing is set aside.
#[tokio::test]
async fn an_outage_repeats_the_batch_and_sets_nothing_aside() {
    let Some(database) = Database::new().await else {
        return;
    };
    let tries = Arc::new(AtomicUsize::new(0));
    let counted = tries.clone();
    let inbox = Inbox::judging(move |_| match counted.fetch_add(1, Ordering::SeqCst) {
        0..3 => Err(Outage::new("the broker is away")),
        _ => Ok(Verdict::ACCEPTED),
    });
    let relay = relay(&database, &inbox, options(GiveUp::Hold, 3));
    emit(&database, FIVE).await;
    let counts = relay.run_once().await.expect("a round");
    assert_eq!(inbox.texts(), ["a1", "b1", "a2", "b2", "other topic"]);
    assert_eq!((counts.outages, counts.set_aside), (3, 0));
}

#[tokio::test]
async fn a_destination_that_is_gone_stops_its_reader_until_an_operator_starts_it() {
    let Some(database) = Database::new().await else {
        return;
    };
    let inbox = Inbox::judging(|_| Err(Outage::for_good("410 Gone")));
    let stopped = relay(&database, &inbox, options(GiveUp::Hold, 3));
    emit(&database, FIVE).await;
    let error = stopped.run_once().await.expect_err("gone");
    assert!(error.to_string().contains("410 Gone"), "{error}");
    let error = stopped.run_once().await.expect_err("stopped");
    assert!(
        matches!(error, OutboxError::Unusable(_)) && error.to_string().contains("410 Gone"),
        "{error}"
    );
    let session = database.session().await;
    let start = "SELECT hapax.reader_start('inbox', 'ada', 'there is a new endpoint')";
    assert_eq!(
        session
            .query_one(start, &[])
            .await
            .expect("starts")
            .get::<_, i32>(0),
        1
    );
    let inbox = Inbox::new();
    relay(&database, &inbox, options(GiveUp::Hold, 3))
        .run_once()
        .await
        .expect("a round");
    assert_eq!(inbox.texts().len(), 5);
}

#[tokio::test]
async fn a_relay_that_lost_its_reader_writes_nothing_more() {
    let Some(database) = Database::new().await else {
        return;
    };
    emit(&database, FIVE).await;
    let outbox = place::outbox(&database.url);
    let take =
        async |owner: &'static str, lease| outbox.take("inbox", owner, lease).await.expect("taken");
    let Take::Taken { held, position, .. } = take("one", Duration::from_secs(60)).await else {
        panic!("free")
    };
    assert!(matches!(
        take("two", Duration::from_secs(60)).await,
        Take::Busy
    ));
    outbox.release(&held).await.expect("released");
    let Take::Taken { held: newer, .. } = take("two", Duration::from_secs(60)).await else {
        panic!("free")
    };
    assert!(newer.fence > held.fence);
    let late = outbox.mark(&held, &position, 5, &[]).await;
    assert!(matches!(late, Err(OutboxError::Lost)), "{late:?}");
    let late = outbox.end(&held, 1, &hapax_flow::outbox::End::Done).await;
    assert!(matches!(late, Err(OutboxError::Lost)), "{late:?}");
}

/// Two relays with one reader: one is active; when it stops, the other goes on where it was.
#[tokio::test]
async fn a_relay_that_stands_by_goes_on_at_once_when_the_active_one_stops() {
    let Some(database) = Database::new().await else {
        return;
    };
    let (inbox, stops) = (
        Inbox::new(),
        [CancellationToken::new(), CancellationToken::new()],
    );
    let running = stops.each_ref().map(|stop| {
        let relay = relay(&database, &inbox, options(GiveUp::Hold, 3));
        let (progress, stop) = (relay.progress(), stop.clone());
        (progress, tokio::spawn(async move { relay.run(stop).await }))
    });
    let active = loop {
        if let Some(place) = running
            .iter()
            .position(|(progress, _)| progress.is_active())
        {
            break place;
        }
        tokio::task::yield_now().await;
    };
    emit(&database, FIVE).await;
    until(|| inbox.texts().len() == 5).await;
    assert!(!running[1 - active].0.is_active());
    stops[active].cancel();
    emit(&database, "SELECT hapax.emit('t', 'a', 'a3')").await;
    until(|| inbox.texts().len() == 6).await;
    assert!(running[1 - active].0.is_active());
    stops[1 - active].cancel();
    for (_, task) in running {
        task.await.expect("a relay ends when it is told to");
    }
    assert_eq!(inbox.texts(), ["a1", "b1", "a2", "b2", "other topic", "a3"]);
}

async fn until(is_so: impl Fn() -> bool) {
    while !is_so() {
        tokio::task::yield_now().await;
    }
}

/// A message that hangs at the destination while it is tried again: other keys go on meanwhile.
#[tokio::test]
async fn a_retry_that_hangs_holds_up_only_its_key() {
    struct Hanging {
        inbox: Inbox,
        first: Mutex<bool>,
        released: CancellationToken,
    }
    impl hapax_flow::publish::Publisher for Hanging {
        fn publish<'a>(
            &'a self,
            batch: &'a [Envelope],
        ) -> hapax_flow::publish::Reply<'a, Result<Vec<Verdict>, Outage>> {
            Box::pin(async move {
                let is_bad = batch.iter().any(|message| &*message.payload == b"a1");
                let is_first =
                    is_bad && std::mem::take(&mut *self.first.lock().expect("held shortly"));
                if is_bad && !is_first {
                    self.released.cancelled().await;
                }
                if is_first {
                    let verdict = |message: &Envelope| match &*message.payload {
                        b"a1" => Verdict::Unclear("no answer".into()),
                        _ => Verdict::NotSent,
                    };
                    return Ok(batch.iter().map(verdict).collect());
                }
                self.inbox.publish(batch).await
            })
        }
    }
    let Some(database) = Database::new().await else {
        return;
    };
    let (inbox, released, stop) = (
        Inbox::new(),
        CancellationToken::new(),
        CancellationToken::new(),
    );
    let hanging = Hanging {
        inbox: inbox.clone(),
        first: Mutex::new(true),
        released: released.clone(),
    };
    let relay = Relay::new(
        place::outbox(&database.url),
        hanging,
        options(GiveUp::Hold, 9),
    );
    let progress = relay.progress();
    let stopping = stop.clone();
    let running = tokio::spawn(async move { relay.run(stopping).await });
    emit(
        &database,
        "SELECT hapax.emit('t', 'a', 'a1'), hapax.emit('t', 'a', 'a2')",
    )
    .await;
    until(|| progress.counts().retried > 0).await;
    for n in 0..20 {
        emit(
            &database,
            &format!("SELECT hapax.emit('t', 'b', 'b{n}'), hapax.emit('t', 'a', 'a3')"),
        )
        .await;
    }
    until(|| inbox.texts().len() == 20).await;
    assert!(inbox.texts().iter().all(|text| text.starts_with('b')));
    released.cancel();
    until(|| inbox.texts().len() == 42).await;
    let of_a: Vec<String> = inbox
        .texts()
        .into_iter()
        .filter(|text| text.starts_with('a'))
        .collect();
    assert_eq!(of_a[..3], ["a1", "a2", "a3"]);
    stop.cancel();
    running.await.expect("a relay");
}
