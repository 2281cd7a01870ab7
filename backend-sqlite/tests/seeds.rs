//! What the fuzz target of stored rows checks, on its seeds.

#[path = "../../fuzz/properties/replay.rs"]
mod replay;
#[path = "../../fuzz/properties/stored_rows.rs"]
mod stored_rows;

#[test]
fn stored_rows_hold() {
    replay::replay("stored_rows", stored_rows::hold);
}
