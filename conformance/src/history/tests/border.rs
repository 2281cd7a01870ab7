//! Requests and answers: each law kept by the least history that looks like its breach, and broken by the least one.

use lockcore::{Mode, OwnerId, Ranges};

use super::story::{Story, claims, grant, key, session};
use crate::history::{
    Answer, Call, Change, Ending, Law, Met, Received, Refused, Reply, State, What, check,
};

const MS: u64 = 1_000_000;

fn open(id: u128) -> Call {
    let (session, ttl) = (session(id), 1_000 * MS);
    Call::Open { session, ttl }
}

fn renew(id: u128, over: &str, change: Change) -> Call {
    Call::Renew {
        session: session(id),
        seq: 1,
        over: over.parse::<Ranges>().unwrap(),
        change,
    }
}

fn end(id: u128, how: Ending) -> Call {
    let sessions = vec![session(id)];
    Call::End { sessions, how }
}

fn acquire(of: (u128, u64), wanted: &[&str]) -> Call {
    Call::Acquire {
        grant: grant(of),
        owner: OwnerId {
            session: session(of.0),
            m: of.1,
        },
        claims: claims(wanted),
        joined: false,
    }
}

fn release(of: (u128, u64), wanted: &[&str]) -> Call {
    let (grant, claims) = (grant(of), claims(wanted));
    Call::Release { grant, claims }
}

fn confirm(of: (u128, u64), wanted: &[&str]) -> Call {
    let (grant, claims) = (grant(of), claims(wanted));
    Call::Confirm { grant, claims }
}

fn adopt(id: u128, seen: u64, adopter: u128) -> Call {
    Call::Adopt {
        session: session(id),
        seen,
        adopter: session(adopter),
        give_up: false,
    }
}

fn settle(id: u128, adoption: u64) -> Call {
    let session = session(id);
    Call::Settle { session, adoption }
}

fn received(number: u64) -> Reply {
    Reply::Adopted(Some(Received {
        number,
        token: 100 + number,
        old_token: 1,
    }))
}

fn states(id: u128, life: Answer) -> Reply {
    let session = session(id);
    Reply::States(vec![State { session, life }])
}

fn met(of: (u128, u64), on: &str, mode: Mode, life: Answer) -> Met {
    Met {
        grant: grant(of),
        key: key(on),
        mode,
        life,
    }
}

/// The first claim was refused by these.
fn busy(by: Vec<Met>) -> Reply {
    let (claim, more) = (0, false);
    Reply::Busy(vec![Refused { claim, by, more }])
}

fn by(of: (u128, u64), on: &str) -> Reply {
    busy(vec![met(of, on, Mode::X, Answer::Living)])
}

const LIVING: Reply = Reply::Renewed(Answer::Living);

/// Two sessions of two processes, each opened for a second.
fn two() -> Story {
    let mut told = Story::new();
    told.tell(What::Begun {
        ttl: 1_000 * MS,
        poll: Some(10 * MS),
        allowance: 0,
        steady: true,
    });
    told.done(open(1), Reply::Opened(true));
    told.done(open(2), Reply::Opened(true));
    told
}

/// The first session holds f.
fn held() -> Story {
    let mut told = two();
    told.done(acquire((1, 1), &["create f"]), Reply::Granted(1));
    told
}

#[test]
fn one_holder_at_a_time() {
    held()
        .done(acquire((2, 1), &["create f"]), Reply::Granted(2))
        .breaks(Law::AtMostOneHolder);
    held()
        .done(release((1, 1), &["create f"]), Reply::Released)
        .done(acquire((2, 1), &["create f"]), Reply::Granted(2))
        .is_fine();
    // A release that is under way may be executed already.
    let mut told = held();
    told.call(release((1, 1), &["create f"]));
    told.done(acquire((2, 1), &["create f"]), Reply::Granted(2))
        .is_fine();
    // Nobody knows which of two calls was executed first.
    let mut told = held();
    let (second, freed) = (
        told.call(acquire((2, 1), &["create f"])),
        told.call(release((1, 1), &["create f"])),
    );
    told.after(1).reply(second, Reply::Granted(2));
    told.after(1).reply(freed, Reply::Released).is_fine();
    // Its guards do not believe in it any more.
    held()
        .after(760)
        .done(acquire((2, 1), &["create f"]), Reply::Granted(2))
        .is_fine();
    let mut told = two();
    told.done(acquire((1, 1), &["read /a"]), Reply::Granted(1));
    told.done(acquire((2, 1), &["write /a/b"]), Reply::Granted(2))
        .breaks(Law::AtMostOneHolder);
    let mut told = two();
    told.done(acquire((1, 1), &["read /a"]), Reply::Granted(1));
    told.done(acquire((2, 1), &["read /a/b"]), Reply::Granted(2))
        .is_fine();
}

