//! What programs see: each law broken once, beside what looks alike and is fine.

use super::story::{MS, Story, grant, key, session, token};
use crate::history::{How, Law, Outcome, Stored, What, check};

fn story() -> Story {
    Story::new()
}

#[test]
fn two_valid_guards_on_one_key() {
    let mut told = story();
    told.ask(1, &["create f"])
        .granted(1, 1, 1, 900)
        .ask(2, &["create f"]);
    told.after(500)
        .granted(2, 2, 2, 900)
        .breaks(Law::AtMostOneHolder);

    told = story();
    told.ask(1, &["create f"])
        .granted(1, 1, 1, 900)
        .ask(2, &["create f"]);
    told.after(900).granted(2, 2, 2, 900).is_fine();
}

#[test]
fn two_valid_guards_in_one_tree() {
    for (above, below, fine) in [
        ("write /a", "write /a/b/c", false),
        ("read /a", "write /a/b/c", false),
        ("write /a", "read /a/b", false),
        ("read /a", "read /a/b", true),
        ("write /a/b", "write /a/c", true),
        ("write /a", "write /a!", true),
    ] {
        let mut told = story();
        told.ask(1, &[above]).granted(1, 1, 1, 900).ask(2, &[below]);
        told.granted(2, 2, 2, 900);
        if fine {
            told.is_fine();
        } else {
            told.breaks(Law::AtMostOneHolder);
        }
    }
}

#[test]
fn the_order_of_tokens_is_the_order_of_guards() {
    // The smaller token was handed out when the greater one had come and gone.
    let mut told = story();
    told.ask(1, &["create f", "create g"]).ask(2, &["create f"]);
    told.after(10)
        .granted(2, 2, 7, 900)
        .after(10)
        .back(2, How::Released);
    told.after(10)
        .granted(1, 1, 5, 900)
        .breaks(Law::AtMostOneHolder);
}

#[test]
fn a_kept_lock_is_held_until_its_time_is_over_whatever_its_process_does() {
    let kept = |told: &mut Story| {
        told.ask(1, &["create f"]);
        told.after(1).granted(1, 1, 5, 900).back(1, How::Kept);
        told.after(10).tell(What::Kept {
            attempt: 1,
            left: 4_990 * MS,
            validity: 5_000 * MS,
        });
        told.after(1).tell(What::Killed).after(3_000);
        told.by(2).ask(2, &["create f"]).after(1);
    };
    let mut early = story();
    kept(&mut early);
    early.granted(2, 2, 7, 900).breaks(Law::AtMostOneHolder);
    let mut late = story();
    kept(&mut late);
    late.after(2_000).granted(2, 2, 7, 900).is_fine();
    // What ends a session before its time is an excuse, and so is a release by the handle.
    for end in [
        What::GivingBack {
            attempt: 1,
            how: How::Dropped,
        },
        What::Revoking {
            session: session(1),
        },
        What::Stepped { by: 1 },
    ] {
        let mut told = story();
        kept(&mut told);
        told.tell(end).after(1).granted(2, 2, 7, 900).is_fine();
    }
}

#[test]
fn a_guard_is_believed_until_it_says_no_or_is_given_back_or_killed() {
    for end in [
        What::Looked {
            attempt: 1,
            left: 0,
        },
        What::GivingBack {
            attempt: 1,
            how: How::Dropped,
        },
        What::Killed,
        What::Revoking {
            session: session(1),
        },
        What::Stepped { by: 1 },
    ] {
        let mut told = story();
        told.ask(1, &["upsert f"])
            .granted(1, 1, 1, 900)
            .ask(2, &["upsert f"]);
        told.after(10)
            .tell(end.clone())
            .after(1)
            .by(2)
            .granted(2, 2, 2, 900);
        told.is_fine();
    }
    for other in [
        What::Paused,
        What::Drifted { by: 1 },
        What::Stepped { by: -1 },
    ] {
        let mut told = story();
        told.ask(1, &["upsert f"])
            .granted(1, 1, 1, 900)
            .ask(2, &["upsert f"]);
        told.after(10)
            .tell(other)
            .after(1)
            .by(2)
            .granted(2, 2, 2, 900);
        told.breaks(Law::AtMostOneHolder);
    }
}

