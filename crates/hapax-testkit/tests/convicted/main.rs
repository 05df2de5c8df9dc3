//! Tests the contract suite: each store with a known bug fails the case for that bug.

mod planted;

use std::sync::Arc;

use hapax_contract::{Bench, CASES, ManualClock};
use planted::{Bug, Planted};

/// Every bug, and a case that must detect it.
const CHARGES: &[(Bug, &str)] = &[
    (
        Bug::AbsentIsNotAsked,
        "a_second_claim_loses_and_sees_the_first",
    ),
    (Bug::CheckThenAct, "of_64_claims_one_wins"),
    (
        Bug::CheckThenAct,
        "a_completion_and_a_takeover_never_both_win",
    ),
    (
        Bug::LosersSeeNoAnswer,
        "a_claim_of_a_completed_record_loses_and_sees_its_answer",
    ),
    (
        Bug::LosersLeaveATrace,
        "a_claim_sent_twice_finds_its_own_token",
    ),
    (
        Bug::UnresolvedIsGone,
        "an_unresolved_record_is_never_as_good_as_absent",
    ),
    (Bug::UnfencedFinish, "a_finish_after_a_takeover_is_refused"),
    (Bug::LateIsLost, "a_lapsed_attempt_may_still_complete"),
    (
        Bug::LateIsLost,
        "a_lost_attempt_may_still_complete_after_retention",
    ),
    (
        Bug::UnconditionalTakeover,
        "a_live_lease_cannot_be_taken_over",
    ),
    (Bug::CompletedIsLapsed, "a_completed_record_is_never_lapsed"),
    (
        Bug::TakeoverOfAnyFence,
        "a_takeover_with_a_wrong_fence_is_refused",
    ),
    (
        Bug::TakeoverChangesFingerprint,
        "a_lapsed_lease_can_be_taken_over",
    ),
    (
        Bug::TakeoverKeepsAnswer,
        "a_takeover_leaves_nothing_of_what_was_kept",
    ),
    (
        Bug::ReleasedIsLost,
        "only_a_running_record_is_written_down_as_lost",
    ),
    (
        Bug::VersionIsNotAsked,
        "a_settlement_of_a_stale_version_is_refused",
    ),
    (
        Bug::VersionIsNotAsked,
        "a_forgetting_of_a_stale_version_is_refused",
    ),
    (
        Bug::SettlementKeepsFence,
        "an_unknown_settled_as_retryable_may_be_tried_again",
    ),
    (
        Bug::AnythingIsSettled,
        "what_is_not_unknown_cannot_be_settled",
    ),
    (
        Bug::ForgetKeepsAnswer,
        "a_forgotten_record_keeps_only_its_tombstone",
    ),
    (
        Bug::ForgetKeepsFingerprint,
        "a_forgotten_unknown_can_neither_be_settled_nor_completed",
    ),
    (Bug::ForgetKeepsEpoch, "forgetting_raises_the_epoch"),
    (
        Bug::EveryWriteRaisesEpoch,
        "nothing_but_forgetting_raises_the_epoch",
    ),
    (
        Bug::FinishUnderLapsed,
        "no_other_pair_of_condition_and_change_is_a_transition",
    ),
    (Bug::RenewalBumpsFence, "a_renewed_attempt_completes"),
    (
        Bug::RenewalOfAnyFence,
        "a_renewal_after_a_takeover_is_refused",
    ),
    (
        Bug::RenewalsOutOfOrder,
        "renewals_of_a_batch_are_answered_one_by_one",
    ),
    (
        Bug::FencesByClockAlone,
        "fences_grow_faster_than_the_clock_if_they_must",
    ),
    (
        Bug::FencesByCount,
        "a_fence_is_near_the_stores_clock_and_fits_any_language",
    ),
    (
        Bug::FloorIsForgotten,
        "fences_grow_across_removal_though_the_clock_stands",
    ),
    (Bug::HeadersAreSorted, "answers_survive_byte_for_byte"),
    (
        Bug::PoliciesAreForgotten,
        "fingerprints_survive_with_their_policies",
    ),
    (
        Bug::AnonymousIsAName,
        "scopes_survive_whatever_they_are_made_of",
    ),
    (
        Bug::ReadingsOutOfOrder,
        "records_are_read_in_the_order_asked",
    ),
    (Bug::ListIgnoresState, "heads_are_listed_by_state"),
    (Bug::ListIgnoresAfter, "heads_are_listed_by_id_in_pages"),
    (Bug::TimeRunsBack, "the_stores_time_never_runs_back"),
    (Bug::SweepLosesTheLiving, "a_sweep_leaves_what_is_not_due"),
    (
        Bug::AnswersOutliveRetention,
        "a_sweep_buries_what_is_past_its_retention",
    ),
    (
        Bug::ListsWithoutTime,
        "a_sweep_buries_what_is_past_its_retention",
    ),
    (
        Bug::SweepKeepsAnswers,
        "a_sweep_buries_what_is_past_its_retention",
    ),
    (
        Bug::SweepRemovesUnresolved,
        "a_sweep_never_removes_what_was_never_resolved",
    ),
    (
        Bug::SweepIgnoresLimit,
        "a_sweep_touches_no_more_than_its_limit",
    ),
    (
        Bug::ChangesAreNotLogged,
        "a_settlement_and_a_forgetting_are_written_down",
    ),
    (
        Bug::ChangesAreNotLogged,
        "of_64_settlements_one_is_written_down",
    ),
    (
        Bug::LosersAreLogged,
        "a_change_that_lost_is_not_written_down",
    ),
    (
        Bug::LosersAreLogged,
        "of_64_settlements_one_is_written_down",
    ),
    (
        Bug::AttemptsAreLogged,
        "what_attempts_do_is_not_written_down",
    ),
    (
        Bug::LogsWhatWasStored,
        "an_entry_says_what_the_record_was_by_the_stores_clock",
    ),
    (Bug::LogNumbersHaveGaps, "whoever_reads_on_misses_no_entry"),
    (
        Bug::LogIgnoresRecord,
        "a_settlement_and_a_forgetting_are_written_down",
    ),
    (Bug::LogIgnoresStart, "the_log_is_read_from_either_end"),
    (Bug::LogPagesAreEndless, "a_page_of_the_log_is_bounded"),
    (
        Bug::LogWordsAreTrimmed,
        "words_survive_whatever_they_are_made_of",
    ),
    (Bug::LogGoesWithItsRecord, "entries_outlive_their_records"),
    (
        Bug::LogAgesEarly,
        "a_sweep_removes_entries_that_are_too_old_and_no_others",
    ),
    (
        Bug::LogNeverAges,
        "a_sweep_removes_entries_that_are_too_old_and_no_others",
    ),
    (
        Bug::TombstonesAreNotCounted,
        "records_of_every_state_are_counted",
    ),
    (
        Bug::EveryReleaseIsRefused,
        "refused_records_are_counted_until_they_are_tried_again",
    ),
    (
        Bug::LastPrincipalCounts,
        "principals_are_known_until_their_time",
    ),
    (
        Bug::PrincipalsAreKnownForEver,
        "principals_are_known_until_their_time",
    ),
];

#[tokio::test]
async fn a_store_without_a_bug_is_acquitted() {
    assert_eq!(convictions(Bug::None).await, Vec::<&str>::new());
}

#[tokio::test]
async fn every_planted_bug_is_convicted_by_the_case_that_is_about_it() {
    let mut acquitted = Vec::new();
    for (bug, expected) in CHARGES {
        let convicting = convictions(*bug).await;
        println!("{bug:?}: {} cases", convicting.len());
        if !convicting.contains(expected) {
            acquitted.push(format!("{bug:?} by {expected}; only by {convicting:?}"));
        }
    }
    assert!(acquitted.is_empty(), "not convicted: {acquitted:#?}");
}

/// The cases that a store with this bug fails.
async fn convictions(bug: Bug) -> Vec<&'static str> {
    let mut convicting = Vec::new();
    for case in CASES {
        let clock = ManualClock::new();
        let bench = Bench::by_hand(Arc::new(Planted::new(bug, clock.clone())), clock);
        // Runs as a task, so that its panic becomes a value.
        if tokio::spawn((case.run)(bench)).await.is_err() {
            convicting.push(case.name);
        }
    }
    convicting
}
