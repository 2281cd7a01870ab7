//! [`Breach`]: what a run breaks on purpose.

use serde::{Deserialize, Serialize};

use lockcore_conformance::Law;

/// Something wrong on purpose, which a run must find.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Breach {
    /// Renewals are acknowledged and never made.
    Unrenewed,
    /// Guards say that they are valid, whatever their deadline.
    DeadlineIgnored,
    /// Resources take any token.
    TokensIgnored,
    /// Resources that check tokens refuse some that are the greatest.
    ValidRefused,
    /// Closing a session discards its intent.
    IntentsLost,
    /// Some refused requests are told that they hold the lock.
    GrantedTwice,
    /// The limits of shares are ignored.
    LimitIgnored,
    /// Renewals of dead sessions are acknowledged.
    DeadLives,
    /// Living sessions are said to be dead.
    SpuriousLost,
    /// Some requests are refused because of holders that were released before.
    SpuriousBusy,
    /// Some requests are refused because of dead sessions.
    ExpiredBlocks,
    /// Releases are acknowledged and never made.
    ReleaseUnsent,
    /// Some requests are executed under two names.
    TwoGrants,
    /// Some requests get a key that they did not ask for.
    ForeignClaims,
    /// Some tokens are smaller than those before.
    TokenGoesBack,
    /// Tokens of keys below a path are smaller than those of the path.
    TokenBelowAncestor,
    /// Every confirmation is positive, even of what was released just before.
    ConfirmsAll,
    /// Some confirmations of held locks are negative.
    ConfirmsNone,
    /// The client tells some guards that they do not hold.
    Denied,
    /// Watches sleep for ever.
    NeverWakes,
    /// Nobody stands in line.
    Overtakes,
    /// Adoptions are settled under numbers that nobody has.
    SettledUnadopted,
    /// Adopters are taken for dead.
    AdoptedByTwo,
    /// The locks of an intent are released when its session is closed.
    IntentsUnlocked,
    /// The client renews nothing and believes that it did, and its acquisitions are answered late.
    HandedOutLate,
    /// Guards sometimes say that they are not valid, and later that they are.
    Revived,
    /// Resources that check nothing lose writes.
    LosesWrites,
    /// Something is acquired that nobody knows about.
    KeptBehind,
    /// A batch of an acquisition that failed is not given back.
    StepKept,
    /// Owners are in their own way.
    OwnersRefused,
    /// Some requests are never answered.
    NeverAnswered,
}

impl Breach {
    /// The laws that it breaks. A run that finds only another law has not found it.
    #[must_use]
    pub const fn laws(self) -> &'static [Law] {
        match self {
            Breach::Unrenewed | Breach::GrantedTwice => &[Law::AtMostOneHolder],
            Breach::DeadlineIgnored => &[Law::DeadlineWithinLease],
            Breach::TokensIgnored => &[Law::FencedLosesNothing],
            Breach::ValidRefused => &[Law::FencedTakesValid],
            Breach::IntentsLost => &[Law::IntentStays],
            Breach::LimitIgnored => &[Law::SharedAreASet],
            Breach::DeadLives => &[Law::DeadStaysDead],
            Breach::SpuriousLost => &[Law::DiesOfItsEnd],
            Breach::SpuriousBusy | Breach::ReleaseUnsent => &[Law::AllowedIsGranted],
            Breach::ExpiredBlocks => &[Law::ExpiryFrees],
            Breach::TwoGrants => &[Law::OneGrantPerRequest],
            Breach::ForeignClaims => &[Law::OwnClaimsOnly],
            Breach::TokenGoesBack | Breach::TokenBelowAncestor => &[Law::TokensOnlyRise],
            Breach::ConfirmsAll | Breach::ConfirmsNone => &[Law::ConfirmationsAreTrue],
            Breach::Denied => &[Law::Guard],
            Breach::NeverWakes => &[Law::Waiting],
            Breach::Overtakes => &[Law::InTurn],
            Breach::SettledUnadopted | Breach::AdoptedByTwo => &[Law::OneAdopter],
            Breach::IntentsUnlocked => &[Law::IntentHasItsLocks],
            Breach::HandedOutLate => &[Law::HandedOutValid],
            Breach::Revived => &[Law::ValidOnce],
            Breach::LosesWrites => &[Law::LossIsExplained],
            Breach::KeptBehind => &[Law::UnknownIsSettled],
            Breach::StepKept => &[Law::NothingKept],
            Breach::OwnersRefused => &[Law::OwnersReenter],
            Breach::NeverAnswered => &[Law::WaitingEnds],
        }
    }

    /// Whether it shows only at the end.
    pub(super) const fn shows_at_the_end(self) -> bool {
        matches!(
            self,
            Breach::KeptBehind | Breach::StepKept | Breach::NeverAnswered
        )
    }

    /// Whether every store's tests try it. The others must be asked for.
    #[must_use]
    pub const fn is_usual(self) -> bool {
        matches!(
            self,
            Breach::Unrenewed
                | Breach::DeadlineIgnored
                | Breach::TokensIgnored
                | Breach::IntentsLost
        )
    }

    /// All of them.
    pub const ALL: [Breach; 31] = [
        Breach::Unrenewed,
        Breach::DeadlineIgnored,
        Breach::TokensIgnored,
        Breach::ValidRefused,
        Breach::IntentsLost,
        Breach::GrantedTwice,
        Breach::LimitIgnored,
        Breach::DeadLives,
        Breach::SpuriousLost,
        Breach::SpuriousBusy,
        Breach::ExpiredBlocks,
        Breach::ReleaseUnsent,
        Breach::TwoGrants,
        Breach::ForeignClaims,
        Breach::TokenGoesBack,
        Breach::TokenBelowAncestor,
        Breach::ConfirmsAll,
        Breach::ConfirmsNone,
        Breach::Denied,
        Breach::NeverWakes,
        Breach::Overtakes,
        Breach::SettledUnadopted,
        Breach::AdoptedByTwo,
        Breach::IntentsUnlocked,
        Breach::HandedOutLate,
        Breach::Revived,
        Breach::LosesWrites,
        Breach::KeptBehind,
        Breach::StepKept,
        Breach::OwnersRefused,
        Breach::NeverAnswered,
    ];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_law_is_broken_by_one() {
        // The client alone breaks it: `simulate --broken` has one that does.
        let of_client = [Law::HandedOnForShort];
        let judged = Law::JUDGED.into_iter();
        for law in judged.filter(|law| !of_client.contains(law)) {
            let breaks = |breach: &Breach| breach.laws().contains(&law);
            assert!(Breach::ALL.iter().any(breaks), "{law}");
        }
    }
}
