//! The store contract, case by case.

use std::sync::Arc;

use hapax_contract::{Bench, ManualClock};

use crate::company::Batched;
use crate::nodes::Nodes;
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

mod directly {
    hapax_contract::__store_contract_cases! { [tests] [super::directly_shared] }
}

mod through_pgbouncer {
    hapax_contract::__store_contract_cases! { [tests] [super::pooled] }
}

/// A batch takes another way through the database than one write alone, and two nodes meet there.
mod in_company {
    hapax_contract::__store_contract_cases! { [tests] [super::two_nodes_in_company] }
}

async fn directly_shared() -> Option<Bench> {
    Some(place::shared_bench(place::prepared_once().await?).await)
}

async fn pooled() -> Option<Bench> {
    Some(place::shared_bench(&place::pooled_once().await?).await)
}

async fn two_nodes_in_company() -> Option<Bench> {
    let url = place::prepared_once().await?;
    let nodes = Nodes::new([
        Batched(place::open(url).await),
        Batched(place::open(url).await),
    ]);
    Some(
        Bench::in_real_time(Arc::new(nodes))
            .shared()
            .dropping_in_bulk(),
    )
}

/// Cases that need a manual clock, or a store that no other test sweeps.
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
        let Some((_, url)) = place::prepared().await else {
            return;
        };
        let clock = ManualClock::new();
        let store = place::ByHand::open(&url, clock.clone()).await;
        hapax_contract::run(
            case,
            Bench::by_hand(Arc::new(store), clock).dropping_in_bulk(),
        )
        .await;
    }
}
