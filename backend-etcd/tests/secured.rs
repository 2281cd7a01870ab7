//! A part of the public suite by TLS, as a user with the least rights.
#![expect(clippy::unwrap_used, reason = "it is a test")]

mod support;

use std::process::ExitCode;
use std::sync::{Arc, LazyLock};

use lockcore_conformance::{Fixture, cases, suite};
use lockkeeper_servers::explained;
use support::{Etcd, Secured};

/// Together they ask for everything that the backend asks of a server.
const GROUPS: [&str; 12] = [
    "sessions",
    "releases",
    "sweeps",
    "garbage",
    "listing",
    "wakeups",
    "adoption",
    "recovery",
    "batches",
    "tokens",
    "intents",
    "recovering",
];

fn server() -> String {
    static SERVER: LazyLock<Secured> = LazyLock::new(|| {
        // Whoever asks first is a part of another runtime.
        let started = std::thread::spawn(|| {
            let runtime = tokio::runtime::Runtime::new().unwrap();
            runtime.block_on(Secured::start())
        });
        started.join().unwrap()
    });
    SERVER.least()
}

fn main() -> ExitCode {
    let fixture: Arc<dyn Fixture> = Arc::new(Etcd {
        name: "etcd-secured",
        server,
    });
    let cases = cases().into_iter();
    let cases = cases.filter(|case| GROUPS.contains(&case.group()));
    explained(suite(vec![(fixture, cases.collect())]))
}
