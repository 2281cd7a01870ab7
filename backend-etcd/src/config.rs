//! The server and how it is reached: [`EtcdConfig`].

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::Client;
use lockcore::backend::Namespace;
use lockcore::backend::{Grammar, Host, StoreUrl, UrlError};

/// How long one request may take, unless the program chooses another time.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);
const DEFAULT_PORT: u16 = 2379;
/// The most operations that a server takes in one transaction, unless its `--max-txn-ops` says otherwise.
const DEFAULT_OPERATIONS: usize = 128;
/// The operations that a transaction needs besides those for the claims.
pub(crate) const OVERHEAD: usize = 3;
/// The number for one path of the greatest depth.
const MIN_OPERATIONS: u64 = 67;
const MAX_OPERATIONS: u64 = 10_000;
/// The largest batch. The rest of the 1.5 MiB that a server takes in one request is for removing what is met on the
/// way.
const MAX_REQUEST: usize = 1_280 * 1024;
pub(crate) const MAX_REMOVED: usize = 200 * 1024;
const _: () = assert!(MAX_REQUEST + MAX_REMOVED + 32 * 1024 < 1_536 * 1024);
/// How often a key stands in a request: from and to of its comparison and of its read, the holder, the record of the
/// request.
const NAMED: usize = 6;
/// The most bytes for a key there, besides its names.
const BESIDE: usize = 250;
const _: () = assert!(lockcore::limits::MAX_PATH_COMPONENTS + OVERHEAD == 67);

const GRAMMAR: Grammar = Grammar {
    schemes: &["etcd", "etcds"],
    example: "etcd://localhost:2379",
    user: "who we are is written as USER:PASSWORD@ before the hosts",
    path: "the URL has no path: the namespace is an option, as in etcd://localhost/?namespace=fs",
};

/// The servers, the namespace, and how requests are sent.
///
/// Several hosts are members of one cluster: one of them is used until it fails, then the next.
///
/// | option | default | meaning |
/// |---|---|---|
/// | [`namespace`](Self::namespace) | `lockkeeper` | the prefix of all keys, followed by a `/` |
/// | [`password`](Self::password) | none | the credentials |
/// | [`ca`](Self::ca) | the usual authorities | a file with the certificate of the authority that signed the server's |
/// | [`certificate`](Self::certificate) | none | files with a client certificate and its key (`cert`, `key`) |
/// | [`timeout`](Self::timeout) | 5 s | how long one request may take |
/// | [`operations`](Self::operations) | 128 | the most operations that the server takes in one transaction (`txn_ops`) |
///
/// `Debug` shows no password.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use lockcore::backend::Namespace;
/// use lockcore_etcd::EtcdConfig;
///
/// let config: EtcdConfig = "etcds://me:p%40ss@a:2379,b/?namespace=fs&timeout_ms=2000".parse()?;
/// let same = EtcdConfig::parse("etcds://a,b")?
///     .password("me", "p@ss")
///     .namespace(Namespace::parse("fs")?)
///     .timeout(Duration::from_secs(2));
/// assert_eq!(config, same);
/// assert!(!format!("{config:?}").contains("p@ss"));
/// # Ok::<(), lockcore::backend::UrlError>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct EtcdConfig {
    pub(crate) tls: bool,
    /// Empty if there is a client.
    pub(crate) nodes: Vec<Host>,
    pub(crate) client: Option<Given>,
    pub(crate) namespace: Namespace,
    pub(crate) auth: Option<Auth>,
    pub(crate) ca: Option<PathBuf>,
    pub(crate) timeout: Duration,
    pub(crate) certificate: Certificate,
    pub(crate) operations: usize,
}

/// The files of a client certificate and its key.
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

/// The program's own client.
#[derive(Clone)]
pub(crate) struct Given(pub(crate) Arc<Client>);

impl PartialEq for Given {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Given {}

impl EtcdConfig {
    /// Parses `etcd://[USER:PASSWORD@]HOST[:PORT][,…][/][?OPTION=VALUE&…]`, or `etcds://` for TLS. User, password and
    /// values are percent-encoded.
    ///
    /// # Errors
    ///
    /// The text is no such URL, an option does not exist or does not accept the value, `cert` or `key` is given alone,
    /// or a certificate is given without TLS.
    pub fn parse(url: &str) -> Result<Self, UrlError> {
        let mut url = StoreUrl::parse(url, GRAMMAR)?;
        if !url.path.is_empty() {
            return Err(UrlError::Path(GRAMMAR.path));
        }
        if url.user.as_ref().is_some_and(|(user, _)| user.is_empty()) {
            return Err(UrlError::User(GRAMMAR.user));
        }
        let options = &mut url.options;
        let takes = "a number from 67 to 10000";
        let operations = options.number("txn_ops", MIN_OPERATIONS..=MAX_OPERATIONS, takes)?;
        let config = Self {
            tls: url.scheme == "etcds",
            namespace: options.namespace()?,
            ca: options.file("ca")?,
            timeout: options.millis("timeout_ms", 1)?.unwrap_or(DEFAULT_TIMEOUT),
            certificate: Certificate {
                cert: options.file("cert")?,
                key: options.file("key")?,
            },
            operations: operations
                .and_then(|number| usize::try_from(number).ok())
                .unwrap_or(DEFAULT_OPERATIONS),
            nodes: url.hosts(DEFAULT_PORT)?,
            client: None,
            auth: url.user.map(|(user, password)| Auth { user, password }),
        };
        url.options.end()?;
        let Certificate { cert, key } = &config.certificate;
        if cert.is_some() != key.is_some() {
            let both = "a certificate of ours takes both options, cert and key";
            return Err(UrlError::Together(both));
        }
        let encrypted = config.ca.is_some() || cert.is_some();
        if encrypted && !config.tls {
            let tls = "certificates are for TLS: begin the URL with 'etcds://'";
            return Err(UrlError::Together(tls));
        }
        Ok(config)
    }

