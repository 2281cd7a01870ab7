//! The server and how it is reached: [`PostgresConfig`].

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use lockcore::backend::Namespace;
use lockcore::backend::{Grammar, Options, UrlError, split};
use sqlx::postgres::PgConnectOptions;

/// How long one operation may take, unless the program chooses another time.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);
/// The most connections of the backend's own, besides one that listens, one reserved for renewals, and one whose renewal was not answered in time.
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
const GRAMMAR: Grammar = Grammar {
    schemes: &["postgres", "postgresql"],
    example: "postgres://me:password@localhost/app",
    user: ADDRESS,
    path: ADDRESS,
};
const ADDRESS: &str = "the URL is written as postgres://USER:PASSWORD@HOST:PORT/DATABASE?OPTIONS, with %40 for @ and \
                       %2F for / in a password";

/// The server, the namespace, and how requests are sent.
///
/// | option | default | meaning |
/// |---|---|---|
/// | [`namespace`](Self::namespace) | `lockkeeper` | the schema that holds the locks |
/// | [`timeout`](Self::timeout) | 5 s | how long one operation may take |
/// | [`connections`](Self::connections) | 8 | the most connections, besides one that listens, one for renewals, and one whose renewal was late |
/// | [`pooled`](Self::pooled) | no | whether a pooler in transaction mode stands before the server |
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
/// # Ok::<(), lockcore::backend::UrlError>(())
/// ```
#[derive(Clone)]
pub struct PostgresConfig {
    /// The options of each server.
    pub(crate) hosts: Vec<PgConnectOptions>,
    pub(crate) namespace: Namespace,
    pub(crate) timeout: Duration,
    pub(crate) connections: usize,
    pub(crate) pooled: bool,
}

impl PostgresConfig {
    /// Parses a URL: `postgres://USER:PASSWORD@HOST:PORT/DATABASE` or `postgresql://…`, optionally followed by `?` and
    /// options with `&` between them. The options are those of this backend (`namespace`, `timeout_ms`, `connections`,
    /// `pooler=transaction`) and the usual ones (`target_session_attrs`, which must be `read-write` or `primary`;
    /// `host`, also the folder of a socket, not with several servers; `sslmode`, `sslrootcert`, `sslcert`, `sslkey`,
    /// `application_name`). `%` and two digits are a byte. Whatever the URL leaves out comes from the usual environment
    /// variables (`PGHOST`, `PGPASSWORD` and so on) and the password file.
    ///
    /// Several servers are separated by commas: `HOST:PORT,HOST:PORT`. The one that is no standby is used, and another
    /// one after that has taken over. If two of them are no standbys, and both answer when a connection is made, they
    /// are refused: nobody knows which of them others use.
    ///
    /// # Errors
    ///
    /// Another scheme, an invalid host or port, an option that does not exist or is given twice, or a value that the
    /// option does not accept.
    pub fn parse(url: &str) -> Result<Self, UrlError> {
        let (_, rest) = split(url, GRAMMAR)?;
        let (address, given) = match rest.split_once('?') {
            Some((address, options)) => (address, Some(options)),
            None => (rest, None),
        };
        let mut options = Options::parse(given)?;
        let takes = "a number from 1 to 1000";
        let connections = options.number("connections", 1..=1_000, takes)?;
        let takes = "transaction, where a pooler in that mode stands before the server";
        let pooler = options.read("pooler", "transaction", takes, |value| {
            (value == "transaction").then_some(())
        })?;
        let takes = "read-write: whoever grants locks writes";
        options.read("target_session_attrs", "read-write", takes, |value| {
            matches!(value, "read-write" | "primary").then_some(())
        })?;
        let mut config = Self {
            namespace: options.namespace()?,
            timeout: options.millis("timeout_ms", 1)?.unwrap_or(DEFAULT_TIMEOUT),
            connections: connections
                .and_then(|most| usize::try_from(most).ok())
                .unwrap_or(DEFAULT_CONNECTIONS),
            pooled: pooler.is_some(),
            ..Self::default()
        };
        let of_the_driver: Vec<String> = OF_THE_DRIVER
            .into_iter()
            .filter_map(|name| Some(format!("{name}={}", options.raw(name, "…")?)))
            .collect();
        options.end()?;
        let (authority, path) = address.split_at(address.find('/').unwrap_or(address.len()));
        let at = authority.rfind('@').map_or(0, |at| at + 1);
        let (user, hosts) = authority.split_at(at);
        let several = hosts.contains(',');
        let of_the_driver = of_the_driver.join("&");
        if several && (hosts.split(',').any(str::is_empty) || of_the_driver.starts_with("host=")) {
            return Err(UrlError::Host);
        }
        let of_host = |host| {
            let driver = format!("postgres://{user}{host}{path}?{of_the_driver}");
            // Its errors may quote the URL.
            driver.parse().map_err(|_| UrlError::Path(ADDRESS))
        };
        config.hosts = hosts.split(',').map(of_host).collect::<Result<_, _>>()?;
        Ok(config)
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

    /// The most connections of the backend's own. They are made when needed. None is occupied while a lock is held.
    #[must_use]
    pub fn connections(mut self, most: usize) -> Self {
        self.connections = most.max(1);
        self
    }

    /// A pooler in transaction mode stands before the server: nothing is prepared, and waiters poll.
    #[must_use]
    pub fn pooled(mut self) -> Self {
        self.pooled = true;
        self
    }
}

/// The server that the usual environment variables name, or the one on this machine, with defaults for everything else.
impl Default for PostgresConfig {
    fn default() -> Self {
        Self {
            hosts: vec![PgConnectOptions::new()],
            namespace: Namespace::default(),
            timeout: DEFAULT_TIMEOUT,
            connections: DEFAULT_CONNECTIONS,
            pooled: false,
        }
    }
}

impl FromStr for PostgresConfig {
    type Err = UrlError;

