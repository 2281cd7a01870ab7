//! Where the server is and how it is reached: [`RedisConfig`].

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use lockcore::{Namespace, NamespaceError};
use percent_encoding::percent_decode_str;

/// How long one request may take, unless the program chooses another time.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a write waits for replicas, unless the program chooses another time.
const DEFAULT_WAIT: Duration = Duration::from_secs(1);
const DEFAULT_PORT: u16 = 6379;

/// The options that a URL may have, for the error that names them.
const OPTIONS: &str = "namespace=NAME, ca=PATH, timeout_ms=NUMBER, replicas=NUMBER, wait_ms=NUMBER";

/// Which servers, which namespace, and how requests are sent.
///
/// Several hosts are one primary and its replicas, in any order, or some nodes of one cluster: the right one is found,
/// and found again after a failover.
///
/// | option | default | meaning |
/// |---|---|---|
/// | [`namespace`](Self::namespace) | `lockkeeper` | what the names of all keys begin with, in braces |
/// | [`password`](Self::password) | none | who we are |
/// | [`database`](Self::database) | 0 | the number of the database; in a URL it is the path |
/// | [`ca`](Self::ca) | the usual authorities | a file with the certificate that has signed the server's |
/// | [`timeout`](Self::timeout) | 5 s | how long one request may take |
/// | [`replicas`](Self::replicas) | 0 | how many replicas have to have a write before it counts as done |
/// | [`wait`](Self::wait) | 1 s | how long they are waited for |
///
/// `Debug` shows no password.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use lockcore::Namespace;
/// use lockcore_redis::RedisConfig;
///
/// let config: RedisConfig = "rediss://me:p%40ss@a:6379,b/?namespace=fs&timeout_ms=2000".parse()?;
/// let same = RedisConfig::parse("rediss://a,b")?
///     .password("me", "p@ss")
///     .namespace(Namespace::parse("fs")?)
///     .timeout(Duration::from_secs(2));
/// assert_eq!(config, same);
/// assert!(!format!("{config:?}").contains("p@ss"));
/// # Ok::<(), lockcore_redis::ConfigError>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct RedisConfig {
    pub(crate) tls: bool,
    pub(crate) nodes: Vec<Address>,
    pub(crate) namespace: Namespace,
    pub(crate) auth: Option<Auth>,
    pub(crate) database: u16,
    pub(crate) ca: Option<PathBuf>,
    pub(crate) timeout: Duration,
    pub(crate) replicas: u32,
    pub(crate) wait: Duration,
}

/// A host, without brackets, and a port.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Address {
    pub(crate) host: String,
    pub(crate) port: u16,
}

#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Auth {
    /// Empty for the default user.
    pub(crate) user: String,
    pub(crate) password: String,
}

impl RedisConfig {
    /// Reads `redis://[[USER]:PASSWORD@]HOST[:PORT][,…][/DATABASE][?OPTION=VALUE&…]`, or `rediss://` for TLS. What
    /// stands for a user, a password or a value is percent-encoded.
    ///
    /// # Errors
    ///
    /// A text that is no such URL, or an option that does not exist or cannot have that value.
    pub fn parse(url: &str) -> Result<Self, ConfigError> {
        let (scheme, rest) = url.split_once("://").ok_or(ConfigError::Scheme)?;
        let tls = match scheme {
            "redis" => false,
            "rediss" => true,
            _ => return Err(ConfigError::Scheme),
        };
        if rest.contains('#') {
            return Err(ConfigError::Path);
        }
        let (rest, options) = match rest.split_once('?') {
            Some((rest, options)) => (rest, Some(options)),
            None => (rest, None),
        };
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let database = match path.strip_prefix('/').unwrap_or(path) {
            "" => 0,
            number => self::number(number)
                .and_then(|number| u16::try_from(number).ok())
                .ok_or(ConfigError::Path)?,
        };
        let (user, hosts) = match authority.rsplit_once('@') {
            Some((user, hosts)) => (Some(user), hosts),
            None => (None, authority),
        };
        let mut config = Self {
            tls,
            nodes: hosts.split(',').map(node).collect::<Result<_, _>>()?,
            namespace: Namespace::default(),
            auth: None,
            database,
            ca: None,
            timeout: DEFAULT_TIMEOUT,
            replicas: 0,
            wait: DEFAULT_WAIT,
        };
        if let Some(user) = user {
            let (user, password) = user.split_once(':').ok_or(ConfigError::User)?;
            config = config.password(decoded(user)?, decoded(password)?);
        }
        let mut given = Vec::new();
        for option in options.into_iter().flat_map(|options| options.split('&')) {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            if given.contains(&name) {
                return Err(ConfigError::Twice { name: name.into() });
            }
            given.push(name);
            config = config.set(name, &decoded(value)?)?;
        }
        Ok(config)
    }

