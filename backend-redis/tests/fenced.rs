//! The script that refuses the write of a stale holder.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails where something is missing"
)]

mod support;

use std::time::Duration;

use lockcore::Locks;
use lockcore::backend::{End, SessionStore};
use lockcore_redis::FENCED_SET;
use support::Space;

/// Sends the script as a program would, on keys of the namespace's slot.
fn set(space: &Space, name: &str, token: &str, value: &str) -> redis::RedisResult<u32> {
    let mut eval = redis::cmd("EVAL");
    eval.arg(FENCED_SET).arg(2);
    eval.arg(space.key(name))
        .arg(space.key(&format!("{name}-token")));
    space.raw(eval.arg(token).arg(value))
}

fn get(space: &Space, name: &str) -> Option<String> {
    space.raw(redis::cmd("GET").arg(space.key(name))).unwrap()
}

/// Removes what the script has made.
fn clear(space: &Space, name: &str) {
    let token = space.key(&format!("{name}-token"));
    space
        .raw::<u32>(redis::cmd("DEL").arg(space.key(name)).arg(token))
        .unwrap();
}

#[tokio::test]
async fn the_write_of_a_stale_holder_is_refused() {
    let space = Space::new();
    let backend = space.connect().await;
    let locks = || {
        Locks::builder(backend.clone())
            .ttl(Duration::from_secs(60))
            .build()
            .unwrap()
    };
    let (first, second) = (locks(), locks());
    let stale = first.documents(["account/1"]).acquire().await.unwrap();
    let token = stale.token().to_string();
    assert_eq!(set(&space, "balance", &token, "110"), Ok(1));
    // Until its next renewal, the holder knows nothing of this.
    let session = stale.session();
    backend.end(&[session], End::Revoke).await.unwrap();
    let holder = second.documents(["account/1"]).acquire().await.unwrap();
    let later = holder.token().to_string();
    assert_eq!(set(&space, "balance", &later, "150"), Ok(1));
    assert!(stale.is_valid(), "it believes in its lock");
    assert_eq!(set(&space, "balance", &token, "120"), Ok(0));
    assert_eq!(get(&space, "balance").as_deref(), Some("150"));
    assert_eq!(
        set(&space, "balance", &later, "160"),
        Ok(1),
        "the holder goes on"
    );
    assert_eq!(get(&space, "balance").as_deref(), Some("160"));
    clear(&space, "balance");
}

#[test]
fn tokens_are_compared_exactly() {
    let space = Space::new();
    for (seen, token, written) in [
        ("9", "10", 1),
        ("10", "9", 0),
        // The greatest there is, and its neighbour: the same number where numbers are rounded.
        ("9223372036854775807", "9223372036854775806", 0),
        ("9223372036854775806", "9223372036854775807", 1),
        ("9223372036854775807", "9223372036854775807", 1),
    ] {
        assert_eq!(set(&space, "exact", seen, "first"), Ok(1));
        assert_eq!(
            set(&space, "exact", token, "second"),
            Ok(written),
            "{token} after {seen}"
        );
        let expected = if written == 1 { "second" } else { "first" };
        assert_eq!(get(&space, "exact").as_deref(), Some(expected));
        clear(&space, "exact");
    }
}

#[test]
fn what_is_no_token_writes_nothing() {
    let space = Space::new();
    for token in ["", "0", "-1", "1.5", "01", "1e3", "x"] {
        assert!(set(&space, "none", token, "v").is_err(), "{token:?}");
        assert_eq!(get(&space, "none"), None, "{token:?}");
    }
    // Nor is anything written over what somebody else keeps there.
    let mut put = redis::cmd("SET");
    space
        .raw::<()>(put.arg(space.key("none-token")).arg("x"))
        .unwrap();
    assert!(set(&space, "none", "1", "v").is_err());
    assert_eq!(get(&space, "none"), None);
    clear(&space, "none");
}
