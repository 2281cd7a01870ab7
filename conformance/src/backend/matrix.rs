//! The claim matrix: every pair of wants, both orders, wherever the two keys stand, whoever asks.
//!
//! What should happen is written out here once more, so that a mistake in lockcore's own matrix shows.

use std::fmt;

use lockcore::backend::Acquire;
use lockcore::{Life, Mode, Want};

use crate::actor::{Actor, SHARE, share};
use crate::case::{Case, Layer};
use crate::each::each;
use crate::law::Law;
use crate::scene::Scene;
use crate::verdict::{Verdict, ensure, ensure_eq};

/// Where the key asked for stands, seen from the key held.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Place {
    Same,
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
    use Place::{Above, Below, OtherKey, OtherKind, Same, Sibling};
    let flat = |places: &[Place]| pairs(&FLAT, &FLAT, places);
    let paths = |places: &[Place]| pairs(&PATH, &PATH, places);
    let kinds = [
        pairs(&FLAT, &PATH, &[OtherKind]),
        pairs(&PATH, &FLAT, &[OtherKind]),
    ]
    .concat();
    [
        ("on_one_flat_key", flat(&[Same])),
        ("on_two_flat_keys", flat(&[OtherKey])),
        ("on_one_path", paths(&[Same])),
        ("on_a_path_above_or_below", paths(&[Above, Below])),
        ("on_a_path_beside", paths(&[Sibling])),
        ("on_a_flat_key_and_a_path", kinds),
    ]
    .into_iter()
    .flat_map(|(place, pairs)| by_law(place, pairs))
    .collect()
}

fn pairs(held: &[Want], asked: &[Want], places: &[Place]) -> Vec<Pair> {
    let whos = [Who::SameOwner, Who::OtherOwner, Who::OtherSession];
    let mut pairs = Vec::new();
    for (held, asked) in product(held, asked) {
        for (place, who) in product(places, &whos) {
            pairs.push(Pair {
                held,
                asked,
                place,
                who,
            });
        }
    }
    pairs
}

/// One case of what is granted and one of what is refused, each with a namespace for all of its pairs.
fn by_law(place: &str, pairs: Vec<Pair>) -> Vec<Case> {
    let (granted, refused): (Vec<Pair>, Vec<Pair>) = pairs.into_iter().partition(Pair::granted);
    let case = |what: &str, law, pairs: Vec<Pair>| {
        let name = format!("{place}_what_has_to_be_is_{what}");
        Case::new(Layer::Backend, "matrix", law, name, move |scene| {
            let pairs = pairs.clone();
            Box::pin(all_of(scene, pairs))
        })
    };
    let mut cases = vec![case("granted", Law::AllowedIsGranted, granted)];
    if !refused.is_empty() {
        cases.push(case("refused", Law::AtMostOneHolder, refused));
    }
    cases
}

async fn all_of(scene: Scene, pairs: Vec<Pair>) -> Verdict {
    let [holder, other] = scene.actors().await?;
    each(pairs, async |pair| pair.run(&scene, &holder, &other).await).await
}

fn product<A: Copy, B: Copy>(left: &[A], right: &[B]) -> Vec<(A, B)> {
    left.iter()
        .flat_map(|l| right.iter().map(move |r| (*l, *r)))
        .collect()
}

impl Pair {
    fn granted(&self) -> bool {
        let same_owner = self.who == Who::SameOwner;
        match self.place {
            Place::OtherKey | Place::Sibling | Place::OtherKind => true,
            Place::Same => match (self.held, self.asked) {
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

    /// The key held and the key asked for: of this pair only, and with its name.
    fn keys(&self) -> (String, String) {
        let path = |want: Want| matches!(want, Want::Write | Want::Read);
        let k = || format!("k {self}");
        let t = |below: &str| format!("/t {self}{below}");
        match (self.place, path(self.held), path(self.asked)) {
            (Place::Same, false, _) => (k(), k()),
            (Place::Same, true, _) => (t("/m"), t("/m")),
            (Place::OtherKey, ..) => (k(), format!("l {self}")),
            (Place::Above, ..) => (t("/m/x"), t("")),
            (Place::Below, ..) => (t(""), t("/m/x")),
            (Place::Sibling, ..) => (t("/m"), t("/n")),
            (Place::OtherKind, false, _) => (t("")[1..].to_owned(), t("")),
            (Place::OtherKind, true, _) => (t(""), t("")[1..].to_owned()),
        }
    }

    async fn run(&self, scene: &Scene, holder: &Actor, other: &Actor) -> Verdict {
        let asker = match self.who {
            Who::OtherSession => other,
            Who::SameOwner | Who::OtherOwner => holder,
        };
        let (held_key, asked_key) = self.keys();
        let (held_key, asked_key) = (held_key.as_str(), asked_key.as_str());
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
            holder.holds(&held).await?;
        } else {
            let busy = asker.refused(&asked).await?;
            ensure_eq!(busy.refused().len(), 1, "refused claims in {busy:?}");
            ensure_eq!(busy.first().claim, asked.claims[0], "the refused claim");
            self.names_the_holder(&busy.first().holders, &held, holder.label().as_str())?;
            holder.holds(&held).await?;
            holder.release(&held).await?;
            asked = ask();
            asker.take(&asked).await?;
        }
        holder.release(&held).await?;
        asker.holds(&asked).await?;
        scene.held(asked_key).await?;
        asker.release(&asked).await?;
        scene.free(held_key).await?;
        scene.free(asked_key).await
    }

    fn names_the_holder(
        &self,
        listed: &[lockcore::Holder],
        held: &Acquire,
        label: &str,
    ) -> Verdict {
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
            (key.as_str(), mode),
            "what is held, and how"
        );
        Ok(())
    }
}

impl fmt::Display for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = match self.place {
            Place::Same => "on the same key",
            Place::OtherKey => "on another key",
            Place::Above => "above",
            Place::Below => "below",
            Place::Sibling => "beside",
            Place::OtherKind => "on the other kind of key",
        };
        let who = match self.who {
            Who::SameOwner => "the same owner",
            Who::OtherOwner => "another owner",
            Who::OtherSession => "another session",
        };
        let (held, asked) = (word(self.held), word(self.asked));
        write!(f, "{held}, then {asked} {place} by {who}")
    }
}

fn word(want: Want) -> &'static str {
    match want {
        Want::Create => "create",
        Want::Upsert => "upsert",
        Want::Write => "write",
        Want::Read => "read",
        want if want == share(1) => "share of 1",
        want if want == share(2) => "share of 2",
        Want::Share { .. } => "share",
    }
}
