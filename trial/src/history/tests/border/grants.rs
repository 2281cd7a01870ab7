//! Grants, refusals, tokens and confirmations; and what a report tells.

use super::*;

#[test]
fn one_holder_at_a_time() {
    held()
        .done(acquire((2, 1), &["create f"]), Reply::Granted(2))
        .breaks(Law::AtMostOneHolder);
    held()
        .done(release((1, 1), &["create f"]), Reply::Released(true))
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
    told.after(1).reply(freed, Reply::Released(true)).is_fine();
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
            waits: false,
            past: Vec::new(),
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

/// The same, and it waits in line if it is refused.
fn waiting(of: (u128, u64), wanted: &[&str], passes: &[(u128, u64)]) -> Call {
    let mut call = acquire(of, wanted);
    let Call::Acquire { waits, past, .. } = &mut call else {
        unreachable!();
    };
    (*waits, *past) = (true, passes.iter().copied().map(grant).collect());
    call
}

#[test]
fn who_comes_later_is_granted_later() {
    // 1 holds f, 2 waits for it; then 1 gives it back.
    let told = |wants: &str| {
        let mut told = held();
        told.done(open(3), Reply::Opened(true));
        told.done(waiting((2, 1), &[wants], &[]), by((1, 1), "f"));
        told.done(release((1, 1), &["create f"]), Reply::Released(true));
        told
    };
    told("create f")
        .done(acquire((3, 1), &["create f"]), Reply::Granted(2))
        .breaks(Law::InTurn);
    told("share f")
        .done(acquire((3, 1), &["create f"]), Reply::Granted(2))
        .breaks(Law::InTurn);
    told("share f")
        .done(acquire((3, 1), &["share f"]), Reply::Granted(2))
        .is_fine();
    told("create f")
        .done(waiting((3, 1), &["create f"], &[(2, 1)]), Reply::Granted(2))
        .is_fine();
    told("create f")
        .done(waiting((2, 1), &["create f"], &[]), Reply::Granted(2))
        .is_fine();
    told("create f")
        .done(release((2, 1), &["create f"]), Reply::Released(false))
        .done(acquire((3, 1), &["create f"]), Reply::Granted(2))
        .is_fine();
    told("create f")
        .done(renew(2, "1-1", Change::Keep), LIVING)
        .done(acquire((3, 1), &["create f"]), Reply::Granted(2))
        .is_fine();
    // Its session may be due.
    told("create f")
        .after(760)
        .done(open(4), Reply::Opened(true))
        .done(acquire((4, 1), &["create f"]), Reply::Granted(2))
        .is_fine();
    // Its session may be abandoned: its intent keeps what it holds, and no place in line.
    let intends = |told: &mut Story| {
        told.done(renew(2, "", Change::Put(1)), LIVING);
    };
    let mut living = told("create f");
    intends(&mut living);
    living
        .done(acquire((3, 1), &["create f"]), Reply::Granted(2))
        .breaks(Law::InTurn);
    let mut abandoned = told("create f");
    intends(&mut abandoned);
    abandoned
        .done(end(2, Ending::Revoke), states(2, Answer::Abandoned))
        .done(acquire((3, 1), &["create f"]), Reply::Granted(2))
        .is_fine();
    // Its next request may have been executed already.
    let mut told = told("create f");
    told.call(waiting((2, 1), &["create f"], &[]));
    told.done(acquire((3, 1), &["create f"]), Reply::Granted(3))
        .breaks(Law::InTurn);
}

#[test]
fn who_asked_before_may_be_granted_before() {
    let mut told = held();
    told.done(open(3), Reply::Opened(true));
    let before = told.call(acquire((3, 1), &["create f"]));
    told.done(waiting((2, 1), &["create f"], &[]), by((1, 1), "f"));
    told.done(release((1, 1), &["create f"]), Reply::Released(true));
    told.after(1).reply(before, Reply::Granted(2)).is_fine();
}

#[test]
fn whoever_waits_below_is_in_the_way_above() {
    let told = |wants: &str| {
        let mut told = two();
        told.done(open(3), Reply::Opened(true));
        told.done(acquire((1, 1), &["read /a"]), Reply::Granted(1));
        let refused = busy(vec![met((1, 1), "/a", Mode::S, Answer::Living)]);
        told.done(waiting((2, 1), &["write /a/b"], &[]), refused);
        told.done(acquire((3, 1), &[wants]), Reply::Granted(2));
        told
    };
    told("read /a").breaks(Law::InTurn);
    told("read /a/c").is_fine();
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
    // An earlier copy has no answer and may have been granted before.
    let again = |first: bool| {
        let mut told = two();
        if first {
            told.call(acquire((2, 1), &["share:1 f"]));
        }
        told.done(acquire((1, 1), &["share f"]), Reply::Granted(2));
        if !first {
            told.call(acquire((2, 1), &["share:1 f"]));
        }
        told.done(acquire((2, 1), &["share:1 f"]), Reply::Granted(3));
        told
    };
    again(true).is_fine();
    again(false).breaks(Law::SharedAreASet);
}

#[test]
fn refusals_name_whoever_may_hold_it() {
    held()
        .done(acquire((2, 1), &["create f"]), by((1, 1), "f"))
        .is_fine();
    held()
        .done(release((1, 1), &["create f"]), Reply::Released(true))
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
        .done(release((1, 1), &["create f"]), Reply::Released(true))
        .done(acquire((2, 1), &["create f"]), by((1, 1), "f"))
        .is_fine();
    // So may a copy that the way makes.
    let mut told = held();
    told.tell(What::Repeats);
    told.done(release((1, 1), &["create f"]), Reply::Released(true))
        .done(acquire((2, 1), &["create f"]), by((1, 1), "f"))
        .is_fine();
    // Whoever was refused holds nothing.
    let mut told = held();
    told.done(acquire((2, 1), &["create f"]), by((1, 1), "f"));
    told.done(release((1, 1), &["create f"]), Reply::Released(true));
    told.done(open(3), Reply::Opened(true));
    told.done(acquire((3, 1), &["create f"]), by((2, 1), "f"))
        .breaks(Law::AllowedIsGranted);
    // Unless the way makes another copy of its request, which is granted.
    let mut told = held();
    told.tell(What::Repeats);
    told.done(acquire((2, 1), &["create f"]), by((1, 1), "f"));
    told.done(release((1, 1), &["create f"]), Reply::Released(true));
    told.done(open(3), Reply::Opened(true));
    told.done(acquire((3, 1), &["create f"]), by((2, 1), "f"))
        .is_fine();
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
    // Those who came before wait for it.
    let mut told = two();
    told.done(acquire((2, 1), &["create f"]), waited_for())
        .is_fine();
    held()
        .done(acquire((2, 1), &["create f"]), busy(Vec::new()))
        .is_fine();
}

#[test]
fn an_earlier_copy_of_what_has_moved_may_stand() {
    let moved = |doubles: bool| {
        let mut told = two();
        if doubles {
            told.tell(What::Doubles);
        }
        told.done(acquire((1, 1), &["create f"]), Reply::Moved);
        told
    };
    // It is named, or not, to who is refused; and listed.
    let meets = || {
        let listed = vec![met((1, 1), "f", Mode::X, Answer::Living)];
        let asks = || acquire((2, 1), &["create f"]);
        [
            (asks(), by((1, 1), "f")),
            (asks(), busy(Vec::new())),
            (Call::Records, Reply::Listed(listed)),
        ]
    };
    for (request, reply) in meets() {
        moved(true).done(request, reply).is_fine();
    }
    // Whoever has sent it once to a store that executes nothing twice has no copy.
    for (request, reply) in meets() {
        moved(false)
            .done(request, reply)
            .breaks(Law::AllowedIsGranted);
    }
    // Nor has anybody who was refused otherwise.
    for refused in [busy(Vec::new()), Reply::Void] {
        let mut told = held();
        told.tell(What::Doubles);
        told.done(acquire((2, 1), &["create f"]), refused);
        told.done(open(3), Reply::Opened(true));
        told.done(acquire((3, 1), &["create f"]), by((2, 1), "f"));
        let broken = check(&told.end());
        assert!(broken.breach_of(&[Law::AllowedIsGranted]).is_some());
    }
    // One that was sent before and was not answered may stand, whatever the store.
    for (request, reply) in meets() {
        let mut told = two();
        told.call(acquire((1, 1), &["create f"]));
        told.done(acquire((1, 1), &["create f"]), Reply::Moved);
        told.done(request, reply).is_fine();
    }
    // One that certainly had no effect does not.
    for (request, reply) in meets() {
        let (mut told, settled) = (two(), true);
        told.done(acquire((1, 1), &["create f"]), Reply::Failed { settled });
        told.done(acquire((1, 1), &["create f"]), Reply::Moved);
        told.done(request, reply).breaks(Law::AllowedIsGranted);
    }
}

#[test]
fn a_copy_of_what_has_moved_stands_until_its_number_is_over() {
    let ends = [
        (renew(1, "1-1", Change::Keep), LIVING),
        (release((1, 1), &["create f"]), Reply::Released(true)),
        (end(1, Ending::Close), states(1, Answer::Dead)),
        (acquire((1, 1), &["create f"]), busy(Vec::new())),
        (acquire((1, 1), &["create f"]), Reply::Void),
    ];
    let refused = || (acquire((2, 1), &["create f"]), busy(Vec::new()));
    let stands = || {
        let mut told = two();
        told.tell(What::Doubles);
        told.done(acquire((1, 1), &["create f"]), Reply::Moved);
        // The session lives, and says nothing of the number.
        told.done(renew(1, "2-2", Change::Keep), LIVING);
        told
    };
    stands().done(refused().0, refused().1).is_fine();
    for (request, reply) in ends {
        let mut told = stands();
        // Until it is acknowledged.
        let call = told.call(request);
        told.done(refused().0, refused().1);
        told.reply(call, reply).after(1);
        told.done(refused().0, refused().1);
        let report = check(&told.end());
        let broken = report.breach_of(&[Law::AllowedIsGranted]);
        let last = Some(report.events);
        assert_eq!(broken.map(|broken| broken.event), last, "{report:#?}");
    }
    // Its lease has ended.
    let mut told = stands();
    told.after(2_000).done(refused().0, refused().1);
    told.breaks(Law::AllowedIsGranted);
}

#[test]
fn no_guard_comes_of_what_has_moved() {
    let mut told = two();
    told.tell(What::Doubles).ask(1, &["create f"]);
    told.done(acquire((1, 1), &["create f"]), Reply::Moved);
    told.granted(1, 1, 5, 700).breaks(Law::HandedOutValid);
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
        told.done(release((1, 1), &[first]), Reply::Released(true));
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
    // A copy may be answered as the one before it, whose answer was lost, or was not.
    let again = |first: Option<Reply>| {
        let mut told = two();
        let lost = told.call(acquire((1, 1), &["share f"]));
        if let Some(first) = first {
            told.reply(lost, first);
        }
        told.done(acquire((2, 1), &["share f"]), Reply::Granted(6));
        told.done(acquire((1, 1), &["share f"]), Reply::Granted(5));
        told
    };
    again(None).is_fine();
    again(Some(Reply::Granted(5))).is_fine();
    // One that was refused has none.
    let mut told = two();
    told.done(acquire((2, 1), &["create f"]), Reply::Granted(4));
    told.done(waiting((1, 1), &["share f"], &[]), by((2, 1), "f"));
    told.done(release((2, 1), &["create f"]), Reply::Released(true));
    told.done(waiting((2, 2), &["share f"], &[(1, 1)]), Reply::Granted(6));
    told.done(waiting((1, 1), &["share f"], &[]), Reply::Granted(5));
    told.breaks(Law::TokensOnlyRise);
}

#[test]
fn confirmations_say_what_is_so() {
    says_what_is_so(
        || (confirm((1, 1), &["create f"]), Reply::Confirmed(true)),
        || (confirm((1, 1), &["create f"]), Reply::Confirmed(false)),
    );
}

#[test]
fn releases_say_what_is_so() {
    let yes = || (release((1, 1), &["create f"]), Reply::Released(true));
    let no = || (release((1, 1), &["create f"]), Reply::Released(false));
    says_what_is_so(yes, no);
    // It is due, and nobody has ended it.
    let mut due = held();
    due.after(2_000).done(yes().0, yes().1).is_fine();
    // Of two releases one at most has found it.
    let again = |first: (Call, Reply), second: (Call, Reply)| {
        let mut told = held();
        told.done(first.0, first.1).done(second.0, second.1);
        check(&told.end())
            .breach_of(&[Law::ConfirmationsAreTrue])
            .is_some()
    };
    assert!(again(yes(), yes()));
    assert!(!again(yes(), no()));
    assert!(again(no(), no()), "the first one");
    for may in [What::Repeats, What::Doubles] {
        let mut told = held();
        told.tell(may);
        told.done(no().0, no().1).is_fine();
    }
    // A confirmation changes nothing by being executed twice.
    let mut told = held();
    told.tell(What::Doubles);
    told.done(confirm((1, 1), &["create f"]), Reply::Confirmed(false))
        .breaks(Law::ConfirmationsAreTrue);
}

fn says_what_is_so(yes: impl Fn() -> (Call, Reply), no: impl Fn() -> (Call, Reply)) {
    let breaks = |mut told: Story, (request, reply): (Call, Reply), law| {
        told.done(request, reply);
        check(&told.end()).breach_of(&[law]).is_some()
    };
    let told = |story, said| breaks(story, said, Law::ConfirmationsAreTrue);
    assert!(!told(held(), yes()));
    assert!(told(held(), no()));
    assert!(told(two(), yes()), "nobody asked for it");
    assert!(!told(two(), no()));
    let ended = || {
        let mut told = held();
        told.done(end(1, Ending::Revoke), states(1, Answer::Dead));
        told
    };
    assert!(breaks(ended(), yes(), Law::DeadStaysDead));
    assert!(!told(ended(), yes()), "no excuse for a lost release");
    assert!(!told(ended(), no()));
    let retired = || {
        let mut told = held();
        told.done(renew(1, "1-1", Change::Keep), LIVING);
        told
    };
    assert!(breaks(retired(), yes(), Law::UnknownIsSettled));
    assert!(!told(retired(), yes()), "no excuse for a lost release");
    assert!(!told(retired(), no()));
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
    told.done(release((1, 1), &["create f"]), Reply::Released(true));
    told.done(acquire((2, 2), &["create f"]), Reply::Granted(2));
    let report = check(&told.end());
    assert_eq!(report.judged.get(&Law::AtMostOneHolder), Some(&1));
    assert_eq!(report.judged.get(&Law::TokensOnlyRise), Some(&1));
    assert_eq!(report.judged.get(&Law::OwnClaimsOnly), Some(&1));
    assert!(report.idle(1).any(|(law, _)| law == Law::Waiting));
    assert!(!report.idle(1).any(|(law, _)| law == Law::OwnClaimsOnly));
    assert!(report.table(2).contains("does not count"));
}

#[test]
fn what_fails_without_effect_may_be_met_until_it_is_answered() {
    let told = |before: bool| {
        let mut told = two();
        let fails = told.call(acquire((1, 1), &["create f"]));
        let meets = |told: &mut Story| {
            told.after(1)
                .by(2)
                .done(acquire((2, 1), &["create f"]), by((1, 1), "f"));
        };
        if before {
            meets(&mut told);
        }
        let failed = Reply::Failed { settled: true };
        told.after(1).by(1).reply(fails, failed);
        if !before {
            meets(&mut told);
        }
        told
    };
    told(true).is_fine();
    told(false).breaks(Law::AllowedIsGranted);
}
