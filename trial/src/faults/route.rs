//! [`rerouted`]: a store's URL that leads through proxies.

/// The default ports of stores, by scheme.
const PORTS: [(&str, u16); 6] = [
    ("elasticsearch", 9200),
    ("etcd", 2379),
    ("opensearch", 9200),
    ("postgres", 5432),
    ("redis", 6379),
    ("valkey", 6379),
];

/// The URL of a store, `SCHEME://[USER:PASSWORD@]HOST[:PORT][,…][/…][?…]`, with another port of this machine in place
/// of each host: `through` returns it for `HOST:PORT`. `None` if no host of the URL leads to the store (it is a file,
/// or the option `host` names a socket), or if the URL names no port and the default port of the store is not known
/// here.
///
/// A client that learns the addresses of other servers from its store bypasses all this. So it does not work for a
/// Redis Cluster, whose nodes send clients to each other. It works for single servers, a primary with replicas, and
/// clusters of etcd, Elasticsearch and OpenSearch, whose clients use the hosts that they are given.
///
/// # Errors
///
/// The errors of `through`.
///
/// ```
/// use lockcore_trial::faults::rerouted;
///
/// let through = |host: &str| Ok::<u16, ()>(if host == "a:1" { 7001 } else { 7002 });
/// let url = rerouted("etcd://me:p@a:1,b/?namespace=fs", through)?;
/// assert_eq!(url.as_deref(), Some("etcd://me:p@127.0.0.1:7001,127.0.0.1:7002/?namespace=fs"));
/// assert_eq!(rerouted("sqlite:locks.db", through)?, None);
/// # Ok::<(), ()>(())
/// ```
pub fn rerouted<E>(
    url: &str,
    mut through: impl FnMut(&str) -> Result<u16, E>,
) -> Result<Option<String>, E> {
    let Some((scheme, rest)) = url.split_once("://") else {
        return Ok(None);
    };
    let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    let options = path.split_once('?').map_or("", |(_, options)| options);
    if options.split('&').any(|option| option.starts_with("host=")) {
        return Ok(None);
    }
    let (user, hosts) = match authority.rfind('@') {
        Some(at) => authority.split_at(at + 1),
        None => ("", authority),
    };
    let usual = PORTS.iter().find(|(store, _)| scheme.starts_with(store));
    let mut others = Vec::new();
    for host in hosts.split(',') {
        // The colons in the brackets of an IPv6 address are its own.
        let port = host.rsplit_once(':').map(|(_, port)| port);
        let port = port.filter(|port| !port.ends_with(']') && !port.is_empty());
        let host = match (port, usual) {
            (Some(_), _) => host.to_owned(),
            (None, Some((_, port))) if !host.is_empty() => format!("{host}:{port}"),
            _ => return Ok(None),
        };
        others.push(format!("127.0.0.1:{}", through(&host)?));
    }
    Ok(Some(format!("{scheme}://{user}{}{path}", others.join(","))))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The URL by way of ports from 7001, and the hosts that they stand for.
    fn by_way(url: &str) -> (Option<String>, Vec<String>) {
        let mut hosts = Vec::new();
        let through = |host: &str| {
            hosts.push(host.to_owned());
            Ok::<_, ()>(7000 + u16::try_from(hosts.len()).unwrap())
        };
        (rerouted(url, through).unwrap(), hosts)
    }

    #[test]
    fn each_host_is_replaced_and_nothing_else() {
        for (url, expected, hosts) in [
            (
                "redis://127.0.0.1:9?namespace=a",
                "redis://127.0.0.1:7001?namespace=a",
                vec!["127.0.0.1:9"],
            ),
            (
                "rediss://u:p%40@h/3",
                "rediss://u:p%40@127.0.0.1:7001/3",
                vec!["h:6379"],
            ),
            (
                "postgresql://r:s@db/app?namespace=n",
                "postgresql://r:s@127.0.0.1:7001/app?namespace=n",
                vec!["db:5432"],
            ),
            (
                "elasticsearch://[::1],[::1]:1,c:2/?timeout_ms=1",
                "elasticsearch://127.0.0.1:7001,127.0.0.1:7002,127.0.0.1:7003/?timeout_ms=1",
                vec!["[::1]:9200", "[::1]:1", "c:2"],
            ),
            ("own://h:1", "own://127.0.0.1:7001", vec!["h:1"]),
        ] {
            let (url, seen) = by_way(url);
            assert_eq!(
                (url.as_deref(), seen),
                (
                    Some(expected),
                    hosts.iter().map(|host| (*host).to_owned()).collect()
                )
            );
        }
    }

    #[test]
    fn what_is_no_host_is_not_replaced() {
        for url in [
            "sqlite:/tmp/locks.db",
            "postgres:///app?host=/run/postgresql",
            "postgres://db/app?namespace=a&host=/run",
            "own://h",
            "redis://",
        ] {
            assert_eq!(by_way(url).0, None, "{url}");
        }
    }
}
