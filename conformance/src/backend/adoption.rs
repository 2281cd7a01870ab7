//! Adoption: by one at a time, by number, until the change is settled.

use futures_util::future::join_all;
use lockcore::backend::{Acquire, Adopt, Adopted, End, Incarnation, Settled};
use lockcore::{FencingToken, Life, Want};

use crate::actor::{Actor, registered};
use crate::backend::recovery::with_intent;
use crate::case::Case;

use crate::scene::{Scene, short};
use crate::verdict::{Under, Unpassed, Verdict, Wrong, cases, ensure, ensure_eq};

pub(super) fn cases() -> Vec<Case> {
    cases! { Backend "adoption";
        Recovery:
            an_adoption_sent_again_is_the_same,
            an_adoption_by_a_wrong_number_is_refused,
            a_living_session_is_not_adopted,
            an_unknown_session_is_not_adopted,
            of_rival_adopters_one_has_it,
            an_adopter_that_died_is_followed_by_the_next,
            an_adopter_that_expired_is_followed_by_the_next,
            the_state_names_the_adopter,
            giving_up_what_another_has_changes_nothing,
            giving_up_what_was_settled_changes_nothing,
            giving_up_again_changes_nothing,
            what_is_given_up_is_left_to_others_in_every_order,
            an_adoption_later_than_its_settlement_is_refused,
            a_settlement_names_the_adopter,
            an_adoption_meant_for_another_incarnation_changes_nothing;
    }
}

/// Copies of an adoption and of its giving up, in every order.
const ORDERS: [[Adopt; 3]; 4] = [
    [Adopt::Take, Adopt::GiveUp, Adopt::GiveUp],
    [Adopt::Take, Adopt::Take, Adopt::GiveUp],
    [Adopt::Take, Adopt::GiveUp, Adopt::Take],
    [Adopt::GiveUp, Adopt::Take, Adopt::Take],
];

/// A dead process whose intent waits on `/a/b`.
pub(super) async fn abandoned(scene: &Scene) -> Verdict<(Actor, Acquire, FencingToken)> {
    let left = with_intent(scene, &[(Want::Write, "/a/b")], "half done").await?;
    let state = left.0.end(End::Close).await?;
    ensure_eq!(state.life, Life::Abandoned, "the session");
    Ok(left)
}

async fn what_is_given_up_is_left_to_others_in_every_order(scene: Scene) -> Verdict {
    for order in ORDERS {
        given_up(&scene, order)
            .await
            .about(format_args!("{order:?}"))?;
    }
    Ok(())
}

async fn given_up(scene: &Scene, order: [Adopt; 3]) -> Verdict {
    let (a, _, token) = abandoned(scene).await?;
    let [b, c] = scene.actors().await?;
    let mut up = false;
    for how in order {
        let (by, within) = (b.session(), b.incarnation());
        let adopted = b.backend().adopt(a.session(), 0, by, how, within).await?;
        up |= how == Adopt::GiveUp;
        ensure!(
            !up || adopted == Adopted::NotAdopted,
            "an adoption that was given up: {adopted:?}"
        );
    }
    let state = scene.state(a.session()).await?;
    ensure_eq!(
        (state.life, state.adopter),
        (Life::Abandoned, None),
        "the session"
    );
    ensure!(state.adoption > 0, "the number is used up: {state:?}");
    b.settles_nothing(a.session(), 1).await?;
    scene.held("/a/b").await?;
    c.adopts_nothing(a.session(), 0).await?;
    let adoption = c.adopted(a.session(), state.adoption).await?;
    ensure_eq!(adoption.left, registered(token, "half done")?, "the intent");
    c.settles(a.session(), adoption.number).await?;
    scene.free("/a").await
}

async fn an_adoption_sent_again_is_the_same(scene: Scene) -> Verdict {
    let (a, _, token) = abandoned(&scene).await?;
    let b = scene.actor().await?;
    let mut last = token;
    for _ in 0..3 {
        let adoption = b.adopted(a.session(), 0).await?;
        ensure_eq!(adoption.left, registered(token, "half done")?, "the intent");
        ensure!(
            adoption.token > token && adoption.token >= last,
            "its token {}",
            adoption.token
        );
        last = adoption.token;
    }
    b.settles(a.session(), 1).await
}

