//! The claim matrix: every pair of wants, both orders, wherever the two keys stand, whoever asks.
//!
//! What should happen is written out here once more, so that a mistake in lockcore's own matrix shows.

use lockcore::{Acquire, Life, Mode, Want};

use crate::actor::{SHARE, share};
use crate::case::{Case, Layer};
use crate::law::Law;
use crate::scene::Scene;
use crate::verdict::{Verdict, ensure, ensure_eq};

/// Where the key asked for stands, seen from the key held.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Place {
    SameKey,
    OtherKey,
    Above,
    Below,
    Sibling,
    OtherKind,
}

/// Who asks, seen from who holds.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Who {
    SameOwner,
    OtherOwner,
    OtherSession,
}

#[derive(Clone, Copy)]
struct Pair {
    held: Want,
    asked: Want,
    place: Place,
    who: Who,
}

const FLAT: [Want; 5] = [Want::Create, Want::Upsert, SHARE, LIMIT_1, LIMIT_2];
const PATH: [Want; 2] = [Want::Write, Want::Read];
const LIMIT_1: Want = share_of(1);
const LIMIT_2: Want = share_of(2);

const fn share_of(limit: u32) -> Want {
    Want::Share {
        limit: std::num::NonZeroU32::new(limit),
    }
}

pub(super) fn cases() -> Vec<Case> {
    let mut pairs = Vec::new();
    let flat = [Place::SameKey, Place::OtherKey].as_slice();
    let tree = [Place::SameKey, Place::Above, Place::Below, Place::Sibling].as_slice();
    let apart = [Place::OtherKind].as_slice();
    for (held, asked, places) in [
        (FLAT.as_slice(), FLAT.as_slice(), flat),
        (&PATH, &PATH, tree),
        (&FLAT, &PATH, apart),
        (&PATH, &FLAT, apart),
    ] {
        for (held, asked) in product(held, asked) {
            for (place, who) in product(
                places,
                &[Who::SameOwner, Who::OtherOwner, Who::OtherSession],
            ) {
                pairs.push(Pair {
                    held,
                    asked,
                    place,
                    who,
                });
            }
        }
    }
    pairs.into_iter().map(Pair::case).collect()
}

fn product<A: Copy, B: Copy>(left: &[A], right: &[B]) -> Vec<(A, B)> {
    left.iter()
        .flat_map(|l| right.iter().map(move |r| (*l, *r)))
        .collect()
}

impl Pair {
    fn case(self) -> Case {
        let law = if self.granted() {
            Law::AllowedIsGranted
        } else {
            Law::AtMostOneHolder
        };
        let place = match self.place {
            Place::SameKey => "on_the_same_key",
            Place::OtherKey => "on_another_key",
            Place::Above => "above",
            Place::Below => "below",
            Place::Sibling => "beside",
            Place::OtherKind => "on_the_other_kind_of_key",
        };
        let who = match self.who {
            Who::SameOwner => "same_owner",
            Who::OtherOwner => "other_owner",
            Who::OtherSession => "other_session",
        };
        let name = format!(
            "{}_then_{}_{place}_by_{who}",
            word(self.held),
            word(self.asked)
        );
        Case::new(Layer::Backend, "matrix", law, name, move |scene| {
            Box::pin(self.run(scene))
        })
    }

    fn granted(self) -> bool {
        let same_owner = self.who == Who::SameOwner;
        match self.place {
            Place::OtherKey | Place::Sibling | Place::OtherKind => true,
            Place::SameKey => match (self.held, self.asked) {
                (_, Want::Create) => false,
                (_, Want::Upsert) => same_owner,
                (Want::Share { .. }, Want::Share { limit }) => {
                    limit.is_none_or(|limit| limit.get() > 1)
                }
                (_, Want::Share { .. }) => false,
                (Want::Read, Want::Read) => true,
                (_, Want::Write | Want::Read) => same_owner,
            },
            // The path above is held in IX or IS by whoever holds something below.
            Place::Above | Place::Below => {
                same_owner || (self.held, self.asked) == (Want::Read, Want::Read)
            }
        }
    }

