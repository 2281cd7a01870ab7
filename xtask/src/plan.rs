//! What runs where: the one table of `cargo xtask test` and `cargo xtask soak`.
//!
//! Every test program of the workspace that is not named here runs once, without a server ([`HERE`]). So a new one is
//! not forgotten; one that needs a server is added to the table.

/// Where rows run: beside one server, or without one.
#[derive(Debug)]
pub(crate) struct Place {
    /// The server's name in [`crate::stores`], or [`HERE`].
    pub(crate) name: &'static str,
    pub(crate) rows: &'static [Row],
}

/// The place of what needs no server, or starts its own.
pub(crate) const HERE: &str = "here";

/// One run of a test program.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Row {
    /// The package's directory.
    pub(crate) package: &'static str,
    /// The test target.
    pub(crate) target: &'static str,
    /// Only trials with this in their names.
    pub(crate) filter: Option<&'static str>,
    pub(crate) groups: Groups,
    /// So many cases at a time; the program decides where this is `None`.
    pub(crate) threads: Option<u8>,
    pub(crate) company: Company,
    pub(crate) scope: Scope,
    /// Also the trials that are left out where nobody asks for them.
    pub(crate) ignored: bool,
    /// Only the kit's quick set.
    pub(crate) quick_set: bool,
}

/// What may run beside a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Company {
    /// What is at other places.
    Any,
    /// Also what is at its own place: it leaves the processors to others, bears a busy machine, and changes nothing of its
    /// server that others see.
    Beside,
    /// What is at other places, and nothing at its own: it changes what others see of its server.
    Apart,
    /// Others like it: it mostly waits, for an election or the end of a lease, and does not bear a busy machine.
    Waiting,
    /// Nothing: it measures time, or has many processes.
    Nothing,
}

/// Which groups of the kit.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Groups {
    All,
    Only(&'static [&'static str]),
    Without(&'static [&'static str]),
}

/// Which command runs a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    /// `cargo xtask test --only STORE`, and the whole run.
    Quick,
    /// The whole run, `cargo xtask test`, only.
    Test,
    /// `cargo xtask soak` only.
    Soak,
}

/// Input that the client refuses never comes to a store; memory has these cases.
const NOT_INPUT: Groups = Groups::Without(&["input"]);

/// What a server's own code, searches and clock decide. The rest is the client, which is the same on every version, and
/// what the matrix allows, which the newest version is asked case by case.
const BY_VERSION: &[&str] = &[
    "adoption", "batches", "expiry", "garbage", "listing", "many", "races", "recovery", "refusals",
    "releases", "requests", "sessions", "settling", "shares", "sweeps", "tokens", "trees",
    "wakeups",
];

/// What several members can change: when a write counts, who tells whom, and what is told late.
const BY_MEMBERS: &[&str] = &[
    "batches",
    "documents",
    "expiry",
    "lifetime",
    "listing",
    "many",
    "processes",
    "races",
    "releases",
    "sessions",
    "settling",
    "sweeps",
    "tokens",
    "waiting",
    "wakeups",
];

/// What other rights can change: every request of the store once, and who waits.
const BY_RIGHTS: &[&str] = &[
    "batches", "garbage", "listing", "sessions", "settling", "sweeps", "wakeups",
];

/// What a pooler between us and the server can change: statements, transactions, notifications.
const BY_POOLER: &[&str] = &[
    "batches", "listing", "races", "sessions", "settling", "waiting", "wakeups",
];

const FACADE: &str = ".";
const CLI: &str = "cli";
const ES: &str = "backend-es";
const ETCD: &str = "backend-etcd";
const POSTGRES: &str = "backend-postgres";
const REDIS: &str = "backend-redis";
const SQLITE: &str = "backend-sqlite";
const FILES: &str = "examples/files-backend";
const MARIADB: &str = "examples/mariadb-backend";

/// On a version of PostgreSQL that the machine need not have.
const OTHER_POSTGRES: &[Row] = &[
    row(POSTGRES, "conformance").threads(8).soak(),
    row(POSTGRES, "application").soak(),
    row(POSTGRES, "errors").soak(),
    row(POSTGRES, "line").soak(),
    row(POSTGRES, "logging").soak(),
    row(POSTGRES, "plans").soak(),
    row(POSTGRES, "sessions").soak(),
    row(POSTGRES, "together").soak(),
    row(POSTGRES, "wakeups").soak(),
];

