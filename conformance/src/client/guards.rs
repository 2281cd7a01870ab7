//! A guard tells the truth.

use std::time::Duration;

use futures_util::future::join;
use lockcore::backend::End;
use lockcore::limits::MIN_MARGIN;
use lockcore::{Guard, Label, LockBackend as _, Locks, LostReason, Note, NoteKind, Released};
use tokio::time::{Instant, sleep};

use crate::case::Case;
use crate::client::{
    SOON, acquired, acquired_within, granted, locks, refused, release, seeded, short_lived, soon,
    wired,
};
use crate::scene::Scene;
use crate::verdict::{Under, Verdict, Wrong, at_most, cases, ensure, ensure_eq};
use crate::wire::{Fault, Wire};

pub(super) fn cases() -> Vec<Case> {
    cases! { Client "guards";
        Guard:
            a_deadline_leaves_a_margin,
            renewals_keep_it_valid,
            one_renewal_keeps_all_guards,
            a_guard_whose_renewals_hang_ends_before_anybody_else_begins,
            a_guard_whose_renewals_are_refused_ends_before_anybody_else_begins,
            a_lost_guard_never_comes_back,
            an_answer_after_the_deadline_revives_nothing,
            an_unseen_answer_after_the_deadline_revives_nothing,
            a_short_failure_loses_nothing,
            a_revoked_guard_is_lost,
            a_revocation_is_heard_of_within_a_second_where_the_store_pushes,
            an_eviction_is_heard_of_within_a_second_where_the_store_pushes,
            a_revoked_guard_is_not_confirmed,
            a_revoked_guard_is_told_at_its_release,
            a_held_guard_is_confirmed,
            a_released_guard_is_no_longer_valid,
            the_token_is_fixed,
            lost_guards_are_all_told,
            after_a_loss_the_next_acquisition_has_a_new_session;
        OwnClaimsOnly:
            the_release_of_a_lost_guard_leaves_the_next_holder;
        NothingKept:
            a_guard_dropped_without_a_runtime_is_given_back,
            many_dropped_guards_are_all_given_back;
    }
}

/// What ends before the TTL ends at least so much before.
const MOMENT: Duration = Duration::from_millis(1);

async fn a_deadline_leaves_a_margin(scene: Scene) -> Verdict {
    let (a, ttl) = short_lived(&scene).await?;
    for guard in [
        granted(a.lock("g")).await?,
        granted(a.documents(["d1", "d2"])).await?,
        granted(a.tree().write("/t")).await?,
    ] {
        let now = Instant::now().into_std();
        let remaining = guard.remaining();
        ensure!(guard.is_valid(), "it was granted just now");
        ensure!(!remaining.is_zero(), "time remains: {remaining:?}");
        ensure!(
            remaining <= ttl - MIN_MARGIN,
            "{remaining:?} remain of a TTL of {ttl:?} less the margin"
        );
        let ahead = guard.deadline().saturating_duration_since(now);
        ensure!(
            ahead <= ttl - MIN_MARGIN && ahead + Duration::from_secs(1) >= remaining,
            "the deadline is {ahead:?} ahead and {remaining:?} remain"
        );
        release(guard).await?;
    }
    Ok(())
}

/// The guard is still valid: there is a renewal every third of the TTL, which a machine that is later than that cannot
/// send.
fn kept(guard: &Guard, since: Instant, ttl: Duration, what: &str) -> Verdict {
    let valid = || {
        ensure!(guard.is_valid(), "{what}");
        Ok(())
    };
    valid().unless_late(since, ttl / 3)
}

async fn renewals_keep_it_valid(scene: Scene) -> Verdict {
    let (a, ttl) = short_lived(&scene).await?;
    let b = locks(&scene).await?;
    let guard = granted(a.tree().write("/t/m")).await?;
    let since = Instant::now();
    for _ in 0..6 {
        sleep(ttl / 2).await;
        kept(&guard, since, ttl, "renewals keep it valid")?;
        refused(b.tree().read("/t")).await?;
    }
    ensure!(guard.confirm().await?, "the store says so as well");
    release(guard).await
}

async fn one_renewal_keeps_all_guards(scene: Scene) -> Verdict {
    let (a, wire, ttl) = wired(&scene).await?;
    let mut guards = Vec::new();
    for n in 0..50 {
        guards.push(granted(a.lock(format!("k{n}"))).await?);
    }
    let (before, since) = (wire.renewals(), Instant::now());
    sleep(ttl * 3).await;
    let renewals = wire.renewals() - before;
    let counted = || {
        // One every third of the TTL, for one session.
        ensure!(
            (3..=14).contains(&renewals),
            "{renewals} renewals in three TTLs, of 50 guards"
        );
        Ok(())
    };
    counted().unless_late(since, ttl / 3)?;
    for guard in guards {
        let kept = kept(&guard, since, ttl, "it is valid");
        kept.about(format_args!("the guard of token {}", guard.token()))?;
        release(guard).await?;
    }
    Ok(())
}

