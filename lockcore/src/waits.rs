//! Who waits for whom, and the cycles in that: derived from a listing of records, without a request of its own.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::backend::judge::Place;
use crate::{Grant, Holder, LockKey, Mode, Record, SessionId};

/// A waiter and what is in its way.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Wait {
    /// The waiter.
    pub waiter: Holder,
    /// The holders, and the earlier waiters, that are in its way; empty if it may be granted at its next request. Its own
    /// owner's are left out: whether they are in its way depends on what it asks for, which no listing has.
    pub by: Vec<Holder>,
    /// It is enough that one of [`by`](Self::by) goes: it waits for a place of a semaphore.
    pub any: bool,
}

/// A wait for one of those in its way.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Link {
    /// The waiter.
    pub waiter: Holder,
    /// The holder or earlier waiter in its way. It belongs to the waiter of the next link, and of the last link to the
    /// waiter of the first one.
    pub holder: Holder,
}

/// Waits that wait for each other.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Cycle {
    /// The waits, in order, at least one.
    pub links: Vec<Link>,
    /// Each [owner](Holder::owner) in the cycle itself holds one thing and waits for another, so it is a deadlock if the
    /// listing shows one moment. Otherwise only the sessions do. Then it is a deadlock if within each session the waiting
    /// task is the one that holds; independent tasks of busy processes form such a cycle too, and it dissolves by itself.
    pub by_owner: bool,
}

impl Cycle {
    /// Whether this waiter is in the cycle.
    #[must_use]
    pub fn contains(&self, waiter: Grant) -> bool {
        let mut links = self.links.iter();
        links.any(|link| link.waiter.grant == Some(waiter))
    }
}

/// All waiters of a listing, in path order and then in their order in line, with what is in the way of each.
///
/// The listing is no snapshot, so a wait may be over by now.
#[must_use]
pub fn waits(records: &[Record]) -> Vec<Wait> {
    let listed = Listing::of(records);
    let waiters = listed.entries().filter(|entry| entry.waiting.is_some());
    waiters
        .map(|waiter| {
            let way = listed.in_the_way(waiter);
            Wait {
                waiter: waiter.clone(),
                any: way.all.is_empty() && !way.any.is_empty(),
                by: way.both().cloned().collect(),
            }
        })
        .collect()
}

/// The cycles of waits in a listing. Every waiter that is part of a cycle is in at least one of them. Each is as short as
/// possible, and [those of owners](Cycle::by_owner) come first.
///
/// The listing has to have the records of every key that is waited for, as [`Filter::Prefix`](crate::backend::Filter)
/// with an empty text lists them. It is no snapshot. A cycle that is a deadlock is there in the next listing too, with
/// the same grants; a cycle in one listing alone may be of waits that never were at the same time.
///
/// Left out are waits that end by themselves: of a session that passes an earlier waiter, because it holds what that one
/// waits for. A waiter for a place of a semaphore is in a cycle only if all who hold a place wait too.
#[must_use]
pub fn cycles(records: &[Record]) -> Vec<Cycle> {
    let listed = Listing::of(records);
    let mut found: Vec<Cycle> = Vec::new();
    let owners = Graph::of(&listed, |entry: &Holder| entry.owner);
    let sessions = Graph::of(&listed, session);
    for at in 0..owners.waits.len() {
        add(&mut found, &owners, at, true);
        add(&mut found, &sessions, at, false);
    }
    found.sort_by_key(|cycle| !cycle.by_owner);
    found
}

/// The shortest cycle of waits that this waiter is part of, one of [owners](Cycle::by_owner) if there is one. What
/// [`cycles`] says of the listing holds here too.
#[must_use]
pub fn cycle_of(records: &[Record], waiter: Grant) -> Option<Cycle> {
    let listed = Listing::of(records);
    let owners = Graph::of(&listed, |entry: &Holder| entry.owner);
    let sessions = Graph::of(&listed, session);
    let of_waiter = |way: &Way<'_>| way.waiter.grant == Some(waiter);
    let mut at = owners.waits.iter().enumerate();
    let at = at.find_map(|(at, way)| of_waiter(way).then_some(at))?;
    let owned = owners.cycle(at, true);
    owned.or_else(|| sessions.cycle(at, false))
}

fn session(entry: &Holder) -> Option<SessionId> {
    entry.grant.map(|grant| grant.session)
}

