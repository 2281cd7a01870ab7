//! The server and how it is reached: [`RedisConfig`].

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use lockcore::backend::Namespace;
use lockcore::backend::{Grammar, Host, StoreUrl, UrlError};
use redis::{Client, ConnectionAddr};

/// How long one request may take, unless the program chooses another time.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a write waits for replicas, unless the program chooses another time.
const DEFAULT_WAIT: Duration = Duration::from_secs(1);
const DEFAULT_PORT: u16 = 6379;

const SENTINEL_PORT: u16 = 26379;

const GRAMMAR: Grammar = Grammar {
    schemes: &[
        "redis",
        "rediss",
        "redis+sentinel",
        "rediss+sentinel",
        "valkey",
        "valkeys",
        "valkey+sentinel",
        "valkeys+sentinel",
    ],
    example: "redis://localhost:6379",
    user: "who we are is written as USER:PASSWORD@ before the hosts, or :PASSWORD@ for the default user",
    path: "the path of the URL is the number of the database; the namespace is an option, as in \
           redis://localhost/?namespace=fs",
};
const SENTINEL_PATH: &str = "behind the sentinels stands the name that they know the primary by, and the number of the \
     database if it is not 0, as in redis+sentinel://a,b,c/mymaster/0?namespace=fs";

/// The servers, the namespace, and how requests are sent.
///
/// Several hosts are one primary and its replicas, in any order, or some nodes of one cluster. The right one is found,
/// and found again after a failover. Two hosts that both claim to be the primary are refused. With `redis+sentinel://`
/// the hosts are sentinels, and the latest failover that one of them knows of decides.
///
/// | option | default | meaning |
/// |---|---|---|
/// | [`namespace`](Self::namespace) | `lockkeeper` | the prefix of all keys, in braces |
/// | [`password`](Self::password) | none | the credentials |
/// | [`database`](Self::database) | 0 | the number of the database; in a URL it is the path |
/// | [`sentinel_password`](Self::sentinel_password) | none | the credentials for sentinels; in a URL `sentinel_user` and `sentinel_password` |
/// | [`ca`](Self::ca) | the usual authorities | a file with the certificate of the authority that signed the server's |
/// | [`certificate`](Self::certificate) | none | files with a client certificate and its key (`cert`, `key`) |
/// | [`socket`](Self::socket) | none | the server's socket on this machine, in place of the host and the port |
/// | [`timeout`](Self::timeout) | 5 s | how long one request may take |
/// | [`replicas`](Self::replicas) | 0 | how many replicas must have a write before it counts as done |
/// | [`wait`](Self::wait) | 1 s | how long a write waits for them |
///
/// `Debug` shows no password.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use lockcore::backend::Namespace;
/// use lockcore_redis::RedisConfig;
///
/// let config: RedisConfig = "rediss://me:p%40ss@a:6379,b/?namespace=fs&timeout_ms=2000".parse()?;
/// let same = RedisConfig::parse("rediss://a,b")?
///     .password("me", "p@ss")
///     .namespace(Namespace::parse("fs")?)
///     .timeout(Duration::from_secs(2));
/// assert_eq!(config, same);
/// assert!(!format!("{config:?}").contains("p@ss"));
/// # Ok::<(), lockcore::backend::UrlError>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct RedisConfig {
    pub(crate) tls: bool,
    /// The address of the program's own client: how TLS checks who the server is.
    pub(crate) given: Option<Given>,
    /// The servers, or the sentinels that know them.
    pub(crate) nodes: Vec<Host>,
    pub(crate) sentinels: Option<Sentinels>,
    pub(crate) namespace: Namespace,
    pub(crate) auth: Option<Auth>,
    pub(crate) database: u16,
    pub(crate) ca: Option<PathBuf>,
    pub(crate) cert: Option<PathBuf>,
    pub(crate) key: Option<PathBuf>,
    pub(crate) socket: Option<PathBuf>,
    pub(crate) timeout: Duration,
    pub(crate) replicas: u32,
    pub(crate) wait: Duration,
}

/// Makes the hosts sentinels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sentinels {
    /// The sentinels' name for the primary.
    pub(crate) name: String,
    pub(crate) auth: Option<Auth>,
}

#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Auth {
    /// Empty for the default user.
    pub(crate) user: String,
    pub(crate) password: String,
}

/// The address of a client that the program has.
#[derive(Clone)]
pub(crate) struct Given(pub(crate) Arc<ConnectionAddr>);

