//! [`Kept`]: a lock that stays held without a process.

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::client::core::Core;
use crate::client::error::InputError;
use crate::client::keeper::whole_milliseconds;
use crate::client::locks::Locks;
use crate::client::retry::{in_doubt, until_answered};
use crate::limits::{MAX_TTL, MIN_TTL};
use crate::session::decimal;
use crate::{
    End, Error, FencingToken, Incarnation, IntentChange, NoteKind, Ranges, Renewal, Renewed,
    Result, SessionId,
};

/// The renewals of a kept lock have numbers that begin with a secret one. So many follow it.
const NUMBERS: u64 = 1 << 20;
/// The least secret number. No other session is renewed so often that its renewals have such numbers.
const LEAST_SECRET: u32 = 0x8000_0000;
/// The first word of a handle: its form.
const FORM: &str = "lk1";

/// A lock that stays held although its guard has gone: [`Guard::keep_for`](crate::Guard::keep_for) leaves one. It ends by
/// itself at the end of its time.
///
/// Its text is a **handle**: whoever has the text can renew and release the lock, from any process and machine that
/// reaches the store. It is made of the session, a secret number, and what the session holds. The numbers of the
/// session's renewals begin with the secret one, so a handle that is not this lock's is refused. Two processes may use
/// one handle at the same time; no clock but the store's matters.
///
/// `Debug` does not show the secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Kept {
    pub(crate) session: SessionId,
    pub(crate) secret: u32,
    /// The grants that it holds.
    pub(crate) granted: Ranges,
    /// The number that follows all that its session gave out.
    pub(crate) next: u64,
    /// The incarnation of the store that granted it.
    pub(crate) incarnation: Incarnation,
    pub(crate) token: FencingToken,
}

/// The state of a kept lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeptState {
    /// It is held.
    Held,
    /// It is no longer held: its time is over, it was released or revoked, or the store has forgotten it.
    NotHeld,
}

/// Why a lock is not kept.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeepError {
    /// Bad input. The lock is given back.
    #[error(transparent)]
    Input(#[from] InputError),
    /// The lock was not held any more.
    #[error("the lock was lost before it could be kept: check what was done under it")]
    Lost,
    /// The store failed. The lock ends with its lease, or is kept for its whole time, and nobody has a handle: whoever does not
    /// want that closes its [session](crate::Held::session) when the store answers again, by [`End::Close`](crate::backend::End::Close).
    #[error(transparent)]
    Store(#[from] Error),
}

/// The text is no handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "this is no handle of a kept lock: give the whole text that was printed for it, as in {FORM}.….…"
)]
pub struct HandleError;

impl Kept {
    /// The session that holds the lock.
    #[must_use]
    pub fn session(&self) -> SessionId {
        self.session
    }

    /// The fencing token of the guard that it was.
    #[must_use]
    pub fn token(&self) -> FencingToken {
        self.token
    }

    /// A secret number, of these random bits.
    pub(crate) fn secret(random: u128) -> u32 {
        let [a, b, c, d, ..] = random.to_le_bytes();
        u32::from_le_bytes([a, b, c, d]) | LEAST_SECRET
    }

    /// The number of its first renewal. It is exact where a store has numbers of 53 bits.
    pub(crate) fn first(secret: u32) -> u64 {
        u64::from(secret) * NUMBERS
    }
}

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kept")
            .field("session", &self.session)
            .field("token", &self.token)
            .finish_non_exhaustive()
    }
}

/// The handle.
impl fmt::Display for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            session,
            secret,
            granted,
            next,
            incarnation,
            token,
        } = self;
        let incarnation = incarnation.get();
        write!(
            f,
            "{FORM}.{session}.{secret:08x}.{granted}.{next}.{incarnation:x}.{token}"
        )
    }
}

impl FromStr for Kept {
    type Err = HandleError;

    fn from_str(text: &str) -> std::result::Result<Self, HandleError> {
        let parts: Vec<&str> = text.trim().split('.').collect();
        let [form, session, secret, granted, next, incarnation, token] = parts[..] else {
            return Err(HandleError);
        };
        let hex = |text: &str| u128::from_str_radix(text, 16).map_err(|_| HandleError);
        let number = |text: &str| decimal(text).ok_or(HandleError);
        let kept = Self {
            session: session.parse().map_err(|_| HandleError)?,
            secret: u32::try_from(hex(secret)?).map_err(|_| HandleError)?,
            granted: granted.parse().map_err(|_| HandleError)?,
            next: number(next)?,
            incarnation: Incarnation::new(hex(incarnation)?),
            token: FencingToken::new(number(token)?).ok_or(HandleError)?,
        };
        let last = kept.granted.as_slice().last().map(|(_, to)| *to);
        let fits = last.is_some_and(|last| last < kept.next) && kept.next <= NUMBERS;
        match form == FORM && fits && kept.to_string() == text.trim() {
            true => Ok(kept),
            false => Err(HandleError),
        }
    }
}