/// What runs where. The places are begun in this order, some at the same time.
pub(crate) const PLAN: &[Place] = &[
    Place {
        name: "elasticsearch-9",
        rows: &[
            kit(ES).threads(8),
            row(ES, "aws").soak(),
            row(ES, "book"),
            row(ES, "connecting"),
            row(ES, "descriptors").alone(),
            row(ES, "faults").apart(),
            row(ES, "forgets").beside(),
            row(ES, "interoperation"),
            row(ES, "logging"),
            row(ES, "namespace"),
            row(ES, "records"),
            row(ES, "requests"),
            row(ES, "running").beside(),
            row(ES, "silence").beside(),
            row(ES, "trial").threads(3).alone(),
            row(FACADE, "own_thread").waiting(),
        ],
    },
    Place {
        name: HERE,
        rows: &[
            row("conformance", "memory"),
            kit(SQLITE),
            row(FILES, "conformance").quick_set(),
            row(REDIS, "forgets").beside(),
            row(REDIS, "hosts").beside(),
            row(REDIS, "silence").beside(),
            row(SQLITE, "processes").alone(),
            // What is broken on purpose is noticed by the checker, whatever the store: here all of it is.
            row(SQLITE, "trial").alone().ignored(),
            row(ETCD, "secured"),
            // The longest first.
            row(ES, "cluster").waiting(),
            row(ETCD, "servers").waiting(),
            row(ETCD, "cluster").waiting(),
            row(FACADE, "own_thread").waiting(),
        ],
    },
    Place {
        name: "redis",
        rows: &[
            kit(REDIS).filter("redis::"),
            row(REDIS, "conformance")
                .filter("redis-least-rights::")
                .only(BY_RIGHTS),
            row(REDIS, "conformance")
                .filter("redis-replicated::")
                .only(BY_MEMBERS),
            row(REDIS, "conformance")
                .filter("redis-cluster::")
                .only(BY_MEMBERS),
            row(REDIS, "conformance").soak(),
            row(REDIS, "fenced"),
            row(REDIS, "large"),
            row(REDIS, "line"),
            row(REDIS, "records"),
            row(REDIS, "server"),
            row(REDIS, "wakeups"),
            row(REDIS, "deployments").waiting(),
            row(REDIS, "trial").alone(),
            row(CLI, "rights").waiting(),
            row(FACADE, "own_thread").waiting(),
        ],
    },
    Place {
        name: "postgres",
        rows: &[
            kit(POSTGRES).threads(8),
            row(POSTGRES, "application"),
            row(POSTGRES, "errors"),
            row(POSTGRES, "line"),
            row(POSTGRES, "logging"),
            row(POSTGRES, "namespace").beside(),
            row(POSTGRES, "plans").beside(),
            row(POSTGRES, "sessions").beside(),
            row(POSTGRES, "snapshots"),
            row(POSTGRES, "together"),
            row(POSTGRES, "wakeups"),
            row(POSTGRES, "pooled").threads(8).only(BY_POOLER),
            row(POSTGRES, "pooled").threads(4).soak(),
            row(POSTGRES, "servers").waiting(),
            row(POSTGRES, "restores").waiting(),
            row(POSTGRES, "connections").waiting(),
            row(POSTGRES, "trial").threads(4).alone(),
            row(CLI, "rights").waiting(),
            row(FACADE, "own_thread").waiting(),
        ],
    },
    Place {
        name: "postgres-14",
        rows: OTHER_POSTGRES,
    },
    Place {
        name: "postgres-16",
        rows: OTHER_POSTGRES,
    },
    Place {
        name: "postgres-17",
        rows: OTHER_POSTGRES,
    },
    Place {
        name: "postgres-18",
        rows: OTHER_POSTGRES,
    },
    Place {
        name: "mariadb",
        rows: &[
            row(MARIADB, "conformance").threads(8).quick_set(),
            row(MARIADB, "versions"),
            row(MARIADB, "conformance").threads(8).soak(),
        ],
    },
    Place {
        name: "etcd-3.6",
        rows: &[
            kit(ETCD),
            row(ETCD, "trial").threads(4).alone(),
            row(FACADE, "own_thread").waiting(),
        ],
    },
    Place {
        name: "etcd-3.4",
        rows: &[
            row(ETCD, "conformance").only(BY_VERSION),
            row(ETCD, "conformance").soak(),
        ],
    },
    Place {
        name: "etcd-3.5",
        rows: &[row(ETCD, "conformance").soak()],
    },
    Place {
        name: "etcd-3.6-cluster",
        rows: &[
            row(ETCD, "conformance").only(BY_MEMBERS),
            row(ETCD, "conformance").soak(),
        ],
    },
    Place {
        // OpenSearch comes from it, and has the kit's groups.
        name: "elasticsearch-7",
        rows: &[
            row(ES, "conformance").threads(4).soak(),
            row(ES, "book"),
            row(ES, "connecting").soak(),
            row(ES, "faults").apart(),
            row(ES, "forgets").soak(),
            row(ES, "interoperation"),
            row(ES, "namespace"),
            row(ES, "records"),
            row(ES, "requests"),
            row(ES, "running").soak(),
        ],
    },
    Place {
        name: "opensearch-3",
        rows: &[
            row(ES, "conformance").threads(8).only(BY_VERSION),
            row(ES, "conformance").threads(4).soak(),
            row(ES, "book"),
            row(ES, "connecting").soak(),
            row(ES, "faults").apart(),
            row(ES, "forgets").soak(),
            row(ES, "interoperation"),
            row(ES, "namespace"),
            row(ES, "records"),
            row(ES, "requests"),
            row(ES, "running").beside(),
        ],
    },
    Place {
        name: "opensearch-2",
        rows: &[
            row(ES, "conformance").threads(4).soak(),
            row(ES, "aws"),
            row(ES, "book").soak(),
            row(ES, "connecting"),
            row(ES, "faults").apart(),
            row(ES, "forgets").soak(),
            row(ES, "interoperation").soak(),
            row(ES, "namespace"),
            row(ES, "records"),
            row(ES, "requests").soak(),
            row(ES, "running").soak(),
        ],
    },
    Place {
        name: "opensearch-3-secured",
        rows: &[
            row(ES, "security"),
            row(ES, "connecting"),
            row(ES, "conformance").threads(4).soak(),
            row(ES, "namespace"),
            row(ES, "records").soak(),
            row(ES, "requests").soak(),
            row(ES, "running"),
        ],
    },
    Place {
        name: "elasticsearch-9-secured",
        rows: &[
            row(ES, "security"),
            row(ES, "connecting"),
            row(ES, "conformance").threads(8).only(BY_RIGHTS),
            row(ES, "conformance").threads(4).soak(),
            row(ES, "namespace").soak(),
            row(ES, "records").soak(),
            row(ES, "requests").soak(),
            row(ES, "running").soak(),
        ],
    },
];

