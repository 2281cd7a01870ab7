//! Where the server is and how it is reached: [`EsConfig`].

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use lockcore::{Namespace, NamespaceError};
use percent_encoding::percent_decode_str;
use url::Url;

/// How long one request may take, unless the program chooses another time.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);
/// How far the clocks of the nodes may be apart, unless the program says how far they are.
const DEFAULT_CLOCK_SKEW: Duration = Duration::from_secs(1);
/// Copies of the index beside the primary, where it is made.
const DEFAULT_REPLICAS: u32 = 1;
const DEFAULT_PORT: u16 = 9200;

/// The options that a URL may have, for the error that names them.
const OPTIONS: &str = "namespace=NAME, api_key=KEY, ca=PATH, timeout_ms=NUMBER, clock_skew_ms=NUMBER, replicas=NUMBER";

/// Which server, which namespace, and how requests are sent.
///
/// | option | default | meaning |
/// |---|---|---|
/// | [`namespace`](Self::namespace) | `lockkeeper` | the alias of the index that holds the locks |
/// | [`password`](Self::password), [`api_key`](Self::api_key) | none | who we are |
/// | [`ca`](Self::ca) | the usual authorities | a file with the certificate that has signed the server's |
/// | [`timeout`](Self::timeout) | 5 s | how long one request may take |
/// | [`clock_skew`](Self::clock_skew) | 1 s | how far the clocks of the nodes may be apart |
/// | [`replicas`](Self::replicas) | 1 | copies of the index beside the primary, where it is made |
///
/// `Debug` shows no password and no key.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use lockcore::Namespace;
/// use lockcore_es::EsConfig;
///
/// let config: EsConfig = "elasticsearchs://me:p%40ss@a:9200,b/?namespace=fs&timeout_ms=2000".parse()?;
/// let same = EsConfig::parse("elasticsearchs://a,b")?
///     .password("me", "p@ss")
///     .namespace(Namespace::parse("fs")?)
///     .timeout(Duration::from_secs(2));
/// assert_eq!(config, same);
/// assert!(!format!("{config:?}").contains("p@ss"));
/// # Ok::<(), lockcore_es::ConfigError>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct EsConfig {
    pub(crate) nodes: Vec<Url>,
    pub(crate) namespace: Namespace,
    pub(crate) auth: Option<Auth>,
    pub(crate) ca: Option<PathBuf>,
    pub(crate) timeout: Duration,
    pub(crate) clock_skew: Duration,
    pub(crate) replicas: u32,
}

#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Auth {
    Basic { user: String, password: String },
    ApiKey(String),
}