#[test]
fn whoever_says_that_a_grant_is_over_believes_nothing_of_it() {
    let evicted = |retired| {
        let mut told = story();
        told.ask(1, &["upsert f"])
            .granted(1, 1, 1, 900)
            .ask(2, &["upsert f"]);
        told.after(10)
            .renewed(1, 1, retired, crate::history::Change::Keep);
        told
    };
    let mut told = evicted("1-1");
    told.after(1).by(2).granted(2, 2, 2, 900);
    told.is_fine();
    let mut told = evicted("2-2");
    told.after(1).by(2).granted(2, 2, 2, 900);
    told.breaks(Law::AtMostOneHolder);
    let mut told = evicted("1-1");
    told.after(1).look(1, 880);
    told.breaks(Law::ValidOnce);
}

#[test]
fn a_step_of_the_clock_excuses_nobody_who_was_renewed_after_it() {
    let mut told = story();
    told.ask(1, &["upsert f"])
        .granted(1, 1, 1, 900)
        .ask(2, &["upsert f"]);
    told.after(10).tell(What::Stepped { by: 1_000_000_000 });
    told.after(400)
        .look(1, 950)
        .granted(2, 2, 2, 900)
        .breaks(Law::AtMostOneHolder);
}

#[test]
fn owners_re_enter_except_what_never_re_enters() {
    let mut told = story();
    told.ask_as(1, 9, &["upsert f"]).granted(1, 1, 1, 900);
    told.ask_as(2, 9, &["upsert f"])
        .granted(2, 1, 2, 900)
        .is_fine();

    told = story();
    told.ask_as(1, 9, &["upsert f"]).granted(1, 1, 1, 900);
    told.ask_as(2, 9, &["create f"])
        .granted(2, 1, 2, 900)
        .breaks(Law::AtMostOneHolder);
}

#[test]
fn tokens_rise() {
    let mut told = story();
    told.ask(1, &["share f"]).granted(1, 1, 5, 900);
    told.after(1)
        .ask(2, &["share f"])
        .granted(2, 2, 4, 900)
        .breaks(Law::TokensOnlyRise);

    told = story();
    told.ask(1, &["share f"])
        .ask(2, &["share f"])
        .granted(1, 1, 5, 900);
    told.granted(2, 2, 5, 900).breaks(Law::TokensOnlyRise);

    told = story();
    told.ask(1, &["share f"])
        .ask(2, &["share f"])
        .granted(1, 1, 5, 900);
    told.granted(2, 2, 4, 900).is_fine();

    told = story();
    told.ask_with_intent(1, &["create f"]).granted(1, 1, 5, 900);
    told.tell(What::Killed)
        .by(2)
        .adopted(1, 1, 1, (5, 5))
        .breaks(Law::TokensOnlyRise);
}

#[test]
fn a_share_that_its_process_has_already_is_older_than_others_but_not_than_an_exclusive_lock() {
    let told = |between: &str, pass: u64| {
        let mut told = story();
        told.ask(1, &["share f"]).granted(1, 1, 4, 900).after(1);
        if between.starts_with("create") {
            told.back(1, How::Released);
        }
        told.ask(2, &[between]).granted(2, 2, 5, 900).after(1);
        told.back(2, How::Released).after(1);
        told.ask(3, &["share f"])
            .handed_on(3, 1, (4, pass), (1, 900));
        told
    };
    told("share f", 1).is_fine();
    told("share:2 f", 1).is_fine();
    told("share f", 0).breaks(Law::TokensOnlyRise);
    let report = check(&told("create f", 1).end());
    assert!(report.breach_of(&[Law::TokensOnlyRise]).is_some());
}

#[test]
fn a_limit_counts_the_shares_that_are_there() {
    let mut told = story();
    for attempt in 1..=3 {
        told.after(1).ask(attempt, &["share:2 f"]);
        told.granted(attempt, 1, attempt, 900);
    }
    told.breaks(Law::SharedAreASet);

    told = story();
    told.ask(1, &["share f"])
        .granted(1, 1, 1, 900)
        .after(1)
        .ask(2, &["share:1 f"]);
    told.granted(2, 2, 2, 900).breaks(Law::SharedAreASet);

    // Those of one process who share without a limit are one, from the first to the last of them.
    let told = |sharing: u64, left: u64| {
        let mut told = story();
        told.ask(1, &["share f"]).granted(1, 1, 1, left).after(1);
        for attempt in 2..=sharing {
            told.ask(attempt, &["share f"]);
            told.handed_on(attempt, 1, (1, attempt - 1), (1, 900));
        }
        told.after(100).ask(9, &["share:2 f"]);
        told.granted(9, 2, 2, 900).after(1);
        told.ask(10, &["share:2 f"]);
        told.granted(10, 2, 3, 900);
        told
    };
    told(3, 50).breaks(Law::SharedAreASet);
    told(1, 50).is_fine();
    let mut told = story();
    told.ask(1, &["share f"]).granted(1, 1, 1, 900).after(1);
    told.ask(2, &["share f"]).handed_on(2, 1, (1, 1), (1, 900));
    told.ask(3, &["share:2 f"]).granted(3, 2, 2, 900).is_fine();

    // Another limit is another question.
    told = story();
    told.ask(1, &["share:1 f"])
        .granted(1, 1, 1, 900)
        .after(1)
        .ask(2, &["share:2 f"]);
    told.granted(2, 2, 2, 900).is_fine();
}

