//! The server and how it is reached: [`EsConfig`].

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use elasticsearch::Elasticsearch;
use elasticsearch::http::transport::Transport;
use lockcore::backend::Namespace;
use lockcore::backend::{Grammar, Host, StoreUrl, UrlError};
use url::Url;

use crate::auth::{Auth, BearerToken};
#[cfg(feature = "aws")]
use crate::aws::Aws;
use crate::error::{Failure, Outcome};
use crate::proxy::Proxy;

/// How long one request may take, unless the program chooses another time.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);
/// How far the clocks of the nodes may be apart, unless the program sets another time.
const DEFAULT_CLOCK_SKEW: Duration = Duration::from_secs(1);
/// Copies of the index besides the primary, when it is created.
const DEFAULT_REPLICAS: u32 = 1;
const DEFAULT_PORT: u16 = 9200;
/// The most connections at once, besides the one reserved for renewals.
const DEFAULT_CONNECTIONS: usize = 64;

const GRAMMAR: Grammar = Grammar {
    schemes: &[
        "elasticsearch",
        "elasticsearchs",
        "opensearch",
        "opensearchs",
    ],
    example: "elasticsearch://localhost:9200",
    user: "give one of USER:PASSWORD@ before the hosts and the options api_key, bearer_token, bearer_token_file and aws_region",
    path: "the path is the prefix at which a reverse proxy has the server, as in elasticsearch://localhost/search/, of \
           letters, digits and -._~%; the namespace is an option, as in elasticsearch://localhost/?namespace=fs",
};

/// The server, the namespace, and how requests are sent.
///
/// | option | default | meaning |
/// |---|---|---|
/// | [`namespace`](Self::namespace) | `lockkeeper` | the alias of the index that holds the locks |
/// | [`password`](Self::password), [`api_key`](Self::api_key), [`bearer`](Self::bearer), [`bearer_file`](Self::bearer_file), `aws`, `aws_region` | none | the credentials |
/// | [`proxy`](Self::proxy) | none, whatever the environment says | the way to the server |
/// | [`ca`](Self::ca) | the usual authorities | a file with the certificate of the authority that signed the server's |
/// | [`timeout`](Self::timeout) | 5 s | how long one request may take |
/// | [`connections`](Self::connections) | 64 | the most connections, besides one more for renewals |
/// | [`clock_skew`](Self::clock_skew) | 1 s | how far the clocks of the nodes may be apart |
/// | [`replicas`](Self::replicas) | 1 | copies of the index besides the primary, when it is created |
/// | [`wait_for_active_shards`](Self::wait_for_active_shards) | 1 | copies, including the primary, that must be active for any write |
///
/// `Debug` shows no password, no key and no token.
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
    /// Empty if there is a transport.
    pub(crate) nodes: Vec<Url>,
    pub(crate) transport: Option<Given>,
    pub(crate) namespace: Namespace,
    pub(crate) auth: Option<Auth>,
    pub(crate) proxy: Option<Proxy>,
    pub(crate) ca: Option<PathBuf>,
    pub(crate) timeout: Duration,
    pub(crate) connections: usize,
    pub(crate) clock_skew: Duration,
    pub(crate) replicas: u32,
    pub(crate) active: Option<ActiveShards>,
}

/// How many copies of the index, including the primary, must be active for any write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ActiveShards {
    /// This many, from 1.
    Count(u32),
    /// All copies.
    All,
}

impl ActiveShards {
    const TAKES: &'static str = "a number from 1 to 101, or `all`";

    fn read(text: &str) -> Option<Self> {
        if text == "all" {
            return Some(ActiveShards::All);
        }
        let digits = text.bytes().all(|byte| byte.is_ascii_digit());
        let count = text.parse().ok().filter(|_| digits)?;
        (1..=101)
            .contains(&count)
            .then_some(ActiveShards::Count(count))
    }
}

impl fmt::Display for ActiveShards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ActiveShards::Count(count) => count.fmt(f),
            ActiveShards::All => f.write_str("all"),
        }
    }
}

/// The program's own transport.
#[derive(Clone)]
pub(crate) struct Given(pub(crate) Arc<Transport>);

