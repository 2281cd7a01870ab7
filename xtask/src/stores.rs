//! The stores: what tests each of them, and the servers that it needs.

use std::env;
use std::path::Path;
use std::process::Command;

use lockcore_conformance::servers::{
    ELASTICSEARCH_7, ELASTICSEARCH_9_SECURED, ENGINES, Engine, OPENSEARCH_2, OPENSEARCH_3,
    OPENSEARCH_3_SECURED, Server,
};

/// A store.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) name: &'static str,
    /// What `cargo test` is given, one run for each, beside the tests of lockcore.
    pub(crate) tests: &'static [&'static [&'static str]],
    /// The package whose target `trial` runs processes on it, if other processes reach it.
    pub(crate) trial: Option<&'static str>,
    /// What the tests talk to; `None` for a store that is embedded in its program.
    pub(crate) servers: Option<Servers>,
}

/// The servers of a store. Its tests run on each, one after the other.
#[derive(Debug)]
pub(crate) struct Servers {
    /// The package whose tests need them.
    pub(crate) package: &'static str,
    /// In this variable the tests find the server's URL. Where it is set, that server is the only one.
    pub(crate) variable: &'static str,
    /// Each starts one.
    pub(crate) start: &'static [fn() -> Result<Server, String>],
    /// Those that run only a part of the tests.
    pub(crate) besides: &'static [Besides],
}

/// A server for a part of the tests.
#[derive(Debug)]
pub(crate) struct Besides {
    /// Starts it.
    pub(crate) start: fn() -> Result<Server, String>,
    /// What `cargo test` is given.
    pub(crate) tests: &'static [&'static [&'static str]],
}

impl Servers {
    /// Whether the environment names the server.
    pub(crate) fn given(&self) -> bool {
        env::var_os(self.variable).is_some()
    }
}

/// Every store of this version.
pub(crate) const STORES: &[Store] = &[
    Store {
        name: "memory",
        tests: &[&["--package=lockcore-conformance", "--test=memory"]],
        trial: None,
        servers: None,
    },
    Store {
        name: "sqlite",
        tests: &[&["--package=lockcore-sqlite"]],
        trial: Some("--package=lockcore-sqlite"),
        servers: None,
    },
    Store {
        name: "elasticsearch",
        // A few at a time: most cases are about this store's answers, and the server has its part of the machine.
        tests: &[&["--package=lockcore-es", "--", "--test-threads=4"]],
        trial: None,
        servers: Some(Servers {
            package: "lockcore-es",
            variable: "LOCKKEEPER_TEST_ELASTICSEARCH",
            start: &[
                || engine(&ELASTICSEARCH_7),
                || engine(&OPENSEARCH_2),
                || engine(&OPENSEARCH_3),
            ],
            besides: &[
                // Everything with the least rights but what asks for no other rights than the rest.
                Besides {
                    start: || engine(&OPENSEARCH_3_SECURED),
                    tests: &[&[
                        "--package=lockcore-es",
                        "--",
                        "--test-threads=4",
                        "--skip=::matrix::",
                        "--skip=::keys::",
                    ]],
                },
                // It runs no scripts.
                Besides {
                    start: || engine(&ELASTICSEARCH_9_SECURED),
                    tests: &[&["--package=lockcore-es", "--test=security"]],
                },
            ],
        }),
    },
];

fn engine(engine: &Engine) -> Result<Server, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("target");
    let started = engine.start(&root.join("servers"));
    started.map_err(|error| format!("{}: {error}", engine.name))
}

/// The engine of that name.
pub(crate) fn find_engine(name: &str) -> Result<&'static Engine, String> {
    let known: Vec<&str> = ENGINES.iter().map(|engine| engine.name).collect();
    let mut engines = ENGINES.into_iter();
    let found = engines.find(|engine| engine.name == name);
    found.ok_or_else(|| format!("no server of that name; known are {}", known.join(", ")))
}

/// Runs a command beside an engine.
pub(crate) fn with(wanted: &Engine, command: &[String]) -> Result<(), String> {
    let server = engine(wanted)?;
    let url = server.url().replacen("http", "elasticsearch", 1);
    let (program, args) = command.split_first().ok_or("there is no command")?;
    let status = Command::new(program)
        .args(args)
        .env("LOCKKEEPER_URL", url)
        .status()
        .map_err(|error| format!("{program} cannot be run: {error}"))?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("{program} failed: {status}"))
    }
}

/// The store of that name.
pub(crate) fn find(name: &str) -> Result<&'static Store, String> {
    STORES
        .iter()
        .find(|store| store.name == name)
        .ok_or_else(|| {
            let known: Vec<&str> = STORES.iter().map(|store| store.name).collect();
            format!("no store of that name; known are {}", known.join(", "))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_store_is_told_the_known_ones() {
        assert_eq!(find("sqlite").unwrap().name, "sqlite");
        let error = find("mysql").unwrap_err();
        assert!(error.contains("memory, sqlite"), "{error}");
    }
}
