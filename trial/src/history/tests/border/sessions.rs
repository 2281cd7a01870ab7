//! Sessions, their guards, adoptions and watches.

use super::*;
use crate::faults::{Fault, NetworkFault, ServerFault};
use crate::history::How;

#[test]
fn dead_sessions_stay_dead() {
    let mut told = two();
    told.done(end(1, Ending::Close), states(1, Answer::Dead));
    told.done(renew(1, "", Change::Keep), LIVING)
        .breaks(Law::DeadStaysDead);
    let mut told = two();
    told.done(end(1, Ending::Close), states(1, Answer::Dead));
    told.done(Call::Sessions, states(1, Answer::Living))
        .breaks(Law::DeadStaysDead);
    let mut told = held();
    told.done(end(1, Ending::Close), states(1, Answer::Dead));
    told.done(
        acquire((2, 1), &["create f"]),
        busy(vec![met((1, 1), "f", Mode::X, Answer::Living)]),
    );
    let report = check(&told.end());
    assert!(report.breach_of(&[Law::DeadStaysDead]).is_some());
    // The renewal may have been executed before.
    let mut told = two();
    let (renewal, ended) = (
        told.call(renew(1, "", Change::Keep)),
        told.call(end(1, Ending::Close)),
    );
    told.after(1).reply(ended, states(1, Answer::Dead));
    told.after(1).reply(renewal, LIVING).is_fine();
}

#[test]
fn sessions_die_of_their_end() {
    for (request, reply) in [
        (renew(1, "", Change::Keep), Reply::Renewed(Answer::Dead)),
        (
            renew(1, "", Change::Keep),
            Reply::Renewed(Answer::Forgotten),
        ),
        (end(1, Ending::IfDue), states(1, Answer::Dead)),
        (Call::Sessions, states(1, Answer::Abandoned)),
        (acquire((1, 1), &["create f"]), Reply::Void),
        (adopt(1, 0, 2), received(1)),
    ] {
        let done = |told: &mut Story| {
            told.done(request.clone(), reply.clone());
            let report = check(&told.end());
            report.breach_of(&[Law::DiesOfItsEnd]).is_some()
        };
        assert!(done(&mut two()), "{request:?}");
        // It is due by a clock that runs fast.
        assert!(!done(two().after(760)), "{request:?}");
        let mut told = two();
        told.call(end(1, Ending::Revoke));
        assert!(!done(&mut told), "{request:?}");
        let mut told = two();
        told.after(700).done(renew(1, "", Change::Keep), LIVING);
        assert!(done(told.after(300)), "{request:?}");
    }
    // A lease ends early only if the store's clock is set forward within it.
    let dies = |after: u64, by: i64, over: bool| {
        let mut told = two();
        told.tell(What::Stepped { by });
        if over {
            told.tell(What::Stepped { by: 0 });
        }
        told.after(after).done(renew(1, "", Change::Keep), LIVING);
        told.after(300)
            .done(end(1, Ending::IfDue), states(1, Answer::Dead));
        let report = check(&told.end());
        report.breach_of(&[Law::DiesOfItsEnd]).is_some()
    };
    assert!(dies(1, -1_000_000_000, false), "it was set back");
    assert!(dies(1, 1_000_000_000, true), "it was set forward before");
    assert!(!dies(1, 1_000_000_000, false), "it may be set forward");
    // One that is set forward later excuses nothing before.
    let dies = |after: u64| {
        let mut told = two();
        told.after(300).tell(What::Stepped { by: 1_000_000_000 });
        told.tell(What::Stepped { by: 0 });
        let ended = told.after(0).call(end(1, Ending::IfDue));
        told.after(after).reply(ended, states(1, Answer::Dead));
        let report = check(&told.end());
        report.breach_of(&[Law::DiesOfItsEnd]).is_some()
    };
    assert!(!dies(1), "it was set forward within the lease");
    let mut told = two();
    told.after(300)
        .done(end(1, Ending::IfDue), states(1, Answer::Dead));
    told.after(200).tell(What::Stepped { by: 1_000_000_000 });
    let report = check(&told.end());
    assert!(report.breach_of(&[Law::DiesOfItsEnd]).is_some());
    // A number that is over is void.
    let mut told = two();
    told.done(renew(1, "1-1", Change::Keep), LIVING);
    told.done(acquire((1, 1), &["create f"]), Reply::Void)
        .is_fine();
}