    fn set(self, name: &str, value: &str) -> Result<Self, ConfigError> {
        let bad = |takes| ConfigError::Value {
            name: name.into(),
            takes,
        };
        let ms = || {
            let ms = number(value).filter(|ms| (1..=600_000).contains(ms));
            ms.map(Duration::from_millis)
                .ok_or_else(|| bad("a number of milliseconds from 1 to 600000"))
        };
        match name {
            "namespace" => Ok(self.namespace(Namespace::parse(value)?)),
            "ca" if value.is_empty() => Err(bad("the path of a file")),
            "ca" => Ok(self.ca(value)),
            "timeout_ms" => Ok(self.timeout(ms()?)),
            "wait_ms" => Ok(self.wait(ms()?)),
            "replicas" => {
                let replicas = number(value).and_then(|number| u32::try_from(number).ok());
                let replicas = replicas.filter(|replicas| *replicas <= 100);
                Ok(self.replicas(replicas.ok_or_else(|| bad("a number from 0 to 100"))?))
            }
            _ => Err(ConfigError::Option { name: name.into() }),
        }
    }

    /// The namespace, with which the names of all keys begin, in braces.
    #[must_use]
    pub fn namespace(mut self, namespace: Namespace) -> Self {
        self.namespace = namespace;
        self
    }

    /// A user and the password; the empty user is the default one.
    #[must_use]
    pub fn password(mut self, user: impl Into<String>, password: impl Into<String>) -> Self {
        self.auth = Some(Auth {
            user: user.into(),
            password: password.into(),
        });
        self
    }

    /// The number of the database. A cluster has only number 0.
    #[must_use]
    pub fn database(mut self, database: u16) -> Self {
        self.database = database;
        self
    }

    /// A file with the certificate, as PEM, of the authority that has signed the server's. Read when connecting.
    #[must_use]
    pub fn ca(mut self, path: impl Into<PathBuf>) -> Self {
        self.ca = Some(path.into());
        self
    }

    /// How long one request may take.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// How many replicas have to confirm a grant, a renewal, a death, an adoption or a settlement before it counts as
    /// done. With all of them a grant survives the promotion of any. Where too few do, the outcome is unknown: what was
    /// granted is given back by the client, and a session that cannot be renewed is lost.
    #[must_use]
    pub fn replicas(mut self, replicas: u32) -> Self {
        self.replicas = replicas;
        self
    }

    /// How long replicas are waited for, and at most a third of the [timeout](Self::timeout) of a request.
    #[must_use]
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }
}

fn node(host: &str) -> Result<Address, ConfigError> {
    // The colons in the brackets of an IPv6 address are its own.
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') => {
            let port = number(port).and_then(|port| u16::try_from(port).ok());
            let port = port.filter(|port| *port > 0);
            (name, port.ok_or(ConfigError::Host)?)
        }
        _ => (host, DEFAULT_PORT),
    };
    let bare = name
        .strip_prefix('[')
        .map_or(Some(name), |name| name.strip_suffix(']'))
        .ok_or(ConfigError::Host)?;
    let colons = name.starts_with('[');
    let plain = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c) || (colons && c == ':');
    if bare.is_empty() || !bare.chars().all(plain) {
        return Err(ConfigError::Host);
    }
    Ok(Address {
        host: bare.to_owned(),
        port,
    })
}

fn decoded(text: &str) -> Result<String, ConfigError> {
    let decoded = percent_decode_str(text).decode_utf8();
    decoded.map(Into::into).map_err(|_| ConfigError::Encoding)
}

fn number(text: &str) -> Option<u64> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| digits)
}

impl FromStr for RedisConfig {
    type Err = ConfigError;

    fn from_str(url: &str) -> Result<Self, ConfigError> {
        Self::parse(url)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl fmt::Debug for RedisConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes: Vec<String> = self.nodes.iter().map(Address::to_string).collect();
        f.debug_struct("RedisConfig")
            .field("tls", &self.tls)
            .field("nodes", &nodes)
            .field("namespace", &self.namespace)
            .field("auth", &self.auth)
            .field("database", &self.database)
            .field("ca", &self.ca)
            .field("timeout", &self.timeout)
            .field("replicas", &self.replicas)
            .field("wait", &self.wait)
            .finish()
    }
}

impl fmt::Debug for Auth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a user and a password")
    }
}

