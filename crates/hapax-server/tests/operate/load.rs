//! Reloads under load: no request is dropped, no key runs twice, and none is forgotten.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use rustls::ClientConfig;
use tokio::sync::watch;

use crate::harness::{self, Authority, Connection};
use crate::service::{Ledger, Service};
use crate::world::{World, post};

/// Clients that send the whole time.
const CLIENTS: usize = 32;
/// The number of accepted reloads; invalid and refused ones come on top.
const TAKEN: u32 = 100;
/// The smallest number of answers between two reloads.
const BETWEEN: usize = 40;
/// Longer than any machine takes for these.
const PATIENCE: Duration = Duration::from_secs(20);
/// Requests before a client reconnects: only new connections see a new certificate.
const REQUESTS_PER_CONNECTION: usize = 15;

#[derive(Default)]
struct Tally {
    sent: AtomicUsize,
    replayed: AtomicUsize,
    conflicts: AtomicUsize,
    /// Requests without an answer, or with one that is neither a success nor a conflict.
    dropped: AtomicUsize,
    /// Repeats with another answer than the first.
    different: AtomicUsize,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_request_is_dropped_and_no_key_forgotten_over_a_hundred_reloads() {
    let ledger = Ledger::default();
    let (one, two) = (
        Service::start("one", &ledger),
        Service::start("two", &ledger),
    );
    let (directory, authority) = (tempfile::tempdir().unwrap(), Authority::default());
    authority.issue().write(directory.path(), "a");
    authority.issue().write(directory.path(), "b");
    let good = good(&one, &two);
    let world = World::start_in(directory, &good[0], false).await;

    let (tally, stop) = (Arc::new(Tally::default()), Arc::new(AtomicBool::new(false)));
    let (answered, mut answers) = watch::channel(0);
    let answered = Arc::new(answered);
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let client = Client {
                number,
                address: world.gateway.address(),
                tls: authority.client(b"http/1.1"),
                tally: tally.clone(),
                answered: answered.clone(),
            };
            tokio::spawn(client.run(stop.clone()))
        })
        .collect();

    let (mut taken, mut bad, mut refused) = (0_u32, 0, 0);
    for turn in 0.. {
        let before = *answers.borrow();
        let answered = answers.wait_for(|answered| *answered >= before + BETWEEN);
        tokio::time::timeout(PATIENCE, answered)
            .await
            .expect("the clients go on")
            .unwrap();
        let (text, expected) = match turn % 10 {
            4 => (BAD[turn / 10 % BAD.len()].to_owned(), &mut bad),
            8 => (
                format!(
                    "{}{}",
                    REFUSED[turn / 10 % REFUSED.len()],
                    good[turn % good.len()]
                ),
                &mut refused,
            ),
            _ => (good[turn % good.len()].clone(), &mut taken),
        };
        let is_good = turn % 10 != 4 && turn % 10 != 8;
        let reloaded = world.reload(&text).await;
        assert_eq!(reloaded.is_ok(), is_good, "{reloaded:?} of\n{text}");
        *expected += 1;
        if taken == TAKEN {
            break;
        }
    }
    stop.store(true, Ordering::Relaxed);
    let (mut keys, mut certificates) = (BTreeSet::new(), BTreeSet::new());
    for client in clients {
        let (client_keys, shown) = client.await.unwrap();
        keys.extend(client_keys);
        certificates.extend(shown);
    }

    let forgotten = forgotten(&world, &authority, &keys).await;
    let count = |counter: &AtomicUsize| counter.load(Ordering::Relaxed);
    hapax_testkit::report!(
        "{taken} reloads taken, {bad} bad, {refused} refused; {} requests of {CLIENTS} clients, {} keys, {} replays, {} conflicts, \
         {} certificates; {} dropped, {} not run once, {} forgotten",
        count(&tally.sent),
        keys.len(),
        count(&tally.replayed),
        count(&tally.conflicts),
        certificates.len(),
        count(&tally.dropped),
        ledger.not_once().len(),
        forgotten.len(),
    );
    assert_eq!((count(&tally.dropped), count(&tally.different)), (0, 0));
    assert_eq!(ledger.not_once(), []);
    assert_eq!(forgotten, Vec::<String>::new());
    // The test proves nothing unless all of this happened.
    assert!(
        taken >= TAKEN && bad >= 5 && refused >= 5 && certificates.len() == 2,
        "{certificates:?}"
    );
    assert!(
        keys.len() > 1_000
            && count(&tally.replayed) > 500
            && keys.iter().all(|key| ledger.count(key) == 1)
    );
    for (result, expected) in [("ok", taken), ("bad", bad), ("refused", refused)] {
        assert_eq!(
            world
                .metric(&format!("hapax_reloads_total{{result=\"{result}\"}}"))
                .await,
            f64::from(expected),
            "{result}"
        );
    }
    world.gateway.drain().await;
}