/// Where a list tells what is lost with its server, or what another one knows better, the answers that are sure are judged.
#[test]
fn of_sessions_lists_prove_nothing_where_they_are_unsure() {
    let is_broken = |told: &mut Story| {
        let laws = [Law::DeadStaysDead, Law::DiesOfItsEnd, Law::ExpiryFrees];
        check(&told.end()).breach_of(&laws).is_some()
    };
    for unsure in [false, true] {
        let two = || {
            let mut told = two();
            if unsure {
                let fault = Fault::Server(ServerFault::TakenOver);
                told.tell(What::Unsure).tell(What::Struck { fault });
            }
            told
        };
        let mut told = two();
        told.done(Call::Sessions, states(1, Answer::Dead));
        assert_eq!(is_broken(&mut told), !unsure, "it was not due");
        let mut told = two();
        told.after(2_000)
            .done(Call::Sessions, states(1, Answer::Dead));
        told.done(end(1, Ending::IfDue), states(1, Answer::Living));
        assert_eq!(is_broken(&mut told), !unsure, "it was said to be dead");
        let mut told = two();
        told.done(end(1, Ending::Close), states(1, Answer::Dead));
        told.done(Call::Sessions, states(1, Answer::Living));
        assert_eq!(is_broken(&mut told), !unsure, "it is dead");
        let mut told = two();
        told.done(end(1, Ending::IfDue), states(1, Answer::Dead));
        assert!(is_broken(&mut told), "whoever ended it is sure");
        let mut told = two();
        told.done(end(1, Ending::Close), states(1, Answer::Dead));
        told.done(renew(1, "", Change::Keep), LIVING);
        assert!(is_broken(&mut told), "and so is a renewal");
    }
}

/// What a renewal names may be released before it is executed.
#[test]
fn what_is_released_beside_a_renewal_need_not_be_there() {
    let forgotten = || Reply::Renewed(Answer::Forgotten);
    let breaks = |named: &str, when: usize| {
        let mut told = held();
        let gives_back = |told: &mut Story, at| {
            if at == when {
                told.call(release((1, 1), &["create f"]));
            }
        };
        let renewal = told.call(naming(1, "", Change::Keep, named));
        gives_back(&mut told, 1);
        told.after(1).reply(renewal, forgotten());
        gives_back(&mut told, 2);
        let report = check(&told.end());
        report.breach_of(&[Law::DiesOfItsEnd]).is_some()
    };
    assert!(!breaks("1-1", 1), "its release was under way");
    assert!(breaks("1-1", 2), "it was released later");
    assert!(breaks("2-2", 1), "another one was asked for");
    assert!(breaks("1-1", 0), "nobody has released it");
}

#[test]
fn expiry_frees() {
    let asks = |after: u64, dies: bool| {
        let mut told = held();
        told.after(after);
        if dies {
            told.done(end(1, Ending::Close), states(1, Answer::Dead));
        }
        told.done(renew(2, "", Change::Keep), LIVING);
        told.done(
            acquire((2, 1), &["create f"]),
            busy(vec![met((1, 1), "f", Mode::X, Answer::Abandoned)]),
        );
        check(&told.end()).breach_of(&[Law::ExpiryFrees]).is_some()
    };
    assert!(asks(0, true), "it is dead");
    assert!(!asks(900, false), "it is not due");
    assert!(asks(1_010, false), "it is due");
    // An intent keeps it.
    let mut told = held();
    told.done(renew(1, "", Change::Put(1)), LIVING).after(1_100);
    told.done(
        acquire((2, 1), &["create f"]),
        busy(vec![met((1, 1), "f", Mode::X, Answer::Abandoned)]),
    );
    assert!(check(&told.end()).violations.is_empty());
}

