//! A store that forgets: what that excuses, and what it does not.

use super::story::{Story, claims, grant, session};
use crate::history::{Answer, Change, How, Law, Stored, What};

/// Two sessions; then attempt 1, in the first, is granted `f`, before the copy is made that takes over or after it.
fn told(named: bool, kept: bool) -> Story {
    let mut told = Story::new();
    told.opened(1, 1_500).opened(2, 1_500);
    let grants = |told: &mut Story| {
        told.ask(1, &["create f"]).after(1);
        told.acquired((1, 1), &["create f"], 1).after(1);
        told.granted(1, 1, 1, 900).after(1);
    };
    if kept {
        grants(&mut told);
    }
    told.tell(What::Copied).after(1);
    if !kept {
        grants(&mut told);
    }
    told.tell(What::FailedOver { named }).after(1);
    told
}

/// Attempt 2, in the second session, is granted the same key under this token.
fn takes(told: &mut Story, number: u64) -> &mut Story {
    told.renewed(2, 1, "", Change::Keep);
    told.ask(2, &["create f"]).after(1);
    told.acquired((2, 2), &["create f"], number).after(1);
    told.granted(2, 2, number, 990)
}

#[test]
fn what_is_forgotten_is_believed_until_the_next_renewal() {
    for named in [true, false] {
        takes(&mut told(named, false), 2).after(1).is_fine();
        takes(&mut told(named, true), 2).breaks(Law::AtMostOneHolder);
    }
    // The guard says that its deadline counts from a renewal that was sent after it.
    let renewed = |named, kept| {
        let mut told = told(named, kept);
        told.after(200).renewed(1, 1, "", Change::Keep);
        told.look(1, 999);
        told
    };
    renewed(true, true).is_fine();
    renewed(true, false).breaks(Law::Guard);
    // Nobody tells, where the store has no name.
    renewed(false, false).is_fine();
}

/// Attempt 1 has what it was granted since: nothing of it is forgotten.
#[test]
fn a_session_that_a_late_copy_has_opened_again_lives() {
    for opened_again in [true, false] {
        let mut told = Story::new();
        told.tell(What::Copied);
        told.opened(1, 1_500).ask(1, &["create f"]);
        told.acquired((1, 1), &["create f"], 1).after(1);
        told.granted(1, 1, 1, 900).after(1);
        told.tell(What::FailedOver { named: true }).after(100);
        if opened_again {
            told.opened(1, 1_500);
        }
        told.renewed(1, 1, "1-1", Change::Keep).after(1);
        told.ask(2, &["create f"]);
        told.acquired((1, 2), &["create f"], 2).after(1);
        told.granted(2, 1, 2, 998);
        match opened_again {
            true => told.is_fine(),
            false => told.breaks(Law::Guard),
        }
    }
}

#[test]
fn a_renewal_that_was_acknowledged_and_is_forgotten_is_told_by_the_next() {
    for lost in [true, false] {
        let mut told = Story::new();
        told.opened(1, 1_500).ask(1, &["create f"]);
        told.acquired((1, 1), &["create f"], 1).after(1);
        told.granted(1, 1, 1, 900);
        if lost {
            told.tell(What::Copied);
        }
        told.after(100).renewed(1, 1, "", Change::Keep);
        told.after(5).look(1, 995);
        if !lost {
            told.tell(What::Copied);
        }
        told.tell(What::FailedOver { named: false });
        told.after(100).renewed(1, 2, "", Change::Keep);
        told.after(5).look(1, 996);
        match lost {
            true => told.breaks(Law::Guard),
            false => told.is_fine(),
        }
    }
}

#[test]
fn tokens_rise_over_it() {
    takes(&mut told(true, false), 1).breaks(Law::TokensOnlyRise);
}

#[test]
fn what_is_forgotten_is_not_confirmed() {
    for (kept, held) in [(true, true), (false, false), (false, true)] {
        let mut told = told(true, kept);
        told.stored(Stored::Confirm {
            grant: grant((1, 1)),
            claims: claims(&["create f"]),
            begun: 9,
            held,
        });
        match (kept, held) {
            (false, true) => told.breaks(Law::ConfirmationsAreTrue),
            _ => told.is_fine(),
        }
    }
}

