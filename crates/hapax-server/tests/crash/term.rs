//! SIGTERM under load: every attempt ends, none is lost, and the program exits successfully.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::Path;

use hapax::core::record::State;
use hapax::core::store::ListQuery;
use hapax::{Hapax, Sqlite};
use hapax_server::config::Protocol;
use hapax_testkit::random::Random;
use tokio::task::JoinSet;

use super::harness::charges::{Charge, Charged, Upstream, Version, send};
use super::harness::{self, Answer, Gate, Program, Signal};

const TIMES: usize = 50;
/// Clients that send one request after the other.
const CLIENTS: usize = 12;
/// How many of their requests the upstream always holds, so that the signal finds attempts in
/// flight.
const HELD: usize = 8;
/// The largest number of answers before the signal.
const ANSWERS_MAX: usize = 40;
/// More permits than there will be requests.
const EVERY_ONE: usize = 1 << 20;

/// Starts the program on the store in a directory, with this drain deadline for its attempts.
fn serve(directory: &Path, upstream: &Upstream, deadline: &str) -> Program {
    let (store, upstream) = (directory.join("hapax.db"), upstream.address(0));
    let settings = format!(
        "listen = \"127.0.0.1:0\"\nadmin = \"off\"\nstore = \"sqlite:{}\"\nprincipal = \"none\"\n\
         [upstream]\nurl = \"http://{upstream}\"\n[drain]\nnotice = \"50ms\"\ndeadline = \"{deadline}\"\n",
        store.display(),
    );
    Program::serve(&mut harness::serve_command(directory, &settings))
}

fn block_on(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
        .block_on(test);
}

#[test]
fn under_load_a_signal_to_stop_loses_no_attempt() {
    let mut random = Random::from_env(4);
    let directory = tempfile::tempdir().unwrap();
    let upstream = Upstream::start(&[Protocol::Http1]);
    block_on(async {
        let (mut sum, mut open) = (Sum::default(), Load::default());
        for number in 0..=TIMES {
            let mut program = serve(directory.path(), &upstream, "5s");
            open.retry_all(program.clients, &mut sum).await;
            upstream.ledger().assert_none_twice();
            if number == TIMES {
                break;
            }
            open = load_and_stop(number, random.below(ANSWERS_MAX), &mut program, &upstream).await;
            sum.in_flight += open.in_flight;
        }
        let Sum {
            keys,
            in_flight,
            acknowledged,
            refused,
        } = &sum;
        hapax_testkit::report!(
            "{TIMES} signals, {in_flight} attempts in flight; {keys} keys, {acknowledged} answered and replayed, {refused} refused and run on retry"
        );
        assert!(
            sum.in_flight >= TIMES * HELD && sum.acknowledged > 0 && sum.refused > 0,
            "a run without these shows nothing"
        );
    });
}

/// Totals over all rounds.
#[derive(Default)]
struct Sum {
    keys: usize,
    /// Attempts in flight when the signal came.
    in_flight: usize,
    acknowledged: usize,
    /// Requests that were not answered, or refused because the node was draining: they run when
    /// retried.
    refused: usize,
}

/// The requests of one run of the program.
#[derive(Default)]
struct Load {
    charges: Vec<Charge>,
    acknowledged: BTreeMap<String, Answer>,
    dispatched: BTreeSet<String>,
    in_flight: usize,
}

async fn load_and_stop(
    number: usize,
    answers: usize,
    program: &mut Program,
    upstream: &Upstream,
) -> Load {
    let round = format!("term-{number}");
    let gate = upstream.gate(&round);
    let mut clients = JoinSet::new();
    for client in 0..CLIENTS {
        let version = if client % 2 == 0 {
            Version::Http1
        } else {
            Version::Http2
        };
        clients.spawn(send_until_stopped(
            program.clients,
            version,
            format!("{round}-{client}"),
            round.clone(),
        ));
    }
    // Counted by arrivals: on a busy machine a request that was let through still counts as held for
    // a while.
    for let_through in 0..answers {
        gate.wait_arrived(let_through + HELD + 1).await;
        gate.open(1);
    }
    gate.wait_arrived(answers + HELD).await;
    program.signal(Signal::TERM);
    let in_flight = gate.arrived() - answers;
    program.wait_for("draining");
    gate.open(EVERY_ONE);

    let mut load = Load {
        in_flight,
        ..Load::default()
    };
    while let Some(client) = clients.join_next().await {
        let (charges, acknowledged) = client.unwrap();
        load.charges.extend(charges);
        load.acknowledged.extend(acknowledged);
    }
    let status = program.ended();
    assert_eq!(status.code(), Some(0), "{status}");
    load.dispatched = upstream.ledger().dispatches.into_keys().collect();
    load
}