async fn cut_off(scene: Scene, fault: Fault) -> Verdict {
    let (a, wire, ttl) = wired(&scene).await?;
    let b = locks(&scene).await?;
    let guard = granted(a.lock("g")).await?;
    wire.set(fault);
    let since = Instant::now();
    let lost = soon("the guard is lost", guard.lost());
    let next = acquired_within(ttl + SOON, b.lock("g"));
    let truth = async {
        let next = next.await?;
        ensure!(
            !guard.is_valid(),
            "another holds the lock, and the guard says that it is valid"
        );
        Verdict::Ok(next)
    };
    let lost = async {
        let reason = lost.await?;
        let in_time = at_most(since, ttl - MOMENT, "the loss after the last renewal");
        ensure!(!guard.is_valid(), "it is lost, and says that it is valid");
        in_time?;
        Verdict::Ok(reason)
    };
    let (reason, next) = join(lost, truth).await;
    ensure_eq!(reason?, LostReason::Deadline, "why it was lost");
    ensure_eq!(guard.remaining(), Duration::ZERO, "the time that remains");
    release(next?).await
}

async fn a_guard_whose_renewals_hang_ends_before_anybody_else_begins(scene: Scene) -> Verdict {
    cut_off(scene, Fault::Hangs).await
}

async fn a_guard_whose_renewals_are_refused_ends_before_anybody_else_begins(
    scene: Scene,
) -> Verdict {
    cut_off(scene, Fault::Refuses).await
}

async fn a_lost_guard_never_comes_back(scene: Scene) -> Verdict {
    let (a, wire, ttl) = wired(&scene).await?;
    let guard = granted(a.lock("g")).await?;
    wire.set(Fault::Refuses);
    soon("the guard is lost", guard.lost()).await?;
    // The way is free again: whether or not the store still knows the session, the guard does not believe it.
    wire.set(Fault::None);
    for _ in 0..4 {
        ensure!(!guard.is_valid(), "what was lost is valid again");
        sleep(ttl / 3).await;
    }
    ensure!(!guard.confirm().await?, "what was lost is confirmed");
    let released = soon("the release", guard.release()).await??;
    ensure_eq!(released, Released::NotHeld, "the release of what was lost");
    Ok(())
}

async fn an_answer_after_the_deadline_revives_nothing(scene: Scene) -> Verdict {
    let (a, wire, ttl) = wired(&scene).await?;
    let guard = granted(a.lock("g")).await?;
    // Sent after a third of the TTL and answered after all of it: it came too late, though it would be good for more.
    wire.set(Fault::AnswersLate(ttl * 2 / 3));
    let deadline = guard.remaining();
    sleep(deadline).await;
    for _ in 0..8 {
        ensure!(
            !guard.is_valid(),
            "valid after its deadline, by an answer that came too late"
        );
        sleep(ttl / 12).await;
    }
    Ok(())
}

async fn an_unseen_answer_after_the_deadline_revives_nothing(scene: Scene) -> Verdict {
    let (a, wire, ttl) = wired(&scene).await?;
    let guard = granted(a.lock("g")).await?;
    wire.set(Fault::AnswersLate(ttl * 2 / 3));
    // Nobody looks at it while its deadline passes; the answer comes, and only then somebody does.
    sleep(ttl + ttl / 12).await;
    ensure!(
        !guard.is_valid(),
        "valid after its deadline, by an answer that came too late"
    );
    Ok(())
}

async fn a_short_failure_loses_nothing(scene: Scene) -> Verdict {
    let (a, wire, ttl) = wired(&scene).await?;
    let guard = granted(a.lock("g")).await?;
    let since = Instant::now();
    for _ in 0..3 {
        wire.set(Fault::Refuses);
        sleep(ttl / 4).await;
        wire.set(Fault::None);
        sleep(ttl / 2).await;
        kept(&guard, since, ttl, "renewals survive a short failure")?;
    }
    ensure!(guard.confirm().await?, "it is held");
    release(guard).await
}

async fn a_revoked_guard_is_lost(scene: Scene) -> Verdict {
    let (a, ttl) = short_lived(&scene).await?;
    let b = locks(&scene).await?;
    let guard = granted(a.documents(["d1", "d2"])).await?;
    scene.end(guard.session(), End::Revoke).await?;
    let next = granted(b.documents(["d1"])).await?;
    let since = Instant::now();
    let reason = soon("the guard is lost", guard.lost()).await?;
    // The next renewal tells, not the deadline.
    let in_time = at_most(since, ttl - MOMENT, "the news of the revocation");
    ensure_eq!(reason, LostReason::Dead, "why it was lost");
    in_time?;
    ensure!(!guard.is_valid(), "it is lost");
    ensure_eq!(
        guard.release().await?,
        Released::NotHeld,
        "the release of what was lost"
    );
    release(next).await
}

