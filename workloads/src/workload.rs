//! [`Workload`].

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use lockcore::{Guard, LockBackend, Locks};

use crate::documents;
use crate::measured::Measured;
use crate::ours::{Kind, Ours, release};
use crate::turns::{Failure, Hold, Lock, take_by_tasks};
use crate::writer;

/// What is done with a store of locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Workload {
    /// Global locks that nobody else wants.
    Uncontended {
        /// So many tasks take turns, each at a lock of its own.
        tasks: u32,
    },
    /// One global lock that all want, each turn of which is held across a yield.
    Contended {
        /// So many tasks take turns.
        tasks: u32,
    },
    /// Shares of one key, of which there is no end.
    Shared {
        /// So many tasks take turns.
        tasks: u32,
    },
    /// One more holder of a share.
    Share {
        /// With that one there are so many, and as many may be.
        holders: u32,
    },
    /// A global lock beside shares of its key, which overlap without a gap; all of one client.
    Writer {
        /// So many shares are held at a time.
        readers: u32,
    },
    /// A semaphore, each turn of which is held across a yield.
    Semaphore {
        /// So many may have it.
        places: u32,
        /// So many tasks take turns.
        takers: u32,
    },
    /// A tree lock that nobody else wants.
    Tree {
        /// The number of the path's components.
        depth: u32,
        /// So many others hold siblings of it meanwhile.
        siblings: u32,
    },
    /// Document locks, all in one acquisition.
    Documents {
        /// How many.
        ids: u32,
    },
}

/// So many are acquired and released at once where that is not what is measured.
const AT_ONCE: usize = 16;
/// How long the last release, and the sweep of everything, may take.
const CLOSED_WITHIN: Duration = Duration::from_secs(600);

impl Workload {
    /// A word for it, without its size.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Uncontended { .. } => "uncontended",
            Self::Contended { .. } => "contended",
            Self::Shared { .. } => "shared",
            Self::Writer { .. } => "writer beside readers",
            Self::Share { .. } => "share",
            Self::Semaphore { .. } => "semaphore",
            Self::Tree { siblings: 0, .. } => "tree",
            Self::Tree { .. } => "tree beside siblings",
            Self::Documents { .. } => "documents",
        }
    }

    /// How many of what its cost may grow with: tasks, holders, takers, depth or ids.
    #[must_use]
    pub fn size(&self) -> u32 {
        match *self {
            Self::Uncontended { tasks } | Self::Contended { tasks } | Self::Shared { tasks } => {
                tasks
            }
            Self::Writer { readers } => readers,
            Self::Share { holders } => holders,
            Self::Semaphore { takers, .. } => takers,
            Self::Tree { depth, .. } => depth,
            Self::Documents { ids } => ids,
        }
    }

    /// What the same is, as far as it can be, where nobody is in anybody's way.
    #[must_use]
    pub fn baseline(&self) -> Option<Self> {
        match *self {
            Self::Contended { .. } => Some(Self::Uncontended { tasks: 1 }),
            Self::Shared { tasks } => Some(Self::Uncontended { tasks }),
            Self::Semaphore { places, takers } if takers > places => Some(Self::Semaphore {
                places,
                takers: places,
            }),
            _ => None,
        }
    }

    /// How long each turn holds its lock.
    #[must_use]
    pub fn hold(&self) -> Hold {
        match self {
            Self::Contended { .. } | Self::Semaphore { .. } => Hold::Yield,
            _ => Hold::None,
        }
    }

    /// The keys at which its tasks take turns, one for each task; none of document locks and beside readers.
    #[must_use]
    pub fn keys(&self) -> Vec<String> {
        match *self {
            Self::Uncontended { tasks } => (0..tasks).map(|n| format!("lock-{n}")).collect(),
            Self::Contended { tasks } => vec!["one lock".to_owned(); tasks as usize],
            Self::Shared { tasks } => vec!["a share".to_owned(); tasks as usize],
            Self::Share { .. } => vec!["a share".to_owned()],
            Self::Semaphore { takers, .. } => vec!["a semaphore".to_owned(); takers as usize],
            Self::Tree { depth, .. } => vec![format!("{}/wanted", parent(depth))],
            Self::Documents { .. } | Self::Writer { .. } => Vec::new(),
        }
    }

    /// Runs it on a store, for about as long as is said; document locks once, however long that takes. Afterwards
    /// nothing is left in the store.
    ///
    /// # Errors
    ///
    /// What the client's were. What was acquired is given back.
    ///
    /// # Cancel safety
    ///
    /// What was acquired is given back in the background.
    pub async fn run(
        &self,
        backend: &Arc<dyn LockBackend>,
        time: Duration,
    ) -> Result<Measured, Failure> {
        let locks = documents::client(backend).await?;
        let done = match *self {
            Self::Documents { ids } => documents::run(backend, &locks, ids).await,
            Self::Writer { readers } => writer::run(&locks, readers, time).await,
            _ => self.turns(&locks, time).await,
        };
        if locks.shutdown(CLOSED_WITHIN).await {
            done
        } else {
            done.and(Err("the locks were not given back in time".into()))
        }
    }

    async fn turns(&self, locks: &Locks, time: Duration) -> Result<Measured, Failure> {
        let kind = match *self {
            Self::Shared { .. } => Kind::Shared,
            Self::Share { holders } => Kind::Share { limit: holders },
            Self::Semaphore { places, .. } => Kind::Share { limit: places },
            Self::Tree { .. } => Kind::Tree,
            _ => Kind::Lock,
        };
        let beside: Vec<String> = match *self {
            Self::Share { holders } => vec!["a share".to_owned(); holders as usize - 1],
            Self::Tree { depth, siblings } => (0..siblings)
                .map(|n| format!("{}/sibling-{n}", parent(depth)))
                .collect(),
            _ => Vec::new(),
        };
        let ours = Ours::new(locks, kind);
        let held: Vec<Guard> = stream::iter(&beside)
            .map(|key| ours.acquire(key))
            .buffer_unordered(AT_ONCE)
            .try_collect()
            .await?;
        let lock: Arc<dyn Lock> = Arc::new(ours);
        let start = Instant::now();
        let each = take_by_tasks(&lock, &self.keys(), self.hold(), Duration::ZERO, time).await?;
        let time = start.elapsed();
        stream::iter(held)
            .map(release)
            .buffer_unordered(AT_ONCE)
            .try_collect::<()>()
            .await?;
        Ok(match self {
            Self::Contended { .. } => Measured::of_one_lock(&each, time),
            _ => Measured::of_turns(&each, time),
        })
    }
}