/// Why a text is no URL of a Redis. It repeats no part of the URL that may be secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// Another scheme.
    #[error(
        "the URL begins with 'redis://' or, for TLS, 'rediss://', as in redis://localhost:6379"
    )]
    Scheme,
    /// No host, or one that cannot be.
    #[error(
        "a host is written as HOST, HOST:PORT or [ADDRESS]:PORT, several with commas between them"
    )]
    Host,
    /// A path that is no number of a database, or a fragment.
    #[error(
        "the path of the URL is the number of the database; the namespace is an option, as in \
         redis://localhost/?namespace=fs"
    )]
    Path,
    /// A user without a password.
    #[error(
        "who we are is written as USER:PASSWORD@ before the hosts, or :PASSWORD@ for the default user"
    )]
    User,
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

    fn nodes(url: &str) -> Vec<String> {
        let config = RedisConfig::parse(url).unwrap();
        config.nodes.iter().map(Address::to_string).collect()
    }

    #[test]
    fn hosts_are_read() {
        for (url, expected) in [
            ("redis://h", vec!["h:6379"]),
            ("rediss://h:1/", vec!["h:1"]),
            ("redis://u:p@127.0.0.1:9/3?namespace=a", vec!["127.0.0.1:9"]),
            (
                "redis://a,b:9201,[::1],[::1]:1",
                vec!["a:6379", "b:9201", "[::1]:6379", "[::1]:1"],
            ),
        ] {
            assert_eq!(nodes(url), expected, "{url}");
        }
        for url in [
            "redis://",
            "redis://:6379",
            "redis://a,",
            "redis://a:0",
            "redis://a:65536",
            "redis://a:+1",
            "redis://a b",
            "redis://u:p@",
            "redis://a:",
            "redis://[::1]x",
            "redis://[]",
            "redis://::1",
        ] {
            assert_eq!(RedisConfig::parse(url), Err(ConfigError::Host), "{url}");
        }
    }

    #[test]
    fn users_databases_and_options_are_read() {
        let url = "rediss://a%3Ab:c%40:d@h/7?namespace=fs-1_a&ca=/a%20b&timeout_ms=250&replicas=2&wait_ms=100";
        let config = RedisConfig::parse(url).unwrap();
        let expected = RedisConfig::parse("rediss://h")
            .unwrap()
            .password("a:b", "c@:d")
            .database(7)
            .namespace(Namespace::parse("fs-1_a").unwrap())
            .ca("/a b")
            .timeout(Duration::from_millis(250))
            .replicas(2)
            .wait(Duration::from_millis(100));
        assert_eq!(config, expected);
        let default = RedisConfig::parse("redis://:p@h").unwrap();
        assert_eq!(default.auth.unwrap().user, "");
    }

    #[test]
    fn every_other_error_is_named() {
        for (url, error) in [
            ("redis:h", ConfigError::Scheme),
            ("http://h", ConfigError::Scheme),
            ("redis://h/a", ConfigError::Path),
            ("redis://h/65536", ConfigError::Path),
            ("redis://h/#f", ConfigError::Path),
            ("redis://u@h", ConfigError::User),
            ("redis://u:%ff@h", ConfigError::Encoding),
            (
                "redis://h?namespace=A",
                ConfigError::Namespace(NamespaceError),
            ),
            (
                "redis://h?namespace=",
                ConfigError::Namespace(NamespaceError),
            ),
            ("redis://h?x=1", ConfigError::Option { name: "x".into() }),
            (
                "redis://h?ca=a&ca=a",
                ConfigError::Twice { name: "ca".into() },
            ),
        ] {
            assert_eq!(RedisConfig::parse(url), Err(error), "{url}");
        }
        for option in [
            "timeout_ms=0",
            "timeout_ms=600001",
            "timeout_ms=+5",
            "wait_ms=",
            "replicas=101",
            "replicas=x",
            "ca=",
        ] {
            let error = RedisConfig::parse(&format!("redis://h?{option}")).unwrap_err();
            assert!(
                matches!(error, ConfigError::Value { .. }),
                "{option}: {error}"
            );
        }
        for option in [
            "timeout_ms=1",
            "timeout_ms=600000",
            "replicas=0",
            "replicas=100",
        ] {
            assert!(
                RedisConfig::parse(&format!("redis://h?{option}")).is_ok(),
                "{option}"
            );
        }
    }

    #[test]
    fn no_secret_is_shown() {
        let config = RedisConfig::parse("redis://u:secret@h").unwrap();
        assert!(!format!("{config:?}").contains("secret"));
        let error = RedisConfig::parse("redis://u:secret@h/secret").unwrap_err();
        assert!(!format!("{error} {error:?}").contains("secret"), "{error}");
    }
}