/// Adds the cycle of a wait that is in no cycle yet.
fn add<N: Copy + Ord>(found: &mut Vec<Cycle>, graph: &Graph<'_, N>, at: usize, by_owner: bool) {
    let waiter = graph.waits[at].waiter.grant;
    let known = waiter.is_none_or(|waiter| found.iter().any(|cycle| cycle.contains(waiter)));
    if !known {
        found.extend(graph.cycle(at, by_owner));
    }
}

/// The entries of a listing by key, each once.
struct Listing<'a> {
    records: BTreeMap<&'a LockKey, Vec<&'a Holder>>,
    /// Keys whose record has more entries than are listed.
    more: BTreeSet<&'a LockKey>,
}

/// What is in the way of a waiter.
struct Way<'a> {
    waiter: &'a Holder,
    /// All of these have to go.
    all: Vec<&'a Holder>,
    /// One of these has to go, if there are any.
    any: Vec<&'a Holder>,
    /// There may be others like these.
    any_more: bool,
}

impl<'a> Way<'a> {
    fn both(&self) -> impl Iterator<Item = &'a Holder> {
        self.all.iter().chain(&self.any).copied()
    }
}

impl<'a> Listing<'a> {
    fn of(records: &'a [Record]) -> Self {
        let mut listed = Self {
            records: BTreeMap::new(),
            more: BTreeSet::new(),
        };
        for record in records {
            let entries = listed.records.entry(&record.key).or_default();
            for holder in &record.holders {
                let same = |entry: &&Holder| entry.grant.is_some() && entry.grant == holder.grant;
                if !entries.iter().any(same) {
                    entries.push(holder);
                }
            }
            if record.more {
                listed.more.insert(&record.key);
            }
        }
        listed
    }

    fn entries(&self) -> impl Iterator<Item = &'a Holder> {
        self.records.values().flatten().copied()
    }

    /// The entries of every record that may be in the way of a claim on this key, each with the mode that the key would
    /// have to be held in beside it, and its own as seen from there.
    fn met(&self, key: &LockKey, mode: Mode) -> impl Iterator<Item = (Mode, Mode, &'a Holder)> {
        let above: Vec<LockKey> = key.ancestor_keys().collect();
        let above = above.into_iter().filter_map(|key| self.records.get(&key));
        let above = above
            .flatten()
            .map(move |entry| (Place::Below.seen(mode), entry.mode, *entry));
        let own = self.records.get(key).into_iter().flatten();
        let own = own.map(move |entry| (mode, entry.mode, *entry));
        let path = key.clone();
        let below = self.records.range::<LockKey, _>(key..).skip_while({
            let path = path.clone();
            move |(key, _)| ***key == path
        });
        let below = below.take_while(move |(key, _)| path.is_above(key));
        let below = below.flat_map(|(_, entries)| entries);
        let below = below.map(move |entry| (mode, Place::Below.seen(entry.mode), *entry));
        above.chain(own).chain(below)
    }

    fn in_the_way(&self, waiter: &'a Holder) -> Way<'a> {
        let mut way = Way {
            waiter,
            all: Vec::new(),
            any: Vec::new(),
            any_more: self.more.contains(&waiter.key),
        };
        for (asked, mode, entry) in self.met(&waiter.key, waiter.mode) {
            let own = entry.grant == waiter.grant
                || (entry.owner.is_some() && entry.owner == waiter.owner);
            if own || !is_before(entry, waiter) || self.passes(waiter, entry) {
                continue;
            }
            if !asked.beside(mode) {
                way.all.push(entry);
            } else if !waiter.key.is_path() && entry.grant.is_some() {
                way.any.push(entry);
            }
        }
        // Whoever waits behind something incompatible may find a place once that is gone.
        if !way.all.is_empty() {
            way.any.clear();
        }
        way
    }

    /// Whether the waiter's session passes that earlier waiter: it holds what keeps that one out, directly or through
    /// waiters before it.
    fn passes(&self, waiter: &Holder, earlier: &'a Holder) -> bool {
        let Some(own) = session(waiter).filter(|_| earlier.waiting.is_some()) else {
            return false;
        };
        let (mut seen, mut left) = (vec![earlier], vec![earlier]);
        while let Some(at) = left.pop() {
            for (asked, mode, entry) in self.met(&at.key, at.mode) {
                if asked.beside(mode) || !is_before(entry, at) {
                    continue;
                }
                match entry.waiting {
                    None if session(entry) == Some(own) => return true,
                    None => {}
                    Some(_) if seen.iter().any(|it| it.grant == entry.grant) => {}
                    Some(_) => {
                        seen.push(entry);
                        left.push(entry);
                    }
                }
            }
        }
        false
    }
}

