//! SIGKILL before each system call of a request, on every thread; and before each system call that
//! changes a file while a store is opened.

use std::collections::BTreeMap;
use std::time::Duration;

use hapax_testkit::crash;
use hapax_testkit::disk::{Strace, calls, most_by_one_thread, threads};

use super::book::{Book, check_file};
use super::process::{Places, Process};
use super::service::{self, Order};

const TEST: &str = "kills::a_kill_before_any_system_call_of_a_request_costs_no_effect";
const STORE_TIMEOUT: Duration = Duration::from_secs(2);
/// Only an opening that hangs takes this long.
const OPENED_WITHIN: Duration = Duration::from_secs(30);
const ANSWER_BYTES: usize = 6_000;
/// Kills at each point: the threads are scheduled differently each time.
const ROUNDS: usize = 3;

/// Where to kill: at the nth call with this name on a thread.
#[derive(Clone, Debug)]
struct Point {
    thread: Thread,
    call: String,
    nth: usize,
}

/// Identifies a thread across processes: its name, and its index among the threads with that name.
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
        Err(why) => return hapax_testkit::skipped(why),
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
    hapax_testkit::report!(
        "{} points {ROUNDS} times, {sum} kills landed, by call: {landed:?}",
        points.len()
    );
    hapax_testkit::report!(
        "retried: {} replayed, {} held as unknown, {} run",
        book.replayed,
        book.unknown,
        book.run_on_retry
    );
    assert!(
        book.unknown > 0 && book.replayed > 0 && book.run_on_retry > 0,
        "a run without all of these shows nothing"
    );
    assert!(
        sum * 2 > points.len() * ROUNDS,
        "most points of one request are points of the next"
    );
}

/// Every system call of one request, by thread.
fn points(process: &mut Process, book: &mut Book, places: &Places) -> Result<Vec<Point>, String> {
    book.charge(process, "warm-up", ANSWER_BYTES);
    let strace = Strace::attach(
        process.child.pid(),
        &["-f", "-e", "signal=none"],
        &places.log,
    )?;
    book.charge(process, "counted", ANSWER_BYTES);
    let log = strace.detach();
    let named: BTreeMap<u32, Thread> = named_threads(process)
        .into_iter()
        .map(|(thread, id)| (id, thread))
        .collect();
    let mut counts = BTreeMap::<(Thread, String), usize>::new();
    for call in calls(&log) {
        let Some(thread) = named.get(&call.thread) else {
            continue;
        };
        *counts.entry((thread.clone(), call.name)).or_default() += 1;
    }
    let points = counts.into_iter().flat_map(|((thread, call), count)| {
        (1..=count).map(move |nth| Point {
            thread: thread.clone(),
            call: call.clone(),
            nth,
        })
    });
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

/// Sends a request to a process that is killed at the point. Returns whether the kill happened
/// there.
fn kill_at(
    point: &Point,
    key: &str,
    process: &mut Process,
    book: &mut Book,
    places: &Places,
) -> bool {
    book.charge(process, &format!("{key}-before"), ANSWER_BYTES);
    let Some(thread) = named_threads(process).get(&point.thread).copied() else {
        return false;
    };
    let Point { call, nth, .. } = point;
    let (trace, inject) = (
        format!("trace={call}"),
        format!("inject={call}:signal=KILL:when={nth}"),
    );
    // A thread that has ended meanwhile has no such call.
    let Ok(strace) = Strace::attach(thread, &["-e", &trace, "-e", &inject], &places.log) else {
        return false;
    };
    if let Some(answer) = process.try_send(&Order {
        key: key.to_owned(),
        answer_bytes: ANSWER_BYTES,
        wait_s: 0,
    }) {
        book.note(key, &answer);
    }
    // The process is killed in any case. strace killed it if the log shows `nth` calls begun.
    process.child.kill();
    strace
        .ended()
        .lines()
        .filter(|line| line.starts_with(&format!("{call}(")))
        .count()
        >= *nth
}

/// The system calls by which an opening changes the disk. Between two of them, the moment of a kill
/// makes no difference.
const CHANGES: &str = "trace=openat,write,pwrite64,ftruncate,fallocate,fsync,fdatasync,unlink,unlinkat,rename,renameat";

#[test]
fn a_kill_before_any_system_call_of_an_opening_leaves_a_store_that_opens() {
    const TEST: &str =
        "kills::a_kill_before_any_system_call_of_an_opening_leaves_a_store_that_opens";
    if crash::role().is_some() {
        return service::serve();
    }
    let counts = match count_opening(TEST) {
        Ok(counts) => counts,
        Err(why) => return hapax_testkit::skipped(why),
    };
    let (mut points, mut landed) = (0, BTreeMap::<&str, usize>::new());
    for (call, count) in &counts {
        for nth in 1..=*count {
            points += 1;
            *landed.entry(call).or_default() += kill_opening(TEST, call, nth);
        }
    }
    let sum: usize = landed.values().sum();
    hapax_testkit::report!(
        "openings: {points} points, each of a new store and of an old one, {sum} kills landed, by call: {landed:?}"
    );
    assert!(
        sum > points,
        "most points of one opening are points of the next"
    );
}

/// The highest number of times that one thread makes each call while a new store is opened.
fn count_opening(test: &str) -> Result<BTreeMap<String, usize>, String> {
    let directory = tempfile::tempdir().unwrap();
    let places = Places::in_directory(directory.path());
    let mut process = Process::stand_by(test, &places, STORE_TIMEOUT);
    let strace = Strace::attach(
        process.child.pid(),
        &["-f", "-e", "signal=none", "-e", CHANGES],
        &places.log,
    )?;
    process.open();
    Ok(most_by_one_thread(&calls(&strace.detach())))
}

/// Kills a process that opens a new store, and one that opens what the first left behind. Returns
/// how many of the two kills happened at the call.
fn kill_opening(test: &str, call: &str, nth: usize) -> usize {
    let directory = tempfile::tempdir().unwrap();
    let places = Places::in_directory(directory.path());
    let (mut book, mut landed) = (Book::default(), 0);
    for index in 0..2 {
        let mut process = Process::stand_by(test, &places, STORE_TIMEOUT);
        let (trace, inject) = (
            format!("trace={call}"),
            format!("inject={call}:signal=KILL:when={nth}"),
        );
        let strace = Strace::attach(
            process.child.pid(),
            &["-f", "-e", &trace, "-e", &inject],
            &places.log,
        )
        .unwrap();
        // The process may be killed before it reads the order, or at any later step.
        process.child.try_say("open");
        while process
            .child
            .line(OPENED_WITHIN)
            .is_some_and(|line| !line.starts_with("open "))
        {}
        process.child.kill();
        // strace logs a call when it begins: a thread that began `nth` calls was killed at the last
        // one.
        landed += usize::from(
            most_by_one_thread(&calls(&strace.ended()))
                .get(call)
                .is_some_and(|count| *count >= nth),
        );

        let mut process = Process::start(test, &places, STORE_TIMEOUT);
        book.charge(&mut process, &format!("{index}"), ANSWER_BYTES);
        book.replay_all(&mut process);
        process.child.kill();
    }
    check_file(&places);
    book.judge(&places);
    landed
}
