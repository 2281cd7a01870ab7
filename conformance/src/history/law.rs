//! The laws that a history is held against.

use std::fmt;

/// What a history can break. The numbers are those of the laws that every store keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Law {
    /// 1. At most one incompatible holder; of guards, that none of two incompatible ones lies.
    AtMostOneHolder,
    /// 2. One grant per request.
    OneGrantPerRequest,
    /// 3. Own claims only.
    OwnClaimsOnly,
    /// 4. A dead session stays dead, and dies of nothing but its end.
    DeadStaysDead,
    /// 5. Expiry frees every lock of a session that left no intent.
    ExpiryFrees,
    /// 6. Tokens only rise.
    TokensOnlyRise,
    /// 7. Shared holders are a set.
    SharedAreASet,
    /// 9. No failed, cancelled or released acquisition leaves a lock behind, and what is over stays over.
    UnknownIsSettled,
    /// 10. Nothing granted, nothing kept.
    NothingKept,
    /// An intent has its locks.
    IntentHasItsLocks,
    /// An intent stays until its guard is released or its adopter has settled it.
    IntentStays,
    /// A session is adopted by one at a time, after the death of its holder.
    OneAdopter,
    /// What a guard said not to be valid is not valid, for good.
    ValidOnce,
    /// A guard is handed out only while it is valid.
    HandedOutValid,
    /// The deadline of a guard lies before the end of its session's lease.
    DeadlineWithinLease,
    /// Holders of one owner are not in each other's way.
    OwnersReenter,
    /// Whoever waits for what becomes free gets it: no deadlock.
    WaitingEnds,
    /// A resource that checks tokens loses nothing, and refuses no valid holder.
    FencedLosesNothing,
    /// A resource that checks nothing loses something only to a holder that was paused, or whose lease was broken.
    LossIsExplained,
}

impl Law {
    /// The law in a few words.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Law::AtMostOneHolder => "law 1, at most one incompatible holder",
            Law::OneGrantPerRequest => "law 2, one grant per request",
            Law::OwnClaimsOnly => "law 3, own claims only",
            Law::DeadStaysDead => "law 4, a dead session stays dead",
            Law::ExpiryFrees => "law 5, expiry frees every lock of a session that left no intent",
            Law::TokensOnlyRise => "law 6, tokens only rise",
            Law::SharedAreASet => "law 7, shared holders are a set",
            Law::UnknownIsSettled => "law 9, unknown is settled, and over stays over",
            Law::NothingKept => "law 10, nothing granted, nothing kept",
            Law::IntentHasItsLocks => "an intent has its locks",
            Law::IntentStays => "an intent stays until it is released or settled",
            Law::OneAdopter => "one adopter at a time, after the holder's death",
            Law::ValidOnce => "what is not valid is not valid for good",
            Law::HandedOutValid => "a guard is handed out only while it is valid",
            Law::DeadlineWithinLease => "a guard's deadline lies before the end of its lease",
            Law::OwnersReenter => "holders of one owner are not in each other's way",
            Law::WaitingEnds => "whoever waits for what becomes free gets it",
            Law::FencedLosesNothing => "a resource that checks tokens loses nothing",
            Law::LossIsExplained => "a resource that checks nothing loses only what is explained",
        }
    }
}

impl fmt::Display for Law {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