impl PartialEq for Given {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Given {}

impl EsConfig {
    /// Parses a URL: `elasticsearch://USER:PASSWORD@HOST:PORT`, with several hosts separated by commas; then optionally
    /// `/` or the path of a reverse proxy; then optionally `?` and options (`namespace`, `api_key`, `bearer_token`,
    /// `bearer_token_file`, `aws_region`, `proxy`, `ca`, `timeout_ms`, `connections`, `clock_skew_ms`, `replicas`,
    /// `wait_for_active_shards`) with `&` between them. User and password are optional. `elasticsearchs://` uses TLS;
    /// `opensearch://` and `opensearchs://` mean the same. The default port is 9200. In user, password and values, `%`
    /// and two digits are a byte.
    ///
    /// Requests go to the named hosts only: the server is not asked for others. The path is the same on each of them.
    ///
    /// # Errors
    ///
    /// Another scheme, no host or an invalid one, an invalid path, a user without password, more than one kind of
    /// credentials, an option that does not exist or is given twice, a value that the option does not accept, or
    /// `aws_region` in a build without the feature `aws`.
    pub fn parse(url: &str) -> Result<Self, UrlError> {
        let mut url = StoreUrl::parse(url, GRAMMAR)?;
        let tls = matches!(url.scheme, "elasticsearchs" | "opensearchs");
        let scheme = if tls { "https" } else { "http" };
        let prefix = prefix(url.path).ok_or(UrlError::Path(GRAMMAR.path))?;
        let node = |host: &Host| {
            let node = Url::parse(&format!("{scheme}://{host}{prefix}"));
            let node = node.map_err(|_| UrlError::Host)?;
            // Not `%2e%2e`, which leads elsewhere.
            let same = node.path() == prefix;
            same.then_some(node).ok_or(UrlError::Path(GRAMMAR.path))
        };
        let nodes = url.hosts(DEFAULT_PORT)?;
        let options = &mut url.options;
        let graphic = |text: &str| {
            let plain = text.bytes().all(|byte| byte.is_ascii_graphic());
            (plain && !text.is_empty()).then(|| text.to_owned())
        };
        let takes = "the key as the server has encoded it";
        let api_key = options.read("api_key", "KEY", takes, graphic)?;
        let takes = "the token as it was issued";
        let token = options.read("bearer_token", "TOKEN", takes, graphic)?;
        let file = options.file("bearer_token_file")?;
        let region = options.read("aws_region", "REGION", REGION_TAKES, region)?;
        let basic = url
            .user
            .map(|(user, password)| Auth::Basic { user, password });
        let ways = [
            basic,
            api_key.map(Auth::ApiKey),
            token.map(|token| Auth::Bearer(token.into())),
            file.map(Auth::BearerFile),
            region,
        ];
        let mut ways = ways.into_iter().flatten();
        let auth = ways.next();
        if ways.next().is_some() {
            return Err(UrlError::User(GRAMMAR.user));
        }
        let proxy = options.read("proxy", "URL", Proxy::TAKES, Proxy::parse)?;
        let replicas = options.number("replicas", 0..=100, "a number from 0 to 100")?;
        let skew = options.millis("clock_skew_ms", 0)?;
        let connections = options.number("connections", 1..=1_000, "a number from 1 to 1000")?;
        let config = Self {
            nodes: nodes.iter().map(node).collect::<Result<_, _>>()?,
            transport: None,
            namespace: options.namespace()?,
            auth,
            proxy,
            ca: options.file("ca")?,
            timeout: options.millis("timeout_ms", 1)?.unwrap_or(DEFAULT_TIMEOUT),
            connections: connections
                .and_then(|it| usize::try_from(it).ok())
                .unwrap_or(DEFAULT_CONNECTIONS),
            clock_skew: skew.unwrap_or(DEFAULT_CLOCK_SKEW),
            replicas: replicas.map_or(DEFAULT_REPLICAS, |it| u32::try_from(it).unwrap_or(u32::MAX)),
            active: options.read(
                "wait_for_active_shards",
                "COUNT",
                ActiveShards::TAKES,
                ActiveShards::read,
            )?,
        };
        url.options.end()?;
        Ok(config)
    }

    /// Uses the program's own client: [`with_transport`](Self::with_transport) with its transport.
    #[must_use]
    pub fn with_client(client: &Elasticsearch) -> Self {
        Self::with_transport(client.transport().clone())
    }