#[test]
fn the_release_of_what_is_forgotten_does_not_say_that_it_was_held() {
    let attempt = 1;
    for kept in [true, false] {
        for held in [Some(true), Some(false), None] {
            let mut told = told(true, kept);
            told.back(attempt, How::Released).after(1);
            told.released((1, 1), &["create f"]).after(1);
            told.tell(What::GaveBack { attempt, held });
            match (kept, held) {
                (true, Some(false)) | (false, Some(true)) => told.breaks(Law::Guard),
                _ => told.is_fine(),
            }
        }
    }
    // It was executed before.
    let mut told = Story::new();
    told.opened(1, 1_500).ask(1, &["create f"]);
    told.tell(What::Copied);
    told.acquired((1, 1), &["create f"], 1)
        .granted(1, 1, 1, 900);
    told.back(1, How::Released).after(1);
    told.released((1, 1), &["create f"]);
    told.tell(What::FailedOver { named: true }).after(1);
    let held = Some(true);
    told.tell(What::GaveBack { attempt, held }).is_fine();
}

#[test]
fn the_release_of_what_died_does_not_say_that_it_was_held() {
    let attempt = 1;
    for dead in [true, false] {
        let mut told = Story::new();
        told.opened(1, 1_500).ask(1, &["create f"]);
        told.acquired((1, 1), &["create f"], 1);
        told.granted(1, 1, 1, 900).after(2_000);
        if dead {
            told.ended(1, true, Answer::Dead);
        }
        told.back(attempt, How::Released).after(1);
        told.released((1, 1), &["create f"]).after(1);
        let held = Some(true);
        told.tell(What::GaveBack { attempt, held });
        match dead {
            true => told.breaks(Law::Guard),
            false => told.is_fine(),
        }
    }
}

/// Nobody else says that its number is over.
#[test]
fn the_release_of_a_number_that_was_over_before_lies() {
    let attempt = 1;
    let mut told = Story::new();
    told.opened(1, 1_500).ask(1, &["create f"]);
    told.acquired((1, 1), &["create f"], 1);
    told.granted(1, 1, 1, 900).after(1);
    told.back(attempt, How::Released).after(1);
    told.renewed(1, 1, "1-1", Change::Keep);
    told.released((1, 1), &["create f"]).after(1);
    let held = Some(false);
    told.tell(What::GaveBack { attempt, held })
        .breaks(Law::Guard);
}

#[test]
fn who_has_lost_nothing_stays() {
    told(true, true).look(1, 0).breaks(Law::Guard);
    told(true, false).look(1, 0).is_fine();
    // When its deadline has passed it says so.
    told(true, true).after(2_000).look(1, 0).is_fine();
}

#[test]
fn a_store_that_has_lost_nothing_does_not_say_so() {
    let forgotten = |told: &mut Story| {
        told.stored(Stored::Renew {
            session: session(1),
            seq: 1,
            retired: "".parse().unwrap(),
            change: Change::Keep,
            ttl: None,
            answer: Answer::Forgotten,
        });
    };
    let mut fine = told(true, false);
    forgotten(&mut fine);
    fine.is_fine();
    let mut wrong = Story::new();
    wrong.opened(1, 1_500);
    forgotten(&mut wrong);
    wrong.breaks(Law::OneWriter);
}

#[test]
fn an_adoption_that_is_forgotten_is_not_settled_by_who_had_it() {
    for by in [2, 3] {
        let mut told = Story::new();
        told.opened(1, 1_500).opened(2, 1_500).opened(3, 1_500);
        told.renewed(1, 1, "", Change::Put(1));
        told.ended(1, false, Answer::Abandoned);
        let adopts = |told: &mut Story, adopter| {
            told.stored(Stored::Adopt {
                session: session(1),
                seen: 0,
                adopter: session(adopter),
                give_up: false,
                number: Some(1),
            });
        };
        told.tell(What::Copied);
        adopts(&mut told, 2);
        told.tell(What::FailedOver { named: true }).after(1);
        adopts(&mut told, 3);
        told.stored(Stored::Settle {
            session: session(1),
            adoption: 1,
            adopter: session(by),
            settled: true,
        });
        match by {
            3 => told.is_fine(),
            _ => told.breaks(Law::OneAdopter),
        }
    }
}

