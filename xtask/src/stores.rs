//! The stores: what tests each of them, and the servers that it needs.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use lockkeeper_servers::{
    ELASTICSEARCH_7, ELASTICSEARCH_9, ELASTICSEARCH_9_SECURED, Engine, OPENSEARCH_2, OPENSEARCH_3,
    OPENSEARCH_3_SECURED, Server, etcd, mariadb, postgres, redis,
};

/// A store.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) name: &'static str,
    /// The package with its tests.
    pub(crate) package: &'static str,
    /// That package's directory.
    pub(crate) directory: &'static str,
    /// Whether other processes reach it, so that the package has a target `trial`.
    pub(crate) trial: bool,
    /// What the tests talk to; `None` for a store that is embedded in its program.
    pub(crate) servers: Option<Servers>,
}

/// The servers of a store. [`crate::plan`] says what runs on each.
#[derive(Debug)]
pub(crate) struct Servers {
    /// In this variable the tests find the server's URL. Where it is set, that server is the only one.
    pub(crate) variable: &'static str,
    pub(crate) each: &'static [Startable],
}

/// A server that can be started.
#[derive(Debug)]
pub(crate) struct Startable {
    pub(crate) name: &'static str,
    pub(crate) start: fn() -> Result<Server, String>,
}

impl Store {
    /// What tells cargo which package it is.
    pub(crate) fn selected(&self) -> String {
        format!("--package={}", self.package)
    }

    /// Whether it is no part of the library, but what another author would have.
    pub(crate) fn is_example(&self) -> bool {
        self.directory.starts_with("examples/")
    }
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
        package: "lockcore-conformance",
        directory: "conformance",
        trial: false,
        servers: None,
    },
    Store {
        name: "sqlite",
        package: "lockcore-sqlite",
        directory: "backend-sqlite",
        trial: true,
        servers: None,
    },
    Store {
        name: "elasticsearch",
        package: "lockcore-es",
        directory: "backend-es",
        trial: true,
        servers: Some(Servers {
            variable: "LOCKKEEPER_TEST_ELASTICSEARCH",
            each: &[
                Startable {
                    name: "elasticsearch-7",
                    start: || engine(&ELASTICSEARCH_7),
                },
                Startable {
                    name: "elasticsearch-9",
                    start: || engine(&ELASTICSEARCH_9),
                },
                Startable {
                    name: "opensearch-2",
                    start: || engine(&OPENSEARCH_2),
                },
                Startable {
                    name: "opensearch-3",
                    start: || engine(&OPENSEARCH_3),
                },
                Startable {
                    name: "opensearch-3-secured",
                    start: || engine(&OPENSEARCH_3_SECURED),
                },
                Startable {
                    name: "elasticsearch-9-secured",
                    start: || engine(&ELASTICSEARCH_9_SECURED),
                },
            ],
        }),
    },
    Store {
        name: "etcd",
        package: "lockcore-etcd",
        directory: "backend-etcd",
        trial: true,
        servers: Some(Servers {
            variable: "LOCKKEEPER_TEST_ETCD",
            each: &[
                Startable {
                    name: "etcd-3.6",
                    start: || etcd::ETCD_3_6.start(&artefacts()),
                },
                Startable {
                    name: "etcd-3.4",
                    start: || etcd::ETCD_3_4.start(&artefacts()),
                },
                Startable {
                    name: "etcd-3.5",
                    start: || etcd::ETCD_3_5.start(&artefacts()),
                },
                Startable {
                    name: "etcd-3.6-cluster",
                    start: || etcd::ETCD_3_6.start_cluster(&artefacts()),
                },
            ],
        }),
    },
    Store {
        name: "postgres",
        package: "lockcore-postgres",
        directory: "backend-postgres",
        trial: true,
        servers: Some(Servers {
            variable: "LOCKKEEPER_TEST_POSTGRES",
            each: &[
                Startable {
                    name: "postgres",
                    start: postgres::start,
                },
                Startable {
                    name: "postgres-14",
                    start: || postgres::POSTGRES_14.start(&artefacts()),
                },
                Startable {
                    name: "postgres-16",
                    start: || postgres::POSTGRES_16.start(&artefacts()),
                },
                Startable {
                    name: "postgres-17",
                    start: || postgres::POSTGRES_17.start(&artefacts()),
                },
                Startable {
                    name: "postgres-18",
                    start: || postgres::POSTGRES_18.start(&artefacts()),
                },
            ],
        }),
    },
    Store {
        name: "redis",
        package: "lockcore-redis",
        directory: "backend-redis",
        trial: true,
        servers: Some(Servers {
            variable: "LOCKKEEPER_TEST_REDIS",
            each: &[Startable {
                name: "redis",
                start: redis::start,
            }],
        }),
    },
    // A backend as another author would have it, on a server.
    Store {
        name: "mariadb",
        package: "mariadb-backend",
        directory: "examples/mariadb-backend",
        trial: false,
        servers: Some(Servers {
            variable: "LOCKKEEPER_TEST_MARIADB",
            each: &[Startable {
                name: "mariadb",
                start: mariadb::start,
            }],
        }),
    },
];

/// Where the programs of servers are kept that were made here.
fn artefacts() -> PathBuf {
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("target");
    target.join("servers")
}

/// Builds what `cargo xtask test` would build when it starts the server.
pub(crate) fn build_servers() -> Result<(), String> {
    etcd::ETCD_3_6.program(&artefacts()).map(drop)
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
    let mut command = Command::new(program);
    command.args(args).env("LOCKKEEPER_URL", url);
    if let Some(pid) = server.pid() {
        command.env("LOCKKEEPER_SERVER_PID", pid.to_string());
    }
    let status = command
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