    fn from_str(url: &str) -> Result<Self, UrlError> {
        Self::parse(url)
    }
}

impl fmt::Debug for PostgresConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hosts = self.hosts.iter();
        let hosts = hosts.map(|host| format!("{}:{}", host.get_host(), host.get_port()));
        f.debug_struct("PostgresConfig")
            .field("hosts", &hosts.collect::<Vec<_>>())
            .field("database", &self.hosts[0].get_database())
            .field("namespace", &self.namespace)
            .field("timeout", &self.timeout)
            .field("connections", &self.connections)
            .field("pooled", &self.pooled)
            .finish_non_exhaustive()
    }
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
            let hosts = PostgresConfig::parse(url).unwrap().hosts;
            let [options] = &*hosts else { panic!("{url}") };
            assert_eq!(options.get_host(), host, "{url}");
            assert_eq!(options.get_port(), port, "{url}");
            assert_eq!(options.get_username(), user, "{url}");
            assert_eq!(options.get_database(), database, "{url}");
        }
    }

    #[test]
    fn several_servers_are_read() {
        let url = "postgres://me:p%40s,s@a:1,b,[::1]:3/d?target_session_attrs=read-write";
        let config = PostgresConfig::parse(url).unwrap();
        let hosts = config.hosts.iter();
        let hosts: Vec<_> = hosts
            .map(|host| (host.get_host(), host.get_port()))
            .collect();
        assert_eq!(hosts, [("a", 1), ("b", 5432), ("[::1]", 3)]);
        for host in &config.hosts {
            assert_eq!(
                (host.get_username(), host.get_database()),
                ("me", Some("d"))
            );
        }
        for url in [
            "postgres://a,,b/d",
            "postgres://a,/d",
            "postgres://a,b/d?host=c",
        ] {
            assert_eq!(
                PostgresConfig::parse(url).unwrap_err(),
                UrlError::Host,
                "{url}"
            );
        }
        let error = PostgresConfig::parse("postgres://a,b/d?target_session_attrs=standby");
        assert!(matches!(error.unwrap_err(), UrlError::Value { .. }));
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
            assert!(matches!(error, UrlError::Value { .. }), "{option}: {error}");
        }
    }

    #[test]
    fn what_the_driver_does_not_take_is_refused() {
        for url in [
            "postgres://h:x/",
            "postgres://h/#f",
            "postgres://h?sslmode=perhaps",
        ] {
            let error = PostgresConfig::parse(url).unwrap_err();
            assert_eq!(error, UrlError::Path(ADDRESS), "{url}");
        }
        let error = PostgresConfig::parse("postgres://h?x=1").unwrap_err();
        let error = error.to_string();
        for option in [
            "namespace",
            "timeout_ms",
            "connections",
            "pooler",
            "sslmode",
            "host",
        ] {
            assert!(error.contains(&format!("{option}=")), "{error}");
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
