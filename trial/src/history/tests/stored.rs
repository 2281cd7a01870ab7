//! What a store executes: each law broken once, beside what looks alike and is fine.

use super::story::{Story, claims, grant, session};
use crate::history::{Answer, Change, Law, Stored, What};

/// Two sessions that live for a second.
fn two() -> Story {
    let mut told = Story::new();
    told.opened(1, 1_000).opened(2, 1_000);
    told
}

#[test]
fn one_incompatible_holder() {
    two()
        .acquired((1, 1), &["create f"], 1)
        .after(1)
        .acquired((2, 1), &["create f"], 2)
        .breaks(Law::AtMostOneHolder);
    two()
        .acquired((1, 1), &["write /a/b"], 1)
        .after(1)
        .acquired((2, 1), &["read /a"], 2)
        .breaks(Law::AtMostOneHolder);
    two()
        .acquired((1, 1), &["create f"], 1)
        .released((1, 1), &["create f"])
        .after(1)
        .acquired((2, 1), &["create f"], 2)
        .is_fine();
    two()
        .acquired((1, 1), &["create f"], 1)
        .renewed(1, 1, "1-1", Change::Keep)
        .after(1)
        .acquired((2, 1), &["create f"], 2)
        .is_fine();
    // It was due, and whoever passed by has ended it.
    two()
        .acquired((1, 1), &["create f"], 1)
        .after(900)
        .renewed(2, 1, "", Change::Keep)
        .after(100)
        .acquired((2, 1), &["create f"], 2)
        .is_fine();
}

#[test]
fn a_late_copy_beside_its_release_proves_nothing() {
    let (one, claims) = (grant((1, 1)), claims(&["create f"]));
    let mut told = two();
    told.acquired((1, 1), &["create f"], 1).after(1);
    let releases = Stored::Release { grant: one, claims };
    told.stored(releases.clone());
    told.acquired((1, 1), &["create f"], 2);
    told.stored(Stored::Released { grant: one });
    told.after(1).acquired((2, 1), &["create f"], 3).is_fine();
    // It began while the release was under way, and was answered after that.
    let mut told = two();
    told.acquired((1, 1), &["create f"], 1).after(1);
    told.stored(releases);
    let copy = told.begin();
    told.after(1).stored(Stored::Released { grant: one });
    told.acquired_since(copy, (1, 1), &["create f"], 2);
    told.after(1).acquired((2, 1), &["create f"], 3).is_fine();
    // After it, the copy holds the key until its number is over.
    let mut told = two();
    told.acquired((1, 1), &["create f"], 1)
        .released((1, 1), &["create f"]);
    told.after(1).acquired((1, 1), &["create f"], 2);
    told.acquired((2, 1), &["create f"], 3)
        .breaks(Law::AtMostOneHolder);
}

#[test]
fn one_grant_for_one_request() {
    two()
        .acquired((1, 1), &["upsert f"], 1)
        .acquired((1, 1), &["upsert f"], 2)
        .is_fine();
    two()
        .acquired((1, 1), &["upsert f"], 1)
        .acquired((1, 1), &["upsert g"], 2)
        .breaks(Law::OneGrantPerRequest);
}

#[test]
fn own_claims_only() {
    let confirm = |begun, held| Stored::Confirm {
        grant: grant((1, 1)),
        claims: claims(&["upsert f"]),
        begun,
        held,
    };
    let begin = || {
        let mut told = two();
        told.acquired((1, 1), &["upsert f"], 1);
        told
    };
    begin().stored(confirm(3, true)).is_fine();
    begin().stored(confirm(3, false)).breaks(Law::OwnClaimsOnly);
    begin()
        .released((1, 1), &["upsert f"])
        .stored(confirm(3, false))
        .is_fine();
    begin().after(1_000).stored(confirm(3, false)).is_fine();
    begin()
        .ended(1, false, Answer::Dead)
        .stored(confirm(4, true))
        .breaks(Law::DeadStaysDead);
}

