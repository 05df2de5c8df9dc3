//! Slots of a cluster move between its masters while their records are in use.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use hapax::Store;
use hapax_testkit::random::Random;
use hapax_testkit::servers;

use super::campaign::{STUCK, alone, size};
use super::shop::{Books, Load, Shop, record};
use super::watched::Watched;

/// Callers at each of the two nodes.
const CALLERS: usize = 8;
/// Charges before each move: enough that the partition has records.
const BETWEEN: usize = 200;
/// Requests that a move that stands still must refuse.
const REFUSED_MIN: u64 = 4;
/// A call of the store takes at most 1.5 seconds. The rest allows for a slow machine.
const FAILED_WITHIN: Duration = Duration::from_millis(2000);
/// A request gives up after two seconds at its claim, and after two more at its end.
const ANSWERED_WITHIN: Duration = Duration::from_millis(5000);
/// Partitions of records.
const PARTITIONS: u8 = 64;
const MASTERS: usize = 3;

/// Keys of which every second belongs to the partition that moves.
fn keys(hot: Arc<AtomicU8>) -> impl Fn(&str, usize) -> String + Clone + Send + 'static {
    move |caller, number| {
        let key = format!("{caller}-{number}");
        if number % 2 == 0 {
            return key;
        }
        let wanted = hot.load(Ordering::Relaxed);
        let mut tries = (0..).map(|extra: u32| format!("{key}-{extra}"));
        let is_wanted = |key: &String| record(key).as_bytes()[0] / 4 == wanted;
        tries.find(is_wanted).expect("one in 64 is")
    }
}

/// Announces a move and moves nothing. The old owner has some keys of a new record, those of the
/// partition, and lacks others: it refuses the calls.
fn begin_move(cluster: &servers::RedisCluster, slot: u16) {
    let from = cluster.owner_of(slot);
    let to = (from + 1) % MASTERS;
    let name = |number: usize| cluster.nodes()[number].cli(&["CLUSTER", "MYID"]);
    let set = |number: usize, state: &str, other: usize| {
        let (slot, other) = (slot.to_string(), name(other));
        cluster.nodes()[number].cli(&["CLUSTER", "SETSLOT", &slot, state, &other]);
    };
    set(to, "IMPORTING", from);
    set(from, "MIGRATING", to);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slots_that_move_under_load_cost_no_second_effect_and_no_answer() {
    let _alone = alone().await;
    let Some(cluster) = servers::RedisCluster::start(false, &[]) else {
        return;
    };
    let mut random = Random::from_env(4);
    let books = Arc::new(Books::default());
    let nodes = [
        Watched::open(&cluster.url()).await,
        Watched::open(&cluster.url()).await,
    ];
    let shops = nodes.clone().map(|node| Shop::on(node, &books));
    let hot = Arc::new(AtomicU8::new(0));
    let load = Load::start(&shops, CALLERS, keys(hot.clone()));
    let sent_again = || -> u64 { nodes.iter().map(|node| node.stats().sent_again).sum() };
    let failed = || -> u64 { nodes.iter().map(|node| node.failed()).sum() };
    let moves = size(3, 20);
    let (mut landed, mut stood_still, mut keys_moved) = (0, 0, 0);
    for number in 0..moves {
        let partition = random.below(PARTITIONS.into()) as u8;
        hot.store(partition, Ordering::Relaxed);
        books.more(BETWEEN).await;
        // The last one is that of the store as a whole.
        let slot = if number + 1 == moves {
            cluster.slot_of("hapax:{store}:store")
        } else {
            cluster.slot_of(&format!("hapax:{{{partition:02}}}:clock"))
        };
        let before = sent_again();
        let is_of_records = number + 1 < moves;
        if is_of_records && number % 3 == 0 {
            stood_still += 1;
            tokio::task::block_in_place(|| begin_move(&cluster, slot));
            let wanted = books.refused() + REFUSED_MIN;
            let waited = tokio::time::timeout(STUCK, async {
                while books.refused() < wanted {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            });
            assert!(
                waited.await.is_ok(),
                "a move that stands still refuses nothing"
            );
        }
        keys_moved += tokio::task::block_in_place(|| {
            let from = cluster.owner_of(slot);
            let count = ["CLUSTER", "COUNTKEYSINSLOT", &slot.to_string()];
            let count: usize = cluster.nodes()[from].cli(&count).parse().expect("a count");
            let other = (from + 1) % MASTERS;
            cluster.move_slot(slot, other);
            assert_eq!(cluster.owner_of(slot), other);
            count
        });
        // Enough that both nodes have used the slot: one in two keys is in it.
        books.more(BETWEEN).await;
        for node in &nodes {
            node.info().await.expect("the store goes on");
        }
        landed += usize::from(sent_again() > before);
    }
    load.end().await;

    let ran_twice = books.ran_twice();
    books.judge_fences();
    let replays = books.replay_all(Watched::open(&cluster.url()).await).await;
    let slowest = nodes.iter().map(|node| node.slowest_failure()).max();
    let slowest = slowest.expect("there are nodes");
    hapax_testkit::report!(
        "cluster: {moves} slots moved with {keys_moved} keys, {landed} of them under calls that had to be sent again ({} in all), {stood_still} stood still half-way; {} acknowledged: {} replayed byte for byte, {} ran again, {} held as unknown; \
         {} keys had two effects; {} writes failed, the slowest after {slowest:?}; {} refusals; the longest request took {:?}",
        sent_again(),
        books.acknowledged(),
        replays.same,
        replays.ran_again,
        replays.held,
        ran_twice.len(),
        failed(),
        books.refused(),
        books.longest(),
    );
    assert!(
        landed > 0 && keys_moved > 0 && books.refused() > 0,
        "void: no slot moved under a call"
    );
    assert_eq!(
        (ran_twice.len(), replays.lost()),
        (0, 0),
        "run twice, lost: {ran_twice:?}"
    );
    assert!(slowest < FAILED_WITHIN, "a write failed after {slowest:?}");
    let longest = books.longest();
    assert!(longest < ANSWERED_WITHIN, "a request took {longest:?}");
    for node in &nodes {
        assert_eq!(node.stats().failovers, 0, "a moved slot is no failover");
    }
}