    /// Uses the program's own transport, with its nodes, proxy, certificates, compression and credentials. The other
    /// options have their defaults. Credentials that are set here replace those of the transport.
    ///
    /// The transport chooses the node of each request: after a node that takes no connection, two more are tried.
    /// Silent connections are not replaced: each one that a network has forgotten costs a time-out.
    ///
    /// # Examples
    ///
    /// Compiled and not run, because it needs a server.
    ///
    /// ```no_run
    /// use lockcore::backend::Namespace;
    /// use lockcore_es::elasticsearch::Elasticsearch;
    /// use lockcore_es::elasticsearch::http::transport::Transport;
    /// use lockcore_es::{EsBackend, EsConfig};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let client = Elasticsearch::new(Transport::single_node("http://localhost:9200")?);
    /// let config = EsConfig::with_client(&client).namespace(Namespace::parse("fs")?);
    /// let backend = EsBackend::connect(config).await?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn with_transport(transport: Transport) -> Self {
        Self {
            nodes: Vec::new(),
            transport: Some(Given(Arc::new(transport))),
            namespace: Namespace::default(),
            auth: None,
            proxy: None,
            ca: None,
            timeout: DEFAULT_TIMEOUT,
            connections: DEFAULT_CONNECTIONS,
            clock_skew: DEFAULT_CLOCK_SKEW,
            replicas: DEFAULT_REPLICAS,
            active: None,
        }
    }

    /// Checks that nothing is configured that the transport decides itself.
    pub(crate) fn goes_with_a_transport(&self) -> Outcome<()> {
        if self.ca.is_some() || self.proxy.is_some() {
            return Err(Failure::config(
                "a transport of the program has its own proxy and certificates: give them to the transport",
            ));
        }
        #[cfg(feature = "aws")]
        if matches!(self.auth, Some(Auth::Aws(_))) {
            return Err(Failure::config(
                "requests by a transport of the program cannot be signed for AWS: give a URL in its place",
            ));
        }
        Ok(())
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

    /// An API key, as the one text that the server calls `encoded`.
    #[must_use]
    pub fn api_key(mut self, key: impl Into<String>) -> Self {
        self.auth = Some(Auth::ApiKey(key.into()));
        self
    }

    /// A bearer token: a text, or a [`BearerToken`] that the program replaces while it runs.
    #[must_use]
    pub fn bearer(mut self, token: impl Into<BearerToken>) -> Self {
        self.auth = Some(Auth::Bearer(token.into()));
        self
    }

    /// A file with a bearer token. It is read when connecting, and again when the server no longer knows the token; the
    /// refused request is then sent once more.
    #[must_use]
    pub fn bearer_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.auth = Some(Auth::BearerFile(path.into()));
        self
    }

    /// Signs requests for Amazon OpenSearch Service in this region, with the credentials that AWS' tools find: in the
    /// environment, the profile, the container or the machine.
    #[cfg(feature = "aws")]
    #[must_use]
    pub fn aws_region(mut self, region: impl Into<String>) -> Self {
        self.auth = Some(Auth::Aws(Aws::usual(region.into())));
        self
    }

    /// Signs requests for Amazon OpenSearch Service with the region and the credentials of this configuration. The
    /// credentials are requested again a minute before they expire, or every quarter of an hour.
    #[cfg(feature = "aws")]
    #[must_use]
    pub fn aws(mut self, config: &aws_config::SdkConfig) -> Self {
        self.auth = Some(Auth::Aws(Aws::given(config)));
        self
    }

    /// A proxy on the way to every node, `http://USER:PASSWORD@HOST:PORT` or `https://…`. For a server with TLS the
    /// proxy is asked for a tunnel. The proxy variables in the environment are not used.
    ///
    /// # Errors
    ///
    /// The text is no such URL.
    pub fn proxy(mut self, url: &str) -> Result<Self, UrlError> {
        let bad = || UrlError::Value {
            name: "proxy".into(),
            takes: Proxy::TAKES,
        };
        self.proxy = Some(Proxy::parse(url).ok_or_else(bad)?);
        Ok(self)
    }

    /// A file with the certificate, as PEM, of the authority that signed the server's. It is read when connecting.
    #[must_use]
    pub fn ca(mut self, path: impl Into<PathBuf>) -> Self {
        self.ca = Some(path.into());
        self
    }

    /// How long one request may take. With several nodes, choose less than a third of the sessions' TTL: a node that
    /// does not answer is left for the next one after this time, and renewals go out every third of the TTL.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// The most connections at once, and so the most concurrent requests. Further requests wait for a connection, as
    /// long as one request may take. Renewals have one more connection, so that no lease ends because of other load.
    #[must_use]
    pub fn connections(mut self, most: usize) -> Self {
        self.connections = most.max(1);
        self
    }

    /// How far the clocks of the nodes may be apart. A session of this client is due this much later than its TTL,
    /// because the primary may move from one node to another. Zero for a single node.
    #[must_use]
    pub fn clock_skew(mut self, skew: Duration) -> Self {
        self.clock_skew = skew;
        self
    }