/// How soon an operator is heard of where the store pushes, and where it does not; the TTL is the longest.
const PUSHED: Duration = Duration::from_secs(1);
const RENEWED: Duration = Duration::from_secs(10);

/// A guard of the longest TTL, whose session is watched if the store pushes; and how soon it is told.
async fn watched(scene: &Scene) -> Verdict<(Locks, Guard, Duration)> {
    let wire = Wire::new(scene.connect().await?);
    let info = wire.info();
    let a = seeded(scene, wire.clone(), info.max_ttl)?;
    let guard = granted(a.lock("g")).await?;
    let mut within = scene.space().allowance() + PUSHED;
    match info.poll {
        None => soon("the session is watched", wire.watched()).await?,
        Some(_) => within += RENEWED,
    }
    Ok((a, guard, within))
}

fn note(kind: NoteKind) -> Verdict<Note> {
    let (by, reason) = (Label::parse("ops")?, Label::parse("it hangs")?);
    let at = std::time::UNIX_EPOCH + Duration::from_millis(1_700_000_000_123);
    Ok(Note::new(kind, by, reason, at))
}

async fn a_revocation_is_heard_of_within_a_second_where_the_store_pushes(scene: Scene) -> Verdict {
    let (_a, guard, within) = watched(&scene).await?;
    let (b, why) = (scene.actor().await?, note(NoteKind::Revoke)?);
    let noted = b.backend().note(guard.session(), &why).await?;
    ensure!(noted, "the session has a record");
    b.end_of(guard.session(), End::Revoke).await?;
    let since = Instant::now();
    let reason = soon("the guard is lost", guard.lost()).await?;
    let in_time = at_most(since, within, "the news of the revocation");
    ensure_eq!(reason, LostReason::Revoked(why.into()), "why it was lost");
    in_time
}

async fn an_eviction_is_heard_of_within_a_second_where_the_store_pushes(scene: Scene) -> Verdict {
    let (a, guard, within) = watched(&scene).await?;
    let other = granted(a.lock("h")).await?;
    let b = scene.actor().await?;
    let Some((grant, _)) = guard.grants().next() else {
        return Err(Wrong("a guard without a grant".to_owned()));
    };
    let why = note(NoteKind::Evict)?.about(grant.n);
    let noted = b.backend().note(grant.session, &why).await?;
    ensure!(noted, "the session has a record");
    let since = Instant::now();
    let reason = soon("the guard is lost", guard.lost()).await?;
    let in_time = at_most(since, within, "the news of the eviction");
    ensure_eq!(reason, LostReason::Evicted(why.into()), "why it was lost");
    in_time?;
    ensure!(other.is_valid(), "the session's other locks stay");
    release(other).await
}

async fn a_revoked_guard_is_not_confirmed(scene: Scene) -> Verdict {
    let (a, b) = (locks(&scene).await?, locks(&scene).await?);
    for guard in [
        granted(a.lock("g")).await?,
        granted(b.tree().write("/t/m").read("/u")).await?,
    ] {
        ensure!(guard.confirm().await?, "it is held");
        scene.end(guard.session(), End::Revoke).await?;
        ensure!(!guard.confirm().await?, "it is not held");
        ensure!(!guard.is_valid(), "after that it is not valid");
        ensure_eq!(
            guard.release().await?,
            Released::NotHeld,
            "the release of what was lost"
        );
    }
    Ok(())
}

async fn a_revoked_guard_is_told_at_its_release(scene: Scene) -> Verdict {
    let (a, b) = (locks(&scene).await?, locks(&scene).await?);
    // More than a shared session takes, too: that is closed instead.
    let many = a.info().keys_per_batch * 11;
    let many = (0..many).map(|n| format!("m{n:06}"));
    for acquisition in [a.documents(vec!["d".to_owned()]), a.documents(many)] {
        let guard = granted(acquisition).await?;
        scene.end(guard.session(), End::Revoke).await?;
        // Somebody else may have come and gone; nobody has told the holder.
        let key = guard.claims()[0].key().to_string();
        release(granted(b.documents([key])).await?).await?;
        ensure_eq!(
            guard.release().await?,
            Released::NotHeld,
            "the release of what was revoked"
        );
    }
    Ok(())
}

