//! The committed seeds, and small changes of them, through the property of a fuzz target.

use std::fs;
use std::path::{Path, PathBuf};

/// Every seed of the target.
pub(crate) fn seeds(target: &str) -> Vec<Vec<u8>> {
    let below = Path::new("fuzz/seeds").join(target);
    let directory: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .map(|directory| directory.join(&below))
        .find(|directory| directory.is_dir())
        .expect("the target has seeds");
    let mut files: Vec<PathBuf> = fs::read_dir(directory)
        .expect("a directory of seeds")
        .map(|entry| entry.expect("an entry").path())
        .collect();
    files.sort();
    assert!(!files.is_empty(), "{target} has seeds");
    let read = |file: &PathBuf| fs::read(file).expect("a seed");
    files.iter().map(read).collect()
}

/// The seeds as they are.
pub(crate) fn replay(target: &str, property: fn(&[u8])) {
    for seed in seeds(target) {
        property(&seed);
    }
}

/// The seeds, each of their beginnings, and each with one byte changed in a few ways.
#[allow(dead_code, reason = "not where an input takes long")]
pub(crate) fn replay_around(target: &str, property: fn(&[u8])) {
    replay(target, property);
    for seed in seeds(target) {
        for at in 0..seed.len() {
            property(&seed[..at]);
            let mut changed = seed.clone();
            for byte in [b'/', b'0', b'\n', 0x00, seed[at] ^ 0x01, seed[at] ^ 0x80] {
                changed[at] = byte;
                property(&changed);
            }
        }
    }
}
