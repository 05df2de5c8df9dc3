//! The store contract, case by case, on everything that speaks Redis' protocol.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use hapax_contract::Bench;
use hapax_core::store::Lifetime;
use hapax_core::{Fence, State, Store};
use hapax_testkit::servers::{self, RedisProgram};

use crate::place;

/// One test for each case, on the store that `$make` returns, if it returns one.
macro_rules! tests {
    ([$make:path] $($module:ident { $($case:ident)* })*) => {
        $($(
            #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
            async fn $case() {
                if let Some(bench) = $make().await {
                    hapax_contract::run(stringify!($case), bench).await;
                }
            }
        )*)*
    };
}

mod on_redis {
    hapax_contract::__store_contract_cases! { [tests] [super::one_server] }
}

mod on_the_oldest_redis {
    hapax_contract::__store_contract_cases! { [tests] [super::oldest_redis] }
}

mod on_valkey {
    hapax_contract::__store_contract_cases! { [tests] [super::one_valkey] }
}

mod behind_sentinels {
    hapax_contract::__store_contract_cases! { [tests] [super::sentinels] }
}

mod in_a_cluster {
    hapax_contract::__store_contract_cases! { [tests] [super::cluster] }
}

async fn one_server() -> Option<Bench> {
    Some(place::shared_bench(&servers::Redis::shared()?.url()).await)
}

async fn oldest_redis() -> Option<Bench> {
    static OLDEST: OnceLock<Option<servers::Redis>> = OnceLock::new();
    shared_by_tests(&OLDEST, RedisProgram::OldestRedis).await
}

async fn one_valkey() -> Option<Bench> {
    static VALKEY: OnceLock<Option<servers::Redis>> = OnceLock::new();
    shared_by_tests(&VALKEY, RedisProgram::Valkey).await
}

async fn shared_by_tests(
    server: &'static OnceLock<Option<servers::Redis>>,
    program: RedisProgram,
) -> Option<Bench> {
    let start = || servers::Redis::start_with(program, &[], &[]);
    let server = server.get_or_init(start).as_ref()?;
    Some(place::shared_bench(&server.url()).await)
}

async fn sentinels() -> Option<Bench> {
    static SENTINELS: OnceLock<Option<servers::RedisSentinel>> = OnceLock::new();
    let sentinels = SENTINELS.get_or_init(|| servers::RedisSentinel::start(&[]));
    Some(place::shared_bench(&sentinels.as_ref()?.url()).await)
}

async fn cluster() -> Option<Bench> {
    static CLUSTER: OnceLock<Option<servers::RedisCluster>> = OnceLock::new();
    let cluster = CLUSTER.get_or_init(|| servers::RedisCluster::start(false, &[]));
    Some(place::shared_bench(&cluster.as_ref()?.url()).await)
}

/// Cases that need a year, or a store that no other test sweeps.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_takes_a_year_or_solitude_holds_by_a_hand_turned_clock() {
    for case in [
        "a_sweep_removes_entries_that_are_too_old_and_no_others",
        "a_sweep_touches_no_more_than_its_limit",
        "a_second_sweep_finds_nothing",
        "a_sweep_buries_what_is_past_its_retention",
        "fences_grow_across_removal_though_the_clock_stands",
        "fences_grow_faster_than_the_clock_if_they_must",
    ] {
        let Some(store) = place::ByHand::open().await else {
            return;
        };
        let clock = store.clock();
        let bench = Bench::by_hand(Arc::new(store), clock);
        hapax_contract::run(case, bench).await;
    }
}

/// Redis itself remembers the highest fence: the node that minted it may be gone.
#[tokio::test(flavor = "multi_thread")]
async fn fences_grow_across_removal_on_another_node_though_the_clock_stands() {
    let Some(store) = place::ByHand::open().await else {
        return;
    };
    let one = place::open(&store.url()).await;
    let at_once = Lifetime {
        retention: Duration::ZERO,
        tombstone: Duration::ZERO,
    };
    let mut highest = Fence::ZERO;
    for _ in 0..3 {
        let head = place::claimed(&one, "a").await;
        assert!(head.fence > highest);
        highest = head.fence;
        place::end_for(&one, &head, State::Retryable, None, at_once).await;
    }
    assert_eq!(one.sweep(10).await.expect("sweep").removed, 1);
    let other = place::open(&store.url()).await;
    assert!(place::claimed(&other, "a").await.fence > highest);
}
