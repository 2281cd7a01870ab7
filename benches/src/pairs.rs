//! Acquiring and releasing what nobody else wants, beside what the store itself needs for the like.

use std::time::{Duration, Instant};

use lockkeeper::{AcquireError, Guard, Locks, Released};
use lockkeeper_workloads::{Hold, id};

use crate::floor::{self, Floor};
use crate::peer::{self, Peer};
use crate::relay::Relay;
use crate::rounds::{Spread, micros, one_thread, ratios};
use crate::store::{Store, locks};

/// In a round they take turns so often, each for so long: what else the machine does meets all of them.
const TURNS: usize = 10;
const SLICE: Duration = Duration::from_millis(100);
/// Rounds that do not count: servers get faster while they run.
const WARM_UP: usize = 3;
/// Ids of a document lock.
const MANY: u32 = 100;
/// Pairs of which the round trips are counted.
const COUNTED: u32 = 200;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    Floor,
    Global,
    /// Another library's lock.
    Peer(usize),
    Path1,
    Path5,
    Path32,
    FloorOfMany,
    Documents,
}

const OURS: [What; 5] = [
    What::Global,
    What::Path1,
    What::Path5,
    What::Path32,
    What::Documents,
];

impl What {
    fn name(self, beside: &Beside) -> String {
        match self {
            What::Floor => format!("floor: {}", beside.floor.pair_is()),
            What::Peer(at) => beside.peers[at].name.to_owned(),
            What::Global => "global lock".to_owned(),
            What::Path1 => "tree lock, depth 1".to_owned(),
            What::Path5 => "tree lock, depth 5".to_owned(),
            What::Path32 => "tree lock, depth 32".to_owned(),
            What::FloorOfMany => format!("floor of {MANY}: {}", beside.floor.many_is()),
            What::Documents => format!("document lock of {MANY} ids"),
        }
    }
}

/// What is measured beside our locks.
struct Beside {
    floor: Box<dyn Floor>,
    pair: Peer,
    peers: Vec<Peer>,
}

fn path(depth: usize) -> String {
    (0..depth).map(|n| format!("/component-{n}")).collect()
}

fn held(answer: Result<Guard, AcquireError>) -> Guard {
    answer.expect("nobody else wants it")
}

async fn pair(locks: &Locks, what: What) {
    let guard = match what {
        What::Global => held(locks.lock("bench").acquire().await),
        What::Path1 => held(locks.tree().write(path(1)).acquire().await),
        What::Path5 => held(locks.tree().write(path(5)).acquire().await),
        What::Path32 => held(locks.tree().write(path(32)).acquire().await),
        _ => held(locks.documents((0..MANY).map(id)).acquire().await),
    };
    let released = guard.release().await.expect("the store answers");
    assert_eq!(released, Released::Released);
}

/// How much of something was done in which time.
#[derive(Clone, Copy, Default)]
struct Done {
    pairs: u32,
    time: Duration,
}

/// Does it for one slice.
async fn measure(locks: &Locks, beside: &mut Beside, what: What, done: &mut Done) {
    let peer = match what {
        What::Peer(at) => Some(&mut beside.peers[at]),
        What::Floor => Some(&mut beside.pair),
        _ => None,
    };
    if let Some(peer) = peer {
        let (turns, time) = peer.turns(&["bench".to_owned()], Hold::None, SLICE).await;
        done.pairs += u32::try_from(turns[0].len()).expect("not that many");
        done.time += time;
        return;
    }
    let start = Instant::now();
    while start.elapsed() < SLICE {
        match what {
            What::FloorOfMany => {
                beside.floor.put(MANY).await;
                beside.floor.remove(MANY).await;
            }
            _ => pair(locks, what).await,
        }
        done.pairs += 1;
    }
    done.time += start.elapsed();
}

pub(crate) fn run(store: &Store, rounds: usize) {
    one_thread().block_on(async {
        let locks = store.locks().await;
        let floor = floor::of(store).await.expect("the store has a floor");
        let mut beside = Beside {
            pair: Peer::new("floor", floor.pair()),
            floor,
            peers: peer::of(store).await,
        };
        let peers = (0..beside.peers.len()).map(What::Peer);
        let all: Vec<What> = [What::Floor, What::FloorOfMany]
            .into_iter()
            .chain(OURS)
            .chain(peers.clone())
            .collect();
        let mut times: Vec<Vec<f64>> = vec![Vec::new(); all.len()];
        for round in 0..WARM_UP + rounds {
            let mut done = vec![Done::default(); all.len()];
            for turn in 0..TURNS {
                let mut order: Vec<usize> = (0..all.len()).collect();
                if turn % 2 == 1 {
                    order.reverse();
                }
                for at in order {
                    measure(&locks, &mut beside, all[at], &mut done[at]).await;
                }
            }
            if round >= WARM_UP {
                for (times, done) in times.iter_mut().zip(done) {
                    times.push(micros(done.time) / f64::from(done.pairs));
                }
            }
        }
        println!(
            "{}: acquire+release, µs, medians of {rounds} rounds (least to greatest):",
            store.scheme()
        );
        let of = |what: What| &times[all.iter().position(|it| *it == what).expect("it is one")];
        for what in &all {
            println!(
                "  {}: {}",
                what.name(&beside),
                Spread::of(of(*what).clone())
            );
        }
        println!("ratios, round by round:");
        for (what, to, name) in [
            (What::Global, What::Floor, "global lock / floor"),
            (What::Path5, What::Global, "depth 5 / global lock"),
            (What::Path32, What::Global, "depth 32 / global lock"),
            (What::Path32, What::Path1, "depth 32 / depth 1"),
            (
                What::Documents,
                What::FloorOfMany,
                "documents / floor of them",
            ),
        ] {
            println!("  {name}: {}", ratios(of(what), of(to)));
        }
        for peer in peers {
            println!(
                "  global lock / {}: {}",
                peer.name(&beside),
                ratios(of(What::Global), of(peer))
            );
        }
        count(store, &beside).await;
    });
}

/// How many round trips they take, if the store is a server.
async fn count(store: &Store, beside: &Beside) {
    let Some(relay) = Relay::before(store.url()) else {
        return;
    };
    let locks = locks(relay.url()).await;
    // Opens the session.
    pair(&locks, What::Global).await;
    println!("round trips of a pair, counted before the server:");
    for what in OURS {
        let before = relay.round_trips();
        for _ in 0..COUNTED {
            pair(&locks, what).await;
        }
        let round_trips = u32::try_from(relay.round_trips() - before).expect("not that many");
        println!(
            "  {}: {:.2}",
            what.name(beside),
            f64::from(round_trips) / f64::from(COUNTED)
        );
    }
}