/// Four configurations: routes that are added, removed and reordered, limits, timeouts,
/// certificates, pools, and another upstream.
fn good(one: &Service, two: &Service) -> [String; 4] {
    let tls = |name: &str| format!("[tls]\ncertificate = \"{name}.pem\"\nkey = \"{name}.key\"\n");
    let (a, b, one, two) = (tls("a"), tls("b"), one.url(), two.url());
    let drain = "[drain]\nnotice = \"0s\"\ndeadline = \"1s\"\n";
    let charges = "[[routes]]\nmethod = \"POST\"\npath = \"/v1/charges\"\nkey = \"required\"\n";
    let all = "[[routes]]\npath = \"/v1/**\"\nretention = \"48h\"\n";
    let one_charge =
        "[[routes]]\npath = \"/v1/{kind}\"\nwait = \"1s\"\nclasses = { \"503\" = \"unknown\" }\n";
    [
        format!("[upstream]\nurl = \"{one}\"\n{a}{drain}{charges}{all}"),
        format!(
            "[upstream]\nurl = \"{two}\"\n{b}{drain}[limits]\nconnections_max = 500\nheader_fields_max = 50\n{one_charge}{all}"
        ),
        format!(
            "[upstream]\nurl = \"{one}\"\nconnections_max = 64\n{a}{drain}[timeouts]\nconnect = \"2s\"\nkeep_alive = \"60s\"\n"
        ),
        format!(
            "trusted_proxies = [\"10.0.0.1\"]\n[upstream]\nurl = \"{one}\"\nidle_max = \"5s\"\n{b}{drain}{charges}{one_charge}"
        ),
    ]
}

const BAD: [&str; 4] = [
    "[upstream]\nurl = 7\n",
    "this is no TOML",
    "[upstream]\nurl = \"http://127.0.0.1:1\"\n[tls]\ncertificate = \"nowhere.pem\"\nkey = \"a.key\"\n",
    // The file exists but is not a certificate, which is found only when it is loaded.
    "[upstream]\nurl = \"http://127.0.0.1:1\"\n[tls]\ncertificate = \"a.key\"\nkey = \"a.pem\"\n",
];

/// Lines put before a valid configuration. Each would make retries run again.
const REFUSED: [&str; 2] = ["namespace = \"other\"\n", "principal = \"none\"\n"];

struct Client {
    number: usize,
    address: SocketAddr,
    tls: Arc<ClientConfig>,
    tally: Arc<Tally>,
    answered: Arc<watch::Sender<usize>>,
}

impl Client {
    /// Sends new keys, each followed by a repeat, and at times an old key. Returns its keys and the
    /// certificates it has seen.
    async fn run(self, stop: Arc<AtomicBool>) -> (Vec<String>, BTreeSet<Vec<u8>>) {
        let (mut keys, mut certificates): (Vec<String>, _) = (Vec::new(), BTreeSet::new());
        while !stop.load(Ordering::Relaxed) {
            let mut connection = harness::Client::new(self.address)
                .tls(Some(self.tls.clone()))
                .connect()
                .await
                .unwrap();
            certificates.extend(connection.certificate.clone());
            for turn in 0..REQUESTS_PER_CONNECTION / 3 {
                // Two clients share the same keys, so that one may meet the other's running
                // attempt.
                let key = format!("c{}-{}", self.number / 2, keys.len());
                keys.push(key.clone());
                let first = self.until_done(&mut connection, &key).await;
                let again = self.until_done(&mut connection, &key).await;
                self.tally
                    .different
                    .fetch_add(usize::from(first != again), Ordering::Relaxed);
                let old = keys[(turn * 7919) % keys.len()].clone();
                self.until_done(&mut connection, &old).await;
            }
        }
        (keys, certificates)
    }

    /// Repeats a request until it has its answer.
    async fn until_done(&self, connection: &mut Connection, key: &str) -> Option<String> {
        loop {
            self.tally.sent.fetch_add(1, Ordering::Relaxed);
            let got = connection.send(post("/v1/charges", key)).await;
            self.answered.send_modify(|answered| *answered += 1);
            match got {
                Ok(got) if got.status == 201 => {
                    self.tally
                        .replayed
                        .fetch_add(usize::from(got.is_replay()), Ordering::Relaxed);
                    return Some(got.text().to_owned());
                }
                Ok(got) if got.status == 409 => {
                    self.tally.conflicts.fetch_add(1, Ordering::Relaxed);
                }
                other => {
                    let why = other
                        .map_or_else(|why| why, |got| format!("{} {}", got.status, got.text()));
                    eprintln!("{key}: {why}");
                    self.tally.dropped.fetch_add(1, Ordering::Relaxed);
                    return None;
                }
            }
        }
    }
}

/// The keys whose repeats are not replayed.
async fn forgotten(world: &World, authority: &Authority, keys: &BTreeSet<String>) -> Vec<String> {
    let mut connection = harness::Client::new(world.gateway.address())
        .tls(Some(authority.client(b"http/1.1")))
        .connect()
        .await
        .unwrap();
    let mut forgotten = Vec::new();
    for key in keys {
        let got = connection.send(post("/v1/charges", key)).await.unwrap();
        if got.status != 201 || !got.is_replay() || !got.text().contains(&format!(" {key} effect "))
        {
            forgotten.push(format!("{key}: {} {}", got.status, got.text()));
        }
    }
    forgotten
}
