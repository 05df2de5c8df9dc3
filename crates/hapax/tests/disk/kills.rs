//! SIGKILL before each system call that one whole request makes, on whichever thread.

use std::collections::BTreeMap;
use std::time::Duration;

use hapax_testkit::crash;
use hapax_testkit::disk::{Strace, calls, threads};

use super::book::{Book, check_file};
use super::process::{Places, Process};
use super::service::{self, Order};

const TEST: &str = "kills::a_kill_before_any_system_call_of_a_request_costs_no_effect";
const STORE_TIMEOUT: Duration = Duration::from_secs(2);
const ANSWER_BYTES: usize = 6_000;
/// Kills at each point: threads take turns differently each time.
const ROUNDS: usize = 3;

/// Where to kill: at the nth call of its name on a thread.
#[derive(Clone, Debug)]
struct Point {
    thread: Thread,
    call: String,
    nth: usize,
}

/// A thread as it can be found again in another process: its name, and which of those with that name.
type Thread = (String, usize);

#[test]
fn a_kill_before_any_system_call_of_a_request_costs_no_effect() {
    if crash::role().is_some() {
        return service::serve();
    }
    let directory = tempfile::tempdir().unwrap();
    let places = Places::in_directory(directory.path());
    let mut book = Book::default();
    let mut process = Process::start(TEST, &places, STORE_TIMEOUT);
    let points = match points(&mut process, &mut book, &places) {
        Ok(points) => points,
        Err(why) => return println!("SKIPPED {TEST}: {why}"),
    };
    let mut landed = BTreeMap::<String, usize>::new();
    for (index, point) in (0..ROUNDS).flat_map(|_| &points).enumerate() {
        let key = format!("{index}-{}-{}", point.call, point.nth);
        if kill_at(point, &key, &mut process, &mut book, &places) {
            *landed.entry(point.call.clone()).or_default() += 1;
        }
        process = Process::start(TEST, &places, STORE_TIMEOUT);
        book.retry(&mut process, &key, ANSWER_BYTES);
        book.replay_latest(&mut process);
    }
    book.replay_all(&mut process);
    book.judge(&places);
    check_file(&places);
    let sum: usize = landed.values().sum();
    println!("{} points {ROUNDS} times, {sum} kills landed, by call: {landed:?}", points.len());
    println!("retried: {} replayed, {} held as unknown, {} run", book.replayed, book.unknown, book.run_on_retry);
    assert!(book.unknown > 0 && book.replayed > 0 && book.run_on_retry > 0, "a run without all of these shows nothing");
    assert!(sum * 2 > points.len() * ROUNDS, "most points of one request are points of the next");
}

/// Every call of one whole request, by thread.
fn points(process: &mut Process, book: &mut Book, places: &Places) -> Result<Vec<Point>, String> {
    book.charge(process, "warm-up", ANSWER_BYTES);
    let strace = Strace::attach(process.child.pid(), &["-f", "-e", "signal=none"], &places.log)?;
    book.charge(process, "counted", ANSWER_BYTES);
    let log = strace.detach();
    let named: BTreeMap<u32, Thread> = named_threads(process).into_iter().map(|(thread, id)| (id, thread)).collect();
    let mut counts = BTreeMap::<(Thread, String), usize>::new();
    for call in calls(&log) {
        let Some(thread) = named.get(&call.thread) else { continue };
        *counts.entry((thread.clone(), call.name)).or_default() += 1;
    }
    let points = counts
        .into_iter()
        .flat_map(|((thread, call), count)| (1..=count).map(move |nth| Point { thread: thread.clone(), call: call.clone(), nth }));
    Ok(points.collect())
}

fn named_threads(process: &Process) -> BTreeMap<Thread, u32> {
    let mut threads = threads(process.child.pid());
    threads.sort_unstable();
    let mut seen = BTreeMap::<String, usize>::new();
    let mut named = BTreeMap::new();
    for (id, name) in threads {
        let number = seen.entry(name.clone()).or_default();
        named.insert((name, *number), id);
        *number += 1;
    }
    named
}

/// Sends a request to a process that dies at the point; says whether it did.
fn kill_at(point: &Point, key: &str, process: &mut Process, book: &mut Book, places: &Places) -> bool {
    book.charge(process, &format!("{key}-before"), ANSWER_BYTES);
    let Some(thread) = named_threads(process).get(&point.thread).copied() else { return false };
    let Point { call, nth, .. } = point;
    let (trace, inject) = (format!("trace={call}"), format!("inject={call}:signal=KILL:when={nth}"));
    // A thread that has ended meanwhile is no point any more.
    let Ok(strace) = Strace::attach(thread, &["-e", &trace, "-e", &inject], &places.log) else { return false };
    if let Some(answer) = process.try_send(&Order { key: key.to_owned(), answer_bytes: ANSWER_BYTES, wait_s: 0 }) {
        book.note(key, &answer);
    }
    let landed = strace.detach().contains("+++ killed by SIGKILL +++");
    process.child.kill();
    landed
}
