//! Where the server is and how it is reached: [`EtcdConfig`].

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use lockcore::{Namespace, NamespaceError};
use percent_encoding::percent_decode_str;

/// How long one request may take, unless the program chooses another time.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);
const DEFAULT_PORT: u16 = 2379;
/// As many operations as a server takes in one transaction unless its `--max-txn-ops` says otherwise.
const DEFAULT_OPERATIONS: usize = 128;
/// So many of them are needed beside those for the claims.
pub(crate) const OVERHEAD: usize = 3;
/// One path of the greatest depth has to fit.
const MIN_OPERATIONS: usize = lockcore::limits::MAX_PATH_COMPONENTS + OVERHEAD;
const MAX_OPERATIONS: usize = 10_000;

/// The options that a URL may have, for the error that names them.
const OPTIONS: &str =
    "namespace=NAME, ca=PATH, cert=PATH, key=PATH, timeout_ms=NUMBER, txn_ops=NUMBER";

/// Which servers, which namespace, and how requests are sent.
///
/// Several hosts are members of one cluster: one of them is used until it fails, then the next.
///
/// | option | default | meaning |
/// |---|---|---|
/// | [`namespace`](Self::namespace) | `lockkeeper` | what all keys begin with, and a `/` behind it |
/// | [`password`](Self::password) | none | who we are |
/// | [`ca`](Self::ca) | the usual authorities | a file with the certificate that has signed the server's |
/// | [`certificate`](Self::certificate) | none | files with a certificate of ours and its key (`cert`, `key`) |
/// | [`timeout`](Self::timeout) | 5 s | how long one request may take |
/// | [`operations`](Self::operations) | 128 | as many as the server takes in one transaction (`txn_ops`) |
///
/// `Debug` shows no password.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use lockcore::Namespace;
/// use lockcore_etcd::EtcdConfig;
///
/// let config: EtcdConfig = "etcds://me:p%40ss@a:2379,b/?namespace=fs&timeout_ms=2000".parse()?;
/// let same = EtcdConfig::parse("etcds://a,b")?
///     .password("me", "p@ss")
///     .namespace(Namespace::parse("fs")?)
///     .timeout(Duration::from_secs(2));
/// assert_eq!(config, same);
/// assert!(!format!("{config:?}").contains("p@ss"));
/// # Ok::<(), lockcore_etcd::ConfigError>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct EtcdConfig {
    pub(crate) tls: bool,
    pub(crate) nodes: Vec<Address>,
    pub(crate) namespace: Namespace,
    pub(crate) auth: Option<Auth>,
    pub(crate) ca: Option<PathBuf>,
    pub(crate) timeout: Duration,
    pub(crate) certificate: Certificate,
    pub(crate) operations: usize,
}

/// A host, without brackets, and a port.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Address {
    pub(crate) host: String,
    pub(crate) port: u16,
}

/// The files of a certificate of ours and of its key.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Certificate {
    pub(crate) cert: Option<PathBuf>,
    pub(crate) key: Option<PathBuf>,
}

#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Auth {
    pub(crate) user: String,
    pub(crate) password: String,
}