#[test]
fn what_was_not_valid_does_not_become_valid() {
    let mut told = story();
    told.ask(1, &["create f"])
        .granted(1, 1, 1, 100)
        .after(100)
        .look(1, 0);
    told.after(10).look(1, 90).breaks(Law::ValidOnce);

    // Nor what has re-entered the session of a guard whose intent was left.
    told = story();
    told.ask_with_intent(1, &["upsert f"]).granted(1, 1, 1, 900);
    told.ask_as(2, 1, &["upsert g"]).granted(2, 1, 2, 900);
    told.after(10)
        .back(1, How::Dropped)
        .look(2, 800)
        .breaks(Law::ValidOnce);
}

#[test]
fn a_law_that_is_broken_often_hides_no_other() {
    let mut told = story();
    for attempt in 1..200 {
        told.ask(attempt, &["create f"]).after(2_000);
        told.granted(attempt, 1, attempt, 0);
    }
    told.ask(200, &["create g"]).granted(200, 1, 200, 900);
    told.look(200, 0).after(10).look(200, 800);
    let report = check(&told.end());
    for law in [Law::HandedOutValid, Law::ValidOnce] {
        assert!(report.breach_of(&[law]).is_some(), "{law}");
    }
}

#[test]
fn what_is_handed_on_after_a_revocation_has_the_token_of_before() {
    let told = |revoked: bool| {
        let mut told = story();
        told.ask(1, &["create f"]).granted(1, 1, 1, 900);
        if revoked {
            let session = session(1);
            told.tell(What::Revoking { session });
        } else {
            told.back(1, How::Released);
        }
        told.ask(2, &["create f"]).granted(2, 2, 2, 900).after(1);
        told.back(2, How::Released).after(1);
        told.ask(3, &["create f"]).handed_on(3, 1, (1, 1), (1, 900));
        told
    };
    told(true).is_fine();
    let report = check(&told(false).end());
    assert!(report.breach_of(&[Law::TokensOnlyRise]).is_some());
}

#[test]
fn a_guard_is_valid_when_it_is_handed_out() {
    let mut told = story();
    told.ask(1, &["create f"]).after(2_000).granted(1, 1, 1, 0);
    told.breaks(Law::HandedOutValid);

    // Its client may be told to give it up between that look and the program's.
    told = story();
    told.ask(1, &["create f"]);
    let session = session(1);
    told.tell(What::Evicting { session });
    told.granted(1, 1, 1, 0).is_fine();

    // Where time passes by itself, it may end between the client's look and the program's.
    told = story();
    told.ask(1, &["create f"]).after(2_000).granted(1, 1, 1, 0);
    told.in_real_time().is_fine();

    told = story();
    told.ask(1, &["create f"]).tell(What::Paused).after(2_000);
    told.tell(What::Resumed).granted(1, 1, 1, 0).is_fine();
}

#[test]
fn an_intent_stays() {
    let mut told = story();
    told.ask_with_intent(1, &["create f"])
        .granted(1, 1, 1, 900)
        .back(1, How::Dropped);
    told.after(1)
        .ask(2, &["create f"])
        .granted(2, 2, 2, 900)
        .breaks(Law::IntentStays);

    told = story();
    told.ask_with_intent(1, &["create f"])
        .granted(1, 1, 1, 900)
        .tell(What::Killed);
    told.by(2)
        .after(1)
        .adopted(1, 1, 1, (1, 2))
        .after(1)
        .tell(What::GivingUp { adoption: 1 });
    told.after(1)
        .ask(2, &["create f"])
        .granted(2, 2, 3, 900)
        .breaks(Law::IntentStays);

    for done in [
        What::GivingBack {
            attempt: 1,
            how: How::Released,
        },
        What::Discarding {
            session: session(1),
        },
    ] {
        told = story();
        told.ask_with_intent(1, &["create f"])
            .granted(1, 1, 1, 900)
            .tell(done)
            .tell(What::Killed);
        told.by(2)
            .after(1)
            .ask(2, &["create f"])
            .granted(2, 2, 2, 900)
            .is_fine();
    }
}