/// The path above the one that is wanted.
fn parent(depth: u32) -> String {
    (1..depth).map(|n| format!("/component-{n}")).collect()
}

#[cfg(test)]
mod tests {
    use lockcore::MemoryBackend;
    use lockcore::backend::{Filter, Inspect as _};

    use super::*;
    use crate::measured::{ABORT, ACQUIRE, HAND_OVER, REFUSED, RELEASE, SWEPT, WAIT};

    async fn run(workload: Workload) -> Measured {
        let store = MemoryBackend::new();
        let backend: Arc<dyn LockBackend> = store.clone();
        let measured = workload.run(&backend, Duration::from_millis(20)).await;
        let left = store
            .records(&Filter::Prefix(String::new()), None, 10)
            .await
            .unwrap();
        assert!(left.items.is_empty(), "{left:?}");
        measured.unwrap()
    }

    #[tokio::test]
    async fn turns_are_counted() {
        for workload in [
            Workload::Uncontended { tasks: 3 },
            Workload::Contended { tasks: 3 },
            Workload::Shared { tasks: 3 },
            Workload::Share { holders: 10 },
            Workload::Semaphore {
                places: 2,
                takers: 5,
            },
            Workload::Tree {
                depth: 1,
                siblings: 0,
            },
            Workload::Tree {
                depth: 5,
                siblings: 10,
            },
        ] {
            let measured = run(workload).await;
            assert!(!measured.times[WAIT].is_empty(), "{workload:?}");
            assert!(measured.per_second > Some(0.0), "{workload:?}");
            let one_lock = matches!(workload, Workload::Contended { .. });
            assert_eq!(measured.times.contains_key(HAND_OVER), one_lock);
            assert_eq!(measured.fairness.is_some(), workload.keys().len() > 1);
        }
    }

    #[test]
    fn a_baseline_has_none_of_its_own_but_one_lock() {
        let semaphore = Workload::Semaphore {
            places: 10,
            takers: 100,
        };
        let of_semaphore = semaphore.baseline().unwrap();
        assert_eq!(
            (of_semaphore.keys().len(), of_semaphore.baseline()),
            (10, None)
        );
        for tasks in [8, 64] {
            let baseline = Workload::Contended { tasks }.baseline().unwrap();
            assert_eq!((baseline.keys().len(), baseline.baseline()), (1, None));
            let baseline = Workload::Shared { tasks }.baseline().unwrap();
            assert_eq!(baseline, Workload::Uncontended { tasks });
        }
    }

    #[tokio::test]
    async fn documents_are_measured_in_each_way() {
        for ids in [1, 100, 5_000] {
            let measured = run(Workload::Documents { ids }).await;
            for what in [ACQUIRE, REFUSED, RELEASE, SWEPT, ABORT] {
                assert_eq!(measured.times[what].len(), 1, "{what} of {ids}");
            }
        }
    }

    #[test]
    fn a_path_is_as_deep_as_is_said() {
        for depth in [1, 2, 32] {
            let keys = Workload::Tree { depth, siblings: 0 }.keys();
            assert_eq!(keys[0].matches('/').count(), depth as usize);
        }
    }
}
