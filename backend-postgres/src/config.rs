//! Where the server is and how it is reached: [`PostgresConfig`].

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use lockcore::{Namespace, NamespaceError};
use percent_encoding::percent_decode_str;
use sqlx::postgres::PgConnectOptions;

/// How long one operation may take, unless the program chooses another time.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);
/// Most connections of our own, beside the one that listens.
const DEFAULT_CONNECTIONS: usize = 8;
/// The options that the driver reads.
const OF_THE_DRIVER: [&str; 6] = [
    "host",
    "sslmode",
    "sslrootcert",
    "sslcert",
    "sslkey",
    "application_name",
];
/// The options that a URL may have, for the error that names them.
const OPTIONS: &str = "namespace=NAME, timeout_ms=NUMBER, connections=NUMBER, pooler=transaction, host, sslmode, \
                       sslrootcert, sslcert, sslkey, application_name";

/// Which server, which namespace, and how it is talked to.
///
/// | option | default | meaning |
/// |---|---|---|
/// | [`namespace`](Self::namespace) | `lockkeeper` | the schema that holds the locks |
/// | [`timeout`](Self::timeout) | 5 s | how long one operation may take |
/// | [`connections`](Self::connections) | 8 | most connections, beside the one that listens |
/// | [`pooled`](Self::pooled) | no | a pooler in transaction mode stands before the server |
///
/// `Debug` shows no password.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use lockcore_postgres::PostgresConfig;
///
/// let url = "postgres://me:p%40ss@db:5433/app?sslmode=verify-full&namespace=fs&timeout_ms=2000";
/// let config: PostgresConfig = url.parse()?;
/// assert!(!format!("{config:?}").contains("p@ss"));
/// # Ok::<(), lockcore_postgres::ConfigError>(())
/// ```
#[derive(Clone)]
pub struct PostgresConfig {
    pub(crate) options: PgConnectOptions,
    pub(crate) namespace: Namespace,
    pub(crate) timeout: Duration,
    pub(crate) connections: usize,
    pub(crate) pooled: bool,
}

impl PostgresConfig {
    /// Takes a URL: `postgres://USER:PASSWORD@HOST:PORT/DATABASE` or `postgresql://…`, then perhaps `?` and options with
    /// `&` between them: ours (`namespace`, `timeout_ms`, `connections`, `pooler=transaction`), and the usual ones
    /// (`host`, also of a socket's folder, `sslmode`, `sslrootcert`, `sslcert`, `sslkey`, `application_name`). `%` and
    /// two digits are a byte. What the URL does not say is as the usual environment variables (`PGHOST`, `PGPASSWORD`
    /// and so on) and the password file have it.
    ///
    /// # Errors
    ///
    /// Another scheme, a host or port that cannot be, an option that does not exist or is given twice, a value that it
    /// does not take.
    pub fn parse(url: &str) -> Result<Self, ConfigError> {
        let (scheme, rest) = url.split_once("://").ok_or(ConfigError::Scheme)?;
        if !matches!(scheme, "postgres" | "postgresql") {
            return Err(ConfigError::Scheme);
        }
        if rest.contains('#') {
            return Err(ConfigError::Address);
        }
        let (address, options) = match rest.split_once('?') {
            Some((address, options)) => (address, Some(options)),
            None => (rest, None),
        };
        let mut given = Vec::new();
        let mut ours = Vec::new();
        let mut of_the_driver = Vec::new();
        for option in options.into_iter().flat_map(|options| options.split('&')) {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            if given.contains(&name) {
                return Err(ConfigError::Twice { name: name.into() });
            }
            given.push(name);
            if OF_THE_DRIVER.contains(&name) {
                of_the_driver.push(option);
            } else {
                ours.push((name, value));
            }
        }
        // Its errors may quote the URL.
        let driver = format!("postgres://{address}?{}", of_the_driver.join("&"));
        let options = driver.parse::<PgConnectOptions>();
        let mut config = Self {
            options: options.map_err(|_| ConfigError::Address)?,
            ..Self::default()
        };
        for (name, value) in ours {
            let value = percent_decode_str(value).decode_utf8();
            config = config.set(name, &value.map_err(|_| ConfigError::Encoding)?)?;
        }
        Ok(config)
    }

    fn set(self, name: &str, value: &str) -> Result<Self, ConfigError> {
        let number = |most: u64, takes| {
            let digits = value.bytes().all(|byte| byte.is_ascii_digit());
            let number = value.parse().ok().filter(|_| digits);
            let number = number.filter(|number: &u64| (1..=most).contains(number));
            number.ok_or(ConfigError::Value {
                name: name.into(),
                takes,
            })
        };
        match name {
            "namespace" => Ok(self.namespace(Namespace::parse(value)?)),
            "timeout_ms" => {
                let ms = number(600_000, "a number of milliseconds up to 600000")?;
                Ok(self.timeout(Duration::from_millis(ms)))
            }
            "connections" => {
                let most = number(1_000, "a number from 1 to 1000")?;
                Ok(self.connections(usize::try_from(most).unwrap_or(usize::MAX)))
            }
            "pooler" if value == "transaction" => Ok(self.pooled()),
            "pooler" => Err(ConfigError::Value {
                name: name.into(),
                takes: "transaction, where a pooler in that mode stands before the server",
            }),
            _ => Err(ConfigError::Option { name: name.into() }),
        }
    }

