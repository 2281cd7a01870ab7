//! The names of locks: [`LockKey`] and [`LockPath`].

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::limits::{MAX_KEY_BYTES, MAX_PATH_COMPONENTS};

/// The name of one lock: 1 to 1,024 bytes of UTF-8 without control characters.
///
/// A key is never normalised, folded or trimmed: equal bytes are one key, different bytes are two keys. A key that
/// begins with `/` is a [path](LockPath); every other key is *flat*. Flat claims take flat keys, path claims take
/// paths.
///
/// # Order
///
/// Keys are ordered by bytes, with `/` before every other byte (*path order*). So a path stands directly before
/// everything below it. This is the one global order in which every acquisition takes its locks. A store's own index
/// may be in byte order; there, everything below a path `p` is the range from `p/` to `p0`, the end excluded. In path
/// order `/p!` lies in that range too: everything below `p` ends at the first key after `p` that is not.
///
/// # Examples
///
/// ```
/// use lockcore::{KeyError, LockKey};
///
/// assert!(LockKey::parse("reindex")?.as_path().is_none());
/// assert!(LockKey::parse("/clinton/projects")?.as_path().is_some());
/// assert_eq!(LockKey::parse(""), Err(KeyError::Empty));
/// assert_eq!(LockKey::parse("two\nlines"), Err(KeyError::ControlCharacter { at: 3 }));
/// assert!(LockKey::parse("/a")? < LockKey::parse("/a/z")?);
/// assert!(LockKey::parse("/a/z")? < LockKey::parse("/a!")?);
/// # Ok::<(), KeyError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct LockKey(Arc<str>);

impl LockKey {
    /// Takes the text as a key, flat or a path, unchanged.
    ///
    /// # Errors
    ///
    /// The text is empty or too long, or has a control character; or it begins with `/` and is no path.
    pub fn parse(text: impl AsRef<str>) -> Result<Self, KeyError> {
        let text = text.as_ref();
        check_key(text)?;
        if text.starts_with('/') {
            check_path(text)?;
        }
        Ok(Self(text.into()))
    }

    /// Takes the text as a flat key.
    ///
    /// # Errors
    ///
    /// As [`parse`](Self::parse), and [`KeyError::PathGiven`] if the text begins with `/`.
    pub fn flat(text: impl AsRef<str>) -> Result<Self, KeyError> {
        let text = text.as_ref();
        check_key(text)?;
        if text.starts_with('/') {
            return Err(KeyError::PathGiven);
        }
        Ok(Self(text.into()))
    }

    /// The key as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether the key begins with `/`.
    #[must_use]
    pub fn is_path(&self) -> bool {
        self.0.starts_with('/')
    }

    /// The key as a path, if it is one.
    #[must_use]
    pub fn as_path(&self) -> Option<LockPath> {
        self.is_path().then(|| LockPath(self.clone()))
    }

    /// The paths strictly above this key, shortest first. A flat key has none.
    ///
    /// ```
    /// # use lockcore::LockKey;
    /// let key = LockKey::parse("/a/b/c")?;
    /// assert_eq!(key.ancestors().collect::<Vec<_>>(), ["/a", "/a/b"]);
    /// assert_eq!(LockKey::parse("a/b")?.ancestors().count(), 0);
    /// # Ok::<(), lockcore::KeyError>(())
    /// ```
    pub fn ancestors(&self) -> impl Iterator<Item = &str> {
        let text = self.as_str();
        let path = self.is_path();
        text.match_indices('/')
            .skip(1)
            .filter(move |_| path)
            .map(move |(at, _)| &text[..at])
    }

    /// The [ancestors](Self::ancestors) as keys.
    pub fn ancestor_keys(&self) -> impl Iterator<Item = LockKey> {
        self.ancestors().map(|above| LockKey(above.into())) // What is above a path is a path.
    }

    /// Whether this path stands strictly above the other.
    #[must_use]
    pub fn is_above(&self, other: &LockKey) -> bool {
        self.is_path()
            && other.as_str().len() > self.as_str().len()
            && other.as_str().starts_with(self.as_str())
            && other.as_str().as_bytes()[self.as_str().len()] == b'/'
    }

    /// Whether a holder of one key may be in the way of a claim on the other: the keys are equal, or one is above the
    /// other.
    #[must_use]
    pub fn meets(&self, other: &LockKey) -> bool {
        self == other || self.is_above(other) || other.is_above(self)
    }
}

