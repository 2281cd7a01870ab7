//! The quick set, by name.

use crate::case::Case;

/// Chosen by `cargo test --test broken -- --ignored quick::choose`.
const NAMES: [&str; 1] = ["trees::a_refusal_names_the_ancestor_that_is_held"];

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = crate::cases();
    cases.retain(|case| NAMES.contains(&case.to_string().as_str()));
    cases
}