#[test]
fn dead_stays_dead() {
    two()
        .ended(1, false, Answer::Dead)
        .after(1)
        .renewed(1, 1, "", Change::Keep)
        .breaks(Law::DeadStaysDead);
    two().opened(1, 1_000).breaks(Law::DeadStaysDead);
    two()
        .after(999)
        .ended(1, true, Answer::Dead)
        .breaks(Law::DeadStaysDead);
    two().after(1_000).ended(1, true, Answer::Dead).is_fine();
    two()
        .tell(What::Stepped { by: 1_000_000_000 })
        .ended(1, true, Answer::Dead)
        .is_fine();
    two()
        .tell(What::Stepped { by: -1_000_000 })
        .after(1_000)
        .ended(1, true, Answer::Dead)
        .breaks(Law::DeadStaysDead);
    two()
        .renewed(1, 5, "", Change::Keep)
        .renewed(1, 5, "", Change::Keep)
        .breaks(Law::DeadStaysDead);
    let dead = Stored::Renew {
        session: session(1),
        seq: 1,
        retired: lockcore::backend::Ranges::EMPTY,
        change: Change::Keep,
        ttl: None,
        answer: Answer::Dead,
    };
    two().stored(dead.clone()).breaks(Law::DeadStaysDead);
    two().after(1_000).stored(dead).is_fine();
    two()
        .ended(1, false, Answer::Abandoned)
        .breaks(Law::DeadStaysDead);
}

#[test]
fn a_session_that_is_passed_over_is_dead() {
    two()
        .acquired((1, 1), &["create f"], 1)
        .after(900)
        .renewed(2, 1, "", Change::Keep)
        .after(100)
        .acquired((2, 1), &["create f"], 2)
        .renewed(1, 1, "", Change::Keep)
        .breaks(Law::DeadStaysDead);
}

#[test]
fn expiry_frees() {
    two()
        .acquired((1, 1), &["create f"], 1)
        .busy((2, 1), &["create f"], (1, 1))
        .is_fine();
    two()
        .acquired((1, 1), &["create f"], 1)
        .ended(1, false, Answer::Dead)
        .after(1)
        .busy((2, 1), &["create f"], (1, 1))
        .breaks(Law::ExpiryFrees);
    two()
        .acquired((1, 1), &["create f"], 1)
        .after(1_000)
        .renewed(2, 1, "", Change::Keep)
        .busy((2, 1), &["create f"], (1, 1))
        .breaks(Law::ExpiryFrees);
}

#[test]
fn tokens_rise() {
    two()
        .acquired((1, 1), &["share f"], 5)
        .after(1)
        .acquired((2, 1), &["share f"], 5)
        .breaks(Law::TokensOnlyRise);
    two()
        .acquired((1, 1), &["share f"], 5)
        .after(1)
        .acquired((2, 1), &["share f"], 6)
        .is_fine();
}

#[test]
fn shares_are_counted() {
    two()
        .acquired((1, 1), &["share:1 f"], 1)
        .after(1)
        .acquired((2, 1), &["share:1 f"], 2)
        .breaks(Law::SharedAreASet);
    two()
        .acquired((1, 1), &["share:1 f"], 1)
        .acquired((1, 1), &["share:1 f"], 2)
        .is_fine();
    two()
        .acquired((1, 1), &["share:1 f"], 1)
        .ended(1, false, Answer::Dead)
        .after(1)
        .acquired((2, 1), &["share:1 f"], 2)
        .is_fine();
}

#[test]
fn over_stays_over() {
    two()
        .renewed(1, 1, "1-4", Change::Keep)
        .renewed(1, 2, "1-9", Change::Keep)
        .is_fine();
    two()
        .renewed(1, 1, "1-4", Change::Keep)
        .renewed(1, 2, "1-2,4-9", Change::Keep)
        .breaks(Law::UnknownIsSettled);
}