async fn an_adoption_by_a_wrong_number_is_refused(scene: Scene) -> Verdict {
    let (a, ..) = abandoned(&scene).await?;
    let [b, c] = scene.actors().await?;
    for seen in [1, 2, 1_000_000] {
        b.adopts_nothing(a.session(), seen).await?;
    }
    b.adopted(a.session(), 0).await?;
    for seen in [0, 2] {
        c.adopts_nothing(a.session(), seen).await?;
    }
    let state = scene.state(a.session()).await?;
    ensure_eq!(
        (state.adoption, state.adopter),
        (1, Some(b.session())),
        "the adoption"
    );
    Ok(())
}

async fn a_living_session_is_not_adopted(scene: Scene) -> Verdict {
    let (a, held, _) = with_intent(&scene, &[(Want::Write, "/a/b")], "at work").await?;
    let b = scene.actor().await?;
    b.adopts_nothing(a.session(), 0).await?;
    b.settles_nothing(a.session(), 0).await?;
    b.settles_nothing(a.session(), 1).await?;
    scene.is_adopted(a.session(), Life::Living, 0, None).await?;
    a.holds(&held).await?;
    a.renew("", lockcore::backend::IntentChange::Keep).await
}

async fn an_unknown_session_is_not_adopted(scene: Scene) -> Verdict {
    let b = scene.actor().await?;
    let unknown = scene.session_id();
    b.adopts_nothing(unknown, 0).await?;
    b.settles_nothing(unknown, 0).await?;
    scene.is(unknown, Life::Dead).await
}

async fn of_rival_adopters_one_has_it(scene: Scene) -> Verdict {
    for _ in 0..5 {
        let (a, ..) = abandoned(&scene).await?;
        let mut rivals = Vec::new();
        for _ in 0..4 {
            rivals.push(scene.actor().await?);
        }
        let adoptions = join_all(rivals.iter().map(|rival| rival.adopt(a.session(), 0))).await;
        let mut winners = Vec::new();
        for (rival, adoption) in rivals.iter().zip(adoptions) {
            winners.extend(adoption?.map(|adoption| (rival, adoption)));
        }
        ensure_eq!(winners.len(), 1, "adopters of one session");
        let (winner, adoption) = &winners[0];
        ensure_eq!(
            scene.state(a.session()).await?.adopter,
            Some(winner.session()),
            "the adopter"
        );
        winner.settles(a.session(), adoption.number).await?;
        scene.free("/a/b").await?;
    }
    Ok(())
}

/// The next adopter gets the intent as the first one got it, and only that one settles it.
async fn followed(scene: &Scene, a: &Actor, first: &Actor, token: FencingToken) -> Verdict {
    scene
        .is_adopted(a.session(), Life::Abandoned, 1, Some(first.session()))
        .await?;
    scene.is(first.session(), Life::Dead).await?;
    scene.held("/a/b").await?;
    let next = scene.actor().await?;
    let adoption = next.adopted(a.session(), 1).await?;
    ensure_eq!(adoption.left, registered(token, "half done")?, "the intent");
    first.settles_nothing(a.session(), 1).await?;
    scene.held("/a/b").await?;
    next.settles(a.session(), 2).await?;
    scene.free("/a").await
}

async fn an_adopter_that_died_is_followed_by_the_next(scene: Scene) -> Verdict {
    let (a, _, token) = abandoned(&scene).await?;
    let b = scene.actor().await?;
    b.adopted(a.session(), 0).await?;
    b.end(End::Close).await?;
    followed(&scene, &a, &b, token).await
}

async fn an_adopter_that_expired_is_followed_by_the_next(scene: Scene) -> Verdict {
    let (a, _, token) = abandoned(&scene).await?;
    let ttl = short(&a.backend().info());
    let b = scene.actor_for(ttl).await?;
    b.adopted(a.session(), 0).await?;
    scene.expire(ttl).await;
    followed(&scene, &a, &b, token).await
}

async fn the_state_names_the_adopter(scene: Scene) -> Verdict {
    let (a, ..) = abandoned(&scene).await?;
    let b = scene.actor().await?;
    let before = scene.state(a.session()).await?;
    ensure_eq!(
        (before.adoption, before.adopter),
        (0, None),
        "the adoption, before"
    );
    b.adopted(a.session(), 0).await?;
    for how in [End::IfDue, End::Close, End::Revoke] {
        let state = scene.end(a.session(), how).await?;
        ensure_eq!(
            (state.life, state.adoption, state.adopter),
            (Life::Abandoned, 1, Some(b.session())),
            "the session"
        );
    }
    Ok(())
}