impl EsConfig {
    /// Takes a URL: `elasticsearch://HOST:PORT`, with several hosts separated by commas, with `USER:PASSWORD@` before
    /// them, then perhaps `/`, then perhaps `?` and options (`namespace`, `api_key`, `ca`, `timeout_ms`,
    /// `clock_skew_ms`, `replicas`) with `&` between them. `elasticsearchs://` is by TLS; `opensearch://` and
    /// `opensearchs://` are the same. Without a port it is 9200. `%` and two digits are a byte in user, password and
    /// values.
    ///
    /// # Errors
    ///
    /// Another scheme, no host or none that can be one, a path, a user without password or with an API key besides, an
    /// option that does not exist or is given twice, a value that it does not take.
    pub fn parse(url: &str) -> Result<Self, ConfigError> {
        let (scheme, rest) = url.split_once("://").ok_or(ConfigError::Scheme)?;
        let scheme = match scheme {
            "elasticsearch" | "opensearch" => "http",
            "elasticsearchs" | "opensearchs" => "https",
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
        let nodes = hosts.split(',').map(|host| node(scheme, host));
        let mut config = Self {
            nodes: nodes.collect::<Result<_, _>>()?,
            namespace: Namespace::default(),
            auth: None,
            ca: None,
            timeout: DEFAULT_TIMEOUT,
            clock_skew: DEFAULT_CLOCK_SKEW,
            replicas: DEFAULT_REPLICAS,
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
        let ms = |from: u64| {
            let takes = "a number of milliseconds up to 600000";
            let ms = number(value).filter(|ms| (from..=600_000).contains(ms));
            ms.map(Duration::from_millis).ok_or_else(|| bad(takes))
        };
        match name {
            "namespace" => Ok(self.namespace(Namespace::parse(value)?)),
            "api_key" if self.auth.is_some() => Err(ConfigError::User),
            "api_key" if value.is_empty() || !value.bytes().all(|byte| byte.is_ascii_graphic()) => {
                Err(bad("the key as the server has encoded it"))
            }
            "api_key" => Ok(self.api_key(value)),
            "ca" if value.is_empty() => Err(bad("the path of a file")),
            "ca" => Ok(self.ca(value)),
            "timeout_ms" => Ok(self.timeout(ms(1)?)),
            "clock_skew_ms" => Ok(self.clock_skew(ms(0)?)),
            "replicas" => {
                let replicas = number(value).and_then(|number| u32::try_from(number).ok());
                let replicas = replicas.filter(|replicas| *replicas <= 100);
                Ok(self.replicas(replicas.ok_or_else(|| bad("a number from 0 to 100"))?))
            }
            _ => Err(ConfigError::Option { name: name.into() }),
        }
    }

    /// The namespace, which is the alias of the index.
    #[must_use]
    pub fn namespace(mut self, namespace: Namespace) -> Self {
        self.namespace = namespace;
        self
    }

    /// A user and the password.
    #[must_use]
    pub fn password(mut self, user: impl Into<String>, password: impl Into<String>) -> Self {
        self.auth = Some(Auth::Basic {
            user: user.into(),
            password: password.into(),
        });
        self
    }

    /// An API key, in the one text that the server calls `encoded`.
    #[must_use]
    pub fn api_key(mut self, key: impl Into<String>) -> Self {
        self.auth = Some(Auth::ApiKey(key.into()));
        self
    }

    /// A file with the certificate, as PEM, of the authority that has signed the server's. Read when connecting.
    #[must_use]
    pub fn ca(mut self, path: impl Into<PathBuf>) -> Self {
        self.ca = Some(path.into());
        self
    }

    /// How long one request may take. Where there are several nodes, choose less than a third of the sessions' TTL: one
    /// that does not answer is left for the next when the time is over, and renewals go out every third.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// How far the clocks of the nodes may be apart: that much later than its TTL a session is due, for the primary may
    /// move from one node to another. Zero for a single node.
    #[must_use]
    pub fn clock_skew(mut self, skew: Duration) -> Self {
        self.clock_skew = skew;
        self
    }

    /// Copies of the index beside the primary; matters only where the namespace is made. Without any, a lock is lost
    /// with its node's disk.
    #[must_use]
    pub fn replicas(mut self, replicas: u32) -> Self {
        self.replicas = replicas;
        self
    }
}

fn node(scheme: &str, host: &str) -> Result<Url, ConfigError> {
    // The colons in the brackets of an IPv6 address are its own.
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') => {
            let port = number(port).and_then(|port| u16::try_from(port).ok());
            (
                name,
                port.filter(|port| *port > 0).ok_or(ConfigError::Host)?,
            )
        }
        _ => (host, DEFAULT_PORT),
    };
    let plain = |c: char| c.is_ascii_alphanumeric() || "-._:[]".contains(c);
    if name.is_empty() || !name.chars().all(plain) {
        return Err(ConfigError::Host);
    }
    Url::parse(&format!("{scheme}://{name}:{port}/")).map_err(|_| ConfigError::Host)
}

fn decoded(text: &str) -> Result<String, ConfigError> {
    let decoded = percent_decode_str(text).decode_utf8();
    decoded.map(Into::into).map_err(|_| ConfigError::Encoding)
}

fn number(text: &str) -> Option<u64> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| digits)
}

impl FromStr for EsConfig {
    type Err = ConfigError;

    fn from_str(url: &str) -> Result<Self, ConfigError> {
        Self::parse(url)
    }
}

impl fmt::Debug for EsConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes: Vec<&str> = self.nodes.iter().map(Url::as_str).collect();
        f.debug_struct("EsConfig")
            .field("nodes", &nodes)
            .field("namespace", &self.namespace)
            .field("auth", &self.auth)
            .field("ca", &self.ca)
            .field("timeout", &self.timeout)
            .field("clock_skew", &self.clock_skew)
            .field("replicas", &self.replicas)
            .finish()
    }
}

impl fmt::Debug for Auth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Auth::Basic { .. } => "a user and a password",
            Auth::ApiKey(_) => "an API key",
        })
    }
}

