//! `cargo xtask compare`.

use std::env;

use lockcore_conformance::servers::{Engine, OPENSEARCH_2, Server, etcd, openssl};

use crate::builds::cargo_command;
use crate::stores::{self, STORES, Store};

/// A million records, twice, are too many for less.
const ENGINE: Engine = OPENSEARCH_2.with_heap("2g");

/// Starts a server of each store, and compares them; `args` are the comparison's own.
pub(crate) fn run(only: &[&'static Store], args: &[String]) -> Result<(), String> {
    let chosen: Vec<&Store> = STORES
        .iter()
        .filter(|store| only.is_empty() || only.iter().any(|only| only.name == store.name))
        .collect();
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
    let (mut servers, mut stores, mut urls) = (Vec::new(), Vec::new(), Vec::new());
    for store in chosen {
        stores.push(format!("--store={}", store.name));
        let Some(of_store) = &store.servers else {
            continue;
        };
        let url = match env::var(of_store.variable) {
            Ok(url) => url,
            Err(_) => {
                let server = start(store)?;
                let url = server.url().replacen("http", store.name, 1);
                servers.push(server);
                url
            }
        };
        urls.push((format!("LOCKKEEPER_URL_{}", store.name.to_uppercase()), url));
    }
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
    let urls: Vec<(&str, String)> = urls
        .iter()
        .map(|(name, url)| (name.as_str(), url.clone()))
        .collect();
    cargo_command(&all, &urls)
}

fn start(store: &Store) -> Result<Server, String> {
    match (store.name, &store.servers) {
        ("elasticsearch", _) => stores::engine(&ENGINE),
        (_, Some(servers)) => (servers.each[0].start)(),
        (name, None) => Err(format!("{name} has no server")),
    }
}