/// Path order: bytes, with `/` before every other byte.
pub(crate) fn path_order(left: &str, right: &str) -> Ordering {
    let (left, right) = (left.as_bytes(), right.as_bytes());
    match left.iter().zip(right).find(|(l, r)| l != r) {
        None => left.len().cmp(&right.len()),
        Some((b'/', _)) => Ordering::Less,
        Some((_, b'/')) => Ordering::Greater,
        Some((l, r)) => l.cmp(r),
    }
}

impl Ord for LockKey {
    fn cmp(&self, other: &Self) -> Ordering {
        path_order(self.as_str(), other.as_str())
    }
}

impl PartialOrd for LockKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl FromStr for LockKey {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        Self::parse(text)
    }
}

impl fmt::Display for LockKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for LockKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl AsRef<str> for LockKey {
    fn as_ref(&self) -> &str {
        self.as_str()
    }
}

/// A key of the form `/a/b/c`: 1 to 64 components, none empty, none `.` or `..`, no `/` at the end.
///
/// Parsing rejects and never repairs: `//a`, `/a/` and `/a/./b` are errors, not other spellings of a path. `/` is not a
/// path.
///
/// # Examples
///
/// ```
/// use lockcore::{KeyError, LockPath};
///
/// let path = LockPath::parse("/clinton/projects")?;
/// assert_eq!(path.components(), 2);
/// assert_eq!(LockPath::parse("clinton"), Err(KeyError::FlatGiven));
/// assert_eq!(LockPath::parse("/a/"), Err(KeyError::TrailingSlash));
/// assert_eq!(LockPath::parse("/a/../b"), Err(KeyError::DotComponent));
/// # Ok::<(), KeyError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LockPath(LockKey);

impl LockPath {
    /// Takes the text as a path, unchanged.
    ///
    /// # Errors
    ///
    /// As [`LockKey::parse`], and [`KeyError::FlatGiven`] if the text does not begin with `/`.
    pub fn parse(text: impl AsRef<str>) -> Result<Self, KeyError> {
        let text = text.as_ref();
        check_key(text)?;
        if !text.starts_with('/') {
            return Err(KeyError::FlatGiven);
        }
        check_path(text)?;
        Ok(Self(LockKey(text.into())))
    }

    /// The path as a key.
    #[must_use]
    pub fn as_key(&self) -> &LockKey {
        &self.0
    }

    /// The number of components: 1 for `/a`.
    #[must_use]
    pub fn components(&self) -> usize {
        self.0.as_str().bytes().filter(|byte| *byte == b'/').count()
    }
}

impl From<LockPath> for LockKey {
    fn from(path: LockPath) -> Self {
        path.0
    }
}

impl FromStr for LockPath {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        Self::parse(text)
    }
}

impl fmt::Display for LockPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for LockPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// Why a text is no key, or not the requested kind of key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The text is empty.
    #[error("a key has at least one byte: give a name")]
    Empty,
    /// The text has more than 1,024 bytes.
    #[error(
        "a key has at most {MAX_KEY_BYTES} bytes, this one has {bytes}: shorten it, or lock a hash of it"
    )]
    TooLong {
        /// Bytes of the text.
        bytes: usize,
    },
    /// The text has a control character.
    #[error("a key has no control characters, this one has one at byte {at}: remove or encode it")]
    ControlCharacter {
        /// Its position, in bytes from 0.
        at: usize,
    },
    /// A flat key was requested, and the text begins with `/`.
    #[error(
        "a key that begins with '/' is a path: lock it with a tree lock (write or read), or drop the leading '/'"
    )]
    PathGiven,
    /// A path was requested, and the text does not begin with `/`.
    #[error(
        "a path begins with '/': write it as /a/b/c, or lock a flat key with a global, document or shared lock"
    )]
    FlatGiven,
    /// The path ends with `/`. This includes `/` itself, which is no path.
    #[error(
        "a path has no '/' at its end, and '/' alone is no path: name the top directory, as in /a"
    )]
    TrailingSlash,
    /// The path has an empty component.
    #[error("a path has no empty component ('//'): write each '/' once")]
    EmptyComponent,
    /// The path has a component `.` or `..`.
    #[error("a path has no component '.' or '..': resolve it before you lock it")]
    DotComponent,
    /// The path has more than 64 components.
    #[error(
        "a path has at most {MAX_PATH_COMPONENTS} components, this one has {components}: lock a path above it"
    )]
    TooDeep {
        /// Components of the text.
        components: usize,
    },
}

