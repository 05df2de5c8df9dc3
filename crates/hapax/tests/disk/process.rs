//! The parent's view of the child: sends orders, waits for answers.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use hapax_testkit::crash::{Child, Ledger};

use super::service::{Answer, Order};

/// A request that has no answer after this time hangs.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// The paths of a child's files.
#[derive(Clone, Debug)]
pub struct Places {
    pub store: PathBuf,
    pub ledger: PathBuf,
    /// The file that strace writes to.
    pub log: PathBuf,
}

impl Places {
    /// All files in one directory.
    pub fn in_directory(directory: &Path) -> Places {
        // The canonical path: strace compares paths as text.
        let directory = std::fs::canonicalize(directory).unwrap();
        Places {
            store: directory.join("hapax.db"),
            ledger: directory.join("ledger"),
            log: directory.join("strace"),
        }
    }

    /// The files of the store: those that a fault may hit.
    pub fn store_files(&self) -> Vec<String> {
        ["", "-wal", "-shm", "-journal"]
            .iter()
            .map(|end| format!("{}{end}", self.store.display()))
            .collect()
    }

    pub fn ledger(&self) -> Ledger {
        Ledger::open(&self.ledger)
    }
}

/// A running service.
pub struct Process {
    pub child: Child,
}

impl Process {
    /// Starts the service without opening its store.
    pub fn stand_by(test: &str, places: &Places, store_timeout: Duration) -> Process {
        let timeout = store_timeout.as_millis().to_string();
        let envs = [
            ("HAPAX_TEST_STORE", places.store.to_str().unwrap()),
            ("HAPAX_TEST_LEDGER", places.ledger.to_str().unwrap()),
            ("HAPAX_TEST_STORE_TIMEOUT_MS", &timeout),
        ];
        let mut child = Child::spawn(test, "service", &envs);
        child.wait_for("stands by");
        Process { child }
    }

    pub fn start(test: &str, places: &Places, store_timeout: Duration) -> Process {
        let mut process = Process::stand_by(test, places, store_timeout);
        process.open();
        process
    }

    /// Opens the store, after closing it if it is open.
    pub fn open(&mut self) {
        self.try_open()
            .unwrap_or_else(|why| panic!("the store does not open: {why}"));
    }

    /// Like `open`, but returns the store's error.
    pub fn try_open(&mut self) -> Result<(), String> {
        self.child.say("open");
        match self.child.wait_for("open ").as_str() {
            "done" => Ok(()),
            why => Err(why.to_owned()),
        }
    }

    /// Sends an order without waiting for its answer. Returns whether the child read it.
    pub fn order(&mut self, order: &Order) -> bool {
        let Order {
            key,
            answer_bytes,
            wait_s,
        } = order;
        self.child
            .try_say(&format!("send {key} {answer_bytes} {wait_s}"))
    }

    /// The next answer to any order; `None` if the child died first.
    pub fn answer(&mut self) -> Option<(String, Answer)> {
        let deadline = Instant::now() + ANSWER_MAX;
        loop {
            match self
                .child
                .line(deadline.saturating_duration_since(Instant::now()))
            {
                Some(line) => match Answer::parse(&line) {
                    Some(answered) => return Some(answered),
                    None => continue,
                },
                None if Instant::now() < deadline => return None,
                None => panic!("a request was not answered within {ANSWER_MAX:?}"),
            }
        }
    }

    /// Sends one request and waits for its answer; `None` if the child died first.
    pub fn try_send(&mut self, order: &Order) -> Option<Answer> {
        self.order(order);
        let (key, answer) = self.answer()?;
        assert_eq!(key, order.key, "one request at a time");
        Some(answer)
    }

    pub fn send(&mut self, order: &Order) -> Answer {
        self.try_send(order)
            .unwrap_or_else(|| panic!("the child died of {order:?}"))
    }

    /// Sends the order again until its answer is definite: neither in flight nor store unavailable.
    pub fn send_until_definite(&mut self, order: &Order) -> Answer {
        let deadline = Instant::now() + ANSWER_MAX;
        loop {
            let answer = self.send(order);
            if !answer.is_in_flight() && !answer.is_unavailable() {
                return answer;
            }
            assert!(
                Instant::now() < deadline,
                "the store does not serve again: {order:?} got {answer:?}"
            );
        }
    }
}
