//! Redis itself is killed and restarted under load, with each way of saving.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use hapax::{BoxError, Done, Once, Operation, Rejection, RunError};
use hapax_testkit::random::Random;
use hapax_testkit::servers;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinHandle;

use super::campaign::{alone, noticed, present, size};
use super::shop::{Books, Load, Replays, Shop, record, spread};
use super::watched::Watched;

/// Callers at each of the two nodes.
const CALLERS: usize = 8;
/// At most so many charges between two kills.
const BETWEEN_MAX: usize = 120;
/// Kills are repeated until this many writes were hit in flight.
const STRUCK_MIN: u64 = 4;
const KILLS_MAX: usize = 20;

const ALWAYS: &[(&str, &str)] = &[("appendonly", "yes"), ("appendfsync", "always")];
const EVERY_SECOND: &[(&str, &str)] = &[("appendonly", "yes"), ("appendfsync", "everysec")];
const NEVER: &[(&str, &str)] = &[("appendonly", "no")];

/// What was counted.
struct Verdict {
    /// Acknowledged before a kill, and there after it.
    survived: usize,
    /// Acknowledged before a kill, and gone after it.
    gone: usize,
    replays: Replays,
    /// Keys that ran more than once.
    ran_twice: usize,
}

/// Kills Redis under load, again and again, and counts what it has lost.
async fn campaign(saves: &str, settings: &[(&str, &str)]) -> Option<Verdict> {
    let _alone = alone().await;
    let mut server = servers::Redis::start(settings)?;
    let mut random = Random::from_env(2);
    let books = Arc::new(Books::default());
    let nodes = [
        Watched::open(&server.url()).await,
        Watched::open(&server.url()).await,
    ];
    let shops = nodes.clone().map(|node| Shop::on(node, &books));
    let load = Load::start(&shops, CALLERS, spread);
    let kills_min = size(4, 100);
    let struck = || nodes.iter().map(|node| node.struck()).sum::<u64>();
    let (mut kills, mut judged) = (0, 0);
    // With the number of effects that they had then.
    let mut survivors = HashMap::new();
    let mut gone = 0;
    while kills < kills_min || (struck() < STRUCK_MIN && kills < KILLS_MAX) {
        books.more(1 + random.below(BETWEEN_MAX)).await;
        let acknowledged = books.acknowledged_from(judged);
        judged += acknowledged.len();
        nodes.iter().for_each(|node| node.fault());
        tokio::task::block_in_place(|| {
            server.kill();
            server.restart();
            let ids: Vec<_> = acknowledged.iter().map(|key| record(key)).collect();
            let present = present(&server, &ids);
            for (key, id) in acknowledged.into_iter().zip(&ids) {
                if present.contains(id) {
                    let effects = books.effects(&key);
                    survivors.insert(key, effects);
                } else {
                    gone += 1;
                }
            }
        });
        kills += 1;
        noticed(&nodes, kills as u64).await;
    }
    books.more(BETWEEN_MAX).await;
    load.end().await;

    books.judge_fences();
    let replays = books.replay_all(Watched::open(&server.url()).await).await;
    let ran_twice = books.ran_twice();
    let failed: u64 = nodes.iter().map(|node| node.failed()).sum();
    hapax_testkit::report!(
        "redis_kills, saves {saves}: {kills} kills, which struck {} writes in flight; {failed} writes failed; {} acknowledged, of which {} survived and {gone} were gone right after a kill; \
         {} replayed byte for byte, {} ran again, {} held as unknown; {} keys had two effects; {} refusals; each node noticed each kill",
        struck(),
        books.acknowledged(),
        survivors.len(),
        replays.same,
        replays.ran_again,
        replays.held,
        ran_twice.len(),
        books.refused(),
    );
    assert!(struck() > 0, "void: no kill struck a write in flight");
    for (key, effects) in &survivors {
        let now = books.effects(key);
        assert_eq!(now, *effects, "{key} ran again, though its record survived");
    }
    Some(Verdict {
        survived: survivors.len(),
        gone,
        replays,
        ran_twice: ran_twice.len(),
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_saves_always_loses_nothing_when_it_is_killed() {
    let Some(verdict) = campaign("always", ALWAYS).await else {
        return;
    };
    assert_eq!(
        (verdict.gone, verdict.replays.lost(), verdict.ran_twice),
        (0, 0, 0),
        "gone, lost, run twice"
    );
}

/// Redis hands the system its writes before it confirms them, and the system keeps them when only
/// the process is killed. But while a sync is under way, Redis holds writes back for up to two
/// seconds, and has confirmed them already.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_saves_every_second_loses_at_most_its_last_writes_when_it_is_killed() {
    let Some(verdict) = campaign("every second", EVERY_SECOND).await else {
        return;
    };
    assert!(
        verdict.survived > 10 * verdict.gone,
        "{} survived and {} are gone",
        verdict.survived,
        verdict.gone
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_saves_nothing_loses_every_record_and_each_node_notices() {
    let Some(verdict) = campaign("nothing", NEVER).await else {
        return;
    };
    assert!(verdict.gone > 0, "void: there was nothing to lose");
    assert_eq!(verdict.survived, 0, "it saves nothing");
    assert!(
        verdict.replays.ran_again >= verdict.gone,
        "what is gone runs again: {:?}",
        verdict.replays
    );
    assert_eq!(verdict.replays.held, 0);
}

/// An attempt that a test lets end.
struct Held {
    ran: JoinHandle<Result<Done<Bytes>, RunError>>,
    end: Arc<Semaphore>,
}

impl Held {
    /// Sends the key until its work runs. Returns the attempt with its fence, or the rejection if
    /// the work does not run.
    async fn begin(once: &Once, name: &'static str) -> Result<(Held, u64), Rejection> {
        loop {
            let end = Arc::new(Semaphore::new(0));
            let (began, mut begun) = mpsc::unbounded_channel();
            let work = {
                let end = end.clone();
                async move |operation: Operation| {
                    began.send(operation.fence().as_u64()).expect("the test");
                    end.acquire().await.expect("never closed").forget();
                    Ok::<_, BoxError>(Bytes::from(name))
                }
            };
            let once = once.clone();
            let ran = tokio::spawn(async move { once.run("key", "request", work).await });
            if let Some(fence) = begun.recv().await {
                return Ok((Held { ran, end }, fence));
            }
            match ran.await.expect("no panic") {
                // The first call may meet the connection that was cut.
                Err(RunError::Rejected(Rejection::StoreUnavailable)) => {}
                Err(RunError::Rejected(rejection)) => return Err(rejection),
                other => panic!("the work did not run, and still: {other:?}"),
            }
        }
    }

    async fn end(self) -> Result<Bytes, RunError> {
        self.end.add_permits(1);
        self.ran.await.expect("no panic").map(|done| done.value)
    }
}

async fn two_nodes(server: &servers::Redis) -> [Shop; 2] {
    let books = Arc::default();
    [
        Shop::on(Watched::open(&server.url()).await, &books),
        Shop::on(Watched::open(&server.url()).await, &books),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attempt_whose_record_was_lost_does_not_complete_the_record_that_came_after_it() {
    let _alone = alone().await;
    let Some(mut server) = servers::Redis::start(NEVER) else {
        return;
    };
    let [first, second] = two_nodes(&server).await;
    let (old, old_fence) = Held::begin(first.once(), "old").await.expect("a new key");
    tokio::task::block_in_place(|| {
        server.kill();
        server.restart();
    });
    let begun = Held::begin(second.once(), "new").await;
    let (new, new_fence) = begun.expect("the record is lost");
    assert!(new_fence > old_fence, "{new_fence} after {old_fence}");
    let ended = old.end().await;
    assert!(
        matches!(ended, Err(RunError::Rejected(Rejection::InFlight { .. }))),
        "the old attempt ended as {ended:?}"
    );
    assert_eq!(new.end().await.expect("it holds its record"), "new");
    for shop in [&first, &second] {
        assert_eq!(replay(shop).await, "new");
    }
    hapax_testkit::report!(
        "redis_kills, lost record: 1 kill between an effect and its end; 2 effects; the old fence completed nothing"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attempt_ends_after_a_restart_of_a_redis_that_has_kept_its_record() {
    let _alone = alone().await;
    let Some(mut server) = servers::Redis::start(ALWAYS) else {
        return;
    };
    let [first, second] = two_nodes(&server).await;
    let (old, _) = Held::begin(first.once(), "old").await.expect("a new key");
    tokio::task::block_in_place(|| {
        server.kill();
        server.restart();
    });
    let refused = Held::begin(second.once(), "new").await.err();
    assert!(
        matches!(refused, Some(Rejection::InFlight { .. })),
        "{refused:?}"
    );
    assert_eq!(old.end().await.expect("it holds its record"), "old");
    for shop in [&first, &second] {
        assert_eq!(replay(shop).await, "old");
    }
    hapax_testkit::report!(
        "redis_kills, kept record: 1 kill between an effect and its end; 1 effect"
    );
}

async fn replay(shop: &Shop) -> Bytes {
    let work = async |_| -> Result<Bytes, BoxError> { panic!("the key ran again") };
    let done = shop.once().run("key", "request", work).await;
    done.expect("the answer is kept").value
}
