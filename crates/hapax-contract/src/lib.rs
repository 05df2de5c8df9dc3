//! The store contract as a suite.
//!
//! Every promise of [`hapax_core::store`] that can be observed from outside is a [`Case`]: a name
//! that is a sentence, and a function that panics when a store breaks the promise.
//! [`store_contract!`] makes a test of each; a program that checks a live store iterates over
//! [`CASES`] itself.
//!
//! Every case uses its own records, so all of them can share one store. Times that must not run out
//! in a case are an hour and times that must run out are milliseconds: a slow store in real time
//! gives the same verdict as a fast one under a manual clock. The namespaces of all cases begin
//! with [`NAMESPACE`]; [`Tidy`] removes what they leave in a store that others use.
//!
//! A store joins the suite with one line. The crate that does so needs `tokio` with `macros` and
//! `rt-multi-thread`.
//!
//! ```
//! use std::sync::Arc;
//!
//! use hapax_contract::{Bench, ManualClock, store_contract};
//! use hapax_core::{Memory, Secret};
//!
//! async fn memory() -> Bench {
//!     let clock = ManualClock::new();
//!     let store = Memory::new(Arc::new(clock.clone()), Secret::from_bytes([7; 32]));
//!     Bench::by_hand(Arc::new(store), clock)
//! }
//!
//! store_contract!(memory);
//! # fn main() {}
//! ```
//!
//! A store with its own clock that all cases share is marked as shared and tested in real time:
//!
//! ```
//! # use std::sync::Arc;
//! # use hapax_core::Store;
//! use hapax_contract::Bench;
//!
//! fn bench(live: Arc<dyn Store>) -> Bench {
//!     Bench::in_real_time(live).shared()
//! }
//! ```

mod bench;
mod subject;
mod tidy;

mod audit;
mod claim;
mod counts;
mod fence;
mod held;
mod lapsed;
mod operator;
mod race;
mod reading;
mod renew;
mod storage;
mod sweep;

use std::pin::Pin;

pub use bench::Bench;
// Cases turn it.
pub use hapax_core::time::ManualClock;
pub use subject::NAMESPACE;
pub use tidy::{Left, Tidy};

/// One promise of the contract.
#[derive(Clone, Copy)]
pub struct Case {
    /// The promise as a sentence, spelled as a test's name.
    pub name: &'static str,
    /// Which part of the contract it belongs to.
    pub part: &'static str,
    /// Panics if the store does not keep the promise.
    pub run: fn(Bench) -> Verdict,
}

/// The future of a case: it completes if the promise is kept, and panics otherwise.
pub type Verdict = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Runs the case with this name. The tests of [`store_contract!`] call it.
pub async fn run(name: &str, bench: Bench) {
    let case = CASES
        .iter()
        .find(|case| case.name == name)
        .unwrap_or_else(|| panic!("the contract has no case {name:?}"));
    (case.run)(bench).await;
}

