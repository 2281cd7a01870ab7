//! [`Error`]: a store, its driver or the way to it failed. A refusal is no error, and bad input has types of its own.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use crate::LockKey;

/// A failure of a store, its driver or the way to it. One pointer wide.
///
/// The [kind](ErrorKind) says what the caller may do. `Display` is one line; the cause is in
/// [`source`](StdError::source).
///
/// # Examples
///
/// ```
/// use lockcore::{Error, ErrorKind, Operation};
///
/// let error = Error::new(ErrorKind::Indeterminate, "redis", Operation::Renew, "no answer within 5 s");
/// assert!(!error.is_certainly_without_effect());
/// assert_eq!(error.to_string(), "redis: renew: outcome unknown: no answer within 5 s");
/// ```
#[derive(Clone)]
pub struct Error(Box<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    backend: &'static str,
    operation: Operation,
    what: std::borrow::Cow<'static, str>,
    key: Option<LockKey>,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

/// What an [`Error`] lets the caller do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The configuration cannot work: a URL, an option, a file that is not a store. Had no effect; fix it.
    Config,
    /// The store rejects the credentials, or does not permit the operation. Had no effect; fix the credentials or the
    /// rights.
    Unauthorized,
    /// The store cannot be reached, or does not take the request now. Certainly had no effect; try again later.
    Unavailable,
    /// The request may have taken effect, or may still do so. The default for driver errors without a mapping.
    Indeterminate,
    /// The store contains or answered something impossible: another version, a broken record, a token that went back.
    Corrupt,
    /// A limit of the store or of this library is reached. Had no effect; ask for less.
    Limit,
}

impl ErrorKind {
    const fn as_str(self) -> &'static str {
        match self {
            ErrorKind::Config => "cannot be used as configured",
            ErrorKind::Unauthorized => "not authorized",
            ErrorKind::Unavailable => "unavailable",
            ErrorKind::Indeterminate => "outcome unknown",
            ErrorKind::Corrupt => "corrupt",
            ErrorKind::Limit => "over a limit",
        }
    }
}

/// The operation that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Operation {
    /// Connecting to the store, or creating its namespace.
    Connect,
    /// Opening a session.
    Open,
    /// Renewing a session.
    Renew,
    /// Ending a session, or asking whether it is due.
    End,
    /// Adopting an abandoned session.
    Adopt,
    /// Settling an adopted session.
    Settle,
    /// Writing a note for the owner of a session.
    Note,
    /// Acquiring one batch.
    Acquire,
    /// Releasing one grant.
    Release,
    /// Confirming one grant.
    Confirm,
    /// Removing records that are not live.
    Sweep,
    /// Setting up a watch.
    Watch,
    /// Listing records or sessions, or evicting one.
    Inspect,
    /// Removing a namespace with everything in it.
    Remove,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Operation::Connect => "connect",
            Operation::Open => "open",
            Operation::Renew => "renew",
            Operation::End => "end",
            Operation::Adopt => "adopt",
            Operation::Settle => "settle",
            Operation::Note => "note",
            Operation::Acquire => "acquire",
            Operation::Release => "release",
            Operation::Confirm => "confirm",
            Operation::Sweep => "sweep",
            Operation::Watch => "watch",
            Operation::Inspect => "inspect",
            Operation::Remove => "remove",
        })
    }
}

impl Error {
    /// An error of that kind. `what` says in a few words what happened and, where the caller can act, what to do. It
    /// never contains a secret or an intent's payload.
    #[must_use]
    pub fn new(
        kind: ErrorKind,
        backend: &'static str,
        operation: Operation,
        what: impl Into<std::borrow::Cow<'static, str>>,
    ) -> Self {
        Self(Box::new(Inner {
            kind,
            backend,
            operation,
            what: what.into(),
            key: None,
            source: None,
        }))
    }

    /// Names the key that the error is about.
    #[must_use]
    pub fn with_key(mut self, key: LockKey) -> Self {
        self.0.key = Some(key);
        self
    }

    /// Adds the cause.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.0.source = Some(source.into().into());
        self
    }

    /// What the caller may do.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The name of the backend.
    #[must_use]
    pub fn backend(&self) -> &'static str {
        self.0.backend
    }

    /// The operation that failed.
    #[must_use]
    pub fn operation(&self) -> Operation {
        self.0.operation
    }

    /// The key that the error is about, if there is one.
    #[must_use]
    pub fn key(&self) -> Option<&LockKey> {
        self.0.key.as_ref()
    }

    /// Whether the request certainly changed nothing and never will.
    #[must_use]
    pub fn is_certainly_without_effect(&self) -> bool {
        !matches!(self.0.kind, ErrorKind::Indeterminate | ErrorKind::Corrupt)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner {
            kind,
            backend,
            operation,
            what,
            key,
            ..
        } = &*self.0;
        write!(f, "{backend}: {operation}")?;
        if let Some(key) = key {
            write!(f, " of {:?}", key.as_str())?;
        }
        write!(f, ": {}: {what}", kind.as_str())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner {
            kind,
            backend,
            operation,
            what,
            key,
            source,
        } = &*self.0;
        f.debug_struct("Error")
            .field("kind", kind)
            .field("backend", backend)
            .field("operation", operation)
            .field("what", what)
            .field("key", key)
            .field("source", source)
            .finish()
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0
            .source
            .as_deref()
            .map(|source| source as &(dyn StdError + 'static))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_one_pointer_wide() {
        assert_eq!(size_of::<Error>(), size_of::<usize>());
    }

    #[test]
    fn an_error_says_what_happened_and_leaves_the_cause_to_its_source() {
        for (kind, without_effect, text) in [
            (ErrorKind::Config, true, "cannot be used as configured"),
            (ErrorKind::Unauthorized, true, "not authorized"),
            (ErrorKind::Unavailable, true, "unavailable"),
            (ErrorKind::Indeterminate, false, "outcome unknown"),
            (ErrorKind::Corrupt, false, "corrupt"),
            (ErrorKind::Limit, true, "over a limit"),
        ] {
            let error = Error::new(kind, "store", Operation::Open, "what");
            assert_eq!(error.to_string(), format!("store: open: {text}: what"));
            assert_eq!(error.is_certainly_without_effect(), without_effect);
            assert_eq!((error.kind(), error.backend()), (kind, "store"));
            assert!(error.key().is_none() && error.source().is_none());
        }
        let key = LockKey::parse("a key").unwrap();
        let error = Error::new(ErrorKind::Limit, "store", Operation::Acquire, "what")
            .with_key(key.clone())
            .with_source("cause");
        assert_eq!(error.operation(), Operation::Acquire);
        assert_eq!(error.key(), Some(&key));
        let text = "store: acquire of \"a key\": over a limit: what";
        assert_eq!(error.to_string(), text);
        assert_eq!(error.source().unwrap().to_string(), "cause");
        let shown = format!("{error:?}");
        assert!(
            shown.contains("Limit") && shown.contains("cause"),
            "{shown}"
        );
    }
}
