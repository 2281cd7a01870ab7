//! The suite on the reference backend, in both of its forms.

mod world;

use std::process::ExitCode;
use std::sync::Arc;

use lockcore::MemoryBackend;
use lockcore_conformance::{Case, Layer, World, cases, suite};
use world::Memory;

fn main() -> ExitCode {
    let mut worlds: Vec<(Arc<dyn World>, Vec<Case>)> = Vec::new();
    for (form, make) in [
        ("memory", MemoryBackend::new as fn() -> Arc<MemoryBackend>),
        ("memory-records", MemoryBackend::records),
    ] {
        worlds.push((world(form.to_owned(), make), cases()));
        // The client cuts an acquisition in steps of what the store takes; bad input never comes that far.
        for keys in [1, 2, 3, 100] {
            let client = cases()
                .into_iter()
                .filter(|case| case.layer() == Layer::Client && case.group() != "input")
                .collect();
            let make = move || make().with_keys_per_step(keys);
            worlds.push((world(format!("{form}-by-{keys}"), make), client));
        }
    }
    suite(worlds)
}

fn world(
    name: String,
    make: impl Fn() -> Arc<MemoryBackend> + Send + Sync + 'static,
) -> Arc<Memory> {
    Arc::new(Memory {
        name,
        make: Arc::new(make),
        wrap: Arc::new(|memory| memory),
    })
}
