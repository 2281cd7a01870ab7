//! The suite on the reference backend, in both of its forms.

mod fixture;

use std::process::ExitCode;
use std::sync::Arc;

use fixture::Memory;
use lockcore::MemoryBackend;
use lockcore_conformance::{Case, Fixture, Layer, cases, suite};

fn main() -> ExitCode {
    let mut fixtures: Vec<(Arc<dyn Fixture>, Vec<Case>)> = Vec::new();
    for (form, make) in [
        ("memory", MemoryBackend::new as fn() -> Arc<MemoryBackend>),
        ("memory-records", MemoryBackend::records),
    ] {
        fixtures.push((fixture(form.to_owned(), make), cases()));
        // The client cuts an acquisition in batches of what the store takes; bad input never comes that far.
        for keys in [1, 2, 3, 100] {
            let client = cases()
                .into_iter()
                .filter(|case| case.layer() == Layer::Client && case.group() != "input")
                .collect();
            let make = move || make().with_keys_per_batch(keys);
            fixtures.push((fixture(format!("{form}-by-{keys}"), make), client));
        }
    }
    suite(fixtures)
}

fn fixture(
    name: String,
    make: impl Fn() -> Arc<MemoryBackend> + Send + Sync + 'static,
) -> Arc<Memory> {
    Arc::new(Memory {
        name,
        make: Arc::new(make),
        wrap: Arc::new(|memory| memory),
    })
}
