//! [`Held::find_deadlock`]: the cycle of waits that a refused wait was part of.

use crate::backend::{Filter, Record, cycle_of};
use crate::client::guard::Held;
use crate::{Busy, Cycle, Grant, Holder, Life, Result, Waiting};

/// The most records that are read.
const RECORDS: usize = 10_000;
/// How many are asked for at once.
const PAGE: usize = 1_000;

impl Held {
    /// The cycle of waits that a refused wait was part of, if the task that waited holds this lock: somebody in its way
    /// waits for this lock, directly or through others. The first wait of the cycle is the refused one.
    ///
    /// Ask at once after the refusal, while the others still wait. To end a deadlock, release this lock and begin again.
    /// To have none, acquire everything in one call, or in one order.
    ///
    /// The answer comes from a listing of at most 10,000 records, which is no snapshot. In a larger namespace a cycle can
    /// be missed; so can one through a task that waits behind another task of its process. See [`Cycle`] for what an
    /// answer proves.
    ///
    /// # Errors
    ///
    /// The store failed.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    ///
    /// use lockcore::{AcquireError, Locks, MemoryBackend};
    ///
    /// let locks = Locks::builder(MemoryBackend::new()).build()?;
    /// let first = locks.lock("first").acquire().await?;
    /// # let _second = locks.lock("second").acquire().await?;
    /// match locks.lock("second").wait(Duration::from_millis(10)).acquire().await {
    ///     Err(AcquireError::Busy(busy)) => {
    ///         if let Some(cycle) = first.find_deadlock(&busy).await? {
    ///             eprintln!("{cycle}");
    ///         }
    ///     }
    ///     other => drop(other?),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn find_deadlock(&self, busy: &Busy) -> Result<Option<Cycle>> {
        let mut records = self.listed().await?;
        let mut waits = Vec::new();
        for (at, refused) in busy.refused().iter().enumerate() {
            // It has left the line by now, or never stood there.
            let grant = Grant {
                session: self.session(),
                n: u64::MAX - at as u64,
            };
            waits.push(grant);
            let waiter = Holder {
                key: refused.claim.key().clone(),
                grant: Some(grant),
                owner: Some(self.chain.taken.owner),
                mode: refused.claim.want().mode(),
                label: self.chain.taken.label.to_string(),
                since: None,
                life: Life::Living,
                waiting: Some(Waiting {
                    place: u64::MAX,
                    passed: 0,
                    may_go: false,
                }),
            };
            let met = refused.holders.iter().cloned().chain([waiter]);
            records.extend(met.map(|holder| Record {
                key: holder.key.clone(),
                holders: vec![holder],
                more: false,
                version: String::new(),
            }));
        }
        let mut waits = waits.into_iter();
        Ok(waits.find_map(|wait| cycle_of(&records, wait)))
    }

    async fn listed(&self) -> Result<Vec<Record>> {
        let (mut records, mut next) = (Vec::new(), None::<String>);
        let all = Filter::Prefix(String::new());
        loop {
            let page = self
                .core
                .backend
                .records(&all, next.as_deref(), PAGE)
                .await?;
            records.extend(page.items);
            next = page.next;
            if next.is_none() || records.len() >= RECORDS {
                return Ok(records);
            }
        }
    }
}