    /// The namespace, which is the name of the schema.
    #[must_use]
    pub fn namespace(mut self, namespace: Namespace) -> Self {
        self.namespace = namespace;
        self
    }

    /// How long one operation may take, the wait for a connection included.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Most connections of our own. They are made when they are needed, and none is held while a lock is.
    #[must_use]
    pub fn connections(mut self, most: usize) -> Self {
        self.connections = most.max(1);
        self
    }

    /// A pooler in transaction mode stands before the server: nothing is prepared, and who waits looks by itself.
    #[must_use]
    pub fn pooled(mut self) -> Self {
        self.pooled = true;
        self
    }
}

/// The server that the usual environment variables name, or the one on this machine, with the defaults for everything
/// else.
impl Default for PostgresConfig {
    fn default() -> Self {
        Self {
            options: PgConnectOptions::new(),
            namespace: Namespace::default(),
            timeout: DEFAULT_TIMEOUT,
            connections: DEFAULT_CONNECTIONS,
            pooled: false,
        }
    }
}

impl FromStr for PostgresConfig {
    type Err = ConfigError;

    fn from_str(url: &str) -> Result<Self, ConfigError> {
        Self::parse(url)
    }
}

impl fmt::Debug for PostgresConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresConfig")
            .field("host", &self.options.get_host())
            .field("port", &self.options.get_port())
            .field("database", &self.options.get_database())
            .field("namespace", &self.namespace)
            .field("timeout", &self.timeout)
            .field("connections", &self.connections)
            .field("pooled", &self.pooled)
            .finish_non_exhaustive()
    }
}

/// Why a text is no URL of a PostgreSQL. It repeats no part of the URL that may be secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// Another scheme.
    #[error(
        "the URL begins with 'postgres://' or 'postgresql://', as in postgres://me:password@localhost/app"
    )]
    Scheme,
    /// No user, host, port or database can be read.
    #[error(
        "the URL is written as postgres://USER:PASSWORD@HOST:PORT/DATABASE?OPTIONS, with %40 for @ and %2F for / in a \
         password"
    )]
    Address,
    /// A `%` that does not stand for UTF-8.
    #[error("the URL has a % that is no character: write the bytes of UTF-8, as in %40 for @")]
    Encoding,
    /// A name that no namespace has.
    #[error(transparent)]
    Namespace(#[from] NamespaceError),
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
    #[error("the option {name:?} is {takes}")]
    Value {
        /// The option.
        name: String,
        /// What it takes.
        takes: &'static str,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read() {
        for (url, host, port, user, database) in [
            ("postgres://me@h/d", "h", 5432, "me", Some("d")),
            (
                "postgresql://a%3Ab:c%2Fd@h:1/x?sslmode=disable",
                "h",
                1,
                "a:b",
                Some("x"),
            ),
            (
                "postgres://me@127.0.0.1:5433",
                "127.0.0.1",
                5433,
                "me",
                None,
            ),
        ] {
            let options = PostgresConfig::parse(url).unwrap().options;
            assert_eq!(options.get_host(), host, "{url}");
            assert_eq!(options.get_port(), port, "{url}");
            assert_eq!(options.get_username(), user, "{url}");
            assert_eq!(options.get_database(), database, "{url}");
        }
    }

    #[test]
    fn options_are_known_and_given_once() {
        let url = "postgres://h/?namespace=fs-1_a&timeout_ms=250&connections=3&pooler=transaction";
        let config = PostgresConfig::parse(url).unwrap();
        assert_eq!(config.namespace.as_str(), "fs-1_a");
        assert_eq!(config.timeout, Duration::from_millis(250));
        assert_eq!(config.connections, 3);
        assert!(config.pooled);
        for option in [
            "timeout_ms=0",
            "timeout_ms=600001",
            "timeout_ms=+5",
            "timeout_ms=",
            "connections=0",
            "connections=1001",
            "pooler=session",
        ] {
            let error = PostgresConfig::parse(&format!("postgres://h?{option}")).unwrap_err();
            assert!(
                matches!(error, ConfigError::Value { .. }),
                "{option}: {error}"
            );
        }
    }

    #[test]
    fn every_other_error_is_named() {
        for (url, error) in [
            ("postgres:h", ConfigError::Scheme),
            ("mysql://h", ConfigError::Scheme),
            ("postgres://h:x/", ConfigError::Address),
            ("postgres://h/#f", ConfigError::Address),
            ("postgres://h?sslmode=perhaps", ConfigError::Address),
            ("postgres://h?namespace=%ff", ConfigError::Encoding),
            (
                "postgres://h?namespace=FS",
                ConfigError::Namespace(NamespaceError),
            ),
            ("postgres://h?x=1", ConfigError::Option { name: "x".into() }),
            (
                "postgres://h?",
                ConfigError::Option {
                    name: String::new(),
                },
            ),
            (
                "postgres://h?connections=1&connections=1",
                ConfigError::Twice {
                    name: "connections".into(),
                },
            ),
        ] {
            assert_eq!(PostgresConfig::parse(url).unwrap_err(), error, "{url}");
        }
    }

    #[test]
    fn no_secret_is_shown() {
        let config = PostgresConfig::parse("postgres://me:secret@h/d").unwrap();
        assert!(!format!("{config:?}").contains("secret"));
        let error = PostgresConfig::parse("postgres://me:secret@h:x/d").unwrap_err();
        assert!(!format!("{error} {error:?}").contains("secret"), "{error}");
    }
}