#[test]
fn an_intent_keeps_its_locks_after_the_death() {
    let told = |settles: bool| {
        let mut told = held();
        told.done(renew(1, "", Change::Put(1)), LIVING).after(2_000);
        if settles {
            told.done(end(1, Ending::Discard), states(1, Answer::Dead));
        }
        told.done(open(3), Reply::Opened(true));
        told.done(acquire((3, 1), &["create f"]), Reply::Granted(3));
        told
    };
    told(false).breaks(Law::AtMostOneHolder);
    told(true).is_fine();
}

#[test]
fn owners_meet_themselves() {
    let again = |owner: u64| {
        let mut told = two();
        told.done(acquire((1, 1), &["upsert f"]), Reply::Granted(1));
        let Call::Acquire { claims, .. } = acquire((1, 2), &["upsert f"]) else {
            unreachable!();
        };
        let request = Call::Acquire {
            grant: grant((1, 2)),
            owner: OwnerId {
                session: session(1),
                m: owner,
            },
            claims,
            joined: false,
        };
        (told, request)
    };
    let (mut told, request) = again(1);
    told.done(request, Reply::Granted(2)).is_fine();
    let (mut told, request) = again(2);
    told.done(request, Reply::Granted(2))
        .breaks(Law::AtMostOneHolder);
    let (mut told, request) = again(1);
    told.done(request, by((1, 1), "f"))
        .breaks(Law::OwnersReenter);
    let (mut told, request) = again(2);
    told.done(request, by((1, 1), "f")).is_fine();
}

#[test]
fn shares_have_their_limit() {
    let told = |limit: &str| {
        let mut told = two();
        told.done(acquire((1, 1), &["share f"]), Reply::Granted(1));
        told.done(acquire((2, 1), &[limit]), Reply::Granted(2));
        told
    };
    told("share:1 f").breaks(Law::SharedAreASet);
    told("share:2 f").is_fine();
}

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
    // A number that is over is void.
    let mut told = two();
    told.done(renew(1, "1-1", Change::Keep), LIVING);
    told.done(acquire((1, 1), &["create f"]), Reply::Void)
        .is_fine();
}

