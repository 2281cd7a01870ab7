//! `cargo xtask compare`.

use std::env;

use lockkeeper_servers::{Engine, OPENSEARCH_2, Server, etcd, openssl};

use crate::builds::cargo_command;
use crate::stores::{self, STORES, Store};

/// A million records, twice, are too many for less.
const ENGINE: Engine = OPENSEARCH_2.with_heap("2g");

/// Starts a server of each store, and compares them; `args` are the comparison's own.
pub(crate) fn run(
    only: &[&'static Store],
    rounds: Option<usize>,
    figures: &[String],
    args: &[String],
) -> Result<(), String> {
    let chosen = chosen(only);
    etcd::protoc()?;
    if chosen.iter().any(|store| store.name == "postgres") {
        openssl()?;
        cargo_command(
            &[
                "build",
                "--release",
                "--manifest-path=benches/apart/Cargo.toml",
                "--target-dir=target",
            ],
            &[],
        )?;
    }
    let started = start(&chosen)?;
    let stores = chosen.iter().map(|store| format!("--store={}", store.name));
    let stores: Vec<String> = stores
        .chain(rounds.map(|rounds| format!("--rounds={rounds}")))
        .chain(figures.iter().map(|figure| format!("--figures={figure}")))
        .collect();
    let mut all = vec![
        "run",
        "--release",
        "--package=lockkeeper-benches",
        "--features=etcd",
        "--",
        "compare",
    ];
    all.extend(stores.iter().map(String::as_str));
    all.extend(args.iter().map(String::as_str));
    let variable = |name: &str| format!("LOCKKEEPER_URL_{}", name.to_uppercase());
    let of_servers = started.urls.iter().filter(|(_, url)| !is_embedded(url));
    let urls: Vec<(String, &String)> = of_servers
        .map(|(name, url)| (variable(name), url))
        .collect();
    let urls: Vec<(&str, String)> = urls
        .iter()
        .map(|(name, url)| (name.as_str(), (*url).clone()))
        .collect();
    cargo_command(&all, &urls)
}

/// All stores of the library, or only some.
pub(crate) fn chosen(only: &[&'static Store]) -> Vec<&'static Store> {
    let is_chosen = |store: &&Store| match only {
        [] => !store.is_example(),
        only => only.iter().any(|it| it.name == store.name),
    };
    STORES.iter().filter(is_chosen).collect()
}

/// Servers that run, until this is dropped.
pub(crate) struct Started {
    /// The URL of each store; `memory:` and `sqlite:` of those that are embedded.
    pub(crate) urls: Vec<(&'static str, String)>,
    _servers: Vec<Server>,
}

/// Starts a server of each store that needs one, unless the environment names it.
pub(crate) fn start(stores: &[&'static Store]) -> Result<Started, String> {
    let (mut servers, mut urls) = (Vec::new(), Vec::new());
    for store in stores {
        let url = match &store.servers {
            None => format!("{}:", store.name),
            Some(of_store) => match env::var(of_store.variable) {
                Ok(url) => url,
                Err(_) => {
                    let server = start_one(store)?;
                    let url = server.url().replacen("http", store.name, 1);
                    servers.push(server);
                    url
                }
            },
        };
        urls.push((store.name, url));
    }
    Ok(Started {
        urls,
        _servers: servers,
    })
}

fn is_embedded(url: &str) -> bool {
    url.ends_with(':')
}

fn start_one(store: &Store) -> Result<Server, String> {
    match (store.name, &store.servers) {
        ("elasticsearch", _) => stores::engine(&ENGINE),
        (_, Some(servers)) => (servers.each[0].start)(),
        (name, None) => Err(format!("{name} has no server")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_example_is_compared_only_by_its_name() {
        let names = |only: &[&'static Store]| -> Vec<&str> {
            chosen(only).iter().map(|store| store.name).collect()
        };
        assert!(names(&[]).contains(&"etcd"));
        assert!(!names(&[]).contains(&"mariadb"));
        let mariadb = stores::find("mariadb").unwrap();
        assert_eq!(names(&[mariadb]), ["mariadb"]);
    }
}