/// Sends one request after the other until the program is gone or refuses because it is draining.
async fn send_until_stopped(
    address: SocketAddr,
    version: Version,
    name: String,
    round: String,
) -> (Vec<Charge>, BTreeMap<String, Answer>) {
    let (mut charges, mut acknowledged) = (Vec::new(), BTreeMap::new());
    loop {
        let charge = Charge::new(format!("{name}-{}", charges.len())).held_at(&round);
        charges.push(charge.clone());
        match send(address, version, &charge).await {
            Some(answer) if answer.is_charged() => acknowledged.insert(charge.key, answer),
            Some(answer) => {
                assert!(
                    answer.is_problem("draining"),
                    "{} got {answer:?}",
                    charge.key
                );
                return (charges, acknowledged);
            }
            None => return (charges, acknowledged),
        };
    }
}

impl Load {
    /// Checks that every key that reached the upstream was answered and is replayed, and that every
    /// other one runs now.
    async fn retry_all(&self, address: SocketAddr, sum: &mut Sum) {
        for charge in &self.charges {
            let key = &charge.key;
            let answer = send(address, Version::Http1, &charge.again())
                .await
                .expect("nobody stops this one");
            assert!(answer.is_charged(), "{key} got {answer:?}");
            sum.keys += 1;
            match self.acknowledged.get(key) {
                Some(first) => {
                    answer.assert_replays(first);
                    sum.acknowledged += 1;
                }
                None => {
                    assert!(
                        !self.dispatched.contains(key),
                        "{key} was dispatched, and its client not answered"
                    );
                    assert!(!answer.is_replay(), "{key} was never dispatched");
                    sum.refused += 1;
                }
            }
        }
    }
}

/// Starts one attempt that the upstream holds.
async fn hold_one(
    program: &Program,
    gate: &Gate,
    round: &str,
) -> tokio::task::JoinHandle<Option<Answer>> {
    let (address, charge) = (program.clients, Charge::new(round).held_at(round));
    let caller = tokio::spawn(async move { send(address, Version::Http1, &charge).await });
    gate.wait_held(1).await;
    caller
}

/// Checks that after a restart the key is unknown and is not dispatched again.
async fn assert_held(directory: &Path, upstream: &Upstream, key: &str) {
    let program = serve(directory, upstream, "5s");
    let retried = send(program.clients, Version::Http1, &Charge::new(key))
        .await
        .unwrap();
    assert!(retried.status == 409 && retried.is_unknown(), "{retried:?}");
    let ledger = upstream.ledger();
    assert_eq!((ledger.dispatches_of(key), ledger.effects_of(key)), (1, 1));
}

#[test]
fn a_second_signal_ends_the_program_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let upstream = Upstream::start(&[Protocol::Http1]);
    block_on(async {
        let mut program = serve(directory.path(), &upstream, "1h");
        let gate = upstream.gate("twice");
        let caller = hold_one(&program, &gate, "twice").await;
        program.signal(Signal::TERM);
        program.wait_for("draining");
        program.signal(Signal::TERM);
        let status = program.ended();
        assert_eq!(status.code(), Some(130), "{status}");
        assert_eq!(caller.await.unwrap(), None);
        assert_held(directory.path(), &upstream, "twice").await;
    });
}

#[test]
fn an_attempt_longer_than_the_deadline_is_marked_as_unknown_before_the_program_ends() {
    let directory = tempfile::tempdir().unwrap();
    let upstream = Upstream::start(&[Protocol::Http1]);
    block_on(async {
        let mut program = serve(directory.path(), &upstream, "100ms");
        let gate = upstream.gate("too-long");
        let caller = hold_one(&program, &gate, "too-long").await;
        program.signal(Signal::TERM);
        let status = program.ended();
        assert_eq!(status.code(), Some(0), "{status}");
        let told = caller.await.unwrap().expect("the caller is told");
        assert!(told.is_unknown(), "{told:?}");

        assert_eq!(states_at_rest(directory.path()).await, [State::Unknown]);
        assert_held(directory.path(), &upstream, "too-long").await;
    });
}

/// The states that the ended program wrote, read without a sweep.
async fn states_at_rest(directory: &Path) -> Vec<State> {
    let store = Sqlite::open(directory.join("hapax.db")).await.unwrap();
    let hapax = Hapax::builder(store).sweep(None).build();
    let heads = hapax
        .list(ListQuery {
            state: None,
            after: None,
            limit: 10,
        })
        .await
        .unwrap();
    heads.into_iter().map(|head| head.state).collect()
}
