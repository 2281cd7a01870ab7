//! The suite on the reference backend, in both of its forms.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lockcore::{LockBackend, LockKey, MemoryBackend};
use lockcore_conformance::{BoxError, Case, Layer, Space, World, cases, suite};

struct Memory {
    name: String,
    make: fn() -> Arc<MemoryBackend>,
    keys_per_step: Option<usize>,
}

struct MemorySpace(Arc<MemoryBackend>);

#[async_trait]
impl World for Memory {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn paused(&self) -> bool {
        true
    }

    fn processes(&self) -> bool {
        false
    }

    async fn fresh(&self) -> Result<Arc<dyn Space>, BoxError> {
        let backend = (self.make)();
        Ok(Arc::new(MemorySpace(match self.keys_per_step {
            Some(keys) => backend.with_keys_per_step(keys),
            None => backend,
        })))
    }

    async fn reopen(&self, _url: &str) -> Result<Arc<dyn LockBackend>, BoxError> {
        Err("another process has its own memory".into())
    }
}

#[async_trait]
impl Space for MemorySpace {
    async fn connect(&self) -> Result<Arc<dyn LockBackend>, BoxError> {
        Ok(self.0.clone())
    }

    async fn pass(&self, time: Duration) {
        self.0.advance(time);
    }

    fn allowance(&self) -> Duration {
        Duration::ZERO
    }

    async fn plant(&self, key: &LockKey) -> Result<(), BoxError> {
        self.0.plant(key);
        Ok(())
    }

    fn url(&self) -> Option<String> {
        None
    }
}

fn main() -> ExitCode {
    let mut worlds: Vec<(Arc<dyn World>, Vec<Case>)> = Vec::new();
    for (form, make) in [
        ("memory", MemoryBackend::new as fn() -> Arc<MemoryBackend>),
        ("memory-records", MemoryBackend::records),
    ] {
        let world = |name: String, keys_per_step| {
            Arc::new(Memory {
                name,
                make,
                keys_per_step,
            })
        };
        worlds.push((world(form.to_owned(), None), cases()));
        // The client cuts an acquisition in steps of what the store takes; bad input never comes that far.
        for keys in [1, 2, 3, 100] {
            let client = cases()
                .into_iter()
                .filter(|case| case.layer() == Layer::Client && case.group() != "input")
                .collect();
            worlds.push((world(format!("{form}-by-{keys}"), Some(keys)), client));
        }
    }
    suite(worlds)
}
