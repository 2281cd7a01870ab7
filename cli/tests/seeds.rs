//! What the fuzz target of the command's input checks, on its seeds.

#[path = "../../fuzz/properties/cli.rs"]
mod cli;
#[path = "../../fuzz/properties/replay.rs"]
mod replay;

#[test]
fn input_holds() {
    replay::replay_around("cli", cli::hold);
}