/// What the simulation's own tests show, in a build of its own: a seed repeats, and is another run than the next.
pub(crate) const SIMULATION: Row = row("trial", "simulation").beside();

/// A test program, whole, in every run of its server.
const fn row(package: &'static str, target: &'static str) -> Row {
    Row {
        package,
        target,
        filter: None,
        groups: Groups::All,
        threads: None,
        company: Company::Any,
        scope: Scope::Quick,
        ignored: false,
        quick_set: false,
    }
}

/// The whole kit on the store of a package.
const fn kit(package: &'static str) -> Row {
    Row {
        groups: NOT_INPUT,
        ..row(package, "conformance")
    }
}

impl Row {
    const fn filter(mut self, filter: &'static str) -> Self {
        self.filter = Some(filter);
        self
    }

    const fn only(mut self, groups: &'static [&'static str]) -> Self {
        self.groups = Groups::Only(groups);
        self.scope = Scope::Test;
        self
    }

    const fn threads(mut self, threads: u8) -> Self {
        self.threads = Some(threads);
        self
    }

    const fn alone(mut self) -> Self {
        self.company = Company::Nothing;
        self.scope = Scope::Test;
        self
    }

    const fn beside(mut self) -> Self {
        self.company = Company::Beside;
        self
    }

    const fn apart(mut self) -> Self {
        self.company = Company::Apart;
        self
    }

    const fn waiting(mut self) -> Self {
        self.company = Company::Waiting;
        self.scope = Scope::Test;
        self
    }

    const fn ignored(mut self) -> Self {
        self.ignored = true;
        self
    }

    const fn quick_set(mut self) -> Self {
        self.quick_set = true;
        self
    }

    const fn soak(mut self) -> Self {
        self.groups = Groups::All;
        self.scope = Scope::Soak;
        self
    }

    /// What the test program is given; `groups` are all that the kit has.
    pub(crate) fn arguments(&self, groups: &[&str]) -> Vec<String> {
        let mut arguments: Vec<String> = self.filter.iter().map(|it| (*it).to_owned()).collect();
        let left_out = groups.iter().filter(|group| match self.groups {
            Groups::All => false,
            Groups::Only(only) => !only.contains(group),
            Groups::Without(without) => without.contains(group),
        });
        arguments.extend(left_out.map(|group| format!("--skip=::{group}::")));
        arguments.extend(self.ignored.then(|| "--include-ignored".to_owned()));
        arguments.extend(self.threads.map(|it| format!("--test-threads={it}")));
        arguments
    }

    /// How it is called in the table of times.
    pub(crate) fn name(&self) -> String {
        let filter = self.filter.map(|filter| filter.trim_end_matches(':'));
        let part = match self.groups {
            Groups::Only(groups) => Some(format!("{} groups", groups.len())),
            Groups::All | Groups::Without(_) => None,
        };
        let package = match self.package {
            "." => "lockkeeper",
            package => package,
        };
        let mut name = format!("{package} {}", self.target);
        let set = self.quick_set.then(|| "quick set".to_owned());
        for detail in filter.map(str::to_owned).into_iter().chain(part).chain(set) {
            name = format!("{name}, {detail}");
        }
        name
    }
}

