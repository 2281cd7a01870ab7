//! The stores whose server code is changed, and what runs it.

use lockkeeper_servers::{ELASTICSEARCH_7, Server, postgres, redis};

use super::checks;
use super::operators::Language;
use crate::stores;

/// The server code of a store.
#[derive(Debug)]
pub(super) struct Subject {
    pub(super) store: &'static str,
    pub(super) package: &'static str,
    /// Of the backend, below the repository.
    pub(super) folder: &'static str,
    pub(super) language: Language,
    /// How the names of its files end. Other files are not changed.
    pub(super) ending: &'static str,
    /// Nor are these.
    pub(super) left_out: &'static [&'static str],
    /// These functions and files come first.
    pub(super) first: &'static [&'static str],
    /// The test programs, how the names of the cases begin that are run, and how many of them at a time.
    pub(super) programs: &'static [(&'static str, &'static str, usize)],
    /// In this variable the tests find the server's URL.
    pub(super) variable: &'static str,
    pub(super) start: Option<fn() -> Result<Server, String>>,
    /// So many mutants run on one server: what they leave behind goes with it.
    pub(super) on_one_server: u32,
    pub(super) check: fn(&str, &str, checks::Sources<'_>) -> Result<bool, String>,
    /// What the check needs, and what brings it.
    pub(super) needs: Option<(&'static str, &'static str)>,
}

pub(super) const SUBJECTS: &[Subject] = &[
    Subject {
        store: "redis",
        package: "lockcore-redis",
        folder: "backend-redis",
        language: Language::Lua,
        ending: "lua",
        left_out: &[],
        first: &[
            "renew",
            "end",
            "adopt",
            "settle",
            "confirm",
            "sweep",
            "release",
            "release_alone",
            "release_many",
            "acquire_many",
            "common",
        ],
        programs: &[
            ("conformance", "redis::", 32),
            ("records", "", 8),
            ("line", "", 8),
            ("large", "", 4),
            ("fenced", "", 8),
            ("server", "", 8),
            ("wakeups", "", 8),
            ("forgets", "", 4),
        ],
        variable: "LOCKKEEPER_TEST_REDIS",
        start: Some(|| redis::node(&[])),
        on_one_server: 1,
        check: checks::redis,
        needs: None,
    },
    Subject {
        store: "postgres",
        package: "lockcore-postgres",
        folder: "backend-postgres",
        language: Language::Sql,
        ending: "sql",
        left_out: &[],
        first: &[
            "renew",
            "end_sessions",
            "adopt_within",
            "give_up_within",
            "settle_within",
            "confirm",
            "sweep_session",
            "sweep",
            "end_due",
            "sweep_page",
            "forget",
            "release",
            "release_one",
            "release_many",
            "acquire_one",
            "acquire_many",
            "acquire",
            "in_the_way",
            "keepers",
            "kept_by",
            "is_kept_by",
            "go_past",
        ],
        programs: &[
            ("sessions", "", 4),
            ("together", "", 4),
            ("line", "", 4),
            ("conformance", "postgres-", 12),
            ("namespace", "", 4),
            ("wakeups", "", 4),
            ("application", "", 4),
            ("errors", "", 4),
            ("plans", "", 1),
        ],
        variable: "LOCKKEEPER_TEST_POSTGRES",
        // A loop that does not end, ends with the client that began it.
        start: Some(|| postgres::node(&[("client_connection_check_interval", "1s")])),
        on_one_server: 25,
        check: |url, _, source| checks::postgres(url, source),
        needs: Some(("psql", "PostgreSQL's client")),
    },
    Subject {
        store: "elasticsearch",
        package: "lockcore-es",
        folder: "backend-es",
        language: Language::Painless,
        ending: "painless",
        left_out: &[],
        first: &[],
        programs: &[
            ("conformance", "", 16),
            ("records", "", 4),
            ("running", "", 4),
            ("interoperation", "", 4),
            ("book", "", 4),
        ],
        variable: "LOCKKEEPER_TEST_ELASTICSEARCH",
        start: Some(|| stores::engine(&ELASTICSEARCH_7)),
        on_one_server: 100,
        check: checks::elasticsearch,
        needs: None,
    },
    Subject {
        store: "sqlite",
        package: "lockcore-sqlite",
        folder: "backend-sqlite",
        language: Language::Sql,
        ending: "sql",
        // For measurements.
        left_out: &["bare_table.sql", "bare_write.sql"],
        first: &[],
        programs: &[
            ("conformance", "", 16),
            ("claims", "", 8),
            ("sessions", "", 8),
            ("inspect", "", 8),
            ("files", "", 8),
        ],
        variable: "LOCKKEEPER_TEST_SQLITE",
        start: None,
        on_one_server: 1,
        check: |_, file, source| checks::sqlite(file, source),
        needs: Some(("sqlite3", "SQLite's shell")),
    },
];

/// The stores whose Rust is changed, and the tests that run then, those that are quick first.
pub(super) const RUST: &[(&str, &[&str])] = &[
    (
        "sqlite",
        &[
            "--lib",
            "--test=claims",
            "--test=sessions",
            "--test=inspect",
            "--test=files",
            "--test=conformance",
        ],
    ),
    (
        "redis",
        &[
            "--lib",
            "--test=records",
            "--test=line",
            "--test=fenced",
            "--test=server",
            "--test=conformance",
        ],
    ),
    (
        "postgres",
        &[
            "--lib",
            "--test=sessions",
            "--test=errors",
            "--test=namespace",
            "--test=wakeups",
            "--test=application",
            "--test=conformance",
        ],
    ),
    (
        "elasticsearch",
        &[
            "--lib",
            "--test=aws",
            "--test=connecting",
            "--test=errors",
            "--test=records",
            "--test=requests",
            "--test=conformance",
        ],
    ),
    ("etcd", &["--lib", "--test=conformance"]),
];
