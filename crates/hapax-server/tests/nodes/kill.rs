//! SIGKILL at every named point, for three nodes behind a load balancer that retries failed
//! requests.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hapax_server::config::Protocol;
use hapax_testkit::crash;
use hapax_testkit::servers::{HaProxy, Port, Postgres};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use super::caller::{Told, go_on_and_on};
use super::harness;
use super::harness::charges::{Charge, Charged, Ledger, Upstream, answer};
use super::harness::node::{self, NodeSettings};
use super::hunter::Killer;
use super::point::Point;
use super::sluice::{self, CommitGates};
use hapax_testkit::random::Random;

/// The total number of kills; `HAPAX_KILLS` overrides this.
const KILLS: usize = 1_000;
const NODES: usize = 3;
/// Callers that send through the balancer the whole time.
const STEADY: usize = 3;
/// Short, because a killed node holds its keys this long; long enough for a busy machine to renew
/// in time.
const LEASE: Duration = Duration::from_millis(1_500);
/// The number of concurrent repeats at the end.
const AT_ONCE: usize = 32;

const TEST: &str = "kill::no_key_is_dispatched_twice_whichever_node_is_killed_wherever";

#[test]
fn no_key_is_dispatched_twice_whichever_node_is_killed_wherever() {
    if crash::role().is_some() {
        return node::serve();
    }
    let Some(postgres) = Postgres::shared() else {
        return;
    };
    let ports: Vec<Port> = (0..NODES).map(|_| Port::free()).collect();
    let nodes: Vec<SocketAddr> = ports.iter().map(Port::address).collect();
    let Some(balancer) = HaProxy::in_front_of(&nodes) else {
        return;
    };
    let store = harness::migrated(postgres);
    postgres.psql(harness::database_name(&store), sluice::MAKE);
    let upstream = Upstream::start(&[Protocol::Http1; NODES]);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let births = |number: usize| NodeSettings {
        test: TEST,
        // The name by which the database's triggers recognize the node.
        store: format!("{store}?application_name=node-{number}"),
        upstream: upstream.address(number),
        protocol: Protocol::Http1,
        listen: nodes[number],
        lease: LEASE,
    };

    let begun = Instant::now();
    let kills = std::env::var("HAPAX_KILLS")
        .map_or(KILLS, |kills| kills.parse().unwrap())
        .div_ceil(NODES);
    let stop = Arc::new(AtomicBool::new(false));
    let steady: Vec<_> = (0..STEADY)
        .map(|caller| {
            runtime.spawn(go_on_and_on(
                format!("steady-{caller}"),
                balancer.address(),
                stop.clone(),
            ))
        })
        .collect();
    let hunters: Vec<Killer<'_>> = (0..NODES)
        .map(|number| Killer {
            birth: births(number),
            number,
            upstream: &upstream,
            sluices: runtime.block_on(CommitGates::of(number, &store)),
            balancer: balancer.address(),
            others: nodes
                .iter()
                .copied()
                .filter(|node| *node != nodes[number])
                .collect(),
            runtime: runtime.handle().clone(),
            random: Random::from_env(number as u64),
            start_took: Duration::from_millis(100),
            prey: Vec::new(),
        })
        .collect();
    let mut verdicts = Verdicts::default();
    let prey = std::thread::scope(|scope| {
        let hunts: Vec<_> = hunters
            .into_iter()
            .map(|hunter| scope.spawn(move || hunt(hunter, kills)))
            .collect();
        hunts
            .into_iter()
            .map(|hunt| hunt.join().expect("a hunter's own words say why"))
            .collect::<Vec<_>>()
    });
    let killed_for = begun.elapsed();

    // No more kills: callers without a definite answer get one now.
    stop.store(true, Ordering::Relaxed);
    let (mut told, mut nodes) = (Vec::new(), Vec::new());
    for (killed, prey, node) in prey {
        nodes.push(node);
        killed
            .into_iter()
            .for_each(|point| verdicts.of(point.name()).kills += 1);
        for (point, caller) in prey {
            told.push((point.name(), runtime.block_on(caller).unwrap()));
        }
    }
    for caller in steady {
        told.extend(
            runtime
                .block_on(caller)
                .unwrap()
                .into_iter()
                .map(|told| ("meanwhile", told)),
        );
    }
    told.iter()
        .for_each(|(point, told)| verdicts.of(point).note(told));
    hapax_testkit::report!("{verdicts}");
    hapax_testkit::report!(
        "{} kills in {killed_for:.1?}; HAProxy sent {} requests again; {} keys in {:.1?} in all",
        verdicts.kills(),
        balancer.sent_again(),
        told.len(),
        begun.elapsed()
    );
    repeat_all(&runtime, balancer.address(), &told);
    judge(&upstream.ledger(), &told);
    verdicts.assert_not_void(kills * NODES);
    assert!(
        balancer.sent_again() > 0,
        "a balancer that sends nothing again tests nothing"
    );
}