#[test]
fn an_intent_has_its_locks() {
    let begin = || {
        let mut told = two();
        told.ask_with_intent(7, &["upsert f", "upsert g"]);
        told
    };
    let all = ["upsert f", "upsert g"];
    begin()
        .acquired((1, 1), &all, 1)
        .renewed(1, 1, "", Change::Put(7))
        .renewed(1, 2, "", Change::Drop)
        .released((1, 1), &all)
        .is_fine();
    begin()
        .acquired((1, 1), &["upsert f"], 1)
        .renewed(1, 1, "", Change::Put(7))
        .breaks(Law::IntentHasItsLocks);
    begin()
        .acquired((1, 1), &all, 1)
        .renewed(1, 1, "", Change::Put(7))
        .released((1, 1), &all)
        .breaks(Law::IntentHasItsLocks);
    begin()
        .acquired((1, 1), &all, 1)
        .renewed(1, 1, "", Change::Put(7))
        .renewed(1, 2, "1-1", Change::Keep)
        .breaks(Law::IntentHasItsLocks);
    // Passed over, although it is abandoned when it is due.
    let mut told = begin();
    told.acquired((1, 1), &all, 1)
        .renewed(1, 1, "", Change::Put(7))
        .after(900);
    told.renewed(2, 1, "", Change::Keep)
        .after(100)
        .acquired((2, 1), &["upsert f"], 2);
    told.breaks(Law::IntentHasItsLocks);
}

#[test]
fn adoptions_go_by_their_numbers() {
    let adopt = |seen, adopter, give_up, number| Stored::Adopt {
        session: session(1),
        seen,
        adopter: session(adopter),
        give_up,
        number,
    };
    let settle = |adoption| Stored::Settle {
        session: session(1),
        adoption,
        adopter: session(2),
        settled: true,
    };
    let begin = || {
        let mut told = two();
        told.opened(3, 1_000).ask_with_intent(7, &["upsert f"]);
        told.acquired((1, 1), &["upsert f"], 1)
            .renewed(1, 1, "", Change::Put(7));
        told.ended(1, false, Answer::Abandoned).after(1);
        told
    };
    begin()
        .stored(adopt(0, 2, false, Some(1)))
        .stored(settle(1))
        .is_fine();
    begin()
        .stored(adopt(0, 2, false, Some(1)))
        .stored(adopt(1, 3, false, Some(2)))
        .breaks(Law::OneAdopter);
    begin()
        .stored(adopt(0, 2, false, Some(1)))
        .ended(2, false, Answer::Dead)
        .stored(adopt(1, 3, false, Some(2)))
        .is_fine();
    begin()
        .stored(adopt(0, 2, false, Some(1)))
        .stored(adopt(0, 2, true, None))
        .stored(settle(1))
        .breaks(Law::OneAdopter);
    begin()
        .stored(adopt(0, 2, false, Some(1)))
        .stored(adopt(0, 2, true, None))
        .stored(adopt(0, 3, false, Some(1)))
        .breaks(Law::OneAdopter);
    begin()
        .stored(adopt(0, 2, false, Some(1)))
        .stored(adopt(0, 2, true, None))
        .stored(adopt(2, 3, false, Some(3)))
        .is_fine();
    two()
        .stored(adopt(0, 2, false, Some(1)))
        .breaks(Law::OneAdopter);
    // What was adopted has an intent to lose.
    begin()
        .ended(1, false, Answer::Dead)
        .breaks(Law::DeadStaysDead);
}

#[test]
fn owners_re_enter() {
    two()
        .acquired((1, 1), &["upsert f"], 1)
        .busy((1, 1), &["upsert f"], (1, 1))
        .breaks(Law::OwnersReenter);
    two()
        .acquired((1, 1), &["upsert f"], 1)
        .busy((1, 1), &["create f"], (1, 1))
        .is_fine();
}

#[test]
fn no_guard_outlives_its_lease() {
    two()
        .ask(1, &["create f"])
        .after(1)
        .granted(1, 1, 1, 999)
        .is_fine();
    two()
        .ask(1, &["create f"])
        .after(1)
        .granted(1, 1, 1, 1_000)
        .breaks(Law::DeadlineWithinLease);
    two()
        .ask(1, &["create f"])
        .granted(1, 1, 1, 900)
        .after(500)
        .look(1, 900)
        .breaks(Law::DeadlineWithinLease);
    two()
        .ask(1, &["create f"])
        .granted(1, 1, 1, 900)
        .after(500)
        .renewed(1, 1, "", Change::Keep)
        .look(1, 900)
        .is_fine();
}
