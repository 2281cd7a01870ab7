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
    replay::replay_around("urls", |data| urls::hold(data, is_etcd));
}

#[cfg(feature = "etcd")]
fn is_etcd(url: &str) -> bool {
    use lockcore_etcd::EtcdConfig;

    urls::is_taken(url, EtcdConfig::parse, EtcdConfig::eq)
}

#[cfg(not(feature = "etcd"))]
fn is_etcd(_: &str) -> bool {
    false
}