impl Locks {
    /// Whether the lock is held, as the store knows it. The end of its lease may have come a moment ago.
    ///
    /// # Errors
    ///
    /// The handle is another lock's ([`InputError::WrongHandle`]); the store failed.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn kept_state(&self, kept: &Kept) -> std::result::Result<KeptState, KeepError> {
        // Of a session that has no record, nothing is asked that would leave one.
        let first = renewal(kept, Kept::first(kept.secret));
        if compare(&self.core, kept.session, first).await? == Compared::Dead {
            return Ok(KeptState::NotHeld);
        }
        self.core.backend.end(&[kept.session], End::IfDue).await?;
        Ok(match last(&self.core, kept).await? {
            Some(_) => KeptState::Held,
            None => KeptState::NotHeld,
        })
    }

    /// Renews the lock: from now on it is held for `ttl`, whether that is longer or shorter than before.
    ///
    /// # Errors
    ///
    /// The store does not take the TTL; the handle is another lock's ([`InputError::WrongHandle`]); the store failed for
    /// longer than the client's patience: then the lock may be renewed or not.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the lock renewed, or as it was.
    pub async fn renew_kept(
        &self,
        kept: &Kept,
        ttl: Duration,
    ) -> std::result::Result<KeptState, KeepError> {
        check_ttl(&self.core, ttl)?;
        Ok(renewed(&self.core, kept, ttl).await?.0)
    }

    /// Releases the lock. `Held`: it was held until then.
    ///
    /// # Errors
    ///
    /// The handle is another lock's ([`InputError::WrongHandle`]); the store failed for longer than the client's
    /// patience: then the lock may be released or not.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the lock released, as it was, or held for the store's
    /// shortest TTL and twice the client's patience.
    pub async fn release_kept(&self, kept: &Kept) -> std::result::Result<KeptState, KeepError> {
        let core = &*self.core;
        // This tells that it was held; the close does not. Without the close it ends by itself, and not while this is asked
        // again because an answer was lost.
        let shortest = core.info.min_ttl.max(MIN_TTL);
        let ttl = shortest.saturating_add(core.config.patience.saturating_mul(2));
        let ttl = ttl.min(core.info.max_ttl).min(MAX_TTL);
        let (state, doubted) = renewed(core, kept, ttl).await?;
        match state {
            KeptState::Held => close(core, kept).await?,
            // Its end may be that of the lease which an earlier copy has made so short.
            KeptState::NotHeld if doubted => {
                let what = "an answer was lost, and the session has ended since: whether the lock was held until now is not known";
                let (name, operation) = (core.info.name, crate::Operation::Renew);
                let unknown = Error::new(crate::ErrorKind::Indeterminate, name, operation, what);
                return Err(unknown.into());
            }
            KeptState::NotHeld => {}
        }
        Ok(state)
    }
}

impl Locks {
    /// Whether a session is that of a [kept](Kept) lock: no process renews it, and none reads the notes of operators. Its
    /// lock is all that it holds.
    ///
    /// # Errors
    ///
    /// The store failed for longer than the client's patience.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn is_kept(&self, session: SessionId) -> Result<bool> {
        is_kept(&self.core, session).await
    }
}

async fn is_kept(core: &Core, session: SessionId) -> Result<bool> {
    // Their renewals have the greatest numbers.
    let least = Kept::first(LEAST_SECRET);
    let renewal = Renewal::new(least, Ranges::EMPTY, IntentChange::Keep);
    Ok(compare(core, session, renewal).await? == Compared::AtOrBehind)
}

async fn close(core: &Core, kept: &Kept) -> Result<()> {
    let ids = std::slice::from_ref(&kept.session);
    until_answered(core, || true, || core.backend.end(ids, End::Close)).await?;
    Ok(())
}

/// Whether a lock can be kept for so long.
pub(crate) fn check_ttl(core: &Core, ttl: Duration) -> std::result::Result<(), InputError> {
    let (min, max) = (
        core.info.min_ttl.max(MIN_TTL),
        core.info.max_ttl.min(MAX_TTL),
    );
    match ttl < min || ttl > max {
        true => Err(InputError::Ttl { ttl, min, max }),
        false => Ok(()),
    }
}

/// Renews the session by a number that follows its last one. If another process has done so meanwhile, again. Also says
/// whether a copy of the request may have been executed whose answer was lost.
async fn renewed(
    core: &Core,
    kept: &Kept,
    ttl: Duration,
) -> std::result::Result<(KeptState, bool), KeepError> {
    let mut within = (kept.incarnation, Ranges::EMPTY);
    let mut ours = 0;
    let doubted = AtomicBool::new(false);
    let as_known = |state| Ok((state, doubted.load(Ordering::Relaxed)));
    loop {
        let Some(last) = last(core, kept).await? else {
            return as_known(KeptState::NotHeld);
        };
        let (incarnation, granted) = within.clone();
        // A copy of an earlier request of ours is not overtaken by an equal one.
        ours = last.max(ours) + 1;
        let renewal = renewal(kept, ours).after(last).within(incarnation, granted);
        let renewal = renewal.lasting(whole_milliseconds(ttl));
        let send = || in_doubt(core.backend.renew(kept.session, &renewal), &doubted);
        match until_answered(core, || true, send).await? {
            Renewed::Living => return as_known(KeptState::Held),
            // Nobody else obeys an operator who has broken it.
            Renewed::Noted(notes)
                if notes.iter().any(|note| {
                    note.kind == NoteKind::Evict
                        && note.grant.is_some_and(|n| kept.granted.contains(n))
                }) =>
            {
                close(core, kept).await?;
                return Ok((KeptState::NotHeld, false));
            }
            Renewed::Noted(_) => return as_known(KeptState::Held),
            Renewed::Dead | Renewed::Forgotten => return as_known(KeptState::NotHeld),
            Renewed::Moved(incarnation) => within = (incarnation, kept.granted.clone()),
            Renewed::Overtaken => {}
        }
    }
}

