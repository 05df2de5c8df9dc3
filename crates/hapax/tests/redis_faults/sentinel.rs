//! The master is killed under load, again and again, and sentinels promote a replica.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hapax::store::redis::Options;
use hapax_testkit::random::Random;
use hapax_testkit::servers;

use super::campaign::{STUCK, alone, noticed, size};
use super::shop::{Books, Load, Shop, spread};
use super::watched::Watched;

/// Callers at each of the two nodes.
const CALLERS: usize = 6;
/// At most so many charges between two kills.
const BETWEEN_MAX: usize = 100;
/// Charges that replicas that are cut off do not get.
const UNREPLICATED: usize = 10;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failovers_are_noticed_and_what_they_lose_is_counted() {
    campaign(0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failovers_lose_no_acknowledged_answer_that_a_replica_has_confirmed() {
    campaign(1).await;
}

async fn campaign(replicas: u32) {
    let _alone = alone().await;
    let settings = [("appendonly", "yes")];
    let Some(mut group) = servers::RedisSentinel::start(&settings) else {
        return;
    };
    let mut random = Random::from_env(3);
    let books = Arc::new(Books::default());
    let nodes = [open(&group, replicas).await, open(&group, replicas).await];
    let shops = nodes.clone().map(|node| Shop::on(node, &books));
    let failovers = size(2, 50);
    let (mut behind, mut away) = (0, Duration::ZERO);
    for failover in 1..=failovers {
        let name = move |caller: &str, number| spread(&format!("{failover}-{caller}"), number);
        let load = Load::start(&shops, CALLERS, name);
        books.more(1 + random.below(BETWEEN_MAX)).await;
        // Replicas on the same machine lag so little that a kill rarely finds anything that they
        // lack. So every second time they are cut off from the last writes.
        let lags = failover % 2 == 0;
        let begun = Instant::now();
        if lags {
            behind += 1;
            let stopped = cut_off_replicas(&group);
            unreplicated(&nodes, &books, replicas).await;
            kill_master(&mut group, &nodes);
            for address in stopped {
                group.redis(address).resume();
            }
        } else {
            kill_master(&mut group, &nodes);
        }
        tokio::task::block_in_place(|| group.wait_for_failover());
        books.more(1).await;
        away = away.max(begun.elapsed());
        noticed(&nodes, failover as u64).await;
        books.more(BETWEEN_MAX).await;
        // Servers take seconds to find each other. Load would only add keys meanwhile.
        load.end().await;
        tokio::task::block_in_place(|| group.restart_dead());
    }

    books.judge_fences();
    let replays = books.replay_all(open(&group, replicas).await).await;
    let sum = |of: fn(&Watched) -> u64| nodes.iter().map(|node| of(node)).sum::<u64>();
    let struck = sum(Watched::struck);
    hapax_testkit::report!(
        "sentinel, replicas = {replicas}: {failovers} failovers, {behind} with replicas that lacked the last writes; they struck {struck} writes in flight; each node noticed each; \
         {} acknowledged: {} replayed byte for byte, {} ran again, {} held as unknown; {} keys had two effects; {} writes not confirmed by a replica; {} refusals; \
         away for {away:?} at the longest",
        books.acknowledged(),
        replays.same,
        replays.ran_again,
        replays.held,
        books.ran_twice().len(),
        sum(|node| node.stats().unreplicated),
        books.refused(),
    );
    assert!(struck > 0, "void: no failover struck a write in flight");
    if replicas > 0 {
        assert_eq!(
            replays.lost(),
            0,
            "acknowledged answers that a replica had confirmed: {replays:?}"
        );
    }
}

async fn open(group: &servers::RedisSentinel, replicas: u32) -> Arc<Watched> {
    let mut options = Options::best_effort(&group.url()).expect("an address");
    options.replicas = replicas;
    Watched::open_with(options).await
}

fn kill_master(group: &mut servers::RedisSentinel, nodes: &[Arc<Watched>]) {
    nodes.iter().for_each(|node| node.fault());
    tokio::task::block_in_place(|| group.kill_master());
}

/// Cuts the replicas off from the master, and stops them so that they stay so. Returns their
/// addresses.
fn cut_off_replicas(group: &servers::RedisSentinel) -> Vec<SocketAddr> {
    tokio::task::block_in_place(|| {
        let master = group.redis(group.master());
        // A line for the role, one for the offset, and three for each replica: its host, its port
        // and its offset.
        let role = master.cli(&["ROLE"]);
        let lines: Vec<&str> = role.lines().skip(2).collect();
        let replicas = lines.chunks_exact(3);
        let addresses = replicas.map(|replica| format!("{}:{}", replica[0], replica[1]));
        let addresses: Vec<SocketAddr> = addresses
            .map(|address| address.parse().expect("an address"))
            .collect();
        assert_eq!(addresses.len(), 2, "{role}");
        for address in &addresses {
            group.redis(*address).pause();
        }
        // What is sent to a stopped process waits for it, also after the sender is killed.
        master.cli(&["CLIENT", "KILL", "TYPE", "replica"]);
        addresses
    })
}

/// Waits until the master has writes that no replica has.
async fn unreplicated(nodes: &[Arc<Watched>], books: &Books, replicas: u32) {
    if replicas == 0 {
        return books.more(UNREPLICATED).await;
    }
    // Nothing is acknowledged now.
    let count = || -> u64 { nodes.iter().map(|node| node.stats().unreplicated).sum() };
    let before = count();
    let waited = tokio::time::timeout(STUCK, async {
        while count() == before {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    waited.await.expect("writes are not confirmed");
}
