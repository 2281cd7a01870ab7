//! Prepared claims. A line is a claim: a letter for the want, then the key.
//!
//! - there is one claim for each key that was asked for, in path order, and no other;
//! - it is the strongest that was asked for on that key, and a read with a write below it is a write;
//! - the order of the input does not matter, and preparing twice is preparing once;
//! - cut into steps of any size by the client, the claims are all held, each as prepared, and all given back.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use lockcore::backend::{Filter, Inspect, prepare};
use lockcore::{Attempt, Claim, LockKey, Locks, MemoryBackend, PrepareError, Released, Want};

pub(crate) fn hold(data: &[u8]) {
    let Some((steps, lines)) = data.split_first() else {
        return;
    };
    let Ok(text) = std::str::from_utf8(lines) else {
        return;
    };
    let claims: Vec<Claim> = text.split('\n').take(48).filter_map(claim).collect();
    if claims.is_empty() {
        assert_eq!(prepare(claims), Err(PrepareError::Nothing));
        return;
    }
    let expected = expected(&claims);
    let prepared = prepare(claims.clone()).expect("a few claims are within all limits");
    assert_eq!(prepared, expected);
    assert_eq!(prepare(prepared.clone()), Ok(expected.clone()));
    let backwards = claims.iter().rev().cloned().collect();
    assert_eq!(prepare(backwards), Ok(expected));
    // Where a step ends does not matter to what is prepared; so not every input has to go through a store.
    let keys_per_batch = usize::from(steps % 16);
    if (1..=9).contains(&keys_per_batch) {
        acquire(&claims, &prepared, keys_per_batch);
    }
}

fn claim(line: &str) -> Option<Claim> {
    let mut chars = line.chars();
    let want = match chars.next()? {
        'c' => Want::Create,
        'u' => Want::Upsert,
        's' => Want::Share { limit: None },
        limit @ '1'..='9' => Want::Share {
            limit: limit.to_digit(10).and_then(NonZeroU32::new),
        },
        'w' => Want::Write,
        'r' => Want::Read,
        _ => return None,
    };
    Claim::new(LockKey::parse(chars.as_str()).ok()?, want)
}

/// By looking at every pair of claims.
fn expected(claims: &[Claim]) -> Vec<Claim> {
    let mut wants: BTreeMap<&LockKey, Want> = BTreeMap::new();
    for claim in claims {
        let want = wants.entry(claim.key()).or_insert(claim.want());
        *want = stronger(*want, claim.want());
    }
    for write in claims.iter().filter(|claim| claim.want() == Want::Write) {
        for (key, want) in &mut wants {
            if key.is_above(write.key()) {
                *want = Want::Write;
            }
        }
    }
    wants
        .into_iter()
        .map(|(key, want)| Claim::new(key.clone(), want).expect("the kind of the key is the same"))
        .collect()
}

fn stronger(one: Want, other: Want) -> Want {
    for strong in [Want::Write, Want::Create, Want::Upsert, Want::Read] {
        if [one, other].contains(&strong) {
            return strong;
        }
    }
    // Of two limits the smaller asks for more.
    let limits = [one.limit(), other.limit()];
    Want::Share {
        limit: limits.into_iter().flatten().min(),
    }
}

fn acquire(claims: &[Claim], prepared: &[Claim], keys_per_batch: usize) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime of this thread");
    runtime.block_on(async {
        let backend = MemoryBackend::new().with_keys_per_batch(keys_per_batch);
        let locks = Locks::builder(backend.clone()).build().expect("defaults");
        let all = |wanted: &[Want]| claims.iter().all(|claim| wanted.contains(&claim.want()));
        let attempt = if all(&[Want::Write, Want::Read]) {
            let tree = claims.iter().fold(locks.tree(), |tree, claim| {
                let path = claim.key().as_str();
                match claim.want() {
                    Want::Write => tree.write(path),
                    _ => tree.read(path),
                }
            });
            tree.try_acquire().await
        } else if all(&[Want::Upsert]) {
            let ids = claims.iter().map(|claim| claim.key().as_str());
            locks.documents(ids).try_acquire().await
        } else {
            return;
        };
        let guard = match attempt.expect("good input and a good store") {
            Attempt::Acquired(guard) => guard,
            Attempt::Busy(busy) => panic!("nobody else is there: {busy:?}"),
        };
        assert_eq!(guard.claims(), prepared, "what the guard says it holds");
        let all_keys = Filter::Prefix(String::new());
        let listed = || backend.records(&all_keys, None, 1_000);
        let page = listed().await.expect("a listing");
        let held: Vec<_> = page
            .items
            .iter()
            .map(|record| {
                let modes: Vec<_> = record.holders.iter().map(|holder| holder.mode).collect();
                (&record.key, modes)
            })
            .collect();
        let expected: Vec<_> = prepared
            .iter()
            .map(|claim| (claim.key(), vec![claim.want().mode()]))
            .collect();
        assert_eq!(held, expected, "what is held, {keys_per_batch} keys a step");
        let released = guard.release().await.expect("a release");
        assert_eq!(released, Released::Released);
        assert_eq!(listed().await.expect("a listing").items, []);
    });
}