#[test]
fn deadlines_are_within_the_lease() {
    let asks = |left: u64| {
        let mut told = two();
        told.ask(1, &["create f"]);
        told.done(acquire((1, 1), &["create f"]), Reply::Granted(1));
        // Four milliseconds for the sessions, and two for the request.
        told.granted(1, 1, 1, 700).look(1, left);
        told
    };
    asks(994).is_fine();
    asks(995).breaks(Law::DeadlineWithinLease);
}

#[test]
fn guards_are_handed_out_while_they_are_valid() {
    let asks = |before: u64, after: u64, token: u64| {
        let mut told = two();
        told.in_real_time().ask(1, &["create f"]).after(before);
        told.done(acquire((1, 1), &["create f"]), Reply::Granted(1));
        told.after(after).granted(1, 1, token, 0);
        told
    };
    asks(700, 0, 1).is_fine();
    asks(750, 0, 1).breaks(Law::HandedOutValid);
    asks(700, 140, 1).is_fine();
    asks(700, 200, 1).breaks(Law::HandedOutValid);
    asks(700, 0, 2).breaks(Law::HandedOutValid);
    // A process that was stopped in between does not know.
    let mut told = two();
    told.in_real_time().ask(1, &["create f"]);
    told.done(acquire((1, 1), &["create f"]), Reply::Granted(1));
    told.tell(What::Paused).after(2_000).tell(What::Resumed);
    told.granted(1, 1, 1, 0).is_fine();
}

#[test]
fn a_grant_goes_on_for_fifty_milliseconds() {
    let told = |after: u64, pass: u64, real: bool| {
        let mut told = two();
        told.ask(1, &["create f"]).ask(2, &["create f"]);
        told.done(acquire((1, 1), &["create f"]), Reply::Granted(1));
        told.granted(1, 1, 1, 700).after(after);
        told.back(1, How::Released);
        told.handed_on(2, 1, (1, pass), (1, 600));
        if real {
            told.in_real_time();
        }
        told
    };
    told(50, 1, false).is_fine();
    told(51, 1, false).breaks(Law::HandedOnForShort);
    told(150, 63, true).is_fine();
    told(151, 63, true).breaks(Law::HandedOnForShort);
    // As ever, who has the next one's token has to wait for the end of the guard before.
    let mut told = two();
    told.ask(1, &["create f"]).ask(2, &["create f"]);
    told.done(acquire((1, 1), &["create f"]), Reply::Granted(1));
    told.granted(1, 1, 1, 700);
    told.handed_on(2, 1, (1, 1), (1, 600));
    told.breaks(Law::AtMostOneHolder);
}

#[test]
fn one_adopts_and_settles() {
    let mut told = abandoned();
    told.done(adopt(1, 0, 2), received(1));
    told.done(settle(1, 1), Reply::Settled(true)).is_fine();
    let mut told = abandoned();
    told.done(settle(1, 1), Reply::Settled(true))
        .breaks(Law::OneAdopter);
    let adopted = || {
        let mut told = abandoned();
        told.done(open(3), Reply::Opened(true));
        told.done(adopt(1, 0, 2), received(1));
        told
    };
    adopted()
        .done(adopt(1, 1, 3), received(2))
        .breaks(Law::OneAdopter);
    adopted()
        .after(800)
        .done(adopt(1, 1, 3), received(2))
        .is_fine();
    adopted().done(adopt(1, 0, 2), received(1)).is_fine();
    adopted()
        .done(adopt(1, 0, 3), received(1))
        .breaks(Law::OneAdopter);
    adopted()
        .done(settle(1, 1), Reply::Settled(true))
        .done(adopt(1, 1, 2), received(2))
        .breaks(Law::OneAdopter);
}