fn check_key(text: &str) -> Result<(), KeyError> {
    if text.is_empty() {
        return Err(KeyError::Empty);
    }
    if text.len() > MAX_KEY_BYTES {
        return Err(KeyError::TooLong { bytes: text.len() });
    }
    match text.char_indices().find(|(_, c)| c.is_control()) {
        Some((at, _)) => Err(KeyError::ControlCharacter { at }),
        None => Ok(()),
    }
}

fn check_path(text: &str) -> Result<(), KeyError> {
    if text.ends_with('/') {
        return Err(KeyError::TrailingSlash);
    }
    let mut components = 0;
    for component in text[1..].split('/') {
        components += 1;
        match component {
            "" => return Err(KeyError::EmptyComponent),
            "." | ".." => return Err(KeyError::DotComponent),
            _ => {}
        }
    }
    if components > MAX_PATH_COMPONENTS {
        return Err(KeyError::TooDeep { components });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_on_both_sides() {
        assert!(LockKey::parse("x".repeat(MAX_KEY_BYTES)).is_ok());
        assert_eq!(
            LockKey::parse("x".repeat(MAX_KEY_BYTES + 1)),
            Err(KeyError::TooLong {
                bytes: MAX_KEY_BYTES + 1
            })
        );
        assert!(LockPath::parse("/x".repeat(MAX_PATH_COMPONENTS)).is_ok());
        assert_eq!(
            LockPath::parse("/x".repeat(MAX_PATH_COMPONENTS + 1)),
            Err(KeyError::TooDeep {
                components: MAX_PATH_COMPONENTS + 1
            })
        );
    }

    #[test]
    fn every_kind_of_bad_path_is_named() {
        for (text, error) in [
            ("", KeyError::Empty),
            ("a", KeyError::FlatGiven),
            ("/", KeyError::TrailingSlash),
            ("/a/", KeyError::TrailingSlash),
            ("//a", KeyError::EmptyComponent),
            ("/a//b", KeyError::EmptyComponent),
            ("/.", KeyError::DotComponent),
            ("/a/..", KeyError::DotComponent),
            ("/a\u{7f}", KeyError::ControlCharacter { at: 2 }),
            ("/a\u{85}", KeyError::ControlCharacter { at: 2 }),
        ] {
            assert_eq!(LockPath::parse(text), Err(error), "{text:?}");
        }
        assert!(LockPath::parse("/...").is_ok());
        assert_eq!(LockKey::flat("/a"), Err(KeyError::PathGiven));
        assert!(
            LockKey::flat("a//b/../").is_ok(),
            "a flat key is not looked into"
        );
    }

    #[test]
    fn a_key_is_shown_as_it_is() {
        let key = LockKey::parse("/a/\u{e9}").unwrap();
        let path = key.as_path().unwrap();
        assert_eq!(key.as_ref() as &str, "/a/\u{e9}");
        assert_eq!([key.to_string(), path.to_string()], ["/a/\u{e9}"; 2]);
        assert_eq!(
            [format!("{key:?}"), format!("{path:?}")],
            ["\"/a/\u{e9}\""; 2]
        );
    }

    #[test]
    fn spellings_that_look_alike_stay_apart() {
        let composed = LockKey::parse("caf\u{e9}").unwrap();
        let decomposed = LockKey::parse("cafe\u{301}").unwrap();
        assert_ne!(composed, decomposed);
        assert_ne!(LockKey::parse("A").unwrap(), LockKey::parse("a").unwrap());
        assert_ne!(LockKey::parse(" a").unwrap(), LockKey::parse("a").unwrap());
    }

    #[test]
    fn a_path_stands_directly_before_what_is_below_it() {
        let mut keys: Vec<LockKey> = ["/a!", "/a/z", "/a", "/a/b/c", "/a0", "/a/b", "/a/b!"]
            .iter()
            .map(|text| LockKey::parse(text).unwrap())
            .collect();
        keys.sort();
        let keys: Vec<&str> = keys.iter().map(LockKey::as_str).collect();
        assert_eq!(
            keys,
            ["/a", "/a/b", "/a/b/c", "/a/b!", "/a/z", "/a!", "/a0"]
        );
    }

    #[test]
    fn above_is_by_component() {
        let key = |text| LockKey::parse(text).unwrap();
        assert!(key("/a").is_above(&key("/a/z")));
        assert!(!key("/a").is_above(&key("/a!")));
        assert!(!key("/a").is_above(&key("/ab/c")));
        assert!(!key("/a").is_above(&key("/a")));
        assert!(!key("a").is_above(&key("a/b")), "flat keys have no tree");
    }
}
