//! The quick set, by name.

use crate::case::Case;

/// Of every mistake of `tests/broken` two cases that reject it, where two do. What finds them is told by
/// `cargo test -p lockcore-conformance --test broken -- --ignored quick::choose`, and a test holds how many are found.
const NAMES: [&str; 68] = [
    "random::answers_like_the_model_1",
    "random::answers_like_the_model_2",
    "random::answers_like_the_model_3",
    "random::answers_like_the_model_4",
    "random::answers_like_the_model_5",
    "random::answers_like_the_model_6",
    "trees::keys_with_a_common_beginning_are_no_relatives",
    "tokens::over_an_eviction",
    "adoption::an_adopter_that_expired_is_followed_by_the_next",
    "adoption::a_settlement_names_the_adopter",
    "settling::settling_frees_the_locks_and_ends_the_session",
    "notes::a_note_is_told_with_each_renewal",
    "notes::a_note_for_a_session_without_a_record_makes_none",
    "notes::notes_stay_with_the_dead",
    "line::who_waits_comes_before_whoever_asks_later",
    "line::who_waits_keeps_its_place",
    "line::a_sweep_leaves_a_waiter_its_place",
    "line::a_sweep_removes_who_waits_no_more",
    "line::forty_come_in_turn",
    "line::who_waits_holds_nothing",
    "line::who_gives_up_makes_room",
    "line::who_may_go_and_does_not_is_removed",
    "line::a_session_passes_who_waits_for_it",
    "line::a_waiter_learns_that_it_may_go",
    "wakeups::an_expiry_that_was_established_wakes",
    "wakeups::a_close_wakes",
    "wakeups::a_revocation_wakes",
    "wakeups::an_eviction_wakes",
    "wakeups::a_settlement_wakes",
    "wakeups::a_discard_wakes",
    "documents::a_very_large_set_refused_at_the_last_id_holds_nothing",
    "intents::a_very_large_set_with_an_intent",
    "expiry::a_renewal_changes_the_ttl",
    "expiry::a_sweep_leaves_what_is_due_its_intent",
    "expiry::a_death_and_a_renewal_at_once_agree",
    "expiry::a_ttl_of_no_whole_second_is_lived_to_its_end",
    "sessions::nothing_has_an_effect_after_expiry",
    "sessions::nothing_has_an_effect_after_another_took_the_key",
    "sessions::a_sweep_of_the_dead_leaves_who_comes_meanwhile",
    "sessions::sessions_ended_in_one_request_stay_dead",
    "sessions::the_shortest_and_the_longest_ttl",
    "adoption::what_is_given_up_is_left_to_others_in_every_order",
    "adoption::an_adoption_meant_for_another_incarnation_changes_nothing",
    "keys::the_longest_and_the_shortest_are_held_by_exactly_their_bytes",
    "keys::a_hostile_path_and_what_is_below_it_are_relatives",
    "keys::a_path_is_no_pattern_of_what_is_below_it",
    "races::flat_keys",
    "requests::a_request_that_nobody_waits_for_is_settled_by_over",
    "requests::over_in_many_ranges",
    "requests::a_request_that_nobody_polls_keeps_no_other_waiting",
    "batches::a_batch_of_more_keys_is_held_whole_or_not_at_all",
    "garbage::what_changed_since_it_was_seen_is_not_evicted",
    "listing::who_holds_is_listed_before_many_who_wait",
    "watches::a_watch_sleeps_beside_one_over_a_session",
    "listing::a_holder_is_said_to_hold_since_it_was_granted",
    "listing::sessions_are_told_by_their_ids",
    "listing::what_is_left_of_leases_is_told",
    "tokens::over_a_restart_of_the_store",
    "tokens::over_a_new_namespace_of_the_same_name",
    "sweeps::a_sweep_of_many_records_ends",
    "sweeps::a_sweep_removes_all_that_does_not_count_in_portions",
    "tombstones::a_tombstone_stays_while_late_requests_may_come",
    "tombstones::an_old_tombstone_goes",
    "watches::a_watch_sleeps_while_nothing_happens",
    "watches::a_dropped_watch_ends",
    "news::a_revocation_wakes_its_owner",
    "news::a_note_wakes_its_owner",
    "news::nothing_of_other_sessions_wakes_an_owner",
];

/// Whether the case is one of them.
pub(crate) fn has(case: &Case) -> bool {
    NAMES.contains(&case.to_string().as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_that_of_a_case() {
        let all: Vec<String> = crate::cases().iter().map(ToString::to_string).collect();
        let unknown: Vec<&&str> = NAMES
            .iter()
            .filter(|name| !all.contains(&(**name).to_owned()))
            .collect();
        assert!(unknown.is_empty(), "no cases: {unknown:?}");
    }
}
