//! A large backlog with one message that the destination refuses. What arrived is counted by the
//! destination.
//!
//! A plain run is a sample of 20,000 messages, too few to show much of the memory.
//! `HAPAX_CAMPAIGN=full` has a million.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use hapax_flow::publish::{Envelope, Outage, Publisher, Reply, Verdict};
use hapax_flow::relay::{Options, Relay};
use hapax_testkit::crash::{Child, announce, role};
use tokio_util::sync::CancellationToken;

use crate::place::{Database, outbox};

const TEST: &str =
    "volume::a_large_backlog_is_published_in_flat_memory_but_for_the_key_of_one_poison_message";
/// Each key is once in a page.
const KEYS: usize = 5_000;
const POISON: usize = 777;
/// How much more memory the relay may take than before its first page. A million messages are
/// several hundred MiB.
const GROWTH_BYTES_MAX: u64 = 16 << 20;

fn messages() -> usize {
    let is_full = std::env::var("HAPAX_CAMPAIGN").is_ok_and(|size| size == "full");
    if is_full { 1_000_000 } else { 20_000 }
}

/// Whether a message must not be published: it is the poison, or follows it.
fn is_held(number: usize) -> bool {
    number >= POISON && number % KEYS == POISON % KEYS
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_backlog_is_published_in_flat_memory_but_for_the_key_of_one_poison_message() {
    if role().is_some() {
        return relay().await;
    }
    let Some(database) = Database::new().await else {
        return;
    };
    let (messages, session) = (messages(), database.session().await);
    let fill = format!(
        "DO $$ BEGIN
             FOR number IN 1 .. {messages} LOOP
                 PERFORM hapax.emit('t', (number % {KEYS})::text, number::text);
                 IF number % 200 = 0 THEN
                     COMMIT;
                 END IF;
             END LOOP;
         END $$"
    );
    session.batch_execute(&fill).await.expect("messages");
    let (early, peak) = tokio::task::block_in_place(|| judge(&database.url, messages));
    let grown = peak.saturating_sub(early);
    hapax_testkit::report!(
        "{messages} messages: {early} bytes of memory before the first, {peak} at most"
    );
    assert!(grown <= GROWTH_BYTES_MAX, "memory grew by {grown} bytes");
}

/// Runs the relay in a process of its own. Returns its memory in bytes, before the first message
/// and at most.
fn judge(url: &str, messages: usize) -> (u64, u64) {
    let mut relay = Child::spawn(TEST, "relay", &[("VOLUME_DATABASE", url)]);
    for tenth in 1..=10 {
        relay.wait_for(&format!("tenth {tenth}"));
    }
    let held: Vec<String> = (1..=messages)
        .filter(|number| is_held(*number))
        .map(|number| number.to_string())
        .collect();
    assert_eq!(relay.wait_for("missing "), held.join(","));
    assert_eq!(relay.wait_for("repeated "), "0");
    let memory = relay.wait_for("memory ");
    let (early, peak) = memory.split_once(' ').expect("two numbers");
    let bytes = |text: &str| text.parse().expect("a number");
    (bytes(early), bytes(peak))
}

/// The child: a relay, until everything is published or set aside.
async fn relay() {
    let url = std::env::var("VOLUME_DATABASE").expect("the parent says where");
    let (messages, counting) = (messages(), Counting::new(messages()));
    let relay = Relay::new(outbox(&url), counting.clone(), Options::new("volume"));
    let (progress, stop) = (relay.progress(), CancellationToken::new());
    let early = resident_bytes();
    let stopped = stop.clone();
    let running = tokio::spawn(async move { relay.run(stopped).await });
    let (mut peak, mut tenths) = (0, 0);
    while tenths < 10 {
        tokio::time::sleep(Duration::from_millis(10)).await;
        let counts = progress.counts();
        let done = usize::try_from(counts.published + counts.set_aside).expect("a count");
        peak = resident_bytes().max(peak);
        while tenths < done * 10 / messages {
            tenths += 1;
            announce(format!("tenth {tenths}"));
        }
    }
    stop.cancel();
    running.await.expect("the relay ends");
    let arrived = counting.arrived.lock().expect("no test panics with it");
    let missing: Vec<String> = (1..=messages)
        .filter(|number| arrived[*number] == 0)
        .map(|number| number.to_string())
        .collect();
    let repeated = arrived.iter().filter(|times| **times > 1).count();
    announce(format!("missing {}", missing.join(",")));
    announce(format!("repeated {repeated}"));
    announce(format!("memory {early} {peak}"));
}

/// A destination that counts how often each message arrived, and refuses one.
#[derive(Clone)]
struct Counting {
    arrived: Arc<Mutex<Vec<u8>>>,
}

impl Counting {
    fn new(messages: usize) -> Counting {
        Counting {
            // Written to, so that it is resident from the beginning.
            arrived: Arc::new(Mutex::new((0..=messages).map(|_| 0).collect())),
        }
    }
}

impl Publisher for Counting {
    fn publish<'a>(&'a self, batch: &'a [Envelope]) -> Reply<'a, Result<Vec<Verdict>, Outage>> {
        let mut arrived = self.arrived.lock().expect("no test panics with it");
        let verdicts = batch.iter().map(|message| {
            let text = std::str::from_utf8(&message.payload).expect("a number");
            let number: usize = text.parse().expect("a number");
            if number == POISON {
                return Verdict::Refused("it is refused".into());
            }
            // Only one message of a key is in a batch.
            arrived[number] += 1;
            Verdict::ACCEPTED
        });
        let verdicts = verdicts.collect();
        Box::pin(std::future::ready(Ok(verdicts)))
    }
}

/// The resident memory of this process.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("a Linux system");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let text = line.expect("VmRSS").trim().trim_end_matches(" kB");
    text.parse::<u64>().expect("a number") << 10
}