/// Makes a module `store_contract` with a test for every case.
///
/// `make` is an async function or closure without arguments that returns a [`Bench`]; each case
/// calls it once. See the [crate's example](crate).
#[macro_export]
macro_rules! store_contract {
    ($make:expr) => {
        $crate::__store_contract_cases! { [$crate::__store_contract_tests] [$make] }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __store_contract_tests {
    ([$make:expr] $($module:ident { $($case:ident)* })*) => {
        mod store_contract {
            #[allow(unused_imports)]
            use super::*;

            $($(
                // Several threads, so that concurrent writes really race.
                #[::tokio::test(flavor = "multi_thread", worker_threads = 4)]
                async fn $case() {
                    $crate::run(stringify!($case), ($make)().await).await;
                }
            )*)*
        }
    };
}

/// Passes the list of cases by module to `[$then]`, after `[$with]`. Cases are declared only here.
#[doc(hidden)]
#[macro_export]
macro_rules! __store_contract_cases {
    ([$($then:tt)*] [$($with:tt)*]) => {
        $($then)*! {
            [$($with)*]
            claim {
                a_first_claim_wins
                a_second_claim_loses_and_sees_the_first
                a_claim_of_a_completed_record_loses_and_sees_its_answer
                a_claim_sent_twice_finds_its_own_token
                a_lapsed_or_released_record_is_not_absent
                a_standing_tombstone_is_not_absent
                a_record_whose_tombstone_is_over_is_as_good_as_absent
                an_unresolved_record_is_never_as_good_as_absent
                records_of_two_scopes_do_not_meet
            }
            held {
                an_attempt_completes_its_record
                an_attempt_ends_in_nothing_but_an_end
                a_definitive_refusal_is_kept_as_failed
                an_answer_that_is_not_kept_leaves_its_status
                an_attempt_releases_its_record
                an_attempt_may_say_that_it_does_not_know
                a_finish_with_a_wrong_fence_is_refused
                a_finish_of_an_absent_record_is_refused
                a_finish_after_a_takeover_is_refused
                a_lapsed_attempt_may_still_complete
                a_lost_attempt_may_still_complete
                a_lost_attempt_may_still_complete_after_retention
                a_lost_attempt_may_still_release
                a_released_attempt_cannot_complete
                a_completion_sent_twice_is_refused_and_finds_its_own
                a_completed_answer_is_never_replaced
            }
            lapsed {
                a_live_lease_cannot_be_taken_over
                a_lapsed_lease_can_be_taken_over
                a_released_record_can_be_taken_over
                an_unknown_record_can_be_taken_over
                nothing_is_taken_over_after_retention
                a_completed_record_is_never_lapsed
                a_takeover_with_a_wrong_fence_is_refused
                a_takeover_of_an_absent_record_is_refused
                a_takeover_leaves_nothing_of_what_was_kept
                a_lease_is_over_by_the_stores_own_now
                a_lapsed_attempt_is_written_down_as_lost
                a_live_attempt_is_not_written_down_as_lost
                only_a_running_record_is_written_down_as_lost
                a_request_id_stays_until_the_next_attempt
            }
            operator {
                an_unknown_is_settled_as_completed
                an_unknown_settled_as_retryable_may_be_tried_again
                a_lapsed_attempt_nobody_wrote_down_can_be_settled
                an_unknown_past_retention_can_be_settled
                a_settlement_bars_the_lost_attempt
                what_is_not_unknown_cannot_be_settled
                a_settlement_must_state_an_outcome
                a_settlement_of_a_stale_version_is_refused
                a_forgotten_record_keeps_only_its_tombstone
                forgetting_raises_the_epoch
                nothing_but_forgetting_raises_the_epoch
                a_running_record_cannot_be_forgotten
                a_lapsed_record_can_be_forgotten_but_stays_unknown
                a_forgetting_of_a_stale_version_is_refused
                a_forgotten_record_bars_new_claims_while_its_tombstone_stands
                a_forgotten_unknown_can_neither_be_settled_nor_completed
                no_other_pair_of_condition_and_change_is_a_transition
            }
            audit {
                a_settlement_and_a_forgetting_are_written_down
                an_entry_says_what_the_record_was_by_the_stores_clock
                a_change_that_lost_is_not_written_down
                what_attempts_do_is_not_written_down
                of_64_settlements_one_is_written_down
                a_note_is_written_down
                whoever_reads_on_misses_no_entry
                the_log_is_read_from_either_end
                a_page_of_the_log_is_bounded
                words_survive_whatever_they_are_made_of
            }
            renew {
                a_renewal_extends_the_lease_and_nothing_else
                a_renewed_lease_cannot_be_taken_over
                a_renewed_attempt_completes
                a_lapsed_lease_nobody_acted_on_can_be_renewed
                a_renewal_after_a_takeover_is_refused
                a_renewal_after_the_end_is_refused
                a_renewal_of_an_absent_record_is_refused
                renewals_of_a_batch_are_answered_one_by_one
            }
            fence {
                a_fence_is_near_the_stores_clock_and_fits_any_language
                fences_grow_with_every_takeover_settlement_and_forgetting
                fences_grow_faster_than_the_clock_if_they_must
                fences_grow_when_an_expired_record_is_claimed_anew
                versions_grow_when_an_expired_record_is_claimed_anew
                an_attempt_keeps_its_fence_to_its_end
            }
            storage {
                answers_survive_byte_for_byte
                a_loser_sees_the_answer_byte_for_byte
                fingerprints_survive_with_their_policies
                scopes_survive_whatever_they_are_made_of
                keys_survive_whatever_they_are_made_of
                attempt_tokens_survive
                request_ids_survive
                a_loss_survives_with_its_cause
            }
            reading {
                records_are_read_in_the_order_asked
                many_records_are_read_at_once
                heads_are_listed_by_id_in_pages
                heads_are_listed_by_state
                a_list_has_as_many_heads_as_asked_for
                the_stores_time_never_runs_back
                the_secret_stays_the_same
            }
            race {
                of_64_claims_one_wins
                of_64_takeovers_one_wins
                of_64_completions_only_the_holders_wins
                a_completion_and_a_takeover_never_both_win
                a_completion_and_a_settlement_never_both_win
                claims_of_different_records_all_win
                a_dropped_future_leaves_the_store_usable
            }
            sweep {
                a_sweep_writes_down_lapsed_attempts
                a_sweep_buries_what_is_past_its_retention
                a_sweep_removes_what_is_past_its_tombstone
                a_sweep_leaves_what_is_not_due
                a_sweep_never_removes_what_was_never_resolved
                a_sweep_touches_no_more_than_its_limit
                a_second_sweep_finds_nothing
                a_swept_attempt_may_still_complete
                a_buried_unknown_can_still_be_completed
                a_buried_unknown_can_still_be_settled
                a_forgotten_record_goes_when_its_tombstone_is_over
                entries_outlive_their_records
                a_sweep_removes_entries_that_are_too_old_and_no_others
                fences_grow_across_removal
                fences_grow_across_removal_though_the_clock_stands
            }
            counts {
                records_of_every_state_are_counted
                what_is_over_is_not_counted
                refused_records_are_counted_until_they_are_tried_again
                principals_are_known_until_their_time
            }
        }
    };
}

macro_rules! list {
    ([] $($module:ident { $($case:ident)* })*) => {
        /// Every case of the contract.
        pub const CASES: &[Case] = &[$($(
            Case {
                name: stringify!($case),
                part: stringify!($module),
                run: |bench| Box::pin(async move {
                    let _turn = bench.turn(matches!(stringify!($module), "sweep" | "counts")).await;
                    $module::$case(&bench).await;
                }),
            },
        )*)*];
    };
}

__store_contract_cases! { [list] [] }
