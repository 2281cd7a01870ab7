//! The stores: what tests each of them, and the servers that it needs.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use lockcore_conformance::servers::{
    ELASTICSEARCH_7, ELASTICSEARCH_9_SECURED, Engine, OPENSEARCH_2, OPENSEARCH_3,
    OPENSEARCH_3_SECURED, Server, etcd, postgres, redis,
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
    /// What `cargo test` is given on the first server only, one run for each.
    pub(crate) once: &'static [&'static [&'static str]],
    /// What it is given besides, for tests that start servers of their own.
    pub(crate) alone: &'static [&'static [&'static str]],
    /// In this variable the tests find the server's URL. Where it is set, that server is the only one.
    pub(crate) variable: &'static str,
    pub(crate) each: &'static [Startable],
}

/// A server that can be started.
#[derive(Debug)]
pub(crate) struct Startable {
    pub(crate) name: &'static str,
    pub(crate) start: fn() -> Result<Server, String>,
    /// What `cargo test` is given, one run for each, where only a part of the tests runs on it.
    pub(crate) part: Option<&'static [&'static [&'static str]]>,
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
        trial: Some("--package=lockcore-es"),
        servers: Some(Servers {
            package: "lockcore-es",
            // Many processes each.
            once: &[&[
                "--package=lockcore-es",
                "--test=trial",
                "--",
                "--test-threads=2",
            ]],
            alone: &[&["--package=lockcore-es", "--test=cluster"]],
            variable: "LOCKKEEPER_TEST_ELASTICSEARCH",
            each: &[
                Startable {
                    name: ELASTICSEARCH_7.name,
                    start: || engine(&ELASTICSEARCH_7),
                    part: None,
                },
                Startable {
                    name: OPENSEARCH_2.name,
                    start: || engine(&OPENSEARCH_2),
                    part: None,
                },
                Startable {
                    name: OPENSEARCH_3.name,
                    start: || engine(&OPENSEARCH_3),
                    part: None,
                },
                Startable {
                    name: OPENSEARCH_3_SECURED.name,
                    start: || engine(&OPENSEARCH_3_SECURED),
                    // Everything with the least rights but what asks for no other rights than the rest.
                    part: Some(&[&[
                        "--package=lockcore-es",
                        "--",
                        "--test-threads=4",
                        "--skip=::matrix::",
                        "--skip=::keys::",
                        "--skip=::random::",
                        "--skip=::races::",
                        "--skip=::waiting::",
                        "--skip=::faults::",
                    ]]),
                },
                Startable {
                    name: ELASTICSEARCH_9_SECURED.name,
                    start: || engine(&ELASTICSEARCH_9_SECURED),
                    // It runs no scripts.
                    part: Some(&[&["--package=lockcore-es", "--test=security"]]),
                },
            ],
        }),
    },
    Store {
        name: "etcd",
        tests: &[&["--package=lockcore-etcd"]],
        trial: Some("--package=lockcore-etcd"),
        servers: Some(Servers {
            package: "lockcore-etcd",
            once: &[
                &[
                    "--package=lockcore-etcd",
                    "--test=trial",
                    "--",
                    "--test-threads=2",
                ],
                &["--package=lockkeeper", "--features=etcd", "--lib"],
            ],
            alone: &[
                &["--package=lockcore-etcd", "--test=servers"],
                &["--package=lockcore-etcd", "--test=secured"],
                &["--package=lockcore-etcd", "--test=cluster"],
            ],
            variable: "LOCKKEEPER_TEST_ETCD",
            each: &[
                Startable {
                    name: etcd::ETCD_3_6.name,
                    start: || etcd::ETCD_3_6.start(&artefacts()),
                    part: None,
                },
                Startable {
                    name: etcd::ETCD_3_4.name,
                    start: || etcd::ETCD_3_4.start(&artefacts()),
                    part: None,
                },
                Startable {
                    name: "etcd-3.6-cluster",
                    start: || etcd::ETCD_3_6.start_cluster(&artefacts()),
                    // What the matrix allows, and how it is told, does not depend on the number of members.
                    part: Some(&[&[
                        "--package=lockcore-etcd",
                        "--test=conformance",
                        "--",
                        "--skip=::matrix::",
                        "--skip=::keys::",
                        "--skip=::random::",
                        "--skip=::requests::",
                        "--skip=::trees::",
                        "--skip=::shares::",
                        "--skip=::refusals::",
                        "--skip=::garbage::",
                        "--skip=::listing::",
                        "--skip=::input::",
                        "--skip=::processes::",
                    ]]),
                },
            ],
        }),
    },
    Store {
        name: "postgres",
        tests: &[&["--package=lockcore-postgres", "--", "--test-threads=4"]],
        trial: Some("--package=lockcore-postgres"),
        servers: Some(Servers {
            package: "lockcore-postgres",
            once: &[
                &[
                    "--package=lockcore-postgres",
                    "--test=trial",
                    "--",
                    "--test-threads=2",
                ],
                // Neither what the matrix allows, nor what the client refuses, nor the server's time depends on the way to
                // the server.
                &[
                    "--package=lockcore-postgres",
                    "--test=pooled",
                    "--",
                    "--test-threads=4",
                    "--skip=::matrix::",
                    "--skip=::input::",
                    "--skip=::expiry::",
                    "--skip=::lifetime::",
                ],
            ],
            alone: &[],
            variable: "LOCKKEEPER_TEST_POSTGRES",
            each: &[Startable {
                name: "postgres",
                start: postgres::start,
                part: None,
            }],
        }),
    },
    Store {
        name: "redis",
        tests: &[&["--package=lockcore-redis"]],
        trial: Some("--package=lockcore-redis"),
        servers: Some(Servers {
            package: "lockcore-redis",
            once: &[],
            alone: &[],
            variable: "LOCKKEEPER_TEST_REDIS",
            each: &[Startable {
                name: "redis",
                start: redis::start,
                part: None,
            }],
        }),
    },
];

/// Where the programs of servers are kept that were made here.
fn artefacts() -> PathBuf {
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("target");
    target.join("servers")
}

pub(crate) fn engine(engine: &Engine) -> Result<Server, String> {
    let started = engine.start(&artefacts());
    started.map_err(|error| format!("{}: {error}", engine.name))
}

/// The server of that name, and the store that it is of.
pub(crate) fn find_server(name: &str) -> Result<(&'static Store, &'static Startable), String> {
    let servers = STORES.iter().flat_map(|store| {
        let each = store.servers.iter().flat_map(|servers| servers.each);
        each.map(move |server| (store, server))
    });
    let known: Vec<&str> = servers.clone().map(|(_, server)| server.name).collect();
    let mut servers = servers;
    let found = servers.find(|(_, server)| server.name == name);
    found.ok_or_else(|| format!("no server of that name; known are {}", known.join(", ")))
}

/// Runs a command beside a server.
pub(crate) fn with(
    (store, wanted): (&Store, &Startable),
    command: &[String],
) -> Result<(), String> {
    let server = (wanted.start)()?;
    let url = server.url().replacen("http", store.name, 1);
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