/// Kills one node `kills` times, each time at the next point. Returns the points, the callers whose
/// requests were running, and the node, started once more: other nodes are still being killed, and
/// may need it.
fn hunt(
    mut hunter: Killer<'_>,
    kills: usize,
) -> (Vec<Point>, Vec<super::hunter::PendingCaller>, crash::Child) {
    // Each node begins at another point, so that they are killed at different points.
    let points = Point::ALL
        .iter()
        .cycle()
        .skip(hunter.number * Point::ALL.len() / NODES)
        .take(kills);
    let killed = points.map(|point| {
        hunter.kill_at(*point);
        *point
    });
    let killed = killed.collect();
    let (node, _) = hunter.birth.complete();
    (killed, hunter.prey, node)
}

/// Repeats every key: acknowledged answers are replayed, and unknown outcomes stay unknown unless
/// they were found to have ended.
fn repeat_all(runtime: &Runtime, balancer: SocketAddr, told: &[(&str, Told)]) {
    runtime.block_on(async {
        let mut repeats = JoinSet::new();
        for (_, told) in told {
            if repeats.len() >= AT_ONCE {
                repeats.join_next().await.unwrap().unwrap();
            }
            let (charge, first) = (Charge::new(&told.key), told.answer.clone());
            repeats.spawn(async move {
                let again = answer(balancer, &charge).await;
                match first.is_charged() {
                    true => again.assert_replays(&first),
                    false => assert!(
                        again.is_unknown() || again.is_charged() && again.is_replay(),
                        "{} got {again:?}",
                        charge.key
                    ),
                }
            });
        }
        repeats.join_all().await;
    });
}

/// Checks the ledger: at most one dispatch for each key, exactly one effect for each that was
/// answered with success.
fn judge(ledger: &Ledger, told: &[(&str, Told)]) {
    ledger.assert_none_twice();
    for (_, told) in told.iter().filter(|(_, told)| told.answer.is_charged()) {
        assert_eq!(
            ledger.effects_of(&told.key),
            1,
            "{} was answered with success",
            told.key
        );
    }
}

/// For each point of a kill, what happened to the keys that were in flight there.
#[derive(Default)]
struct Verdicts(BTreeMap<&'static str, Verdict>);

#[derive(Default)]
struct Verdict {
    kills: usize,
    keys: usize,
    charged: usize,
    replayed: usize,
    unknown: usize,
    sent: usize,
}

impl Verdicts {
    fn of(&mut self, point: &'static str) -> &mut Verdict {
        self.0.entry(point).or_default()
    }

    fn kills(&self) -> usize {
        self.0.values().map(|verdict| verdict.kills).sum()
    }

    fn assert_not_void(&self, kills: usize) {
        assert_eq!(self.kills(), kills);
        for point in Point::ALL {
            let landed = self.0.get(point.name()).map_or(0, |verdict| verdict.kills);
            assert!(
                landed > 0,
                "no node was killed {:?}: this run shows nothing",
                point.name()
            );
        }
        let sum = |count: fn(&Verdict) -> usize| self.0.values().map(count).sum::<usize>();
        let (unknown, replayed) = (
            sum(|verdict| verdict.unknown),
            sum(|verdict| verdict.replayed),
        );
        assert!(
            unknown > 0 && replayed > 0,
            "a run without both of these shows nothing"
        );
    }
}

impl Verdict {
    fn note(&mut self, told: &Told) {
        self.keys += 1;
        self.sent += told.sent;
        match &told.answer {
            answer if answer.is_unknown() => self.unknown += 1,
            answer if answer.is_replay() => self.replayed += 1,
            _ => self.charged += 1,
        }
    }
}

impl fmt::Display for Verdicts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:>20} {:>6} {:>6} {:>8} {:>9} {:>8} {:>6}",
            "killed at", "kills", "keys", "charged", "replayed", "unknown", "sent"
        )?;
        let names = Point::ALL
            .iter()
            .map(|point| point.name())
            .chain(["meanwhile"]);
        for (name, verdict) in names.filter_map(|name| Some((name, self.0.get(name)?))) {
            let Verdict {
                kills,
                keys,
                charged,
                replayed,
                unknown,
                sent,
            } = verdict;
            write!(
                f,
                "\n{name:>20} {kills:>6} {keys:>6} {charged:>8} {replayed:>9} {unknown:>8} {sent:>6}"
            )?;
        }
        Ok(())
    }
}
