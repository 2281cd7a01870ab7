//! Takes and releases a lock on the memory store so many times. What it costs in instructions is counted from outside:
//! `valgrind --tool=callgrind target/release/examples/pairs 10000`.

use lockcore::{Locks, MemoryBackend, Released};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let pairs: u32 = std::env::args().nth(1).unwrap_or_default().parse()?;
    let locks = Locks::builder(MemoryBackend::new()).seed(1).build()?;
    for _ in 0..pairs {
        let released = locks.lock("k").acquire().await?.release().await?;
        assert_eq!(released, Released::Released);
    }
    Ok(())
}
