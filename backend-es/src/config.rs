//! Where the server is and how it is reached: [`EsConfig`].

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use lockcore::backend::Namespace;
use lockcore::backend::{Grammar, Host, StoreUrl, UrlError};
use url::Url;

/// How long one request may take, unless the program chooses another time.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);
/// How far the clocks of the nodes may be apart, unless the program says how far they are.
const DEFAULT_CLOCK_SKEW: Duration = Duration::from_secs(1);
/// Copies of the index beside the primary, where it is made.
const DEFAULT_REPLICAS: u32 = 1;
const DEFAULT_PORT: u16 = 9200;

const GRAMMAR: Grammar = Grammar {
    schemes: &[
        "elasticsearch",
        "elasticsearchs",
        "opensearch",
        "opensearchs",
    ],
    example: "elasticsearch://localhost:9200",
    user: "give either USER:PASSWORD@ before the hosts, or the option api_key",
    path: "the URL has no path: the namespace is an option, as in elasticsearch://localhost/?namespace=fs",
};

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
/// use lockcore::backend::Namespace;
/// use lockcore_es::EsConfig;
///
/// let config: EsConfig = "elasticsearchs://me:p%40ss@a:9200,b/?namespace=fs&timeout_ms=2000".parse()?;
/// let same = EsConfig::parse("elasticsearchs://a,b")?
///     .password("me", "p@ss")
///     .namespace(Namespace::parse("fs")?)
///     .timeout(Duration::from_secs(2));
/// assert_eq!(config, same);
/// assert!(!format!("{config:?}").contains("p@ss"));
/// # Ok::<(), lockcore::backend::UrlError>(())
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
    pub fn parse(url: &str) -> Result<Self, UrlError> {
        let mut url = StoreUrl::parse(url, GRAMMAR)?;
        if !url.path.is_empty() {
            return Err(UrlError::Path(GRAMMAR.path));
        }
        let tls = matches!(url.scheme, "elasticsearchs" | "opensearchs");
        let node = |host: &Host| {
            let scheme = if tls { "https" } else { "http" };
            Url::parse(&format!("{scheme}://{host}/")).map_err(|_| UrlError::Host)
        };
        let nodes = url.hosts(DEFAULT_PORT)?;
        let options = &mut url.options;
        let takes = "the key as the server has encoded it";
        let api_key = options.read("api_key", "KEY", takes, |key| {
            let plain = key.bytes().all(|byte| byte.is_ascii_graphic());
            (plain && !key.is_empty()).then(|| key.to_owned())
        })?;
        let basic = url
            .user
            .map(|(user, password)| Auth::Basic { user, password });
        let auth = match (basic, api_key.map(Auth::ApiKey)) {
            (Some(_), Some(_)) => return Err(UrlError::User(GRAMMAR.user)),
            (basic, key) => basic.or(key),
        };
        let replicas = options.number("replicas", 0..=100, "a number from 0 to 100")?;
        let skew = options.millis("clock_skew_ms", 0)?;
        let config = Self {
            nodes: nodes.iter().map(node).collect::<Result<_, _>>()?,
            namespace: options.namespace()?,
            auth,
            ca: options.file("ca")?,
            timeout: options.millis("timeout_ms", 1)?.unwrap_or(DEFAULT_TIMEOUT),
            clock_skew: skew.unwrap_or(DEFAULT_CLOCK_SKEW),
            replicas: replicas.map_or(DEFAULT_REPLICAS, |it| u32::try_from(it).unwrap_or(u32::MAX)),
        };
        url.options.end()?;
        Ok(config)
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

    /// How far the clocks of the nodes may be apart: that much later than its TTL a session of this client is due, for the
    /// primary may move from one node to another. Zero for a single node.
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

impl FromStr for EsConfig {
    type Err = UrlError;

    fn from_str(url: &str) -> Result<Self, UrlError> {
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
            ("elasticsearch://u@h", UrlError::User(GRAMMAR.user)),
            (
                "elasticsearch://u:p@h?api_key=k",
                UrlError::User(GRAMMAR.user),
            ),
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
            assert!(matches!(error, UrlError::Value { .. }), "{option}: {error}");
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
    fn a_path_and_an_unknown_option_are_refused() {
        let error = EsConfig::parse("elasticsearch://h/index");
        assert_eq!(error, Err(UrlError::Path(GRAMMAR.path)));
        let error = EsConfig::parse("elasticsearch://h?x=1").unwrap_err();
        let error = error.to_string();
        for option in [
            "namespace",
            "api_key",
            "ca",
            "timeout_ms",
            "clock_skew_ms",
            "replicas",
        ] {
            assert!(error.contains(&format!("{option}=")), "{error}");
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