#[test]
fn an_adopter_has_the_locks() {
    let begin = || {
        let mut told = story();
        told.ask_with_intent(1, &["write /a/b"])
            .granted(1, 1, 1, 900)
            .tell(What::Killed);
        told.by(2).after(1).adopted(1, 1, 1, (1, 2));
        told
    };
    let mut told = begin();
    told.after(10)
        .ask(2, &["write /a"])
        .after(1)
        .tell(What::Settling { adoption: 1 });
    told.granted(2, 2, 3, 900).is_fine();

    told = begin();
    told.after(10)
        .ask(2, &["write /a/c"])
        .granted(2, 2, 3, 900)
        .is_fine();

    told = begin();
    told.after(10).ask(2, &["write /a"]).granted(2, 2, 3, 900);
    told.after(10)
        .believes(1, 900)
        .tell(What::Settling { adoption: 1 });
    let laws: Vec<Law> = crate::history::check(&told.end())
        .violations
        .iter()
        .map(|found| found.law)
        .collect();
    assert!(laws.contains(&Law::IntentHasItsLocks), "{laws:?}");
    assert!(laws.contains(&Law::IntentStays), "{laws:?}");
}

#[test]
fn one_adopter_at_a_time_after_the_death() {
    let mut told = story();
    told.ask_with_intent(1, &["create f"]).granted(1, 1, 1, 900);
    told.after(100)
        .by(2)
        .adopted(1, 1, 1, (1, 2))
        .breaks(Law::OneAdopter);

    told = story();
    told.ask_with_intent(1, &["create f"])
        .granted(1, 1, 1, 900)
        .tell(What::Killed);
    told.after(1).by(2).adopted(1, 1, 1, (1, 2));
    told.after(1).by(3).adopted(2, 1, 1, (1, 3));
    told.after(1).by(2).believes(1, 900).breaks(Law::OneAdopter);

    // The first adopter is told so late that the second has come, and does not believe in it, or does.
    for believes in [false, true] {
        told = story();
        told.ask_with_intent(1, &["create f"])
            .granted(1, 1, 1, 900)
            .tell(What::Killed);
        told.after(1).by(3).adopted(2, 1, 1, (1, 3));
        told.after(1).by(2).tell(What::Adopted {
            adoption: 1,
            session: session(1),
            attempt: 1,
            old_token: token(64),
            token: token(128),
        });
        if believes {
            told.after(1).believes(1, 900);
        }
        told.after(1).by(3).believes(2, 900);
        if believes {
            told.breaks(Law::OneAdopter);
        } else {
            told.is_fine();
        }
    }

    told = story();
    told.ask_with_intent(1, &["create f"])
        .granted(1, 1, 1, 900)
        .tell(What::Killed);
    told.after(1)
        .by(2)
        .adopted(1, 1, 1, (1, 2))
        .tell(What::GivingUp { adoption: 1 });
    told.after(1).by(3).adopted(2, 1, 1, (1, 3)).is_fine();
}

#[test]
fn resources() {
    let wrote = |fenced, attempt, read, taken| What::Wrote {
        resource: key("f"),
        fenced,
        attempt,
        read,
        taken,
    };
    let two = || {
        let mut told = story();
        told.ask(1, &["create f"])
            .granted(1, 1, 1, 100)
            .ask(2, &["create f"]);
        told.after(100).granted(2, 2, 2, 900);
        told
    };
    // Both had read 0.
    let mut told = two();
    told.tell(wrote(true, 2, 0, true))
        .tell(wrote(true, 1, 0, true));
    told.breaks(Law::FencedLosesNothing);

    told = two();
    told.tell(wrote(true, 2, 0, true))
        .tell(wrote(true, 1, 0, false))
        .is_fine();

    told = two();
    told.tell(wrote(true, 2, 0, false))
        .breaks(Law::FencedTakesValid);

    // Nothing is lost, by chance, and still the token is one that it must not take.
    told = two();
    told.tell(wrote(true, 2, 0, true))
        .tell(wrote(true, 1, 1, true));
    told.breaks(Law::FencedLosesNothing);
    let read = |fenced, value| What::Read {
        resource: key("f"),
        fenced,
        attempt: 1,
        value,
    };
    told = two();
    told.tell(wrote(true, 2, 0, true)).tell(read(true, Some(1)));
    told.breaks(Law::FencedLosesNothing);
    told = two();
    told.tell(wrote(true, 2, 0, true)).tell(read(true, None));
    told.tell(read(false, Some(0))).is_fine();

    // The later one comes from a guard that is not valid any more.
    told = two();
    told.tell(wrote(false, 2, 0, true))
        .tell(wrote(false, 1, 0, true));
    let report = crate::history::check(&told.end());
    assert_eq!((report.losses, report.violations.len()), (1, 0));

    told = story();
    told.ask(1, &["create f"]).granted(1, 1, 1, 900);
    told.tell(wrote(false, 1, 0, true))
        .tell(wrote(false, 1, 0, true));
    told.breaks(Law::LossIsExplained);
}

