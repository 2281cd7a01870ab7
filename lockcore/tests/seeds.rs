//! What the fuzz targets check, on their seeds and around them.

#[path = "../../fuzz/properties/codecs.rs"]
mod codecs;
#[path = "../../fuzz/properties/intents.rs"]
mod intents;
#[path = "../../fuzz/properties/keys.rs"]
mod keys;
#[path = "../../fuzz/properties/prepare.rs"]
mod prepare;
#[path = "../../fuzz/properties/replay.rs"]
mod replay;

#[test]
fn keys_hold() {
    replay::replay_around("keys", keys::hold);
}

#[test]
fn prepared_claims_hold() {
    replay::replay_around("prepare", prepare::hold);
}

#[test]
fn codecs_hold() {
    replay::replay_around("codecs", codecs::hold);
}

#[test]
fn intents_hold() {
    replay::replay_around("intents", intents::hold);
}
