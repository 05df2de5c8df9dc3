//! A full disk, with a little more room in each run, so that every write of a request is once the
//! one that fails.

use std::path::Path;
use std::time::{Duration, Instant};

use hapax_testkit::crash;
use hapax_testkit::disk::{Tmpfs, run_unshared};

use super::book::{Book, check_file};
use super::process::{Places, Process};
use super::service::{self, Order};

const STORE_TIMEOUT: Duration = Duration::from_millis(100);
/// A request calls the store for a claim and for a completion, and each may take the store timeout.
/// The rest allows for a busy machine.
const ANSWERED_WITHIN: Duration = Duration::from_secs(5);
const ANSWER_BYTES: usize = 6_000;
/// Too small for a checkpoint to fall due, so that the log only grows.
const DISK_BYTES: u64 = 16 << 20;
/// The limit of pages to try; no request needs this many.
const PAGES_MAX: u64 = 120;
/// After this many runs in a row without a failure, a request has all the pages it needs.
const ENOUGH: usize = 3;

/// Mounts a disk and runs the test on it, in this process or in one that may mount. Prints why if
/// neither is possible.
fn on_a_small_disk(test: &str, work: impl FnOnce(&Tmpfs, &Path)) {
    if crash::role().is_some() {
        return service::serve();
    }
    let (mount_point, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    match Tmpfs::mount(
        &std::fs::canonicalize(mount_point.path()).unwrap(),
        DISK_BYTES,
    ) {
        Ok(disk) => work(&disk, elsewhere.path()),
        Err(why) => {
            if let Err(why_not) = run_unshared(test) {
                hapax_testkit::skipped(format_args!("cannot mount a disk ({why}; {why_not})"));
            }
        }
    }
}

/// A new directory on the disk for the store. The ledger is on another disk, which always has room.
fn places(disk: &Tmpfs, elsewhere: &Path, name: &str) -> Places {
    let directory = disk.path().join(name);
    std::fs::create_dir(&directory).unwrap();
    Places {
        ledger: elsewhere.join(format!("{name}-ledger")),
        ..Places::in_directory(&directory)
    }
}

#[derive(Default)]
struct Tally {
    runs: usize,
    /// Runs in which an operation failed for lack of space.
    landed: usize,
    unavailable: usize,
    replayed_while_full: usize,
}

#[test]
fn a_full_disk_at_any_write_of_a_request_costs_no_effect() {
    const TEST: &str = "full::a_full_disk_at_any_write_of_a_request_costs_no_effect";
    on_a_small_disk(TEST, |disk, elsewhere| {
        let (mut tally, mut book, mut enough) = (Tally::default(), Book::default(), 0);
        for pages in 0..PAGES_MAX {
            let places = places(disk, elsewhere, &format!("{pages}-pages"));
            let landed = request_with(pages, TEST, disk, &places, &mut tally, &mut book);
            std::fs::remove_dir_all(places.store.parent().unwrap()).unwrap();
            enough = if landed { 0 } else { enough + 1 };
            if enough == ENOUGH {
                break;
            }
        }
        let Tally {
            runs,
            landed,
            unavailable,
            replayed_while_full,
        } = tally;
        let Book {
            unknown,
            run_on_retry,
            replayed,
            ..
        } = book;
        hapax_testkit::report!(
            "disk full: {runs} runs, one page more each; in {landed} the fault landed; {unavailable} requests got 503, {replayed_while_full} replays while full"
        );
        hapax_testkit::report!(
            "disk full: retried: {run_on_retry} run, {unknown} held as unknown; {replayed} replays"
        );
        assert!(landed > 0, "a run in which no fault landed shows nothing");
        assert_eq!(
            enough, ENOUGH,
            "even with {PAGES_MAX} pages a request fails"
        );
    });
}

/// One run: two charges, the disk fills up except for `pages` pages, two requests and a repeat,
/// space is freed, and the process restarts.
fn request_with(
    pages: u64,
    test: &str,
    disk: &Tmpfs,
    places: &Places,
    tally: &mut Tally,
    sum: &mut Book,
) -> bool {
    let mut process = Process::start(test, places, STORE_TIMEOUT);
    let mut book = Book::default();
    book.charge(&mut process, "before-0", ANSWER_BYTES);
    book.charge(&mut process, "before-1", ANSWER_BYTES);
    let filler = disk.leave_free(pages);
    let keys = ["full-0", "full-1"];
    let unavailable = keys
        .iter()
        .filter(|key| !request(&mut process, &mut book, key))
        .count();
    let repeat = process.send(&Order {
        key: "before-0".to_owned(),
        answer_bytes: 0,
        wait_s: 0,
    });
    assert!(
        repeat.is_replay || repeat.is_unavailable(),
        "before-0 was acknowledged and got {repeat:?}"
    );
    drop(filler);

    book.charge(&mut process, "after", ANSWER_BYTES);
    keys.iter()
        .for_each(|key| book.retry(&mut process, key, ANSWER_BYTES));
    book.replay_all(&mut process);
    process.child.kill();
    check_file(places);
    process = Process::start(test, places, STORE_TIMEOUT);
    book.replay_all(&mut process);
    book.judge(places);

    tally.runs += 1;
    tally.landed += usize::from(unavailable > 0);
    tally.unavailable += unavailable;
    tally.replayed_while_full += usize::from(repeat.is_replay);
    sum.run_on_retry += book.run_on_retry;
    sum.unknown += book.unknown;
    sum.replayed += book.replayed;
    unavailable > 0
}

/// Sends a request that must be answered in time. Returns whether it was charged.
fn request(process: &mut Process, book: &mut Book, key: &str) -> bool {
    let sent_at = Instant::now();
    let answer = process.send(&Order {
        key: key.to_owned(),
        answer_bytes: ANSWER_BYTES,
        wait_s: 0,
    });
    assert!(
        sent_at.elapsed() < ANSWERED_WITHIN,
        "{key} was answered after {:?}",
        sent_at.elapsed()
    );
    book.note(key, &answer)
}

#[test]
fn a_store_that_could_not_be_opened_on_a_full_disk_opens_once_there_is_room() {
    const TEST: &str =
        "full::a_store_that_could_not_be_opened_on_a_full_disk_opens_once_there_is_room";
    on_a_small_disk(TEST, |disk, elsewhere| {
        let (mut refused, mut enough, mut runs) = ([0; 2], 0, 0);
        for pages in 0..PAGES_MAX {
            let landed = open_with(pages, TEST, disk, elsewhere);
            runs += 1;
            refused[0] += usize::from(landed[0]);
            refused[1] += usize::from(landed[1]);
            enough = if landed == [false, false] {
                enough + 1
            } else {
                0
            };
            if enough == ENOUGH {
                break;
            }
        }
        hapax_testkit::report!(
            "opened on a full disk: {runs} runs, one page more each; refused {} new stores and {} old ones",
            refused[0],
            refused[1]
        );
        assert!(
            refused[0] > 0 && refused[1] > 0,
            "a run in which no fault landed shows nothing"
        );
        assert_eq!(
            enough, ENOUGH,
            "even with {PAGES_MAX} pages a store does not open"
        );
    });
}

/// Opens a store that does not exist yet, and then one that a killed process left behind. Returns
/// which of the two could not be opened.
fn open_with(pages: u64, test: &str, disk: &Tmpfs, elsewhere: &Path) -> [bool; 2] {
    let places = places(disk, elsewhere, &format!("{pages}-pages"));
    let mut book = Book::default();
    let mut landed = [false; 2];
    for (index, landed) in landed.iter_mut().enumerate() {
        let mut process = Process::stand_by(test, &places, STORE_TIMEOUT);
        let filler = disk.leave_free(pages);
        *landed = process.try_open().is_err();
        drop(filler);
        if *landed {
            process.open();
        }
        book.charge(&mut process, &format!("after-{index}"), ANSWER_BYTES);
        book.replay_all(&mut process);
        process.child.kill();
    }
    check_file(&places);
    book.judge(&places);
    std::fs::remove_dir_all(places.store.parent().unwrap()).unwrap();
    landed
}