/// The place of that name.
pub(crate) fn find(name: &str) -> Result<&'static str, String> {
    let mut names = PLAN.iter().map(|place| place.name);
    let known: Vec<&str> = names.clone().collect();
    let found = names.find(|known| *known == name);
    found.ok_or_else(|| format!("no place of that name; known are {}", known.join(", ")))
}

/// The groups of the kit.
pub(crate) fn groups() -> Vec<&'static str> {
    let mut groups: Vec<&str> = lockcore_conformance::cases()
        .iter()
        .map(lockcore_conformance::Case::group)
        .collect();
    groups.dedup();
    groups
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stores;

    #[test]
    fn every_place_is_a_server_and_every_group_is_one_of_the_kit() {
        let known = groups();
        for place in PLAN {
            assert!(
                place.name == HERE || stores::find_server(place.name).is_ok(),
                "{}",
                place.name
            );
            for row in place.rows {
                let (Groups::Only(groups) | Groups::Without(groups)) = row.groups else {
                    continue;
                };
                for group in groups {
                    assert!(known.contains(group), "{}: {group}", row.name());
                }
            }
        }
    }

    #[test]
    fn every_server_has_a_place_and_every_group_is_asked_of_every_store() {
        // Of an example the quick set is enough.
        for store in stores::STORES.iter().filter(|store| !store.is_example()) {
            let Some(servers) = &store.servers else {
                continue;
            };
            let places = servers.each.iter().map(|server| {
                let place = PLAN.iter().find(|place| place.name == server.name);
                place.unwrap_or_else(|| panic!("{} has no place", server.name))
            });
            let asked = places.flat_map(|place| place.rows).any(|row| {
                row.target == "conformance"
                    && row.scope == Scope::Quick
                    && row.groups_are(NOT_INPUT)
            });
            assert!(asked, "{}: the whole kit runs nowhere", store.name);
        }
    }

    impl Row {
        fn groups_are(&self, groups: Groups) -> bool {
            match (self.groups, groups) {
                (Groups::Without(ours), Groups::Without(theirs)) => ours == theirs,
                _ => false,
            }
        }
    }

    #[test]
    fn what_a_program_is_given() {
        let row = row(ES, "conformance").threads(8).only(&["trees", "tokens"]);
        let given = row.arguments(&["matrix", "trees", "batches", "tokens"]);
        let expected = [
            "--skip=::matrix::",
            "--skip=::batches::",
            "--test-threads=8",
        ];
        assert_eq!(given, expected);
        assert_eq!(row.name(), "backend-es conformance, 2 groups");
    }
}
