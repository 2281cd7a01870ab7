//! Fairness between processes: a process that has just released a contended key pauses before it asks again, so that
//! processes that poll every few milliseconds see it free. Where the store pushes wake-ups, only a process pauses whose
//! tasks have handed the lock on, so that a process that was woken meets nobody.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::client::clock::now;
use crate::{Claim, LockKey};

/// How long a key counts as contended after another process was met on it.
const CONTENDED: Duration = Duration::from_secs(1);
/// How long it takes a woken process to ask.
const WOKEN: Duration = Duration::from_millis(5);
/// The most keys to remember.
const KEYS: usize = 1_024;

#[derive(Debug)]
pub(crate) struct Contention {
    /// How often others poll; `None` if they are woken.
    poll: Option<Duration>,
    keys: Mutex<HashMap<LockKey, Met>>,
    /// Whether anybody was ever met; mostly not.
    any: AtomicBool,
}

#[derive(Debug)]
struct Met {
    at: Instant,
    released: Option<Instant>,
}

impl Contention {
    pub(crate) fn new(poll: Option<Duration>) -> Self {
        Self {
            poll,
            keys: Mutex::default(),
            any: AtomicBool::new(false),
        }
    }

    fn keys(&self) -> std::sync::MutexGuard<'_, HashMap<LockKey, Met>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Another process holds the key.
    pub(crate) fn met(&self, key: &LockKey) {
        let (at, mut keys) = (now(), self.keys());
        if keys.len() >= KEYS {
            keys.retain(|_, met| at < met.at + CONTENDED);
        }
        if let Some(met) = keys.get_mut(key) {
            met.at = at;
        } else if keys.len() < KEYS {
            keys.insert(key.clone(), Met { at, released: None });
            self.any.store(true, Ordering::Release);
        }
    }

    /// This process has released the claims. `handed_on`: its tasks had handed them on before.
    pub(crate) fn released(&self, claims: &[Claim], handed_on: bool) {
        if !self.any.load(Ordering::Acquire) || (self.poll.is_none() && !handed_on) {
            return;
        }
        let mut keys = self.keys();
        for claim in claims {
            if let Some(met) = keys.get_mut(claim.key()) {
                met.released = Some(now());
            }
        }
    }

    /// The pause before the key is asked for, so that others have polled it since it was released.
    pub(crate) fn pause(&self, key: &LockKey) -> Option<Duration> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        let keys = self.keys();
        let (met, now) = (keys.get(key)?, now());
        if now >= met.at + CONTENDED {
            return None;
        }
        (met.released? + self.poll.unwrap_or(WOKEN))
            .checked_duration_since(now)
            .filter(|pause| !pause.is_zero())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn who_has_released_a_contended_key_pauses_for_one_look_of_the_others() {
        let poll = Duration::from_millis(3);
        let contention = Contention::new(Some(poll));
        let key = LockKey::parse("k").unwrap();
        let claims = [Claim::new(key.clone(), crate::Want::Create).unwrap()];
        contention.released(&claims, false);
        assert_eq!(contention.pause(&key), None, "nobody was met");
        contention.met(&key);
        assert_eq!(contention.pause(&key), None, "not released");
        contention.released(&claims, false);
        assert_eq!(contention.pause(&key), Some(poll));
        tokio::time::advance(Duration::from_millis(2)).await;
        assert_eq!(contention.pause(&key), Some(Duration::from_millis(1)));
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(contention.pause(&key), None);
        contention.released(&claims, false);
        tokio::time::advance(CONTENDED).await;
        contention.released(&claims, false);
        assert_eq!(contention.pause(&key), None, "nobody was met for a while");
    }

    #[tokio::test(start_paused = true)]
    async fn where_others_are_woken_who_has_handed_on_pauses() {
        let contention = Contention::new(None);
        let key = LockKey::parse("k").unwrap();
        let claims = [Claim::new(key.clone(), crate::Want::Create).unwrap()];
        contention.met(&key);
        contention.released(&claims, false);
        assert_eq!(contention.pause(&key), None);
        contention.released(&claims, true);
        assert_eq!(contention.pause(&key), Some(WOKEN));
    }

    fn claim(n: usize) -> [Claim; 1] {
        let key = LockKey::flat(n.to_string()).unwrap();
        [Claim::new(key, crate::Want::Create).unwrap()]
    }

    #[tokio::test(start_paused = true)]
    async fn only_so_many_keys_are_remembered_and_those_of_a_while_ago_make_room() {
        let poll = Duration::from_millis(3);
        let contention = Contention::new(Some(poll));
        let met_and_released = |n| {
            contention.met(claim(n)[0].key());
            contention.released(&claim(n), false);
            contention.pause(claim(n)[0].key())
        };
        for n in 0..KEYS {
            assert_eq!(met_and_released(n), Some(poll));
        }
        assert_eq!(met_and_released(KEYS), None, "one more is not remembered");
        assert_eq!(met_and_released(0), Some(poll), "and the others still are");
        tokio::time::advance(CONTENDED).await;
        contention.released(&claim(1), false);
        assert_eq!(contention.pause(claim(1)[0].key()), None, "long ago");
        assert_eq!(met_and_released(KEYS), Some(poll));
        assert_eq!(contention.keys().len(), 1);
    }
}
