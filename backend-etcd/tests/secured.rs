//! The public suite by TLS, as a user with the least rights; what the matrix allows does not depend on that.

mod support;

use std::process::ExitCode;
use std::sync::{Arc, LazyLock};

use lockcore_conformance::{World, cases, suite};
use support::{Etcd, Secured};

/// What asks for no other rights than the rest.
const LEFT_OUT: [&str; 7] = [
    "matrix", "keys", "random", "races", "waiting", "faults", "many",
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
    let world: Arc<dyn World> = Arc::new(Etcd {
        name: "etcd-secured",
        server,
    });
    let cases = cases().into_iter();
    let cases = cases.filter(|case| !LEFT_OUT.contains(&case.group()));
    suite(vec![(world, cases.collect())])
}