impl PartialEq for Given {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Given {}

impl RedisConfig {
    /// Parses `redis://[[USER]:PASSWORD@]HOST[:PORT][,…][/DATABASE][?OPTION=VALUE&…]`, or `rediss://` for TLS; or
    /// `redis+sentinel://[[USER]:PASSWORD@]HOST[:PORT][,…]/NAME[/DATABASE][?OPTION=VALUE&…]`, or `rediss+sentinel://`
    /// for TLS to sentinels and servers. In the latter two the hosts are sentinels, and the user and the password are
    /// for the servers. User, password and values are percent-encoded. `valkey` may be written for `redis`.
    ///
    /// # Errors
    ///
    /// The text is no such URL, an option does not exist or does not accept the value, or `sentinel_user` is given without
    /// `sentinel_password`, one of `cert` and `key` without the other or without TLS, or `socket` with TLS, sentinels or
    /// several hosts.
    pub fn parse(url: &str) -> Result<Self, UrlError> {
        let mut url = StoreUrl::parse(url, GRAMMAR)?;
        let (plain, by_sentinels) = match url.scheme.strip_suffix("+sentinel") {
            Some(plain) => (plain, true),
            None => (url.scheme, false),
        };
        let nodes = url.hosts(if by_sentinels {
            SENTINEL_PORT
        } else {
            DEFAULT_PORT
        })?;
        let options = &mut url.options;
        let (path, sentinels) = if by_sentinels {
            let (name, path) = url.path.split_once('/').unwrap_or((url.path, ""));
            // As the sentinels allow.
            let allowed = |c: char| c.is_ascii_alphanumeric() || ".-_".contains(c);
            if name.is_empty() || !name.chars().all(allowed) {
                return Err(UrlError::Path(SENTINEL_PATH));
            }
            let text = |text: &str| Some(text.to_owned());
            let user = options.read("sentinel_user", "USER", "a user", text)?;
            let password = options.read("sentinel_password", "PASSWORD", "a password", text)?;
            if user.is_some() && password.is_none() {
                let what =
                    "sentinel_user goes with sentinel_password: give both, or the password alone";
                return Err(UrlError::Together(what));
            }
            let user = user.unwrap_or_default();
            let auth = password.map(|password| Auth { user, password });
            let name = name.to_owned();
            (path, Some(Sentinels { name, auth }))
        } else {
            (url.path, None)
        };
        let database = match path {
            "" => Some(0),
            number if number.bytes().all(|byte| byte.is_ascii_digit()) => number.parse().ok(),
            _ => None,
        };
        let wrong_path = if by_sentinels {
            SENTINEL_PATH
        } else {
            GRAMMAR.path
        };
        let replicas = options.number("replicas", 0..=100, "a number from 0 to 100")?;
        let config = Self {
            tls: matches!(plain, "rediss" | "valkeys"),
            sentinels,
            namespace: options.namespace()?,
            auth: url.user.map(|(user, password)| Auth { user, password }),
            database: database.ok_or(UrlError::Path(wrong_path))?,
            ca: options.file("ca")?,
            cert: options.file("cert")?,
            key: options.file("key")?,
            socket: options.file("socket")?,
            timeout: options.millis("timeout_ms", 1)?.unwrap_or(DEFAULT_TIMEOUT),
            replicas: replicas.map_or(0, |it| u32::try_from(it).unwrap_or(u32::MAX)),
            wait: options.millis("wait_ms", 1)?.unwrap_or(DEFAULT_WAIT),
            ..Self::of(nodes)
        };
        url.options.end()?;
        if config.cert.is_some() != config.key.is_some() {
            let what = "a certificate of ours takes both options, cert and key";
            return Err(UrlError::Together(what));
        }
        if config.cert.is_some() && !config.tls {
            let what = "cert and key are for TLS: begin the URL with 'rediss://'";
            return Err(UrlError::Together(what));
        }
        let several = config.nodes.len() > 1 || config.sentinels.is_some();
        if config.socket.is_some() && (several || config.tls) {
            let what = "a socket is of one server, and without TLS: write it as redis://localhost?socket=PATH";
            return Err(UrlError::Together(what));
        }
        Ok(config)
    }

