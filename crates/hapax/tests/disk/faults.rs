//! Writes and fsyncs of the store's files fail, one after the other, under a process that must
//! survive it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use hapax_testkit::crash;
use hapax_testkit::disk::{Strace, calls, most_by_one_thread};

use super::book::{Book, check_file};
use super::process::{Places, Process};
use super::service::{self, Order};

/// Every system call that changes a file or makes it durable.
const WRITES: &str = "pwrite64,pwritev,write,writev,ftruncate,fallocate,fsync,fdatasync";
/// How long a request waits for the store: short, so that tests of lasting faults are quick.
const STORE_TIMEOUT: Duration = Duration::from_millis(100);
/// The same where the log is filled: long enough for a checkpoint on a busy machine.
const STORE_TIMEOUT_FILLING: Duration = Duration::from_millis(500);
/// A request calls the store for a claim and for a completion, and each may take the store timeout.
/// The rest allows for a busy machine.
const ANSWERED_WITHIN: Duration = Duration::from_secs(5);
/// The size of an answer: large enough to need its own pages.
const ANSWER_BYTES: usize = 6_000;
/// The number of concurrent requests.
const TOGETHER: usize = 6;
/// The size of answers that fill the log until a checkpoint is due.
const FILLING_ANSWER_BYTES: usize = 256 << 10;
/// The largest number of such answers. A store whose log may grow further needs more.
const FILLING_ANSWERS_MAX: usize = 400;

/// Which system calls fail.
#[derive(Clone, Debug)]
struct Fault {
    call: String,
    error: &'static str,
    /// The first call that fails, counted from 1.
    nth: usize,
    /// Whether all later calls fail too.
    lasts: bool,
}

impl Fault {
    fn injection(&self) -> String {
        let Fault {
            call,
            error,
            nth,
            lasts,
        } = self;
        format!(
            "inject={call}:error={error}:when={nth}{}",
            if *lasts { "+" } else { "" }
        )
    }
}

/// Totals of one test.
#[derive(Default)]
struct Tally {
    faults: usize,
    /// The number of faults that hit at least one call.
    landed: usize,
    /// The number of calls that failed.
    calls: usize,
    unavailable: usize,
}

impl Tally {
    fn print(&self, what: &str, book: &Book) {
        let Tally {
            faults,
            landed,
            calls,
            unavailable,
        } = self;
        let Book {
            unknown,
            run_on_retry,
            replayed,
            ..
        } = book;
        hapax_testkit::report!(
            "{what}: {faults} faults, {landed} landed, {calls} calls failed; {unavailable} requests got 503; retried: {run_on_retry} run, {unknown} held as unknown; {replayed} replays"
        );
    }
}

/// A running service, and the answers it has given.
struct Bench {
    places: Places,
    process: Process,
    book: Book,
    tally: Tally,
    /// The files whose calls may fail.
    files: Vec<String>,
    _directory: tempfile::TempDir,
}

impl Bench {
    fn start(test: &str, store_timeout: Duration) -> Bench {
        let directory = tempfile::tempdir().unwrap();
        let places = Places::in_directory(directory.path());
        let process = Process::start(test, &places, store_timeout);
        let files = places.store_files();
        let mut bench = Bench {
            places,
            process,
            book: Book::default(),
            tally: Tally::default(),
            files,
            _directory: directory,
        };
        for warm_up in 0..3 {
            bench.book.charge(
                &mut bench.process,
                &format!("warm-up-{warm_up}"),
                ANSWER_BYTES,
            );
        }
        bench
    }

    fn attach(&self, options: &[&str]) -> Result<Strace, String> {
        let files = self.files.iter().flat_map(|file| ["-P", file]);
        let options: Vec<_> = ["-f", "-y", "-e", "signal=none"]
            .into_iter()
            .chain(files)
            .chain(options.iter().copied())
            .collect();
        Strace::attach(self.process.child.pid(), &options, &self.places.log)
    }

    /// The highest number of times that one thread makes each of the calls during `work`.
    fn count(
        &mut self,
        work: impl FnOnce(&mut Bench, &Strace),
    ) -> Result<BTreeMap<String, usize>, String> {
        let strace = self.attach(&["-e", &format!("trace={WRITES}")])?;
        work(self, &strace);
        Ok(most_by_one_thread(&calls(&strace.detach())))
    }

    /// Sends one request under a fault. Then the fault is removed, and the same process must work
    /// normally.
    fn endure(&mut self, name: &str, fault: &Fault) {
        let strace = self
            .attach(&[
                "-e",
                &format!("trace={}", fault.call),
                "-e",
                &fault.injection(),
            ])
            .unwrap();
        self.request(name, ANSWER_BYTES);
        self.recover(name, &[name.to_owned()], strace);
    }

