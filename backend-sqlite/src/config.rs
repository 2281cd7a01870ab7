//! Where the file is and how it is written: [`SqliteConfig`].

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

/// How long one operation waits for other processes, queueing included, unless the program chooses another time.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);

/// The options that a URL may have, for the error that names them.
const OPTIONS: &str = "synchronous=normal|full, timeout_ms=NUMBER";

/// Which file, and how it is written.
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
/// # Ok::<(), lockcore_sqlite::ConfigError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SqliteConfig {
    path: PathBuf,
    synchronous: Synchronous,
    timeout: Duration,
}

/// Which commits wait until they are on the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Synchronous {
    /// Those that put, drop, settle or discard an intent. A loss of power may undo the others; it also ends every
    /// process that held one of these locks, and tokens still only rise.
    #[default]
    Normal,
    /// All of them.
    Full,
}

impl SqliteConfig {
    /// The file at this path, with the defaults for everything else. A file that does not exist is made.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            synchronous: Synchronous::default(),
            timeout: DEFAULT_TIMEOUT,
        }
    }

    /// Which commits wait until they are on the disk.
    #[must_use]
    pub fn synchronous(mut self, synchronous: Synchronous) -> Self {
        self.synchronous = synchronous;
        self
    }

    /// How long one operation waits for other processes before it fails, without effect; in the queue of this process
    /// and for the lock on the file together.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Takes a URL: `sqlite:/abs/path`, `sqlite:relative/path` or `sqlite:///abs/path`, then perhaps `?` and options
    /// (`synchronous=normal|full`, `timeout_ms=NUMBER`) with `&` between them.
    ///
    /// The path is taken as it stands, up to the first `?`: nothing in it is decoded, and a `%20` is three characters.
    ///
    /// # Errors
    ///
    /// Another scheme, no path, a host, an option that does not exist or is given twice, a value that it does not take.
    pub fn parse(url: &str) -> Result<Self, ConfigError> {
        let rest = url.strip_prefix("sqlite:").ok_or(ConfigError::Scheme)?;
        let (path, options) = match rest.split_once('?') {
            Some((path, options)) => (path, Some(options)),
            None => (rest, None),
        };
        let path = match path.strip_prefix("//") {
            Some(path) if path.starts_with('/') => path,
            Some(_) => return Err(ConfigError::Host),
            None => path,
        };
        if path.is_empty() {
            return Err(ConfigError::NoPath);
        }
        if path == ":memory:" {
            return Err(ConfigError::InMemory);
        }
        let mut config = Self::new(path);
        let mut given = Vec::new();
        for option in options.into_iter().flat_map(|options| options.split('&')) {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            if given.contains(&name) {
                return Err(ConfigError::Twice { name: name.into() });
            }
            given.push(name);
            config.set(name, value)?;
        }
        Ok(config)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), ConfigError> {
        let bad = |takes| ConfigError::Value {
            name: name.into(),
            value: value.into(),
            takes,
        };
        match name {
            "synchronous" => {
                self.synchronous = match value {
                    "normal" => Synchronous::Normal,
                    "full" => Synchronous::Full,
                    _ => return Err(bad("normal or full")),
                }
            }
            "timeout_ms" => {
                let takes = "a number of milliseconds from 1 to 600000";
                let digits = value.bytes().all(|byte| byte.is_ascii_digit());
                let ms = value.parse().ok().filter(|_| digits);
                let ms = ms.filter(|ms| (1..=600_000).contains(ms));
                self.timeout = Duration::from_millis(ms.ok_or_else(|| bad(takes))?);
            }
            _ => return Err(ConfigError::Option { name: name.into() }),
        }
        Ok(())
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
    type Err = ConfigError;

    fn from_str(url: &str) -> Result<Self, ConfigError> {
        Self::parse(url)
    }
}

/// Why a text is no URL of a file of locks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// Another scheme.
    #[error("the URL of an SQLite file begins with 'sqlite:', as in sqlite:/run/app/locks.db")]
    Scheme,
    /// No path.
    #[error("the URL names no file: write its path, as in sqlite:/run/app/locks.db")]
    NoPath,
    /// Two slashes and something that is not an absolute path.
    #[error(
        "an SQLite file has no host: write sqlite:relative/path, sqlite:/absolute/path or sqlite:///absolute/path"
    )]
    Host,
    /// SQLite's name for a database without a file.
    #[error(
        "locks in an SQLite database without a file could not be shared: use memory:, or name a file"
    )]
    InMemory,
    /// An option that does not exist.
    #[error("there is no option {name:?}: the options are {OPTIONS}")]
    Option {
        /// The option.
        name: String,
    },
    /// The same option twice.
    #[error("the option {name:?} is given twice: give it once")]
    Twice {
        /// The option.
        name: String,
    },
    /// A value that the option does not take.
    #[error("the option {name:?} is {takes}, not {value:?}")]
    Value {
        /// The option.
        name: String,
        /// What it was given.
        value: String,
        /// What it takes.
        takes: &'static str,
    },
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
            assert!(
                matches!(error, ConfigError::Value { .. }),
                "{ms:?}: {error}"
            );
        }
        for ms in ["1", "600000"] {
            assert!(SqliteConfig::parse(&format!("sqlite:x?timeout_ms={ms}")).is_ok());
        }
    }

    #[test]
    fn every_error_is_named() {
        let name = || "mode".to_owned();
        for (url, error) in [
            ("redis://x", ConfigError::Scheme),
            ("SQLITE:x", ConfigError::Scheme),
            ("sqlite:", ConfigError::NoPath),
            ("sqlite:?synchronous=full", ConfigError::NoPath),
            ("sqlite://host/x", ConfigError::Host),
            ("sqlite://", ConfigError::Host),
            ("sqlite::memory:", ConfigError::InMemory),
            ("sqlite:x?mode=ro", ConfigError::Option { name: name() }),
            (
                "sqlite:x?",
                ConfigError::Option {
                    name: String::new(),
                },
            ),
            (
                "sqlite:x?timeout_ms=1&timeout_ms=1",
                ConfigError::Twice {
                    name: "timeout_ms".into(),
                },
            ),
            (
                "sqlite:x?synchronous=off",
                ConfigError::Value {
                    name: "synchronous".into(),
                    value: "off".into(),
                    takes: "normal or full",
                },
            ),
        ] {
            assert_eq!(SqliteConfig::parse(url), Err(error), "{url}");
        }
        let text = ConfigError::Option { name: name() }.to_string();
        assert!(
            text.contains("\"mode\"") && text.contains("synchronous=normal|full"),
            "{text}"
        );
    }
}