    /// Takes the server, the certificates, the credentials and the database of a client that the program has. What is set
    /// afterwards replaces them. The other options have their defaults.
    ///
    /// The backend makes connections of its own: waiters need one for wake-ups, and a connection that gave no answer
    /// in time is closed. The settings of the program's connections (their time-outs, retries, credentials that a
    /// provider renews) do not count for them. Of a `ConnectionManager` give the client that it was made of.
    ///
    /// # Examples
    ///
    /// Compiled and not run, because it needs a server.
    ///
    /// ```no_run
    /// use lockcore::backend::Namespace;
    /// use lockcore_redis::redis::Client;
    /// use lockcore_redis::{RedisBackend, RedisConfig};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let client = Client::open("redis://:secret@localhost/3")?;
    /// let config = RedisConfig::with_client(&client).namespace(Namespace::parse("fs")?);
    /// let backend = RedisBackend::connect(config).await?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn with_client(client: &Client) -> Self {
        let info = client.get_connection_info();
        let us = info.redis_settings();
        let mut node = Host {
            host: "localhost".to_owned(),
            port: DEFAULT_PORT,
        };
        let (mut tls, mut socket) = (false, None);
        match info.addr() {
            ConnectionAddr::Tcp(host, port) => (node.host, node.port) = (host.clone(), *port),
            ConnectionAddr::TcpTls { host, port, .. } => {
                (node.host, node.port, tls) = (host.clone(), *port, true);
            }
            ConnectionAddr::Unix(path) => socket = Some(path.clone()),
            // Used as it is.
            _ => {}
        }
        Self {
            tls,
            given: Some(Given(Arc::new(info.addr().clone()))),
            auth: us.password().map(|password| Auth {
                user: us.username().unwrap_or_default().to_owned(),
                password: password.to_owned(),
            }),
            // No server has more.
            database: u16::try_from(us.db()).unwrap_or(u16::MAX),
            socket,
            ..Self::of(vec![node])
        }
    }

    fn of(nodes: Vec<Host>) -> Self {
        Self {
            tls: false,
            given: None,
            nodes,
            sentinels: None,
            namespace: Namespace::default(),
            auth: None,
            database: 0,
            ca: None,
            cert: None,
            key: None,
            socket: None,
            timeout: DEFAULT_TIMEOUT,
            replicas: 0,
            wait: DEFAULT_WAIT,
        }
    }

    /// The namespace: the prefix of all keys, in braces.
    #[must_use]
    pub fn namespace(mut self, namespace: Namespace) -> Self {
        self.namespace = namespace;
        self
    }

    /// A user and the password. The empty user is the default one.
    #[must_use]
    pub fn password(mut self, user: impl Into<String>, password: impl Into<String>) -> Self {
        self.auth = Some(Auth {
            user: user.into(),
            password: password.into(),
        });
        self
    }

    /// A user and the password for the sentinels, if they require one. The empty user is the default one. Without
    /// sentinels this has no effect.
    #[must_use]
    pub fn sentinel_password(
        mut self,
        user: impl Into<String>,
        password: impl Into<String>,
    ) -> Self {
        if let Some(sentinels) = &mut self.sentinels {
            sentinels.auth = Some(Auth {
                user: user.into(),
                password: password.into(),
            });
        }
        self
    }

    /// The number of the database. A cluster has only number 0.
    #[must_use]
    pub fn database(mut self, database: u16) -> Self {
        self.database = database;
        self
    }

    /// A file with the certificate, as PEM, of the authority that signed the server's. It is read when connecting.
    #[must_use]
    pub fn ca(mut self, path: impl Into<PathBuf>) -> Self {
        self.ca = Some(path.into());
        self
    }

    /// Files with a client certificate, as PEM, and its key. They are read when connecting. Without TLS they have no
    /// effect.
    #[must_use]
    pub fn certificate(mut self, cert: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        (self.cert, self.key) = (Some(cert.into()), Some(key.into()));
        self
    }

    /// The server's socket on this machine, in place of host and port. A node of a cluster and a server behind sentinels
    /// is not reached so.
    #[must_use]
    pub fn socket(mut self, path: impl Into<PathBuf>) -> Self {
        self.socket = Some(path.into());
        self
    }

    /// How long one request may take.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// How many replicas must confirm a grant, a renewal, a death, an adoption or a settlement before it counts as
    /// done. With all replicas, a grant survives the promotion of any of them. If too few confirm, the outcome is
    /// unknown: the client gives back the grant, and a session that cannot be renewed is lost.
    #[must_use]
    pub fn replicas(mut self, replicas: u32) -> Self {
        self.replicas = replicas;
        self
    }

    /// How long a write waits for replicas; at most a third of the [timeout](Self::timeout) of a request.
    #[must_use]
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }
}

impl FromStr for RedisConfig {
    type Err = UrlError;

    fn from_str(url: &str) -> Result<Self, UrlError> {
        Self::parse(url)
    }
}

impl fmt::Debug for RedisConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes: Vec<String> = self.nodes.iter().map(Host::to_string).collect();
        f.debug_struct("RedisConfig")
            .field("tls", &self.tls)
            .field("nodes", &nodes)
            .field("sentinels", &self.sentinels)
            .field("namespace", &self.namespace)
            .field("auth", &self.auth)
            .field("database", &self.database)
            .field("ca", &self.ca)
            .field("cert", &self.cert)
            .field("key", &self.key)
            .field("socket", &self.socket)
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