    /// Sends several requests concurrently under a fault, so that it hits a shared commit.
    fn endure_together(&mut self, name: &str, fault: &Fault) {
        let strace = self
            .attach(&[
                "-e",
                &format!("trace={}", fault.call),
                "-e",
                &fault.injection(),
            ])
            .unwrap();
        let keys = self.request_together(name);
        self.recover(name, &keys, strace);
    }

    fn request_together(&mut self, name: &str) -> Vec<String> {
        let keys: Vec<_> = (0..TOGETHER)
            .map(|index| format!("{name}-{index}"))
            .collect();
        let sent_at = Instant::now();
        for key in &keys {
            self.process.order(&Order {
                key: key.clone(),
                answer_bytes: ANSWER_BYTES,
                wait_s: 0,
            });
        }
        for _ in &keys {
            let (key, answer) = self.process.answer().expect("a fault kills nobody");
            assert!(
                sent_at.elapsed() < ANSWERED_WITHIN,
                "{key} was answered after {:?}",
                sent_at.elapsed()
            );
            self.book.note(&key, &answer);
            self.tally.unavailable += usize::from(answer.is_unavailable());
        }
        keys
    }

    /// Sends requests until the fault has hit a background checkpoint.
    fn endure_filling(&mut self, name: &str, fault: &Fault) {
        let strace = self
            .attach(&[
                "-e",
                &format!("trace={}", fault.call),
                "-e",
                &fault.injection(),
            ])
            .unwrap();
        let mut sent = 0;
        while strace.injected() == 0 && sent < FILLING_ANSWERS_MAX {
            self.request(&format!("{name}-{sent}"), FILLING_ANSWER_BYTES);
            sent += 1;
        }
        // One request during the fault, and one right after it.
        self.request(name, ANSWER_BYTES);
        self.recover(name, &[name.to_owned()], strace);
    }

    fn request(&mut self, key: &str, answer_bytes: usize) {
        let sent_at = Instant::now();
        let answer = self.process.send(&Order {
            key: key.to_owned(),
            answer_bytes,
            wait_s: 0,
        });
        assert!(
            sent_at.elapsed() < ANSWERED_WITHIN,
            "{key} was answered after {:?}",
            sent_at.elapsed()
        );
        self.book.note(key, &answer);
        self.tally.unavailable += usize::from(answer.is_unavailable());
    }

    /// Removes the fault. The same process must charge new keys, and answer definitely for the keys
    /// that met the fault.
    fn recover(&mut self, name: &str, keys: &[String], strace: Strace) {
        let injected = strace.detach().matches("(INJECTED)").count();
        self.tally.faults += 1;
        self.tally.landed += usize::from(injected > 0);
        self.tally.calls += injected;
        self.book
            .charge(&mut self.process, &format!("{name}-after"), ANSWER_BYTES);
        keys.iter()
            .for_each(|key| self.book.retry(&mut self.process, key, ANSWER_BYTES));
        self.book.replay_latest(&mut self.process);
    }

    /// Checks every acknowledged answer, first with the process that saw all the faults and then
    /// with a new one.
    fn judge(mut self, test: &str, what: &str) {
        self.book.replay_all(&mut self.process);
        self.process.child.kill();
        check_file(&self.places);
        self.process = Process::start(test, &self.places, STORE_TIMEOUT);
        self.book.replay_all(&mut self.process);
        self.book.judge(&self.places);
        self.tally.print(what, &self.book);
        assert!(
            self.tally.landed > 0,
            "a run in which no fault landed shows nothing"
        );
    }
}

fn faults(counts: &BTreeMap<String, usize>, nths: impl Fn(usize) -> Vec<usize>) -> Vec<Fault> {
    let mut faults = Vec::new();
    for (call, count) in counts {
        for nth in nths(*count) {
            for (error, lasts) in [
                ("EIO", false),
                ("EIO", true),
                ("ENOSPC", false),
                ("ENOSPC", true),
            ] {
                faults.push(Fault {
                    call: call.clone(),
                    error,
                    nth,
                    lasts,
                });
            }
        }
    }
    faults
}