#[test]
fn a_revocation_of_another_takes_no_adoption_out() {
    let told = |revoked: u128| {
        let mut told = abandoned();
        told.in_real_time();
        for (adoption, adopter) in [(1, 2), (2, 3)] {
            told.done(open(3), Reply::Opened(adopter == 2));
            told.done(adopt(1, adoption - 1, adopter), received(adoption));
            told.tell(What::Adopted {
                adoption,
                session: session(1),
                attempt: 1,
                old_token: lockcore::FencingToken::new(64).unwrap(),
                token: lockcore::FencingToken::new((100 + adoption) * 64).unwrap(),
            });
            if adoption == 1 {
                let session = session(revoked);
                told.tell(What::Revoking { session });
            }
        }
        told.after(10).believes(1, 900);
        let violations = check(&told.end()).violations;
        violations
            .iter()
            .any(|found| found.what.contains("at the same time"))
    };
    assert!(told(9), "another session");
    assert!(!told(2), "the adopter's");
}

#[test]
fn intents_stay() {
    let mut told = held();
    told.done(renew(1, "", Change::Put(1)), LIVING);
    told.done(end(1, Ending::Close), states(1, Answer::Dead))
        .breaks(Law::IntentStays);
    let mut told = held();
    told.done(renew(1, "", Change::Put(1)), LIVING);
    told.done(renew(1, "", Change::Drop), LIVING);
    told.done(end(1, Ending::Close), states(1, Answer::Dead))
        .is_fine();
    abandoned()
        .done(end(1, Ending::Discard), states(1, Answer::Dead))
        .is_fine();
}

#[test]
fn watches_wake_in_time() {
    let told = |closes: bool, after: u64, wakes: bool| {
        let mut told = held();
        told.by(2);
        let watch = told.call(Call::Watch {
            claims: claims(&["create f"]),
        });
        told.after(1).reply(watch, Reply::Stands).after(1).by(1);
        match closes {
            true => told.done(end(1, Ending::Close), states(1, Answer::Dead)),
            false => told.done(release((1, 1), &["create f"]), Reply::Released(true)),
        };
        told.after(after).by(2).tell(match wakes {
            true => What::Woken { call: watch },
            false => What::Unwatched { call: watch },
        });
        told.after(1).tell(What::Calm);
        told
    };
    for closes in [false, true] {
        told(closes, 500, true).is_fine();
        told(closes, 530, true).breaks(Law::Waiting);
        told(closes, 500, false).is_fine();
        told(closes, 530, false).breaks(Law::Waiting);
        let mut late = told(closes, 530, true);
        late.tell(What::Calm);
        let mut history = late.end();
        let at = history.events.len() - 3;
        let woken = history.events[at].at;
        history.events.insert(
            at,
            crate::history::Event {
                at: woken,
                process: 2,
                what: What::Late { by: 100 * MS },
            },
        );
        assert!(
            check(&history).violations.is_empty(),
            "the machine was late"
        );
    }
}

#[test]
fn watches_wake_in_time_where_the_way_is_well() {
    let told = |cut_off: u32| {
        let mut told = held();
        let fault = Fault::Network(NetworkFault::Silent);
        told.by(cut_off).tell(What::Struck { fault });
        told.after(1).tell(What::Mended { fault }).by(2);
        let watch = told.call(Call::Watch {
            claims: claims(&["create f"]),
        });
        told.after(1).reply(watch, Reply::Stands).after(1).by(1);
        told.done(release((1, 1), &["create f"]), Reply::Released(true));
        told.after(530).by(2).tell(What::Woken { call: watch });
        told.after(1).tell(What::Calm);
        told
    };
    told(1).breaks(Law::Waiting);
    told(2).is_fine();
}