/// Whether an entry comes before a waiter: a holder does, and an earlier waiter.
fn is_before(entry: &Holder, waiter: &Holder) -> bool {
    match (entry.waiting, waiter.waiting) {
        (None, _) => true,
        (Some(one), Some(other)) => one.place.cmp(&other.place) == Ordering::Less,
        (Some(_), None) => false,
    }
}

/// The waits that will not end unless one of them is given up, by who waits.
struct Graph<'a, N> {
    waits: Vec<Way<'a>>,
    /// Whether the wait will not end.
    stuck: Vec<bool>,
    /// The stuck waits of each.
    of: BTreeMap<N, Vec<usize>>,
    node: fn(&Holder) -> Option<N>,
}

impl<'a, N: Copy + Ord> Graph<'a, N> {
    fn of(listed: &Listing<'a>, node: fn(&Holder) -> Option<N>) -> Self {
        let waiters = listed.entries().filter(|entry| entry.waiting.is_some());
        let waits: Vec<Way<'a>> = waiters.map(|waiter| listed.in_the_way(waiter)).collect();
        let mut graph = Self {
            stuck: vec![true; waits.len()],
            waits,
            of: BTreeMap::new(),
            node,
        };
        // Whoever waits for somebody that waits for nothing gets its turn, and so on; who is left waits for ever.
        loop {
            graph.of.clear();
            for (at, way) in graph.waits.iter().enumerate() {
                if let Some(node) = node(way.waiter).filter(|_| graph.stuck[at]) {
                    graph.of.entry(node).or_default().push(at);
                }
            }
            let stays = |way: &Way<'_>| {
                let waits =
                    |entry: &Holder| node(entry).is_some_and(|it| graph.of.contains_key(&it));
                let all = way.all.iter().any(|entry| waits(entry));
                let any = !way.any.is_empty() && !way.any_more;
                all || (any && way.any.iter().all(|entry| waits(entry)))
            };
            let left = graph.waits.iter().zip(&graph.stuck);
            let left: Vec<bool> = left.map(|(way, stuck)| *stuck && stays(way)).collect();
            if left == graph.stuck {
                return graph;
            }
            graph.stuck = left;
        }
    }

    /// The shortest cycle through this wait. A session that waits for itself is left out: its tasks take turns.
    fn cycle(&self, start: usize, by_owner: bool) -> Option<Cycle> {
        let first = (self.node)(self.waits[start].waiter).filter(|_| self.stuck[start])?;
        let mut came: BTreeMap<usize, (usize, &'a Holder)> = BTreeMap::new();
        let mut left = VecDeque::from([start]);
        while let Some(at) = left.pop_front() {
            for entry in self.waits[at].both() {
                let Some(node) = (self.node)(entry) else {
                    continue;
                };
                if node == first && at != start {
                    return Some(self.links(&came, start, at, entry, by_owner));
                }
                if Some(node) == (self.node)(self.waits[at].waiter) {
                    continue;
                }
                for next in self.of.get(&node).into_iter().flatten() {
                    if *next != start && !came.contains_key(next) {
                        came.insert(*next, (at, entry));
                        left.push_back(*next);
                    }
                }
            }
        }
        None
    }

    /// The way from the start to the last wait, and from there back by `holder`.
    fn links(
        &self,
        came: &BTreeMap<usize, (usize, &'a Holder)>,
        start: usize,
        last: usize,
        holder: &Holder,
        by_owner: bool,
    ) -> Cycle {
        let link = |at: usize, holder: &Holder| Link {
            waiter: self.waits[at].waiter.clone(),
            holder: holder.clone(),
        };
        let mut links = vec![link(last, holder)];
        let mut at = last;
        while let Some((before, holder)) = came.get(&at).filter(|_| at != start) {
            links.push(link(*before, holder));
            at = *before;
        }
        links.reverse();
        Cycle { links, by_owner }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Life, OwnerId, Waiting};

    /// `"K M S.O"`: session S holds K in mode M for its owner O. `"K M S.O #P"`: it waits there at place P.
    fn entry(text: &str) -> Holder {
        let words: Vec<&str> = text.split(' ').collect();
        let (session, owner) = words[2].split_once('.').unwrap();
        let session = SessionId::new(session.parse().unwrap());
        let place = words
            .get(3)
            .map(|it| it.trim_start_matches('#').parse().unwrap());
        Holder {
            key: LockKey::parse(words[0]).unwrap(),
            grant: Some(Grant {
                session,
                n: text
                    .bytes()
                    .fold(0, |n, byte| n * 31 % 1_000_003 + u64::from(byte)),
            }),
            owner: Some(OwnerId {
                session,
                m: owner.parse().unwrap(),
            }),
            mode: Mode::from_name(words[1]).unwrap(),
            label: words[2].to_owned(),
            since: None,
            life: Life::Living,
            waiting: place.map(|place| Waiting {
                place,
                passed: 0,
                may_go: false,
            }),
        }
    }

    fn records(entries: &[&str]) -> Vec<Record> {
        let mut records: BTreeMap<LockKey, Vec<Holder>> = BTreeMap::new();
        for it in entries.iter().map(|text| entry(text)) {
            records.entry(it.key.clone()).or_default().push(it);
        }
        let records = records.into_iter();
        let records = records.map(|(key, holders)| Record {
            key,
            holders,
            more: false,
            version: String::new(),
        });
        records.collect()
    }

    /// `"1.1>2.1:b"` for each link: who waits for whom, where.
    fn shown(cycles: &[Cycle]) -> Vec<String> {
        let link = |link: &Link| {
            let (waiter, holder) = (&link.waiter, &link.holder);
            format!("{}>{}:{}", waiter.label, holder.label, waiter.key.as_str())
        };
        let cycle = |cycle: &Cycle| {
            let links: Vec<String> = cycle.links.iter().map(link).collect();
            let kind = if cycle.by_owner { "" } else { "sessions " };
            format!("{kind}{}", links.join(" "))
        };
        cycles.iter().map(cycle).collect()
    }

    fn found(entries: &[&str]) -> Vec<String> {
        shown(&cycles(&records(entries)))
    }

    #[test]
    fn two_that_wait_for_each_other() {
        let entries = ["a X 1.1", "b X 2.1", "b X 1.1 #1", "a X 2.1 #1"];
        assert_eq!(found(&entries), ["2.1>1.1:a 1.1>2.1:b"]);
        assert_eq!(found(&entries[..3]), Vec::<String>::new());
        // Somebody else that waits for them is in no cycle.
        let entries = [&entries[..], &["a X 3.1 #2"]].concat();
        let records = records(&entries);
        assert_eq!(shown(&cycles(&records)).len(), 1);
        assert_eq!(cycle_of(&records, entry("a X 3.1 #2").grant.unwrap()), None);
        let own = cycle_of(&records, entry("b X 1.1 #1").grant.unwrap()).unwrap();
        assert_eq!(shown(&[own]), ["1.1>2.1:b 2.1>1.1:a"]);
    }

    #[test]
    fn a_ring_is_told_in_order() {
        let entries = [
            "a X 1.1",
            "b X 2.1",
            "c X 3.1",
            "b X 1.1 #7",
            "c X 2.1 #7",
            "a X 3.1 #7",
        ];
        assert_eq!(found(&entries), ["3.1>1.1:a 1.1>2.1:b 2.1>3.1:c"]);
    }

    #[test]
    fn tasks_of_one_session_may_be_independent() {
        let entries = ["a X 1.1", "b X 2.1", "b X 1.2 #1", "a X 2.2 #1"];
        assert_eq!(found(&entries), ["sessions 2.2>1.1:a 1.2>2.1:b"]);
        // Tasks of one process that take turns are no cycle.
        assert_eq!(found(&["a X 1.1", "a X 1.2 #1"]), Vec::<String>::new());
        // Nor are they one with another in between.
        let turns = ["a X 1.1", "a X 2.1 #1", "a X 1.2 #2"];
        assert_eq!(found(&turns), Vec::<String>::new());
    }

    #[test]
    fn paths_meet_above_and_below() {
        let entries = ["/a/x X 1.1", "/b X 2.1", "/b/y S 1.1 #1", "/a X 2.1 #1"];
        assert_eq!(found(&entries), ["2.1>1.1:/a 1.1>2.1:/b/y"]);
        // A store that lists ancestors has the same cycle.
        let with_above = [&entries[..], &["/a IX 1.1", "/b IS 1.1"]].concat();
        assert_eq!(found(&with_above), found(&entries));
        let apart = ["/a/x X 1.1", "/b X 2.1", "/b/y S 1.1 #1", "/a/z X 2.1 #1"];
        assert_eq!(found(&apart), Vec::<String>::new());
        let reads = ["/a/x S 1.1", "/b X 2.1", "/b/y S 1.1 #1", "/a S 2.1 #1"];
        assert_eq!(found(&reads), Vec::<String>::new());
        let sibling = ["/a!/x X 1.1", "/b X 2.1", "/b X 1.1 #1", "/a X 2.1 #1"];
        assert_eq!(found(&sibling), Vec::<String>::new());
    }

    #[test]
    fn waiters_wait_for_earlier_ones() {
        // 3 reads a; 2 waits to write it, and is in the way of 1, whom 3 waits for.
        let entries = [
            "/a S 3.1",
            "/a X 2.1 #1",
            "/a S 1.1 #2",
            "b X 1.1",
            "b X 3.1 #1",
        ];
        assert_eq!(found(&entries), ["2.1>3.1:/a 3.1>1.1:b 1.1>2.1:/a"]);
        // A later waiter is in nobody's way.
        let later = [
            "/a S 3.1",
            "/a X 2.1 #3",
            "/a S 1.1 #2",
            "b X 1.1",
            "b X 3.1 #1",
        ];
        assert_eq!(found(&later), Vec::<String>::new());
    }

    #[test]
    fn a_session_passes_a_waiter_that_it_keeps_out() {
        // 1 reads again what it reads, while 2 waits to write.
        let entries = ["a IS 1.1", "a X 2.1 #1", "a IS 1.2 #2"];
        assert_eq!(found(&entries), Vec::<String>::new());
        let paths = ["/a/x X 1.1", "/a X 2.1 #1", "/a X 3.1 #2", "/a/y X 1.2 #3"];
        assert_eq!(found(&paths), Vec::<String>::new());
    }

    #[test]
    fn a_semaphore_needs_one_place() {
        let entries = [
            "s IS 1.1",
            "s IS 2.1",
            "s IS 3.1 #1",
            "b X 3.1",
            "b X 1.1 #1",
        ];
        assert_eq!(found(&entries), Vec::<String>::new());
        let both = [&entries[..], &["b X 2.1 #2"]].concat();
        assert_eq!(found(&both)[0], "1.1>3.1:b 3.1>1.1:s");
        // Others may hold places and not be listed.
        let mut records = records(&both);
        records
            .iter_mut()
            .for_each(|record| record.more = record.key.as_str() == "s");
        assert_eq!(shown(&cycles(&records)), Vec::<String>::new());
    }

    #[test]
    fn foreign_holders_wait_for_nothing() {
        let mut records = records(&["a X 1.1", "b X 2.1", "b X 1.1 #1", "a X 2.1 #1"]);
        let foreign = &mut records[0].holders[0];
        (foreign.grant, foreign.owner) = (None, None);
        assert_eq!(shown(&cycles(&records)), Vec::<String>::new());
    }

    #[test]
    fn a_record_that_is_listed_twice_counts_once() {
        let once = records(&["a X 1.1", "b X 2.1", "b X 1.1 #1", "a X 2.1 #1"]);
        let twice = [once.clone(), once.clone()].concat();
        assert_eq!(cycles(&twice), cycles(&once));
        assert_eq!(waits(&twice), waits(&once));
    }

    #[test]
    fn waits_are_told_with_what_is_in_the_way() {
        let listed = records(&[
            "a IS 1.1",
            "a IS 2.1",
            "a X 3.1 #4",
            "a IS 4.1 #5",
            "a IS 5.1 #6",
            "s IS 1.1",
            "s IS 2.2 #1",
        ]);
        let told: Vec<String> = waits(&listed)
            .iter()
            .map(|wait| {
                let by: Vec<&str> = wait.by.iter().map(|it| it.label.as_str()).collect();
                format!("{} {} {}", wait.waiter.label, by.join(","), wait.any)
            })
            .collect();
        let expected = [
            "3.1 1.1,2.1 false",
            "4.1 3.1 false",
            "5.1 3.1 false",
            "2.2 1.1 true",
        ];
        assert_eq!(told, expected);
    }

    /// Of many waiters each is looked at once, not once for every other.
    #[test]
    fn a_large_deadlock_is_found_quickly() {
        let mut entries: Vec<String> = Vec::new();
        for n in 0..2_000 {
            entries.push(format!("k{n} X {}.1", n + 1));
            entries.push(format!("k{} X {}.1 #1", (n + 1) % 2_000, n + 1));
        }
        let entries: Vec<&str> = entries.iter().map(String::as_str).collect();
        let found = cycles(&records(&entries));
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].links.len(), 2_000);
    }
}
