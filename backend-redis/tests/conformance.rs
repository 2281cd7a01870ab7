//! The public suite on one Redis (the one whose URL is in the environment, or one that is started), and on deployments
//! that are started for it: with the least rights, with a replica that every write waits for, as a cluster.

mod support;

use std::process::ExitCode;
use std::sync::Arc;

use lockcore_conformance::{Fixture, cases, suite};
use lockkeeper_servers::explained;
use support::{Deployment, Redis, servers};

fn main() -> ExitCode {
    let deployments: [(&str, Deployment); 4] = [
        ("redis", servers::given),
        ("redis-least-rights", servers::least),
        ("redis-replicated", servers::replicated),
        ("redis-cluster", servers::clustered),
    ];
    let fixtures = deployments.map(|(name, place)| {
        let fixture: Arc<dyn Fixture> = Arc::new(Redis { name, place });
        (fixture, cases())
    });
    explained(suite(fixtures.into()))
}