/// Why a text is no URL of an Elasticsearch or OpenSearch. It repeats no part of the URL that may be secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// Another scheme.
    #[error(
        "the URL begins with 'elasticsearch://', 'elasticsearchs://', 'opensearch://' or 'opensearchs://', as in \
         elasticsearch://localhost:9200"
    )]
    Scheme,
    /// No host, or one that cannot be.
    #[error(
        "a node is written as HOST, HOST:PORT or [ADDRESS]:PORT, several with commas between them"
    )]
    Host,
    /// A path or a fragment.
    #[error(
        "the URL has no path: the namespace is an option, as in elasticsearch://localhost/?namespace=fs"
    )]
    Path,
    /// A user without a password, or an API key besides.
    #[error("give either USER:PASSWORD@ before the hosts, or the option api_key")]
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
        let config = EsConfig::parse(url).unwrap();
        config.nodes.iter().map(Url::to_string).collect()
    }

    #[test]
    fn nodes_are_read() {
        for (url, expected) in [
            ("elasticsearch://h", vec!["http://h:9200/"]),
            ("opensearch://h:1/", vec!["http://h:1/"]),
            ("elasticsearchs://h/?namespace=a", vec!["https://h:9200/"]),
            (
                "opensearchs://a,b:9201,[::1],[::1]:1",
                vec![
                    "https://a:9200/",
                    "https://b:9201/",
                    "https://[::1]:9200/",
                    "https://[::1]:1/",
                ],
            ),
            (
                "elasticsearch://u:p@127.0.0.1:9200",
                vec!["http://127.0.0.1:9200/"],
            ),
        ] {
            assert_eq!(nodes(url), expected, "{url}");
        }
        for url in [
            "elasticsearch://",
            "elasticsearch://:9200",
            "elasticsearch://a,",
            "elasticsearch://a:0",
            "elasticsearch://a:65536",
            "elasticsearch://a:+1",
            "elasticsearch://a b",
            "elasticsearch://u:p@",
            "elasticsearch://a:",
            "elasticsearch://[::1]x",
        ] {
            assert_eq!(EsConfig::parse(url), Err(ConfigError::Host), "{url}");
        }
    }

    #[test]
    fn users_and_keys_are_decoded_and_exclude_each_other() {
        let config = EsConfig::parse("elasticsearch://a%3Ab:c%40:d@h").unwrap();
        let auth = Auth::Basic {
            user: "a:b".into(),
            password: "c@:d".into(),
        };
        assert_eq!(config.auth, Some(auth));
        let config = EsConfig::parse("elasticsearch://h?api_key=a+b/c%3D=").unwrap();
        assert_eq!(config.auth, Some(Auth::ApiKey("a+b/c==".into())));
        for (url, error) in [
            ("elasticsearch://u@h", ConfigError::User),
            ("elasticsearch://u:p@h?api_key=k", ConfigError::User),
            ("elasticsearch://u:%ff@h", ConfigError::Encoding),
        ] {
            assert_eq!(EsConfig::parse(url), Err(error), "{url}");
        }
    }

    #[test]
    fn options_are_known_and_given_once() {
        let url = "elasticsearch://h?namespace=fs-1_a&ca=/a%20b&timeout_ms=250&clock_skew_ms=0&replicas=2";
        let config = EsConfig::parse(url).unwrap();
        assert_eq!(config.namespace.as_str(), "fs-1_a");
        assert_eq!(config.ca, Some("/a b".into()));
        assert_eq!(config.timeout, Duration::from_millis(250));
        assert_eq!(config.clock_skew, Duration::ZERO);
        assert_eq!(config.replicas, 2);
        for option in [
            "timeout_ms=0",
            "timeout_ms=600001",
            "timeout_ms=+5",
            "timeout_ms=",
            "clock_skew_ms=-1",
            "replicas=101",
            "replicas=x",
            "ca=",
            "api_key=",
            "api_key=a%0Ab",
        ] {
            let error = EsConfig::parse(&format!("elasticsearch://h?{option}")).unwrap_err();
            assert!(
                matches!(error, ConfigError::Value { .. }),
                "{option}: {error}"
            );
        }
        for option in [
            "timeout_ms=1",
            "timeout_ms=600000",
            "clock_skew_ms=600000",
            "replicas=0",
            "replicas=100",
        ] {
            assert!(
                EsConfig::parse(&format!("elasticsearch://h?{option}")).is_ok(),
                "{option}"
            );
        }
    }

    #[test]
    fn every_other_error_is_named() {
        for (url, error) in [
            ("elasticsearch:h", ConfigError::Scheme),
            ("http://h", ConfigError::Scheme),
            ("elasticsearch://h/index", ConfigError::Path),
            ("elasticsearch://h/#f", ConfigError::Path),
            (
                "elasticsearch://h?x=1",
                ConfigError::Option { name: "x".into() },
            ),
            (
                "elasticsearch://h?",
                ConfigError::Option {
                    name: String::new(),
                },
            ),
            (
                "elasticsearch://h?ca=a&ca=a",
                ConfigError::Twice { name: "ca".into() },
            ),
        ] {
            assert_eq!(EsConfig::parse(url), Err(error), "{url}");
        }
    }

    #[test]
    fn no_secret_is_shown() {
        for url in [
            "elasticsearch://u:secret@h",
            "elasticsearch://h?api_key=secret",
        ] {
            assert!(!format!("{:?}", EsConfig::parse(url).unwrap()).contains("secret"));
        }
        let error = EsConfig::parse("elasticsearch://h?api_key=secret%0A").unwrap_err();
        assert!(!format!("{error} {error:?}").contains("secret"), "{error}");
    }
}
