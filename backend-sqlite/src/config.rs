//! The file and how it is written: [`SqliteConfig`].

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use lockcore::backend::{Options, UrlError};

/// How long one operation waits for other processes, queueing included, unless the program chooses another time.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);

const NO_PATH: &str = "the URL names no file: write its path, as in sqlite:/run/app/locks.db";
const NO_HOST: &str = "an SQLite file has no host: write sqlite:relative/path, sqlite:/absolute/path or \
                       sqlite:///absolute/path";
const IN_MEMORY: &str =
    "locks in an SQLite database without a file could not be shared: use memory:, or name a file";
const SCHEME: UrlError = UrlError::Scheme {
    schemes: &["sqlite"],
    example: "sqlite:/run/app/locks.db",
};

/// The file and how it is written.
///
/// | option | default | meaning |
/// |---|---|---|
/// | [`synchronous`](Self::synchronous) | [`Synchronous::Normal`] | which commits wait for the disk |
/// | [`timeout`](Self::timeout) | 5 s | how long one operation waits for other processes |
///
/// # Examples
///
/// ```
/// use lockcore_sqlite::{SqliteConfig, Synchronous};
///
/// let config: SqliteConfig = "sqlite:/run/app/locks.db?synchronous=full".parse()?;
/// assert_eq!(config, SqliteConfig::new("/run/app/locks.db").synchronous(Synchronous::Full));
/// # Ok::<(), lockcore::backend::UrlError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SqliteConfig {
    path: PathBuf,
    synchronous: Synchronous,
    timeout: Duration,
}

/// Which commits wait for the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Synchronous {
    /// Commits that put, drop, settle or discard an intent. A loss of power may undo the others; it also ends every
    /// process that held one of these locks, and tokens still only rise.
    #[default]
    Normal,
    /// All commits.
    Full,
}

impl SqliteConfig {
    /// The file at this path, with defaults for everything else. A file that does not exist is created.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            synchronous: Synchronous::default(),
            timeout: DEFAULT_TIMEOUT,
        }
    }

    /// Which commits wait for the disk.
    #[must_use]
    pub fn synchronous(mut self, synchronous: Synchronous) -> Self {
        self.synchronous = synchronous;
        self
    }

    /// How long one operation waits for other processes before it fails without effect. The time covers both the queue
    /// of this process and the lock on the file.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Parses a URL: `sqlite:/abs/path`, `sqlite:relative/path` or `sqlite:///abs/path`, optionally followed by `?` and
    /// options (`synchronous=normal|full`, `timeout_ms=NUMBER`) with `&` between them.
    ///
    /// The path is everything up to the first `?`, unchanged: nothing in it is decoded, and a `%20` is three
    /// characters.
    ///
    /// # Errors
    ///
    /// Another scheme, no path, a host, an option that does not exist or is given twice, or a value that the option
    /// does not accept.
    pub fn parse(url: &str) -> Result<Self, UrlError> {
        let rest = url.strip_prefix("sqlite:").ok_or(SCHEME)?;
        let (path, options) = match rest.split_once('?') {
            Some((path, options)) => (path, Some(options)),
            None => (rest, None),
        };
        let path = match path.strip_prefix("//") {
            Some(path) if path.starts_with('/') => path,
            Some(_) => return Err(UrlError::Path(NO_HOST)),
            None => path,
        };
        match path {
            "" => return Err(UrlError::Path(NO_PATH)),
            ":memory:" => return Err(UrlError::Path(IN_MEMORY)),
            _ => {}
        }
        let mut options = Options::parse(options)?;
        let mut config = Self::new(path);
        let synchronous = options.read(
            "synchronous",
            "normal|full",
            "normal or full",
            |value| match value {
                "normal" => Some(Synchronous::Normal),
                "full" => Some(Synchronous::Full),
                _ => None,
            },
        )?;
        config.synchronous = synchronous.unwrap_or_default();
        if let Some(timeout) = options.millis("timeout_ms", 1)? {
            config.timeout = timeout;
        }
        options.end()?;
        Ok(config)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn is_full(&self) -> bool {
        self.synchronous == Synchronous::Full
    }

    pub(crate) fn limit(&self) -> Duration {
        self.timeout
    }
}

impl FromStr for SqliteConfig {
    type Err = UrlError;

    fn from_str(url: &str) -> Result<Self, UrlError> {
        Self::parse(url)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_taken_as_they_stand() {
        for (url, path) in [
            ("sqlite:/abs/locks.db", "/abs/locks.db"),
            ("sqlite:///abs/locks.db", "/abs/locks.db"),
            ("sqlite:relative/locks.db", "relative/locks.db"),
            ("sqlite:locks", "locks"),
            ("sqlite:/a b/%20/#é&=.db", "/a b/%20/#é&=.db"),
            ("sqlite:file:locks?synchronous=normal", "file:locks"),
        ] {
            assert_eq!(
                SqliteConfig::parse(url),
                Ok(SqliteConfig::new(path)),
                "{url}"
            );
        }
    }

    #[test]
    fn options_are_known_and_given_once() {
        let config = SqliteConfig::parse("sqlite:x?timeout_ms=250&synchronous=full").unwrap();
        assert!(config.is_full());
        assert_eq!(config.limit(), Duration::from_millis(250));
        for ms in ["0", "600001", "+5", "-1", "", "1.5", "x"] {
            let error = SqliteConfig::parse(&format!("sqlite:x?timeout_ms={ms}")).unwrap_err();
            assert!(matches!(error, UrlError::Value { .. }), "{ms:?}: {error}");
        }
        for ms in ["1", "600000"] {
            assert!(SqliteConfig::parse(&format!("sqlite:x?timeout_ms={ms}")).is_ok());
        }
    }

    #[test]
    fn every_error_is_named() {
        for (url, error) in [
            ("redis://x", SCHEME),
            ("SQLITE:x", SCHEME),
            ("sqlite:", UrlError::Path(NO_PATH)),
            ("sqlite:?synchronous=full", UrlError::Path(NO_PATH)),
            ("sqlite://host/x", UrlError::Path(NO_HOST)),
            ("sqlite://", UrlError::Path(NO_HOST)),
            ("sqlite::memory:", UrlError::Path(IN_MEMORY)),
        ] {
            assert_eq!(SqliteConfig::parse(url), Err(error), "{url}");
        }
        let error = SqliteConfig::parse("sqlite:x?synchronous=off").unwrap_err();
        assert!(matches!(error, UrlError::Value { .. }), "{error}");
        let text = SqliteConfig::parse("sqlite:x?mode=ro")
            .unwrap_err()
            .to_string();
        assert!(
            text.contains("option 1 ") && text.contains("synchronous=normal|full"),
            "{text}"
        );
    }
}