async fn a_held_guard_is_confirmed(scene: Scene) -> Verdict {
    let a = locks(&scene).await?;
    for guard in [
        granted(a.lock("g")).await?,
        granted(a.semaphore("s", 3)).await?,
        granted(a.documents((0..7).map(|n| format!("d{n}")))).await?,
        granted(a.tree().write("/t/m").write("/u/v").read("/w")).await?,
    ] {
        let token = guard.token();
        for _ in 0..3 {
            ensure!(guard.confirm().await?, "it is held");
        }
        ensure!(guard.is_valid(), "it is valid");
        ensure_eq!(guard.token(), token, "the token");
        release(guard).await?;
    }
    Ok(())
}

async fn a_released_guard_is_no_longer_valid(scene: Scene) -> Verdict {
    let a = locks(&scene).await?;
    for drops in [false, true] {
        let guard = granted(a.lock("g")).await?;
        let held = guard.held();
        ensure!(held.is_valid(), "it is held");
        if drops {
            drop(guard);
        } else {
            release(guard).await?;
        }
        ensure!(!held.is_valid(), "who shares it is told as well");
        ensure_eq!(held.remaining(), Duration::ZERO, "the time that remains");
        ensure!(!held.confirm().await?, "it is not held any more");
        release(acquired(a.lock("g")).await?).await?;
    }
    Ok(())
}

async fn the_token_is_fixed(scene: Scene) -> Verdict {
    let (a, ttl) = short_lived(&scene).await?;
    let owner = a.owner();
    let guard = granted(a.documents(["d"]).owner(&owner)).await?;
    let token = guard.token();
    let again = granted(a.documents(["d"]).owner(&owner)).await?;
    ensure!(
        again.token() > token,
        "the later guard has the greater token"
    );
    ensure!(guard.confirm().await?, "it is held");
    sleep(ttl).await;
    ensure_eq!(
        guard.token(),
        token,
        "the token after re-entry, confirmation and renewals"
    );
    release(again).await?;
    ensure_eq!(
        guard.token(),
        token,
        "the token after the release of the other"
    );
    release(guard).await
}

async fn lost_guards_are_all_told(scene: Scene) -> Verdict {
    let a = locks(&scene).await?;
    let mut guards = Vec::new();
    for n in 0..5 {
        guards.push(granted(a.lock(format!("k{n}"))).await?);
    }
    scene.end(guards[0].session(), End::Revoke).await?;
    for guard in &guards {
        soon("every guard is lost", guard.lost()).await?;
        ensure!(!guard.is_valid(), "it is lost");
    }
    Ok(())
}

async fn after_a_loss_the_next_acquisition_has_a_new_session(scene: Scene) -> Verdict {
    let a = locks(&scene).await?;
    let lost = granted(a.lock("g")).await?;
    scene.end(lost.session(), End::Revoke).await?;
    soon("the guard is lost", lost.lost()).await?;
    let next = acquired(a.lock("g")).await?;
    ensure!(
        next.session() != lost.session(),
        "a dead session is not used again"
    );
    ensure!(
        next.token() > lost.token(),
        "the later guard has the greater token"
    );
    ensure!(
        !lost.is_valid() && next.is_valid(),
        "one is lost and one is held"
    );
    release(next).await
}

async fn the_release_of_a_lost_guard_leaves_the_next_holder(scene: Scene) -> Verdict {
    let (a, wire, ttl) = wired(&scene).await?;
    let b = locks(&scene).await?;
    let guard = granted(a.tree().write("/t/m")).await?;
    wire.set(Fault::Refuses);
    soon("the guard is lost", guard.lost()).await?;
    let next = acquired_within(ttl + SOON, b.tree().write("/t")).await?;
    wire.set(Fault::None);
    let released = soon("the release", guard.release()).await??;
    ensure_eq!(released, Released::NotHeld, "the release of what was lost");
    ensure!(next.confirm().await?, "the next holder keeps its lock");
    release(next).await
}

async fn a_guard_dropped_without_a_runtime_is_given_back(scene: Scene) -> Verdict {
    let a = locks(&scene).await?;
    let guard = granted(a.documents(["d1", "d2"])).await?;
    let dropped = std::thread::spawn(move || drop(guard)).join();
    ensure!(dropped.is_ok(), "dropping a guard never panics");
    release(acquired(a.documents(["d2", "d1"])).await?).await
}

async fn many_dropped_guards_are_all_given_back(scene: Scene) -> Verdict {
    let (a, b) = (locks(&scene).await?, locks(&scene).await?);
    let mut guards = Vec::new();
    for n in 0..100 {
        guards.push(granted(a.lock(format!("k{n}"))).await?);
    }
    drop(guards);
    for n in 0..100 {
        release(acquired(b.lock(format!("k{n}"))).await?).await?;
    }
    Ok(())
}
