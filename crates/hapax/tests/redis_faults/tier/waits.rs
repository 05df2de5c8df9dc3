//! How long requests wait for Redis, and how long they do without it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use hapax::Postgres;
use hapax::store::tiered::{Options, Stats, Tiered};
use hapax_testkit::servers;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::chaos::wait_until;
use super::{Books, CACHE_TIMEOUT, MARGIN, Node, database, request, warm};
use crate::campaign::alone;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_was_away_for_a_moment_is_soon_used_again_however_many_calls_it_failed() {
    // The first pause of the breaker is half a second. The rest allows for a slow machine.
    const SOON: Duration = Duration::from_secs(2);
    const CALLERS: u64 = 16;
    let _alone = alone().await;
    let Some(url) = database().await else { return };
    let Some(redis) = servers::Redis::start(&[]) else {
        return;
    };
    let postgres = Postgres::open(&url).await.expect("a database");
    let tier = Arc::new(Tiered::new(postgres, &Options::new(redis.url())).expect("an address"));
    let books = Arc::new(Books::default());
    let node = Node::new(tier.clone(), &books, false);
    warm(&node, &tier).await;
    let mut callers = JoinSet::new();
    for number in 0..CALLERS {
        let node = node.clone();
        callers.spawn(async move {
            let key = format!("key-{number}");
            let answer = node.charge(&key).await;
            while !node.books.is_over() {
                let repeated = node.send(&key, &request(&key)).await;
                assert_eq!(repeated, Ok((answer.clone(), true)));
            }
        });
    }
    let away = tokio::task::block_in_place(|| {
        wait_until("repeats are answered from Redis", || {
            tier.stats().hits > 1_000 && !tier.stats().is_left_alone
        });
        redis.pause();
        wait_until("Redis is left alone", || tier.stats().is_left_alone);
        // Every call that is under way fails within this time.
        std::thread::sleep(2 * CACHE_TIMEOUT);
        redis.resume();
        let begun = Instant::now();
        wait_until("Redis is used again", || !tier.stats().is_left_alone);
        begun.elapsed()
    });
    books.is_over.store(true, Ordering::SeqCst);
    callers.join_all().await;
    let Stats {
        failures,
        left_alone,
        hits,
        ..
    } = tier.stats();
    hapax_testkit::report!(
        "tier, one pause of Redis: {failures} calls failed, {left_alone} were left out, {hits} hits; it was used again after {away:?}"
    );
    assert!(away < SOON, "it was left alone for {away:?} after a moment");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_that_do_not_answer_cost_a_request_no_more_than_the_time_of_one_call() {
    let _alone = alone().await;
    let Some(url) = database().await else { return };
    // The system completes connections to them, and nobody reads what they are sent.
    let mut silent = Vec::new();
    for _ in 0..3 {
        silent.push(TcpListener::bind("127.0.0.1:0").await.expect("a port"));
    }
    let addresses: Vec<_> = silent
        .iter()
        .map(|listener| listener.local_addr().expect("an address").to_string())
        .collect();
    let address = format!("redis+sentinel://{}/hapax", addresses.join(","));
    let postgres = Postgres::open(&url).await.expect("a database");
    let tier = Arc::new(Tiered::new(postgres, &Options::new(address)).expect("an address"));
    let node = Node::new(tier.clone(), &Arc::default(), false);
    let begun = Instant::now();
    // The first request learns what makes the next one look into Redis.
    for key in ["first", "second"] {
        node.charge(key).await;
    }
    let took = begun.elapsed();
    let failures = tier.stats().failures;
    hapax_testkit::report!(
        "tier, silent sentinels: {failures} calls failed; two requests took {took:?}"
    );
    assert!(failures > 0, "void: Redis was not asked");
    assert!(took < CACHE_TIMEOUT + MARGIN, "two requests took {took:?}");
}