    /// Uses the program's own client, with its members, certificates and credentials. The other options have their
    /// defaults; [`password`](Self::password), [`ca`](Self::ca) and [`certificate`](Self::certificate) are refused when
    /// connecting.
    ///
    /// The client chooses the member of each request. Give it `with_require_leader(true)`, or a member that is cut off
    /// answers nobody until the time-out; and `with_keep_alive`, or a connection that a network has forgotten costs a
    /// time-out each time. A time-out of the client that is shorter than ours makes outcomes unknown sooner.
    ///
    /// # Examples
    ///
    /// Compiled and not run, because it needs a server.
    ///
    /// ```no_run
    /// use std::time::Duration;
    ///
    /// use lockcore::backend::Namespace;
    /// use lockcore_etcd::etcd_client::{Client, ConnectOptions};
    /// use lockcore_etcd::{EtcdBackend, EtcdConfig};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let options = ConnectOptions::new()
    ///     .with_require_leader(true)
    ///     .with_keep_alive(Duration::from_secs(10), Duration::from_secs(5));
    /// let client = Client::connect(["http://localhost:2379"], Some(options)).await?;
    /// let config = EtcdConfig::with_client(&client).namespace(Namespace::parse("fs")?);
    /// let backend = EtcdBackend::connect(config).await?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn with_client(client: &Client) -> Self {
        Self {
            tls: false,
            nodes: Vec::new(),
            client: Some(Given(Arc::new(client.clone()))),
            namespace: Namespace::default(),
            auth: None,
            ca: None,
            timeout: DEFAULT_TIMEOUT,
            certificate: Certificate::default(),
            operations: DEFAULT_OPERATIONS,
        }
    }

    /// The namespace: the prefix of all keys, followed by a `/`.
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

    /// A file with the certificate, as PEM, of the authority that signed the server's. It is read when connecting.
    #[must_use]
    pub fn ca(mut self, path: impl Into<PathBuf>) -> Self {
        self.ca = Some(path.into());
        self
    }

    /// Files with a client certificate, as PEM, and its key. They are read when connecting.
    #[must_use]
    pub fn certificate(mut self, cert: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        self.certificate = Certificate {
            cert: Some(cert.into()),
            key: Some(key.into()),
        };
        self
    }

    /// How long one request may take. With several members, choose less than a third of the sessions' TTL: a member
    /// that does not answer is left for the next one after this time, and renewals go out every third of the TTL.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// The most operations that the server takes in one transaction: its `--max-txn-ops`. It determines the size of
    /// batches, as far as their keys fit into 1.5 MiB, the longest request of a server. Values are clamped to the range
    /// from 67, which a path of 64 components needs, to 10,000.
    #[must_use]
    pub fn operations(mut self, operations: usize) -> Self {
        let operations = u64::try_from(operations).unwrap_or(u64::MAX);
        let operations = operations.clamp(MIN_OPERATIONS, MAX_OPERATIONS);
        self.operations = usize::try_from(operations).unwrap_or(DEFAULT_OPERATIONS);
        self
    }
}

impl EtcdConfig {
    /// How many claims and ancestors fit into a batch, and how many bytes of their keys.
    pub(crate) fn batch(&self) -> (usize, usize) {
        let of_each = NAMED * self.namespace.to_string().len() + BESIDE;
        // Half of a request is for the keys themselves.
        let keys = (self.operations - OVERHEAD).min(MAX_REQUEST / 2 / of_each);
        (keys, (MAX_REQUEST - keys * of_each) / NAMED)
    }
}

impl FromStr for EtcdConfig {
    type Err = UrlError;

    fn from_str(url: &str) -> Result<Self, UrlError> {
        Self::parse(url)
    }
}

impl fmt::Debug for EtcdConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes: Vec<String> = self.nodes.iter().map(Host::to_string).collect();
        f.debug_struct("EtcdConfig")
            .field("tls", &self.tls)
            .field("nodes", &nodes)
            .field("client", &self.client.is_some())
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

#[cfg(test)]
mod tests {
    use super::*;

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
    fn what_cannot_be_is_refused() {
        for (url, error) in [
            ("etcd://h/a", UrlError::Path(GRAMMAR.path)),
            ("etcd://:p@h", UrlError::User(GRAMMAR.user)),
        ] {
            assert_eq!(EtcdConfig::parse(url), Err(error), "{url}");
        }
        for url in [
            "etcds://h?cert=a",
            "etcds://h?key=a",
            "etcd://h?ca=a",
            "etcd://h?cert=a&key=b",
        ] {
            let error = EtcdConfig::parse(url).unwrap_err();
            assert!(matches!(error, UrlError::Together(_)), "{url}: {error}");
        }
        for option in [
            "txn_ops=66",
            "txn_ops=10001",
            "txn_ops=x",
            "cert=",
            "timeout_ms=0",
        ] {
            let error = EtcdConfig::parse(&format!("etcd://h?{option}")).unwrap_err();
            assert!(matches!(error, UrlError::Value { .. }), "{option}: {error}");
        }
        for option in ["timeout_ms=1", "txn_ops=67", "txn_ops=10000"] {
            let url = format!("etcd://h?{option}");
            assert!(EtcdConfig::parse(&url).is_ok(), "{option}");
        }
        let error = EtcdConfig::parse("etcd://h?x=1").unwrap_err().to_string();
        for option in ["namespace", "ca", "cert", "key", "timeout_ms", "txn_ops"] {
            assert!(error.contains(&format!("{option}=")), "{error}");
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