    /// Copies of the index besides the primary. Used only when the namespace is created. Without copies, a lock is lost
    /// with its node's disk.
    #[must_use]
    pub fn replicas(mut self, replicas: u32) -> Self {
        self.replicas = replicas;
        self
    }

    /// How many copies of the index, including the primary, must be active for any write. Whatever the number, a write
    /// waits for all copies that are active. If only the primary is active, a write is on one disk, and a lock is lost
    /// with that disk. With this option nothing is written then: no lock is acquired or renewed, and leases run out.
    /// The server checks before it writes, so a copy that fails meanwhile may be missing all the same.
    #[must_use]
    pub fn wait_for_active_shards(mut self, active: ActiveShards) -> Self {
        self.active = Some(active);
        self
    }
}

#[cfg(feature = "aws")]
const REGION_TAKES: &str = "the name of an AWS region, as in eu-central-1";
#[cfg(not(feature = "aws"))]
const REGION_TAKES: &str =
    "for builds with the feature \"aws\": switch it on, or leave the option out";

/// The name of an AWS region.
#[cfg(feature = "aws")]
fn region(text: &str) -> Option<Auth> {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let is_one = !text.is_empty() && text.bytes().all(plain);
    is_one.then(|| Auth::Aws(Aws::usual(text.to_owned())))
}

#[cfg(not(feature = "aws"))]
fn region(_: &str) -> Option<Auth> {
    None
}

