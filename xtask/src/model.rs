//! `cargo xtask model`.

use crate::builds::cargo_command;

/// So many states of each model with all rules: about a minute on one core for all.
const STATES: &str = "400000";
/// So many for hours, as far as the memory goes.
const DEEP: &str = "20000000";

/// Checks the models of the protocol with all rules, and without each of them.
pub(crate) fn run(deep: bool, only: Option<&str>) -> Result<(), String> {
    let states = if deep { DEEP } else { STATES };
    let mut args = vec![
        "run",
        "--release",
        "--package=lockkeeper-model",
        "--",
        states,
    ];
    args.extend(only);
    cargo_command(&args, &[])
}