async fn giving_up_what_another_has_changes_nothing(scene: Scene) -> Verdict {
    let (a, ..) = abandoned(&scene).await?;
    let [b, c] = scene.actors().await?;
    let adoption = b.adopted(a.session(), 0).await?;
    c.give_up(a.session(), 0).await?;
    let state = scene.state(a.session()).await?;
    ensure_eq!(
        (state.adoption, state.adopter),
        (1, Some(b.session())),
        "the adoption"
    );
    b.settles(a.session(), adoption.number).await
}

async fn giving_up_what_was_settled_changes_nothing(scene: Scene) -> Verdict {
    let (a, ..) = abandoned(&scene).await?;
    let b = scene.actor().await?;
    b.adopted(a.session(), 0).await?;
    b.settles(a.session(), 1).await?;
    b.give_up(a.session(), 0).await?;
    scene.is(a.session(), Life::Dead).await?;
    scene.free("/a").await
}

async fn giving_up_again_changes_nothing(scene: Scene) -> Verdict {
    let (a, ..) = abandoned(&scene).await?;
    let [b, c] = scene.actors().await?;
    b.adopted(a.session(), 0).await?;
    b.give_up(a.session(), 0).await?;
    let seen = scene.state(a.session()).await?.adoption;
    let adoption = c.adopted(a.session(), seen).await?;
    // A copy that comes late disturbs nobody.
    b.give_up(a.session(), 0).await?;
    c.settles(a.session(), adoption.number).await
}

async fn an_adoption_later_than_its_settlement_is_refused(scene: Scene) -> Verdict {
    let (a, ..) = abandoned(&scene).await?;
    let [b, c] = scene.actors().await?;
    b.adopted(a.session(), 0).await?;
    b.settles(a.session(), 1).await?;
    for (actor, seen) in [(&b, 0), (&b, 1), (&c, 0), (&c, 1)] {
        let late = actor.adopt(a.session(), seen).await?;
        if late.is_some() {
            return Err(Wrong(format!("adopted after it was settled: {late:?}")));
        }
    }
    Ok(())
}

/// A store that has lost an adoption gives its number to the next: the number alone does not tell whose it is.
async fn a_settlement_names_the_adopter(scene: Scene) -> Verdict {
    let (a, ..) = abandoned(&scene).await?;
    let [b, c] = scene.actors().await?;
    let adoption = b.adopted(a.session(), 0).await?;
    c.settles_nothing(a.session(), adoption.number).await?;
    let state = scene.state(a.session()).await?;
    ensure_eq!(
        (state.life, state.adopter),
        (Life::Abandoned, Some(b.session())),
        "the session"
    );
    scene.held("/a/b").await?;
    b.settles(a.session(), adoption.number).await?;
    c.settles_nothing(a.session(), adoption.number).await?;
    b.settles(a.session(), adoption.number).await?;
    scene.free("/a").await
}

/// A store with a name is another one than the adopter believes, as where a copy has taken over: the number, and what was seen
/// with it, are another adoption's there.
async fn an_adoption_meant_for_another_incarnation_changes_nothing(scene: Scene) -> Verdict {
    let (a, _, token) = abandoned(&scene).await?;
    let b = scene.actor().await?;
    let (here, store) = (b.incarnation(), b.backend());
    if !here.is_known() {
        // The store loses nothing, or cannot tell.
        return Err(Unpassed::Lacking);
    }
    let (left, by) = (a.session(), b.session());
    let elsewhere = Incarnation::new(here.get() + 1);
    let refused = async |seen: u64| -> Verdict {
        for how in [Adopt::Take, Adopt::GiveUp] {
            let adopted = store.adopt(left, seen, by, how, elsewhere).await?;
            ensure_eq!(adopted, Adopted::Moved, "{how:?} after {seen}");
        }
        let settled = store.settle(left, seen + 1, by, elsewhere).await?;
        ensure_eq!(settled, Settled::Moved, "a settlement");
        Ok(())
    };
    refused(0).await?;
    scene.is_adopted(left, Life::Abandoned, 0, None).await?;
    let adoption = b.adopted(left, 0).await?;
    ensure_eq!(adoption.left.token, token, "the token of the dead holder");
    for seen in [0, 1] {
        refused(seen).await?;
    }
    scene.is_adopted(left, Life::Abandoned, 1, Some(by)).await?;
    b.settles(left, 1).await
}
