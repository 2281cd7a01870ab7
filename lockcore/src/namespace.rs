//! [`Namespace`]: the name of one tenant's locks in a shared store.

use std::fmt;
use std::str::FromStr;

use crate::limits::MAX_NAMESPACE_BYTES;

/// The name of one tenant's locks in a store: `[a-z][a-z0-9_-]{0,47}`, `lockkeeper` by default. Locks of two namespaces
/// never meet.
///
/// ```
/// use lockcore::backend::Namespace;
///
/// assert_eq!(Namespace::parse("fs-1")?.as_str(), "fs-1");
/// assert_eq!(Namespace::default().as_str(), "lockkeeper");
/// assert!(Namespace::parse("FS").is_err());
/// # Ok::<(), lockcore::backend::NamespaceError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Namespace(Box<str>);

/// The text is no namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "a namespace has at most {MAX_NAMESPACE_BYTES} of the characters a-z, 0-9, _ and -, and begins with a letter"
)]
pub struct NamespaceError;

impl Namespace {
    /// Takes the text as a namespace.
    ///
    /// # Errors
    ///
    /// The text is none.
    pub fn parse(text: &str) -> Result<Self, NamespaceError> {
        let plain =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-".contains(&byte);
        let starts = text.starts_with(|first: char| first.is_ascii_lowercase());
        let fits = text.len() <= MAX_NAMESPACE_BYTES && text.bytes().all(plain);
        (starts && fits)
            .then(|| Self(text.into()))
            .ok_or(NamespaceError)
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for Namespace {
    fn default() -> Self {
        Self("lockkeeper".into())
    }
}

impl FromStr for Namespace {
    type Err = NamespaceError;

    fn from_str(text: &str) -> Result<Self, NamespaceError> {
        Self::parse(text)
    }
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_are_names_in_every_store() {
        let longest = format!("a{}", "b".repeat(MAX_NAMESPACE_BYTES - 1));
        for name in ["a", "a1_-", "lockkeeper", &longest] {
            assert_eq!(Namespace::parse(name).unwrap().to_string(), name);
        }
        for name in [
            "",
            "A",
            "1a",
            "_a",
            "-a",
            "a.b",
            "a/b",
            "a*",
            "é",
            "aé",
            "a\0",
            "a ",
            &format!("{longest}b"),
        ] {
            assert_eq!(Namespace::parse(name), Err(NamespaceError), "{name:?}");
        }
    }
}
