//! [`Law`]: the laws that are checked, by name.

use std::fmt;

/// A law that a case checks and a history is judged by: the laws of the traits, by number, and the other promises of a
/// store and a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Law {
    /// 1. At most one incompatible holder; of two incompatible guards, at most one says that it is valid.
    AtMostOneHolder,
    /// 2. One grant per request.
    OneGrantPerRequest,
    /// 3. Own claims only.
    OwnClaimsOnly,
    /// 4. A dead session stays dead.
    DeadStaysDead,
    /// A session dies only of its end: it is due, closed or revoked.
    DiesOfItsEnd,
    /// 5. Expiry frees every lock of a session that left no intent.
    ExpiryFrees,
    /// 6. Tokens only rise.
    TokensOnlyRise,
    /// 7. Shared holders are a set.
    SharedAreASet,
    /// 8. Refusal is a value.
    RefusalIsAValue,
    /// 9. Unknown is not busy and not free: a retired grant holds nothing.
    UnknownIsSettled,
    /// 10. Nothing granted, nothing kept.
    NothingKept,
    /// 11. Garbage is held.
    GarbageIsHeld,
    /// What the matrix allows is granted.
    AllowedIsGranted,
    /// The session record has one writer, whose numbers rise.
    OneWriter,
    /// A dead holder's change is handed on, to one at a time, until it is settled.
    Recovery,
    /// Notes for the owner of a session are delivered with each renewal, change nothing else, and stay.
    NotesArrive,
    /// A confirmation is true.
    ConfirmationsAreTrue,
    /// Same bytes, same key; other bytes, other key.
    Keys,
    /// Every limit holds on both sides.
    Limits,
    /// Listings show what is held. Eviction and sweeps take only what is not live, and sweeps take all of it.
    Listing,
    /// A waiter is woken, in time and in order, and sleeps until then.
    Waiting,
    /// A later request is not granted what an earlier waiter waits for.
    InTurn,
    /// A guard tells the truth.
    Guard,
    /// An intent has its locks.
    IntentHasItsLocks,
    /// An intent stays until its guard is released or its adopter has settled it.
    IntentStays,
    /// A session is adopted by one at a time, after the death of its holder.
    OneAdopter,
    /// A guard that said it was not valid is never valid again.
    ValidOnce,
    /// A guard is handed out only while it is valid.
    HandedOutValid,
    /// A grant passes from one guard to the next of its process for 50 ms at most, so that others may have a turn.
    HandedOnForShort,
    /// The deadline of a guard lies before the end of its session's lease.
    DeadlineWithinLease,
    /// Holders of one owner are not in each other's way.
    OwnersReenter,
    /// A waiter for something that becomes free gets it: no deadlock.
    WaitingEnds,
    /// A resource that checks tokens loses nothing.
    FencedLosesNothing,
    /// A resource that checks tokens takes what a valid guard writes.
    FencedTakesValid,
    /// A resource that checks nothing loses a write only to a holder that was paused, or whose lease was broken.
    LossIsExplained,
}

impl Law {
    /// The laws that a history is judged by.
    pub const JUDGED: [Law; 27] = [
        Law::AtMostOneHolder,
        Law::OneGrantPerRequest,
        Law::OwnClaimsOnly,
        Law::DeadStaysDead,
        Law::DiesOfItsEnd,
        Law::ExpiryFrees,
        Law::TokensOnlyRise,
        Law::SharedAreASet,
        Law::UnknownIsSettled,
        Law::NothingKept,
        Law::AllowedIsGranted,
        Law::ConfirmationsAreTrue,
        Law::Waiting,
        Law::InTurn,
        Law::Guard,
        Law::IntentHasItsLocks,
        Law::IntentStays,
        Law::OneAdopter,
        Law::ValidOnce,
        Law::HandedOutValid,
        Law::HandedOnForShort,
        Law::DeadlineWithinLease,
        Law::OwnersReenter,
        Law::WaitingEnds,
        Law::FencedLosesNothing,
        Law::FencedTakesValid,
        Law::LossIsExplained,
    ];

    /// The law in a few words.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Law::AtMostOneHolder => "law 1, at most one incompatible holder",
            Law::OneGrantPerRequest => "law 2, one grant per request",
            Law::OwnClaimsOnly => "law 3, own claims only",
            Law::DeadStaysDead => "law 4, a dead session stays dead",
            Law::DiesOfItsEnd => "a session dies of nothing but its end",
            Law::ExpiryFrees => "law 5, expiry frees every lock of a session that left no intent",
            Law::TokensOnlyRise => "law 6, tokens only rise",
            Law::SharedAreASet => "law 7, shared holders are a set",
            Law::RefusalIsAValue => "law 8, refusal is a value",
            Law::UnknownIsSettled => "law 9, unknown is not busy and not free",
            Law::NothingKept => "law 10, nothing granted, nothing kept",
            Law::GarbageIsHeld => "law 11, garbage is held",
            Law::AllowedIsGranted => "what the matrix allows is granted",
            Law::OneWriter => "the session record has one writer, whose numbers rise",
            Law::Recovery => "a dead holder's change is handed on until it is settled",
            Law::NotesArrive => {
                "what is noted for the owner of a session is told with each renewal, and stays"
            }
            Law::ConfirmationsAreTrue => "what a confirmation says is so",
            Law::Keys => "same bytes, same key; other bytes, other key",
            Law::Limits => "every bound holds on both sides",
            Law::Listing => "listings show what is held",
            Law::Waiting => "whoever waits is woken",
            Law::InTurn => "no later request is granted what an earlier waiter waits for",
            Law::Guard => "a guard tells the truth",
            Law::IntentHasItsLocks => "an intent has its locks",
            Law::IntentStays => "an intent stays until it is released or settled",
            Law::OneAdopter => "one adopter at a time, after the holder's death",
            Law::ValidOnce => "what is not valid is not valid for good",
            Law::HandedOutValid => "a guard is handed out only while it is valid",
            Law::HandedOnForShort => "a grant goes on within its process for 50 ms at most",
            Law::DeadlineWithinLease => "a guard's deadline lies before the end of its lease",
            Law::OwnersReenter => "holders of one owner are not in each other's way",
            Law::WaitingEnds => "whoever waits for what becomes free gets it",
            Law::FencedLosesNothing => "a resource that checks tokens loses nothing",
            Law::FencedTakesValid => {
                "a resource that checks tokens takes what a valid guard writes"
            }
            Law::LossIsExplained => "a resource that checks nothing loses only what is explained",
        }
    }
}

impl fmt::Display for Law {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
