//! `hapax keys list --watch` on a database that goes away meanwhile.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use hapax_testkit::origin::Origin;
use hapax_testkit::servers::Postgres;

use super::migrated;

/// Only a broken test waits this long.
const GUARD: Duration = Duration::from_secs(60);

struct Watch {
    process: Child,
    stdout: Receiver<String>,
    stderr: Receiver<String>,
}

impl Watch {
    fn start(url: &str) -> Watch {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hapax"));
        command
            .args(["keys", "list", "--watch", "--json", "--store", url])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let (stdout, stderr) = (
            lines(process.stdout.take().unwrap()),
            lines(process.stderr.take().unwrap()),
        );
        Watch {
            process,
            stdout,
            stderr,
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn lines(from: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        BufReader::new(from)
            .lines()
            .map_while(Result::ok)
            .try_for_each(|line| sender.send(line))
    });
    receiver
}

/// Waits for a line that contains these words.
#[track_caller]
fn wait_for(output: &Receiver<String>, words: &str) {
    while !output
        .recv_timeout(GUARD)
        .unwrap_or_else(|error| panic!("it never said {words:?}: {error}"))
        .contains(words)
    {}
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_watches_waits_for_a_database_that_is_away() {
    let Some(mut postgres) = Postgres::start() else {
        return;
    };
    let (url, upstream) = (migrated(&postgres), Origin::start().await);
    let gateway = super::serve::gateway(&url, &upstream);
    let watch = Watch::start(&url);
    wait_for(&watch.stderr, "looking into the store");
    assert!(
        gateway
            .charge("order-1", b"amount=1")
            .starts_with("HTTP/1.1 200")
    );
    wait_for(&watch.stdout, "order-1");
    postgres.kill();
    wait_for(&watch.stderr, "asking again until it does");
    postgres.start_again();
    wait_for(&watch.stderr, "it answers again");
    while !gateway
        .charge("order-2", b"amount=1")
        .starts_with("HTTP/1.1 200")
    {}
    wait_for(&watch.stdout, "order-2");
    assert_eq!(upstream.ledger().count("order-2"), 1);
}