#[test]
fn refusals_name_whoever_may_hold_it() {
    held()
        .done(acquire((2, 1), &["create f"]), by((1, 1), "f"))
        .is_fine();
    held()
        .done(release((1, 1), &["create f"]), Reply::Released)
        .done(acquire((2, 1), &["create f"]), by((1, 1), "f"))
        .breaks(Law::AllowedIsGranted);
    held()
        .done(renew(1, "1-1", Change::Keep), LIVING)
        .done(acquire((2, 1), &["create f"]), by((1, 1), "f"))
        .breaks(Law::AllowedIsGranted);
    // An earlier copy has no answer and may be executed after the release.
    let mut told = two();
    told.call(acquire((1, 1), &["create f"]));
    told.done(acquire((1, 1), &["create f"]), Reply::Granted(1))
        .done(release((1, 1), &["create f"]), Reply::Released)
        .done(acquire((2, 1), &["create f"]), by((1, 1), "f"))
        .is_fine();
    // So may a copy that the way makes.
    let mut told = held();
    told.tell(What::Repeats);
    told.done(release((1, 1), &["create f"]), Reply::Released)
        .done(acquire((2, 1), &["create f"]), by((1, 1), "f"))
        .is_fine();
    // Whoever was refused holds nothing.
    let mut told = held();
    told.done(acquire((2, 1), &["create f"]), by((1, 1), "f"));
    told.done(release((1, 1), &["create f"]), Reply::Released);
    told.done(open(3), Reply::Opened(true));
    told.done(acquire((3, 1), &["create f"]), by((2, 1), "f"))
        .breaks(Law::AllowedIsGranted);
    // Somebody is named who is not in the way, or nobody.
    let mut told = two();
    told.done(acquire((1, 1), &["share f"]), Reply::Granted(1));
    told.done(
        acquire((2, 1), &["share f"]),
        busy(vec![met((1, 1), "f", Mode::IS, Answer::Living)]),
    )
    .breaks(Law::AllowedIsGranted);
    let mut told = two();
    told.done(acquire((2, 1), &["create f"]), busy(Vec::new()))
        .breaks(Law::AllowedIsGranted);
    held()
        .done(acquire((2, 1), &["create f"]), busy(Vec::new()))
        .is_fine();
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
fn holders_hold_what_they_asked_for() {
    held()
        .done(acquire((2, 1), &["create f"]), by((1, 9), "f"))
        .breaks(Law::OneGrantPerRequest);
    held()
        .done(
            Call::Records,
            Reply::Listed(vec![met((1, 1), "g", Mode::X, Answer::Living)]),
        )
        .breaks(Law::OwnClaimsOnly);
    let mut told = two();
    told.done(acquire((1, 1), &["read /a/b"]), Reply::Granted(1));
    let above = |mode| Reply::Listed(vec![met((1, 1), "/a", mode, Answer::Living)]);
    told.done(Call::Records, above(Mode::IS));
    let mut too_much = two();
    too_much.done(acquire((1, 1), &["read /a/b"]), Reply::Granted(1));
    too_much
        .done(Call::Records, above(Mode::IX))
        .breaks(Law::OwnClaimsOnly);
    told.is_fine();
    let twice = vec![met((1, 1), "f", Mode::X, Answer::Living); 2];
    let mut told = held();
    told.done(Call::Records, Reply::Listed(twice));
    told.breaks(Law::OneGrantPerRequest);
    // One name, two requests.
    held()
        .done(acquire((1, 1), &["create g"]), Reply::Granted(2))
        .breaks(Law::OneGrantPerRequest);
    held()
        .done(acquire((1, 1), &["create f"]), Reply::Granted(2))
        .is_fine();
}

#[test]
fn tokens_rise_on_every_key_and_above() {
    let after = |first: &str, second: &str, token| {
        let mut told = two();
        told.done(acquire((1, 1), &[first]), Reply::Granted(5));
        told.done(release((1, 1), &[first]), Reply::Released);
        told.done(acquire((2, 1), &[second]), Reply::Granted(token));
        told
    };
    after("create f", "create f", 5).breaks(Law::TokensOnlyRise);
    after("create f", "create f", 6).is_fine();
    after("create f", "create g", 4).is_fine();
    after("write /a", "write /a/b", 4).breaks(Law::TokensOnlyRise);
    after("write /a/b", "write /a", 4).breaks(Law::TokensOnlyRise);
    after("write /a/b", "write /a", 6).is_fine();
    // Who asks at the same time may get any.
    let mut told = two();
    let other = told.call(acquire((2, 1), &["share f"]));
    told.done(acquire((1, 1), &["share f"]), Reply::Granted(5));
    told.reply(other, Reply::Granted(4)).is_fine();
}

#[test]
fn confirmations_say_what_is_so() {
    let yes = || (confirm((1, 1), &["create f"]), Reply::Confirmed(true));
    let no = || (confirm((1, 1), &["create f"]), Reply::Confirmed(false));
    let told = |mut told: Story, (request, reply): (Call, Reply)| {
        told.done(request, reply);
        check(&told.end())
            .breach_of(&[Law::ConfirmationsAreTrue])
            .is_some()
    };
    assert!(!told(held(), yes()));
    assert!(told(held(), no()));
    assert!(told(two(), yes()), "nobody asked for it");
    assert!(!told(two(), no()));
    let ended = || {
        let mut told = held();
        told.done(end(1, Ending::Revoke), states(1, Answer::Dead));
        told
    };
    assert!(told(ended(), yes()));
    assert!(!told(ended(), no()));
    let over = || {
        let mut told = held();
        told.done(renew(1, "1-1", Change::Keep), LIVING);
        told
    };
    assert!(told(over(), yes()));
    assert!(!told(over(), no()));
    let mut late = held();
    late.after(760);
    assert!(!told(late, no()), "it may be due");
    // Somebody else has it.
    let taken = || {
        let mut told = held();
        told.after(760).done(renew(2, "", Change::Keep), LIVING);
        told.done(acquire((2, 1), &["create f"]), Reply::Granted(2));
        told
    };
    assert!(told(taken(), yes()));
    assert!(!told(taken(), no()));
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

/// The first session is abandoned.
fn abandoned() -> Story {
    let mut told = held();
    told.done(renew(1, "", Change::Put(1)), LIVING);
    told.done(end(1, Ending::Close), states(1, Answer::Abandoned));
    told
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
                old_token: lockcore::FencingToken::new(1).unwrap(),
                token: lockcore::FencingToken::new(100 + adoption).unwrap(),
            });
            if adoption == 1 {
                let session = session(revoked);
                told.tell(What::Revoking { session });
            }
        }
        told.after(10).tell(What::Believed { adoption: 1 });
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
            false => told.done(release((1, 1), &["create f"]), Reply::Released),
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
fn a_violation_shows_whom_it_is_about() {
    let mut told = held();
    told.done(acquire((1, 7), &["create other"]), Reply::Granted(3));
    told.done(acquire((2, 1), &["create f"]), Reply::Granted(2));
    let history = told.end();
    let report = check(&history);
    let shown = report.violations[0].around(&history, 40, 5);
    let mine = grant((1, 1)).to_string();
    assert!(shown.contains("=>") && shown.contains(&mine), "{shown}");
    assert!(!shown.contains("other"), "{shown}");
}

#[test]
fn each_law_counts_what_it_judges() {
    let mut told = held();
    told.done(acquire((2, 1), &["create f"]), by((1, 1), "f"));
    told.done(release((1, 1), &["create f"]), Reply::Released);
    told.done(acquire((2, 2), &["create f"]), Reply::Granted(2));
    let report = check(&told.end());
    assert_eq!(report.judged.get(&Law::AtMostOneHolder), Some(&1));
    assert_eq!(report.judged.get(&Law::TokensOnlyRise), Some(&1));
    assert_eq!(report.judged.get(&Law::OwnClaimsOnly), Some(&1));
    assert!(report.idle(1).any(|(law, _)| law == Law::Waiting));
    assert!(!report.idle(1).any(|(law, _)| law == Law::OwnClaimsOnly));
    assert!(report.table(2).contains("does not count"));
}
