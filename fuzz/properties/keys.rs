//! Keys and paths, each line of the input and the whole of it:
//!
//! - a text is a key exactly if the rules say so, and it is never repaired: the key's bytes are the text's;
//! - a key is flat or a path, and never both;
//! - the ancestors of a path are exactly its proper prefixes that end before a `/`, and each is a path;
//! - the order is total and agrees with equality, and a path stands before everything below it;
//! - what is below a path `p` is the range from `p/` to `p0` in the order of bytes; in path order it stands directly
//!   behind `p`, with nothing else in between.

use std::cmp::Ordering;

use lockcore::limits::{MAX_KEY_BYTES, MAX_PATH_COMPONENTS};
use lockcore::{LockKey, LockPath};

pub(crate) fn hold(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    parse(text);
    let mut keys: Vec<LockKey> = text.split('\n').take(12).filter_map(parse).collect();
    for left in &keys {
        for right in &keys {
            compare(left, right);
        }
    }
    keys.sort();
    for (at, key) in keys.iter().enumerate() {
        let behind = &keys[at..];
        assert!(behind.iter().all(|later| key <= later), "{keys:?}");
        let others = behind.iter().skip_while(|other| *other == key);
        let directly = others.take_while(|other| key.is_above(other));
        let below = keys.iter().filter(|other| key.is_above(other));
        assert_eq!(directly.count(), below.count(), "below {key} in {keys:?}");
    }
}

fn parse(text: &str) -> Option<LockKey> {
    let components = || text.split('/').skip(1);
    let path = text.starts_with('/');
    let valid = (1..=MAX_KEY_BYTES).contains(&text.len())
        && !text.chars().any(char::is_control)
        && (!path
            || components().count() <= MAX_PATH_COMPONENTS
                && components().all(|component| !matches!(component, "" | "." | "..")));
    let key = LockKey::parse(text).ok();
    assert_eq!(key.is_some(), valid, "{text:?}");
    assert_eq!(LockKey::flat(text).is_ok(), valid && !path, "{text:?}");
    assert_eq!(LockPath::parse(text).is_ok(), valid && path, "{text:?}");
    let key = key?;
    assert_eq!(key.as_str(), text);
    assert_eq!(key.to_string(), text);
    assert_eq!(key.is_path(), path);
    assert_eq!(text.parse().as_ref(), Ok(&key));
    let prefixes: Vec<String> = components()
        .scan(String::new(), |prefix, component| {
            *prefix = format!("{prefix}/{component}");
            Some(prefix.clone())
        })
        .filter(|prefix| path && prefix != text)
        .collect();
    assert_eq!(key.ancestors().collect::<Vec<_>>(), prefixes, "{text:?}");
    for above in prefixes {
        let above = LockPath::parse(above).expect("an ancestor is a path");
        assert!(above.as_key().is_above(&key), "{above} above {key}");
    }
    let path = key.as_path();
    assert_eq!(path.is_some(), key.is_path());
    if let Some(path) = path {
        assert_eq!(path.as_key(), &key);
        assert_eq!(path.components(), components().count());
    }
    Some(key)
}

fn compare(left: &LockKey, right: &LockKey) {
    let same = left.as_str() == right.as_str();
    assert_eq!(left == right, same);
    assert_eq!(left.cmp(right) == Ordering::Equal, same);
    assert_eq!(left.cmp(right), right.cmp(left).reverse(), "{left} {right}");
    let above = right.ancestors().any(|ancestor| ancestor == left.as_str());
    assert_eq!(left.is_above(right), above, "{left} above {right}");
    assert!(!above || left < right, "{left} before {right}");
    if left.is_path() {
        let (from, to) = (format!("{left}/"), format!("{left}0"));
        let text = right.as_str();
        let between = *from <= *text && *text < *to;
        assert_eq!(above, between, "{left} {right}");
    }
}