    fn keys(self) -> (&'static str, &'static str) {
        let path = |want: Want| matches!(want, Want::Write | Want::Read);
        match (self.place, path(self.held), path(self.asked)) {
            (Place::SameKey, false, _) => ("k", "k"),
            (Place::SameKey, true, _) => ("/t/m", "/t/m"),
            (Place::OtherKey, ..) => ("k", "l"),
            (Place::Above, ..) => ("/t/m/x", "/t"),
            (Place::Below, ..) => ("/t", "/t/m/x"),
            (Place::Sibling, ..) => ("/t/m", "/t/n"),
            (Place::OtherKind, false, _) => ("t", "/t"),
            (Place::OtherKind, true, _) => ("/t", "t"),
        }
    }

    async fn run(self, scene: Scene) -> Verdict {
        let holder = scene.actor().await?;
        let other;
        let asker = if self.who == Who::OtherSession {
            other = scene.actor().await?;
            &other
        } else {
            &holder
        };
        let (held_key, asked_key) = self.keys();
        let owner = holder.owner();
        let held = holder.ask_as(owner, &[(self.held, held_key)]);
        let first = holder.take(&held).await?;
        let ask = || {
            let wants = [(self.asked, asked_key)];
            match self.who {
                Who::SameOwner => asker.ask_as(owner, &wants),
                Who::OtherOwner | Who::OtherSession => asker.ask(&wants),
            }
        };
        let mut asked = ask();
        if self.granted() {
            let second = asker.take(&asked).await?;
            ensure!(
                second > first,
                "the later token is greater: {first}, {second}"
            );
            ensure!(holder.confirms(&held).await?, "the first is still held");
        } else {
            let busy = asker.refused(&asked).await?;
            ensure_eq!(busy.refused().len(), 1, "refused claims in {busy:?}");
            ensure_eq!(busy.first().claim, asked.claims[0], "the refused claim");
            self.names_the_holder(&busy.first().holders, &held, holder.label().as_str())?;
            ensure!(
                holder.confirms(&held).await?,
                "the refusal took nothing from the holder"
            );
            holder.release(&held).await?;
            asked = ask();
            asker.take(&asked).await?;
        }
        holder.release(&held).await?;
        ensure!(
            asker.confirms(&asked).await?,
            "the second stays when the first is released"
        );
        scene.held(asked_key).await?;
        asker.release(&asked).await?;
        scene.free(held_key).await?;
        scene.free(asked_key).await?;
        Ok(())
    }

    fn names_the_holder(self, listed: &[lockcore::Holder], held: &Acquire, label: &str) -> Verdict {
        let (held_key, asked_key) = self.keys();
        let (key, mode) = match (self.place, self.held) {
            (Place::Above, Want::Write) => (asked_key, Mode::IX),
            (Place::Above, _) => (asked_key, Mode::IS),
            (_, Want::Create | Want::Upsert | Want::Write) => (held_key, Mode::X),
            (_, Want::Read) => (held_key, Mode::S),
            (_, Want::Share { .. }) => (held_key, Mode::IS),
        };
        ensure_eq!(listed.len(), 1, "holders in the way, {listed:?}");
        let holder = &listed[0];
        ensure_eq!(holder.grant, Some(held.grant), "the holder's grant");
        ensure_eq!(holder.owner, Some(held.owner), "the holder's owner");
        ensure_eq!(holder.label, label, "the holder's label");
        ensure_eq!(holder.life, Life::Living, "the holder's session");
        ensure_eq!(
            (holder.key.as_str(), holder.mode),
            (key, mode),
            "what is held, and how"
        );
        Ok(())
    }
}

fn word(want: Want) -> &'static str {
    match want {
        Want::Create => "create",
        Want::Upsert => "upsert",
        Want::Write => "write",
        Want::Read => "read",
        want if want == share(1) => "share_of_1",
        want if want == share(2) => "share_of_2",
        Want::Share { .. } => "share",
    }
}
