//! Every program of the book, and of the readmes of the published crates, is a documentation test here.
//!
//! A page with a program that is not named here is found by `cargo xtask release --check`.

macro_rules! pages {
    ($($name:ident = $page:literal;)*) => {
        $(
            #[cfg(doctest)]
            #[doc = include_str!($page)]
            mod $name {}
        )*
    };
}

pages! {
    backend = "../../src/backend.md";
    fencing = "../../src/fencing.md";
    jobs = "../../src/jobs.md";
    migrating_advisory = "../../src/migrating/advisory.md";
    migrating_consul = "../../src/migrating/consul.md";
    migrating_curator = "../../src/migrating/curator.md";
    migrating_redlock = "../../src/migrating/redlock.md";
    migrating_shedlock = "../../src/migrating/shedlock.md";
    operations = "../../src/operations.md";
    recovery = "../../src/recovery.md";
    schemes = "../../src/schemes.md";
    sharing = "../../src/sharing.md";
    start = "../../src/start.md";
    stores = "../../src/stores.md";
    lockcore_readme = "../../../../lockcore/README.md";
    backend_es_readme = "../../../../backend-es/README.md";
    backend_etcd_readme = "../../../../backend-etcd/README.md";
    backend_postgres_readme = "../../../../backend-postgres/README.md";
    backend_redis_readme = "../../../../backend-redis/README.md";
    backend_sqlite_readme = "../../../../backend-sqlite/README.md";
}
