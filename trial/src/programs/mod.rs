//! What programs do with locks, by chance, wherever they run: in the simulation, or in real processes under faults.
//!
//! Everything that a program asks for, sees and does goes into a [history](crate::history), in which what begins
//! something is written down before it, and what ends something after it.

pub(crate) mod ending;
mod program;
mod recovery;
mod relay;
mod watched;
mod work;

use std::future::Future;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lockcore::{FencingToken, Guard, LockKey, Locks, Owner};
use rand::RngExt;
use rand::rngs::Xoshiro256PlusPlus;

use crate::history::What;
pub(crate) use program::{Request, ask, run};
pub(crate) use recovery::Handler;
pub(crate) use relay::{flat, relay};
pub(crate) use watched::{Scribe, Watched};
pub(crate) use work::{confirm_and_give_back, use_up};

/// Flat keys of a run.
pub(crate) const FLAT: [&str; 4] = ["f", "g", "h", "i"];
/// Paths of a run: a small tree, and a name that stands between a path and what is below it in byte order.
pub(crate) const PATHS: [&str; 6] = ["/a", "/a!", "/a/b", "/a/b/c", "/a/d", "/e"];

/// Where programs run: one process, its history and its resources.
pub(crate) trait Place: Clone + Send + Sync + 'static {
    /// Nanoseconds on the clock of the history.
    fn now(&self) -> u64;

    /// Writes down that something happened then.
    fn record_at(&self, at: u64, what: What);

    /// Writes down that something happens now.
    fn record(&self, what: What) {
        self.record_at(self.now(), what);
    }

    /// A number for an attempt, an owner or an adoption, unique in the history.
    fn number(&self) -> u64;

    /// Whether programs begin nothing new.
    fn is_stopped(&self) -> bool;

    /// Time to live of a session.
    fn ttl(&self) -> Duration;

    /// For how long a guard says that it is valid, in nanoseconds.
    fn left(&self, guard: &Guard) -> u64 {
        nanos(guard.remaining())
    }

    /// Whether a program may leave a lock held without a process.
    fn may_keep(&self) -> bool;

    /// Whether a program may kill its own process.
    fn may_die(&self) -> bool;

    /// Kills the process; does not resolve.
    fn die(&self) -> impl Future<Output = ()> + Send;

    /// Reads a resource, and writes down what it answered; `None` if it refused the token.
    fn read(&self, access: &Access) -> impl Future<Output = Option<u64>> + Send;

    /// After a while, writes one more than what was read, and writes down what the resource answered.
    fn write(&self, access: Access, read: u64, delay: Duration) -> impl Future<Output = ()> + Send;
}

/// Who reads or writes which resource.
#[derive(Debug, Clone)]
pub(crate) struct Access {
    pub(crate) resource: LockKey,
    /// The resource checks tokens.
    pub(crate) fenced: bool,
    /// The guard that protects it.
    pub(crate) attempt: u64,
    pub(crate) token: FencingToken,
}

/// The client that the programs of one process share.
#[derive(Debug)]
pub(crate) struct User {
    pub(crate) locks: Locks,
    /// An owner that several of its programs use, and its number.
    owner: Mutex<Option<(u64, Owner)>>,
}

impl User {
    pub(crate) fn new(locks: Locks) -> Self {
        Self {
            locks,
            owner: Mutex::default(),
        }
    }

    fn shared(&self) -> MutexGuard<'_, Option<(u64, Owner)>> {
        self.owner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The owner that its programs share.
    fn owner(&self, place: &impl Place) -> (u64, Owner) {
        self.shared()
            .get_or_insert_with(|| (place.number(), self.locks.owner()))
            .clone()
    }

    /// The owner's session was lost; or, without a number, nobody needs the owner any more.
    pub(crate) fn forget_owner(&self, number: Option<u64>) {
        let mut owner = self.shared();
        if number.is_none_or(|number| owner.as_ref().is_some_and(|(known, _)| *known == number)) {
            *owner = None;
        }
    }
}

/// A number of nanoseconds.
pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// From when a renewal is sent to the deadline that it gives.
pub(crate) fn validity(ttl: Duration) -> Duration {
    ttl - (ttl / 100).max(lockcore::limits::MIN_MARGIN)
}

/// The chance of one part of a run, independent of that of the others.
pub(crate) fn chance(seed: u64, part: u64) -> Xoshiro256PlusPlus {
    use rand::SeedableRng;
    // Parts are small numbers, and seeds may be neighbours: both are spread.
    let spread = seed
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .wrapping_add(part.wrapping_mul(0xd1b5_4a32_d192_ed03));
    Xoshiro256PlusPlus::seed_from_u64(spread)
}

/// A random duration up to this, in whole milliseconds.
pub(crate) fn up_to(rng: &mut impl rand::Rng, longest: Duration) -> Duration {
    let longest = u64::try_from(longest.as_millis()).unwrap_or(u64::MAX);
    Duration::from_millis(rng.random_range(0..=longest))
}