#[test]
fn a_fault_at_any_write_of_a_request_costs_no_effect() {
    const TEST: &str = "faults::a_fault_at_any_write_of_a_request_costs_no_effect";
    if crash::role().is_some() {
        return service::serve();
    }
    let mut bench = Bench::start(TEST, STORE_TIMEOUT);
    let counts = match bench.count(|bench, _| bench.request("counted", ANSWER_BYTES)) {
        Ok(counts) => counts,
        Err(why) => return hapax_testkit::skipped(why),
    };
    hapax_testkit::report!("a request's writes: {counts:?}");
    for (index, fault) in faults(&counts, |count| (1..=count).collect())
        .iter()
        .enumerate()
    {
        bench.endure(
            &format!("{index}-{}-{}-{}", fault.call, fault.error, fault.nth),
            fault,
        );
    }
    bench.judge(TEST, "faults in a request");
}

#[test]
fn a_fault_in_a_commit_that_many_share_costs_none_of_them_an_effect() {
    const TEST: &str = "faults::a_fault_in_a_commit_that_many_share_costs_none_of_them_an_effect";
    if crash::role().is_some() {
        return service::serve();
    }
    let mut bench = Bench::start(TEST, STORE_TIMEOUT);
    let counts = match bench.count(|bench, _| drop(bench.request_together("counted"))) {
        Ok(counts) => counts,
        Err(why) => return hapax_testkit::skipped(why),
    };
    hapax_testkit::report!("the writes of {TOGETHER} requests at once: {counts:?}");
    // The earlier tests failed every write of a single request. Here the requests share commits.
    for (index, fault) in faults(&counts, |count| (1..=count).step_by(4).collect())
        .iter()
        .enumerate()
    {
        bench.endure_together(
            &format!("{index}-{}-{}-{}", fault.call, fault.error, fault.nth),
            fault,
        );
    }
    bench.judge(TEST, "faults in shared commits");
}

/// As after a remount: no write succeeds and files can be opened only for reading. SQLite may then
/// treat the database as read-only for good.
#[test]
fn a_disk_that_is_read_only_for_a_while_is_written_again_after_it() {
    const TEST: &str = "faults::a_disk_that_is_read_only_for_a_while_is_written_again_after_it";
    if crash::role().is_some() {
        return service::serve();
    }
    let mut bench = Bench::start(TEST, STORE_TIMEOUT);
    for nth in 1..=3 {
        // Fails every other opening: SQLite first opens for writing, and then retries for reading
        // only.
        let openings = "inject=openat:error=EROFS:when=1+2";
        let writes = format!("inject={WRITES}:error=EROFS:when={nth}+");
        let strace = match bench.attach(&[
            "-e",
            &format!("trace={WRITES},openat"),
            "-e",
            &writes,
            "-e",
            openings,
        ]) {
            Ok(strace) => strace,
            Err(why) => return hapax_testkit::skipped(why),
        };
        let keys: Vec<_> = (0..3)
            .map(|request| format!("{nth}-read-only-{request}"))
            .collect();
        keys.iter().for_each(|key| bench.request(key, ANSWER_BYTES));
        bench.recover(&format!("{nth}-read-only"), &keys, strace);
    }
    bench.judge(TEST, "read-only for a while");
}

#[test]
fn a_fault_in_a_checkpoint_costs_nothing() {
    const TEST: &str = "faults::a_fault_in_a_checkpoint_costs_nothing";
    if crash::role().is_some() {
        return service::serve();
    }
    let mut bench = Bench::start(TEST, STORE_TIMEOUT_FILLING);
    // In WAL mode only a checkpoint writes to the main file.
    bench.files.truncate(1);
    let counted = bench.count(|bench, strace| {
        let mut sent = 0;
        while !strace.log().contains("sync(") && sent < FILLING_ANSWERS_MAX {
            bench.request(&format!("counted-{sent}"), FILLING_ANSWER_BYTES);
            sent += 1;
        }
        hapax_testkit::report!(
            "a checkpoint came after {sent} answers of {FILLING_ANSWER_BYTES} bytes"
        );
    });
    let counts = match counted {
        Ok(counts) => counts,
        Err(why) => return hapax_testkit::skipped(why),
    };
    hapax_testkit::report!("a checkpoint's writes: {counts:?}");
    for (index, fault) in faults(&counts, some_of).iter().enumerate() {
        bench.endure_filling(
            &format!("{index}-{}-{}-{}", fault.call, fault.error, fault.nth),
            fault,
        );
    }
    bench.judge(TEST, "faults in a checkpoint");
}

/// The first call, one in the middle, and one near the end. The writes of a checkpoint do not
/// differ otherwise.
fn some_of(count: usize) -> Vec<usize> {
    let mut some = vec![1, count / 2, count * 9 / 10];
    some.retain(|nth| *nth > 0);
    some.dedup();
    some
}