#[cfg(test)]
mod tests {
    use super::*;

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
    fn what_cannot_be_is_refused() {
        let path = UrlError::Path(GRAMMAR.path);
        for url in ["redis://h/a", "redis://h/65536", "redis://h/+1"] {
            assert_eq!(RedisConfig::parse(url), Err(path.clone()), "{url}");
        }
        for option in ["replicas=101", "replicas=x", "wait_ms=0", "timeout_ms=0"] {
            let error = RedisConfig::parse(&format!("redis://h?{option}")).unwrap_err();
            assert!(matches!(error, UrlError::Value { .. }), "{option}: {error}");
        }
        for option in ["timeout_ms=1", "replicas=0", "replicas=100"] {
            let url = format!("redis://h?{option}");
            assert!(RedisConfig::parse(&url).is_ok(), "{option}");
        }
        let error = RedisConfig::parse("redis://h?x=1").unwrap_err().to_string();
        for option in ["namespace", "ca", "timeout_ms", "replicas", "wait_ms"] {
            assert!(error.contains(&format!("{option}=")), "{error}");
        }
    }

    #[test]
    fn valkey_sockets_and_certificates_are_read() {
        for (valkey, redis) in [
            ("valkey://h", "redis://h"),
            ("valkeys://u:p@h/3", "rediss://u:p@h/3"),
            ("valkey+sentinel://h/m", "redis+sentinel://h/m"),
            ("valkeys+sentinel://h/m", "rediss+sentinel://h/m"),
        ] {
            assert_eq!(RedisConfig::parse(valkey), RedisConfig::parse(redis));
        }
        let config = RedisConfig::parse("rediss://h?cert=/c&key=/k").unwrap();
        let expected = RedisConfig::parse("rediss://h").unwrap();
        assert_eq!(config, expected.certificate("/c", "/k"));
        let config = RedisConfig::parse("redis://localhost/2?socket=/run/a%20b").unwrap();
        let expected = RedisConfig::parse("redis://localhost/2").unwrap();
        assert_eq!(config, expected.socket("/run/a b"));
        for url in [
            "rediss://h?cert=/c",
            "rediss://h?key=/k",
            "redis://h?cert=/c&key=/k",
            "rediss://h?socket=/s",
            "redis://h,g?socket=/s",
            "redis+sentinel://h/m?socket=/s",
        ] {
            let error = RedisConfig::parse(url);
            assert!(
                matches!(error, Err(UrlError::Together(_))),
                "{url}: {error:?}"
            );
        }
    }

    #[test]
    fn sentinels_are_read() {
        let url = "rediss+sentinel://u:p@a,b:7/my-master.1/3?sentinel_user=s&sentinel_password=%40t&namespace=fs";
        let config = RedisConfig::parse(url).unwrap();
        let nodes: Vec<String> = config.nodes.iter().map(Host::to_string).collect();
        assert_eq!(nodes, ["a:26379", "b:7"]);
        assert!(config.tls);
        let expected = RedisConfig::parse("rediss+sentinel://a,b:7/my-master.1")
            .unwrap()
            .password("u", "p")
            .sentinel_password("s", "@t")
            .database(3)
            .namespace(Namespace::parse("fs").unwrap());
        assert_eq!(config, expected);
        let alone = RedisConfig::parse("redis+sentinel://a/m?sentinel_password=p").unwrap();
        let auth = alone.sentinels.unwrap().auth.unwrap();
        assert_eq!((auth.user.as_str(), auth.password.as_str()), ("", "p"));
        for path in ["", "/", "/m m", "/m/x", "/m/65536", "//0", "/%41"] {
            let url = format!("redis+sentinel://a{path}");
            let error = RedisConfig::parse(&url);
            assert_eq!(error, Err(UrlError::Path(SENTINEL_PATH)), "{url}");
        }
        let user = RedisConfig::parse("redis+sentinel://a/m?sentinel_user=s");
        assert!(matches!(user, Err(UrlError::Together(_))));
        let servers = RedisConfig::parse("redis://a?sentinel_password=secret").unwrap_err();
        assert!(matches!(servers, UrlError::Option { .. }));
    }

    #[test]
    fn no_secret_is_shown() {
        let url = "redis+sentinel://u:secret@h/m?sentinel_password=secret";
        let config = RedisConfig::parse(url).unwrap();
        assert!(!format!("{config:?}").contains("secret"));
        let config = RedisConfig::parse("redis://u:secret@h").unwrap();
        assert!(!format!("{config:?}").contains("secret"));
        let error = RedisConfig::parse("redis://u:secret@h/secret").unwrap_err();
        assert!(!format!("{error} {error:?}").contains("secret"), "{error}");
    }
}