#[test]
fn an_adoption_that_is_forgotten_is_believed_until_the_next_renewal() {
    for (named, left) in [(true, 900), (true, 999), (false, 999)] {
        let mut told = Story::new();
        told.opened(1, 1_500).opened(2, 1_500).opened(3, 1_500);
        told.ask_with_intent(1, &["create f"]).after(1);
        told.granted(1, 1, 1, 999).tell(What::Killed).after(10);
        told.tell(What::Copied);
        told.by(2).adopted(1, 1, 1, (1, 2));
        told.tell(What::FailedOver { named }).after(10);
        told.by(3).adopted(2, 1, 1, (1, 3));
        told.believes(2, 999).after(10);
        // It counts from the renewal before, or from one that was sent since.
        told.by(2).believes(1, left);
        match (named, left) {
            (true, 999) => told.breaks(Law::OneAdopter),
            _ => told.is_fine(),
        }
    }
}

/// Whether the other store has the intent is not known.
#[test]
fn who_has_an_intent_does_not_move_to_another_store() {
    for (intent, moved) in [(true, true), (true, false), (false, true)] {
        let mut told = Story::new();
        told.opened(1, 1_500);
        match intent {
            true => told.ask_with_intent(1, &["create f"]),
            false => told.ask(1, &["create f"]),
        };
        told.acquired((1, 1), &["create f"], 1);
        told.granted(1, 1, 1, 900).after(1);
        told.stored(Stored::Renew {
            session: session(1),
            seq: 1,
            retired: lockcore::backend::Ranges::EMPTY,
            change: Change::Keep,
            ttl: None,
            answer: if moved {
                Answer::Moved
            } else {
                Answer::Overtaken
            },
        });
        let (attempt, held) = (1, false);
        told.tell(What::Confirmed { attempt, held });
        match intent && moved {
            true => told.is_fine(),
            false => told.breaks(Law::Guard),
        }
    }
}

/// Its intent is left behind, and its session closed.
#[test]
fn who_gives_back_what_was_forgotten_ends_who_has_reentered() {
    for denied in [true, false] {
        let mut told = Story::new();
        told.opened(1, 1_500).ask_with_intent(1, &["create f"]);
        told.acquired((1, 1), &["create f"], 1);
        told.granted(1, 1, 1, 900).ask_as(2, 1, &["create g"]);
        told.acquired((1, 2), &["create g"], 2);
        told.granted(2, 1, 2, 900).after(1);
        if denied {
            told.look(1, 0);
        }
        told.back(1, How::Released).after(1);
        let (attempt, held) = (2, false);
        told.tell(What::Confirmed { attempt, held });
        match denied {
            true => told.is_fine(),
            false => told.breaks(Law::Guard),
        }
    }
}

/// One of its grants is forgotten, and the other has a greater token than who holds all of it.
#[test]
fn who_has_lost_a_part_and_is_not_told_may_have_the_greater_token() {
    let resource = super::story::key("f");
    for named in [true, false] {
        let mut told = Story::new();
        told.opened(1, 1_500).opened(2, 1_500).ask(1, &["create f"]);
        told.tell(What::Copied);
        told.acquired((1, 1), &["create f"], 1).after(1);
        told.tell(What::FailedOver { named }).after(1);
        told.ask(2, &["create f"]);
        told.acquired((2, 2), &["create f"], 2);
        told.granted(2, 2, 2, 900).granted(1, 1, 3, 900).after(1);
        for (attempt, value) in [(1, Some(0)), (2, None)] {
            let (resource, fenced) = (resource.clone(), true);
            told.tell(What::Read {
                resource,
                fenced,
                attempt,
                value,
            });
        }
        match named {
            true => told.breaks(Law::FencedTakesValid),
            false => told.is_fine(),
        }
    }
}