#[test]
fn ends() {
    let mut told = story();
    told.ask(1, &["create f"])
        .tell(What::Stuck { attempt: 1 })
        .breaks(Law::WaitingEnds);
    told = story();
    told.tell(What::NotToBeHad { key: key("f") })
        .breaks(Law::WaitingEnds);
    told = story();
    told.tell(What::ShutDown { done: false })
        .breaks(Law::WaitingEnds);
    told = story();
    told.tell(What::ShutDown { done: true })
        .refused(1, Outcome::Busy)
        .is_fine();
    told = story();
    told.tell(What::Left {
        key: key("f"),
        grant: grant((1, 1)),
    });
    told.breaks(Law::UnknownIsSettled);
    told = story();
    told.opened(1, 1_000)
        .acquired((1, 1), &["upsert f", "upsert g"], 1);
    told.tell(What::Left {
        key: key("f"),
        grant: grant((1, 1)),
    });
    told.breaks(Law::NothingKept);
}

#[test]
fn a_number_of_an_adoption_is_one_adopters() {
    // As clients know it: nothing of the sessions, and not every answer.
    let adopt = |adopter, number| Stored::Adopt {
        session: session(1),
        seen: number - 1,
        adopter: session(adopter),
        give_up: false,
        number: Some(number),
    };
    let settle = |adopter, adoption| Stored::Settle {
        session: session(1),
        adoption,
        adopter: session(adopter),
        settled: true,
    };
    let mut told = story();
    told.stored(adopt(2, 1)).stored(adopt(2, 1));
    told.stored(adopt(3, 4)).stored(settle(3, 4)).is_fine();
    told = story();
    told.stored(adopt(2, 1)).stored(adopt(3, 1));
    told.breaks(Law::OneAdopter);
    told = story();
    told.stored(adopt(2, 1)).stored(settle(2, 2));
    told.breaks(Law::OneAdopter);
    told = story();
    told.stored(adopt(2, 1)).stored(settle(3, 1));
    told.breaks(Law::OneAdopter);
}

#[test]
fn a_guard_that_the_store_denies_before_its_deadline() {
    let denied = |told: &mut Story| {
        let (attempt, held) = (1, false);
        told.tell(What::Confirmed { attempt, held });
    };
    let mut told = story();
    told.ask(1, &["upsert f"]).granted(1, 1, 1, 900).after(899);
    denied(&mut told);
    told.breaks(Law::Guard);

    // It says so itself, and still too early.
    told = story();
    told.ask(1, &["upsert f"]).granted(1, 1, 1, 900);
    told.after(500).look(1, 0);
    denied(&mut told);
    told.breaks(Law::Guard);

    told = story();
    told.ask(1, &["upsert f"]).granted(1, 1, 1, 900).after(900);
    denied(&mut told);
    told.is_fine();

    told = story();
    told.ask(1, &["upsert f"]).granted(1, 1, 1, 900);
    told.tell(What::Confirmed {
        attempt: 1,
        held: true,
    });
    told.is_fine();

    for before in [
        What::Revoking {
            session: session(1),
        },
        What::Stepped { by: 1 },
    ] {
        told = story();
        told.ask(1, &["upsert f"])
            .granted(1, 1, 1, 900)
            .tell(before);
        denied(&mut told);
        told.is_fine();
    }

    // The guard that it has re-entered was dropped, and its session closed.
    told = story();
    told.ask_with_intent(2, &["upsert f"]).granted(2, 1, 1, 900);
    told.ask_as(1, 2, &["upsert f"]).granted(1, 1, 2, 900);
    told.back(2, How::Dropped);
    denied(&mut told);
    told.is_fine();
}
