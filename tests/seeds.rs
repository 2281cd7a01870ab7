//! What the fuzz target of URLs checks, on its seeds and around them.
#![cfg(all(
    feature = "sqlite",
    feature = "elasticsearch",
    feature = "postgres",
    feature = "redis"
))]

#[path = "../fuzz/properties/replay.rs"]
mod replay;
#[path = "../fuzz/properties/urls.rs"]
mod urls;

#[test]
fn urls_hold() {
    replay::replay_around("urls", urls::hold);
}