#[test]
fn watches_wake_when_it_was_granted_at_the_second_try() {
    let mut told = two();
    told.done(acquire((2, 9), &["create f"]), Reply::Granted(1));
    told.done(acquire((1, 1), &["create f"]), by((2, 9), "f"));
    told.done(release((2, 9), &["create f"]), Reply::Released(true));
    let again = Call::Acquire {
        grant: grant((1, 2)),
        owner: OwnerId {
            session: session(1),
            m: 1,
        },
        claims: claims(&["create f"]),
        joined: false,
        waits: false,
        past: Vec::new(),
    };
    told.done(again, Reply::Granted(2)).by(2);
    let watch = told.call(Call::Watch {
        claims: claims(&["create f"]),
    });
    told.after(1).reply(watch, Reply::Stands).after(1).by(1);
    told.done(release((1, 2), &["create f"]), Reply::Released(true));
    told.after(530).by(2).tell(What::Woken { call: watch });
    told.after(1).tell(What::Calm);
    told.breaks(Law::Waiting);
}

/// Of those who wait in one process for one key only some look.
#[test]
fn a_process_is_told_by_any_of_its_watches_and_by_itself() {
    let told = |releases: u32, other: Option<u32>| {
        let mut told = held();
        told.by(2);
        let watch = |told: &mut Story, process| {
            let claims = claims(&["create f"]);
            let watch = told.by(process).call(Call::Watch { claims });
            told.after(1).reply(watch, Reply::Stands);
            watch
        };
        let sleeps = watch(&mut told, 2);
        let woken = other.map(|process| (process, watch(&mut told, process)));
        told.after(1).by(releases);
        told.done(release((1, 1), &["create f"]), Reply::Released(true));
        if let Some((process, call)) = woken {
            told.after(100).by(process).tell(What::Woken { call });
        }
        told.after(1_000).by(2).tell(What::Woken { call: sleeps });
        told.after(1).tell(What::Calm);
        told
    };
    told(1, None).breaks(Law::Waiting);
    told(1, Some(2)).is_fine();
    told(1, Some(3)).breaks(Law::Waiting);
    told(2, None).is_fine();
}

/// Whether the other store has the intent is not known: who has one does not move to it.
#[test]
fn a_guard_with_an_intent_falls_where_the_store_is_another_one() {
    for (intent, moved) in [(true, true), (true, false), (false, true)] {
        let mut told = two();
        match intent {
            true => told.ask_with_intent(1, &["create f"]),
            false => told.ask(1, &["create f"]),
        };
        told.done(acquire((1, 1), &["create f"]), Reply::Granted(1));
        told.granted(1, 1, 1, 700).after(1);
        let answer = match moved {
            true => Answer::Moved,
            false => Answer::Overtaken,
        };
        told.done(renew(1, "", Change::Keep), Reply::Renewed(answer));
        let (attempt, held) = (1, false);
        told.tell(What::Confirmed { attempt, held });
        match intent && moved {
            true => told.is_fine(),
            false => told.breaks(Law::Guard),
        }
    }
}

#[test]
fn what_was_dead_before_was_not_held() {
    let released = |told: &mut Story, held| {
        let attempt = 1;
        told.tell(What::GaveBack { attempt, held });
    };
    for held in [Some(true), Some(false), None] {
        let mut told = two();
        told.in_real_time()
            .ask(1, &["create f"])
            .granted(1, 1, 1, 900);
        told.done(end(1, Ending::Revoke), states(1, Answer::Dead));
        told.after(1).back(1, How::Released).after(1);
        released(&mut told, held);
        let found = check(&told.end()).breach_of(&[Law::Guard]).is_some();
        assert_eq!(found, held == Some(true), "{held:?}");
    }
    // It may have been held until it was given back.
    let mut told = two();
    told.in_real_time()
        .ask(1, &["create f"])
        .granted(1, 1, 1, 900);
    told.after(1).back(1, How::Released);
    told.done(end(1, Ending::Revoke), states(1, Answer::Dead));
    released(&mut told, Some(true));
    assert!(check(&told.end()).breach_of(&[Law::Guard]).is_none());
}
