//! `distributed-lock-postgres`, for the measurements of lockkeeper: advisory locks through a pool of `sqlx` 0.8.
//!
//! It is given the server's URL, and on each line of its input for how many milliseconds turns are to
//! be taken, whether they are held across a yield, and at which keys, by a task each. It answers with a line for each turn, whose it was and when it was asked for and granted, and an empty
//! line behind the last.

#[path = "../../../workloads/src/turns.rs"]
#[expect(
    unreachable_pub,
    reason = "it is a module of a library elsewhere, whose items are public there"
)]
mod turns;

use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use distributed_lock_core::traits::{DistributedLock as _, LockHandle as _, LockProvider as _};
use distributed_lock_postgres::PostgresLockProvider;

struct Lock(PostgresLockProvider);

#[async_trait]
impl turns::Lock for Lock {
    async fn turn(
        &self,
        key: &str,
        granted: &mut turns::Granted<'_>,
    ) -> Result<(), turns::Failure> {
        let handle = self.0.create_lock(key).acquire(None).await?;
        granted().over().await;
        Ok(handle.release().await?)
    }
}

fn main() {
    let url = std::env::args().nth(1).expect("a server's URL");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let provider = runtime.block_on(PostgresLockProvider::new(url));
    let lock: Arc<dyn turns::Lock> = Arc::new(Lock(provider.expect("the server answers")));
    for line in std::io::stdin().lines() {
        let line = line.expect("it can be read");
        let [ms, hold, keys] = line.splitn(3, ' ').collect::<Vec<_>>()[..] else {
            panic!("{line}: a number, a word and keys");
        };
        let hold = match hold {
            "yield" => turns::Hold::Yield,
            _ => turns::Hold::None,
        };
        let keys: Vec<String> = keys.split('\t').map(str::to_owned).collect();
        let time = Duration::from_millis(ms.parse().expect("a number"));
        let each = runtime.block_on(turns::take_by_tasks(
            &lock,
            &keys,
            hold,
            Duration::ZERO,
            time,
        ));
        let each = each.expect("the server answers");
        let mut text = String::new();
        for (who, turns) in each.iter().enumerate() {
            for turn in turns {
                let _ = writeln!(
                    text,
                    "{who} {} {} {}",
                    turn.asked, turn.granted, turn.released
                );
            }
        }
        let mut output = std::io::stdout();
        writeln!(output, "{text}")
            .and_then(|()| output.flush())
            .expect("somebody reads it");
    }
}