/// The path of a URL as a prefix: `/`, or `/` before and after its segments.
fn prefix(path: &str) -> Option<String> {
    if path.is_empty() {
        return Some("/".to_owned());
    }
    let path = path.strip_suffix('/').unwrap_or(path);
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~%".contains(&byte);
    let plain = |segment: &str| !segment.is_empty() && segment.bytes().all(plain);
    let is_byte = |behind: &str| {
        let digits = behind.bytes().take(2);
        digits.filter(u8::is_ascii_hexdigit).count() == 2
    };
    let whole = path.split('%').skip(1).all(is_byte) && path.split('/').all(plain);
    whole.then(|| format!("/{path}/"))
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
            .field("own_transport", &self.transport.is_some())
            .field("namespace", &self.namespace)
            .field("auth", &self.auth)
            .field("proxy", &self.proxy)
            .field("ca", &self.ca)
            .field("timeout", &self.timeout)
            .field("connections", &self.connections)
            .field("clock_skew", &self.clock_skew)
            .field("replicas", &self.replicas)
            .field("wait_for_active_shards", &self.active)
            .finish()
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
                "elasticsearchs://a,b/search/v1-%41?namespace=n",
                vec![
                    "https://a:9200/search/v1-%41/",
                    "https://b:9200/search/v1-%41/",
                ],
            ),
            ("elasticsearch://h/x/", vec!["http://h:9200/x/"]),
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
            (
                "elasticsearch://h?bearer_token=t&bearer_token_file=/f",
                UrlError::User(GRAMMAR.user),
            ),
        ] {
            assert_eq!(EsConfig::parse(url), Err(error), "{url}");
        }
    }

    #[test]
    fn tokens_are_read() {
        let parse = |option: &str| EsConfig::parse(&format!("elasticsearch://h?{option}"));
        let config = parse("bearer_token=a%2Eb").unwrap();
        assert_eq!(config.auth, Some(Auth::Bearer("a.b".into())));
        assert_ne!(config, parse("bearer_token=a").unwrap());
        let config = parse("bearer_token_file=/run/token").unwrap();
        assert_eq!(config.auth, Some(Auth::BearerFile("/run/token".into())));
        for option in ["bearer_token=", "bearer_token=a%20b", "bearer_token_file="] {
            let error = parse(option).unwrap_err();
            assert!(matches!(error, UrlError::Value { .. }), "{option}: {error}");
        }
    }

    #[test]
    fn proxies_are_read() {
        let parse = |proxy: &str| {
            let encoded = proxy.replace('@', "%40");
            EsConfig::parse(&format!("elasticsearch://h?proxy={encoded}"))
        };
        let config = parse("https://me:p%2540%40proxy:3128").unwrap();
        let proxy = config.proxy.clone().unwrap();
        assert_eq!(proxy.url.as_str(), "https://proxy:3128/");
        assert_eq!(proxy.user, Some(("me".to_owned(), "p@".to_owned())));
        let same = EsConfig::parse("elasticsearch://h").unwrap();
        assert_eq!(same.proxy("https://me:p%40@proxy:3128").unwrap(), config);
        for proxy in [
            "",
            "proxy:3128",
            "socks5://proxy",
            "http://me@proxy",
            "http://:secret@proxy",
            "http://me:secret@proxy/path",
            "http://me:secret@proxy?x=1",
            "http://me:secret@proxy:x",
            "http://me:%25ffsecret@proxy",
        ] {
            let error = parse(proxy).unwrap_err();
            assert!(matches!(error, UrlError::Value { .. }), "{proxy}: {error}");
            assert!(!format!("{error} {error:?}").contains("secret"), "{error}");
        }
    }

    #[cfg(feature = "aws")]
    #[test]
    fn regions_are_read() {
        let parse = |region: &str| EsConfig::parse(&format!("opensearchs://h?aws_region={region}"));
        let same = EsConfig::parse("opensearchs://h")
            .unwrap()
            .aws_region("eu-central-1");
        assert_eq!(parse("eu-central-1").unwrap(), same);
        assert_ne!(parse("eu-west-1").unwrap(), same);
        for region in ["", "eu/west", "EU", "eu%0Awest"] {
            let error = parse(region).unwrap_err();
            assert!(error.to_string().contains("as in eu-central-1"), "{error}");
        }
    }

    #[cfg(not(feature = "aws"))]
    #[test]
    fn a_region_takes_a_feature() {
        let error = EsConfig::parse("opensearchs://h?aws_region=eu-central-1").unwrap_err();
        assert!(error.to_string().contains("feature \"aws\""), "{error}");
    }

    #[test]
    fn options_are_known_and_given_once() {
        let url = "elasticsearch://h?namespace=fs-1_a&ca=/a%20b&timeout_ms=250&connections=3&clock_skew_ms=0&replicas=2";
        let config = EsConfig::parse(url).unwrap();
        assert_eq!(config.namespace.as_str(), "fs-1_a");
        assert_eq!(config.ca, Some("/a b".into()));
        assert_eq!(config.timeout, Duration::from_millis(250));
        assert_eq!(config.connections, 3);
        assert_eq!(config.clock_skew, Duration::ZERO);
        assert_eq!(config.replicas, 2);
        assert_eq!(config.active, None);
        for (text, active) in [("2", ActiveShards::Count(2)), ("all", ActiveShards::All)] {
            let url = format!("elasticsearch://h?wait_for_active_shards={text}");
            assert_eq!(EsConfig::parse(&url).unwrap().active, Some(active));
            assert_eq!(active.to_string(), text);
        }
        for option in [
            "timeout_ms=0",
            "timeout_ms=600001",
            "timeout_ms=+5",
            "timeout_ms=",
            "connections=0",
            "connections=1001",
            "clock_skew_ms=-1",
            "replicas=101",
            "wait_for_active_shards=0",
            "wait_for_active_shards=+2",
            "wait_for_active_shards=102",
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
    fn a_path_that_cannot_be_and_an_unknown_option_are_refused() {
        for path in [
            "/a//b",
            "//",
            "/a//",
            "/a b",
            "/..",
            "/a/%2e%2E/b",
            "/a/.",
            "/a%",
        ] {
            let error = EsConfig::parse(&format!("elasticsearch://h{path}"));
            assert_eq!(error, Err(UrlError::Path(GRAMMAR.path)), "{path}");
        }
        let error = EsConfig::parse("elasticsearch://h?x=1").unwrap_err();
        let error = error.to_string();
        for option in [
            "namespace",
            "api_key",
            "bearer_token",
            "bearer_token_file",
            "aws_region",
            "proxy",
            "ca",
            "timeout_ms",
            "connections",
            "clock_skew_ms",
            "replicas",
            "wait_for_active_shards",
        ] {
            assert!(error.contains(&format!("{option}=")), "{error}");
        }
    }

    #[test]
    fn no_secret_is_shown() {
        for url in [
            "elasticsearch://u:secret@h",
            "elasticsearch://h?api_key=secret",
            "elasticsearch://h?bearer_token=secret",
            "elasticsearch://h?proxy=http://u:secret%40p",
        ] {
            assert!(!format!("{:?}", EsConfig::parse(url).unwrap()).contains("secret"));
        }
        let error = EsConfig::parse("elasticsearch://h?api_key=secret%0A").unwrap_err();
        assert!(!format!("{error} {error:?}").contains("secret"), "{error}");
    }
}