impl EtcdConfig {
    /// Reads `etcd://[USER:PASSWORD@]HOST[:PORT][,…][/][?OPTION=VALUE&…]`, or `etcds://` for TLS. What stands for a
    /// user, a password or a value is percent-encoded.
    ///
    /// # Errors
    ///
    /// A text that is no such URL, or an option that does not exist or cannot have that value.
    pub fn parse(url: &str) -> Result<Self, ConfigError> {
        let (scheme, rest) = url.split_once("://").ok_or(ConfigError::Scheme)?;
        let tls = match scheme {
            "etcd" => false,
            "etcds" => true,
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
        if !matches!(path, "" | "/") {
            return Err(ConfigError::Path);
        }
        let (user, hosts) = match authority.rsplit_once('@') {
            Some((user, hosts)) => (Some(user), hosts),
            None => (None, authority),
        };
        let mut config = Self {
            tls,
            nodes: hosts.split(',').map(node).collect::<Result<_, _>>()?,
            namespace: Namespace::default(),
            auth: None,
            ca: None,
            certificate: Certificate::default(),
            timeout: DEFAULT_TIMEOUT,
            operations: DEFAULT_OPERATIONS,
        };
        if let Some(user) = user {
            let (user, password) = user.split_once(':').ok_or(ConfigError::User)?;
            if user.is_empty() {
                return Err(ConfigError::User);
            }
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
        let Certificate { cert, key } = &config.certificate;
        if cert.is_some() != key.is_some() {
            return Err(ConfigError::Certificate);
        }
        let encrypted = config.ca.is_some() || cert.is_some();
        if encrypted && !config.tls {
            return Err(ConfigError::Encrypted);
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
            "ca" | "cert" | "key" if value.is_empty() => Err(bad("the path of a file")),
            "ca" => Ok(self.ca(value)),
            "cert" | "key" => {
                let mut config = self;
                let Certificate { cert, key } = &mut config.certificate;
                *(if name == "cert" { cert } else { key }) = Some(value.into());
                Ok(config)
            }
            "timeout_ms" => Ok(self.timeout(ms()?)),
            "txn_ops" => {
                let number = number(value).and_then(|number| usize::try_from(number).ok());
                let number = number.filter(|n| (MIN_OPERATIONS..=MAX_OPERATIONS).contains(n));
                Ok(self.operations(number.ok_or_else(|| bad("a number from 67 to 10000"))?))
            }
            _ => Err(ConfigError::Option { name: name.into() }),
        }
    }

    /// The namespace, with which all keys begin, and a `/` behind it.
    #[must_use]
    pub fn namespace(mut self, namespace: Namespace) -> Self {
        self.namespace = namespace;
        self
    }

    /// A user and the password.
    #[must_use]
    pub fn password(mut self, user: impl Into<String>, password: impl Into<String>) -> Self {
        self.auth = Some(Auth {
            user: user.into(),
            password: password.into(),
        });
        self
    }

    /// A file with the certificate, as PEM, of the authority that has signed the server's. Read when connecting.
    #[must_use]
    pub fn ca(mut self, path: impl Into<PathBuf>) -> Self {
        self.ca = Some(path.into());
        self
    }

    /// Files with a certificate, as PEM, that says who we are, and with its key. Read when connecting.
    #[must_use]
    pub fn certificate(mut self, cert: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        self.certificate = Certificate {
            cert: Some(cert.into()),
            key: Some(key.into()),
        };
        self
    }

    /// How long one request may take. Where there are several members, choose less than a third of the sessions' TTL: one
    /// that does not answer is left for the next when the time is over, and renewals go out every third.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// As many operations as the server takes in one transaction, which is its `--max-txn-ops`: so large are steps. Less
    /// than 67, which a path of 64 components needs, and more than 10,000 are taken as those.
    #[must_use]
    pub fn operations(mut self, operations: usize) -> Self {
        self.operations = operations.clamp(MIN_OPERATIONS, MAX_OPERATIONS);
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

impl FromStr for EtcdConfig {
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

impl fmt::Debug for EtcdConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes: Vec<String> = self.nodes.iter().map(Address::to_string).collect();
        f.debug_struct("EtcdConfig")
            .field("tls", &self.tls)
            .field("nodes", &nodes)
            .field("namespace", &self.namespace)
            .field("auth", &self.auth)
            .field("ca", &self.ca)
            .field("timeout", &self.timeout)
            .field("certificate", &self.certificate)
            .field("operations", &self.operations)
            .finish()
    }
}

impl fmt::Debug for Auth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a user and a password")
    }
}

/// Why a text is no URL of an etcd. It repeats no part of the URL that may be secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// Another scheme.
    #[error("the URL begins with 'etcd://' or, for TLS, 'etcds://', as in etcd://localhost:2379")]
    Scheme,
    /// No host, or one that cannot be.
    #[error(
        "a host is written as HOST, HOST:PORT or [ADDRESS]:PORT, several with commas between them"
    )]
    Host,
    /// A path or a fragment.
    #[error(
        "the URL has no path: the namespace is an option, as in etcd://localhost/?namespace=fs"
    )]
    Path,
    /// A user without a password.
    #[error("who we are is written as USER:PASSWORD@ before the hosts")]
    User,
    /// A certificate without its key, or the other way round.
    #[error("a certificate of ours takes both options, cert and key")]
    Certificate,
    /// A certificate where nothing is encrypted.
    #[error("certificates are for TLS: begin the URL with 'etcds://'")]
    Encrypted,
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
        let config = EtcdConfig::parse(url).unwrap();
        config.nodes.iter().map(Address::to_string).collect()
    }

    #[test]
    fn hosts_are_read() {
        for (url, expected) in [
            ("etcd://h", vec!["h:2379"]),
            ("etcds://h:1/", vec!["h:1"]),
            ("etcd://u:p@127.0.0.1:9/?namespace=a", vec!["127.0.0.1:9"]),
            (
                "etcd://a,b:9201,[::1],[::1]:1",
                vec!["a:2379", "b:9201", "[::1]:2379", "[::1]:1"],
            ),
        ] {
            assert_eq!(nodes(url), expected, "{url}");
        }
        for url in [
            "etcd://",
            "etcd://:2379",
            "etcd://a,",
            "etcd://a:0",
            "etcd://a:65536",
            "etcd://a:+1",
            "etcd://a b",
            "etcd://u:p@",
            "etcd://a:",
            "etcd://[::1]x",
            "etcd://[]",
            "etcd://::1",
        ] {
            assert_eq!(EtcdConfig::parse(url), Err(ConfigError::Host), "{url}");
        }
    }

    #[test]
    fn users_and_options_are_read() {
        let url = "etcds://a%3Ab:c%40:d@h/?namespace=fs-1_a&ca=/a%20b&cert=/c&key=/k&timeout_ms=250&txn_ops=67";
        let config = EtcdConfig::parse(url).unwrap();
        let expected = EtcdConfig::parse("etcds://h")
            .unwrap()
            .password("a:b", "c@:d")
            .namespace(Namespace::parse("fs-1_a").unwrap())
            .ca("/a b")
            .timeout(Duration::from_millis(250))
            .certificate("/c", "/k")
            .operations(0);
        assert_eq!(config, expected);
    }

    #[test]
    fn every_other_error_is_named() {
        for (url, error) in [
            ("redis:h", ConfigError::Scheme),
            ("http://h", ConfigError::Scheme),
            ("etcd://h/a", ConfigError::Path),
            ("etcd://:p@h", ConfigError::User),
            ("etcds://h?cert=a", ConfigError::Certificate),
            ("etcds://h?key=a", ConfigError::Certificate),
            ("etcd://h?ca=a", ConfigError::Encrypted),
            ("etcd://h?cert=a&key=b", ConfigError::Encrypted),
            ("etcd://h/#f", ConfigError::Path),
            ("etcd://u@h", ConfigError::User),
            ("etcd://u:%ff@h", ConfigError::Encoding),
            (
                "etcd://h?namespace=A",
                ConfigError::Namespace(NamespaceError),
            ),
            (
                "etcd://h?namespace=",
                ConfigError::Namespace(NamespaceError),
            ),
            ("etcd://h?x=1", ConfigError::Option { name: "x".into() }),
            (
                "etcds://h?ca=a&ca=a",
                ConfigError::Twice { name: "ca".into() },
            ),
        ] {
            assert_eq!(EtcdConfig::parse(url), Err(error), "{url}");
        }
        for option in [
            "timeout_ms=0",
            "timeout_ms=600001",
            "timeout_ms=+5",
            "txn_ops=66",
            "txn_ops=10001",
            "txn_ops=x",
            "ca=",
            "cert=",
        ] {
            let error = EtcdConfig::parse(&format!("etcd://h?{option}")).unwrap_err();
            assert!(
                matches!(error, ConfigError::Value { .. }),
                "{option}: {error}"
            );
        }
        for option in [
            "timeout_ms=1",
            "timeout_ms=600000",
            "txn_ops=67",
            "txn_ops=10000",
        ] {
            assert!(
                EtcdConfig::parse(&format!("etcd://h?{option}")).is_ok(),
                "{option}"
            );
        }
    }

    #[test]
    fn no_secret_is_shown() {
        let config = EtcdConfig::parse("etcd://u:secret@h").unwrap();
        assert!(!format!("{config:?}").contains("secret"));
        let error = EtcdConfig::parse("etcd://u:secret@h/secret").unwrap_err();
        assert!(!format!("{error} {error:?}").contains("secret"), "{error}");
    }
}