/// A renewal of the session, which leaves it as it was.
fn renewal(kept: &Kept, seq: u64) -> Renewal {
    let live = kept.granted.as_slice().iter();
    let retired = Ranges::except(live.flat_map(|(from, to)| *from..=*to), kept.next);
    Renewal::new(seq, retired, IntentChange::Keep)
}

/// A comparison of the session's last renewal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Compared {
    Before,
    AtOrBehind,
    Dead,
}

/// Whether the session's last renewal has a smaller number than this one. No renewal follows itself: this changes nothing.
async fn compare(core: &Core, session: SessionId, renewal: Renewal) -> Result<Compared> {
    let number = renewal.seq;
    let renewal = renewal.after(number);
    let answer = until_answered(core, || true, || core.backend.renew(session, &renewal));
    match answer.await? {
        Renewed::Forgotten => Ok(Compared::Before),
        Renewed::Overtaken => Ok(Compared::AtOrBehind),
        Renewed::Dead => Ok(Compared::Dead),
        other => {
            let what = format!("a renewal that changes nothing was answered with {other:?}");
            let (name, operation) = (core.info.name, crate::Operation::Renew);
            Err(Error::new(crate::ErrorKind::Corrupt, name, operation, what))
        }
    }
}

/// The number of the session's last renewal; `None` if it does not live. It is found by comparisons, few where it was
/// renewed a few times.
async fn last(core: &Core, kept: &Kept) -> std::result::Result<Option<u64>, KeepError> {
    let first = Kept::first(kept.secret);
    let at_or_behind = |number| compare(core, kept.session, renewal(kept, number));
    match at_or_behind(first).await? {
        Compared::AtOrBehind => {}
        // A failover may have forgotten that it was kept.
        Compared::Before if !is_kept(core, kept.session).await? => return Ok(None),
        Compared::Before => return Err(InputError::WrongHandle.into()),
        Compared::Dead => return Ok(None),
    }
    let (mut at, mut behind, mut step) = (first, first + NUMBERS, 1);
    let mut limit_met = false;
    while behind - at > 1 {
        let middle = match limit_met {
            true => at + (behind - at) / 2,
            false => (at + step).min(behind - 1),
        };
        match at_or_behind(middle).await? {
            Compared::AtOrBehind => (at, step) = (middle, step * 2),
            Compared::Before => (behind, limit_met) = (middle, true),
            Compared::Dead => return Ok(None),
        }
    }
    // Another lock's renewals begin with a greater number.
    match limit_met || at_or_behind(behind).await? != Compared::AtOrBehind {
        true => Ok(Some(at)),
        false => Err(InputError::WrongHandle.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept() -> Kept {
        Kept {
            session: SessionId::new(7),
            secret: 0x8000_00ff,
            granted: "2-2,4-5".parse().unwrap(),
            next: 6,
            incarnation: Incarnation::new(0xabc),
            token: FencingToken::new(640).unwrap(),
        }
    }

    #[test]
    fn a_handle_is_read_as_it_was_written() {
        let text = kept().to_string();
        assert_eq!(
            text,
            "lk1.00000000000000000000000000000007.800000ff.2-2,4-5.6.abc.640"
        );
        assert_eq!(text.parse(), Ok(kept()));
        assert_eq!(format!("{text}\n").parse(), Ok(kept()));
        let shown = format!("{:?}", kept());
        assert!(!shown.contains("ff"), "{shown}");
    }

    #[test]
    fn what_is_no_handle() {
        let text = kept().to_string();
        for (from, to) in [
            ("lk1", "lk2"),
            (".6.", ".5."),
            (".6.", ".06."),
            ("2-2", "5-2"),
            ("800000ff", "1800000ff"),
            ("800000ff", "0x8000ff"),
            (".abc", ".ABC"),
            (".640", ".0640"),
            (".640", ""),
            (".640", ".640.1"),
            ("00000007", "7"),
        ] {
            let bad = text.replacen(from, to, 1);
            assert_eq!(bad.parse::<Kept>(), Err(HandleError), "{bad}");
        }
        assert_eq!("".parse::<Kept>(), Err(HandleError));
    }

    #[test]
    fn numbers_are_exact_in_stores_that_have_53_bits() {
        for random in [0, u128::MAX] {
            let secret = Kept::secret(random);
            assert!(Kept::first(secret) > NUMBERS && Kept::first(secret) + NUMBERS <= 1 << 53);
        }
    }
}
