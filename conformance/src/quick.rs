//! The quick set, by name.

use crate::case::Case;

/// Of every mistake of `tests/broken` two cases that reject it, where two do. What finds them is told by
/// `cargo test -p lockcore-conformance --test broken -- --ignored quick::choose`, and a test holds how many are found.
const NAMES: [&str; 26] = [
    "random::answers_like_the_model_1",
    "random::answers_like_the_model_2",
    "random::answers_like_the_model_3",
    "random::answers_like_the_model_4",
    "random::answers_like_the_model_5",
    "random::answers_like_the_model_6",
    "random::answers_like_the_model_7",
    "random::answers_like_the_model_8",
    "trees::keys_with_a_common_beginning_are_no_relatives",
    "sessions::after_expiry_a_renewal_has_no_effect",
    "sessions::after_expiry_a_registration_has_no_effect",
    "sessions::after_expiry_an_open_is_refused",
    "tokens::over_an_eviction",
    "adoption::take_take_give_up_leaves_it_to_others",
    "adoption::take_give_up_take_leaves_it_to_others",
    "adoption::an_adopter_that_expired_is_followed_by_the_next",
    "settling::settling_frees_the_locks_and_ends_the_session",
    "garbage::a_release_does_not_remove_garbage",
    "keys::all_hostile_keys_are_held_at_once",
    "keys::longest_path_of_one_component",
    "keys::longest_key_of_wide_characters",
    "sweeps::a_swept_session_stays_dead",
    "wakeups::the_last_released_reader_wakes_a_writer",
    "wakeups::an_expiry_that_was_established_wakes",
    "documents::a_very_large_set_refused_at_the_last_id_holds_nothing",
    "intents::a_very_large_set_with_an_intent",
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
