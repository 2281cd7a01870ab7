//! The stores: what tests each of them, and the server that it needs.

use std::process::Child;

/// A store.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) name: &'static str,
    /// What `cargo test` is given, one run for each, beside the tests of lockcore.
    pub(crate) tests: &'static [&'static [&'static str]],
    /// The package whose target `trial` runs processes on it, if other processes reach it.
    pub(crate) trial: Option<&'static str>,
    /// Starts what the tests talk to.
    pub(crate) server: fn() -> Result<Server, String>,
}

/// Every store of this version.
pub(crate) const STORES: &[Store] = &[
    Store {
        name: "memory",
        tests: &[&["--package=lockcore-conformance", "--test=memory"]],
        trial: None,
        server: none,
    },
    Store {
        name: "sqlite",
        tests: &[&["--package=lockcore-sqlite"]],
        trial: Some("--package=lockcore-sqlite"),
        server: none,
    },
];

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

/// A server that runs; dropping it stops it.
#[derive(Debug)]
pub(crate) struct Server(Option<Child>);

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(server) = &mut self.0 {
            // It may have ended by itself; then there is nothing to stop.
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}

/// For a store that is embedded in its program.
#[expect(
    clippy::unnecessary_wraps,
    reason = "the signature of a server that may fail to start"
)]
fn none() -> Result<Server, String> {
    Ok(Server(None))
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
