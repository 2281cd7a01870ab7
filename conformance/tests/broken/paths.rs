//! Mistakes with what is above and below a path.

use lockcore::backend::{Acquire, Acquired, Filter, Stood};
use lockcore::{
    Busy, Claim, Grant, LockBackend, LockPath, Mode, Refused, Result, Want, async_trait,
};
use lockcore_conformance::{Decorator, Law};

use crate::Broken;
use crate::names::Renamed;
use crate::support::{Ghost, Store};

pub(crate) fn all() -> Vec<Broken> {
    vec![
        Broken::new("ancestor not counted", Law::AtMostOneHolder, |store| {
            Renamed {
                store,
                there: flat,
                back: |name| name.replace(DIVISION, "/"),
            }
        }),
        Broken::new("ancestor's count leaked", Law::NothingKept, Leaks::new),
        Broken::new(
            "what is below a path not found by LIKE",
            Law::AtMostOneHolder,
            Like::new,
        ),
        Broken::new(
            "what is not below a path found by LIKE",
            Law::AllowedIsGranted,
            Like::new,
        ),
        Broken::new(
            "a sibling in byte order taken for a child",
            Law::AllowedIsGranted,
            |store| Renamed {
                store,
                there: below,
                back: |name| name.replace(&format!("/{DIVISION}!"), "!"),
            },
        ),
    ]
}

/// In no key of the kit.
const DIVISION: &str = "|";

/// A path of one component.
fn flat(key: &str) -> String {
    match key.strip_prefix('/') {
        Some(rest) => format!("/{}", rest.replace('/', DIVISION)),
        None => key.to_owned(),
    }
}

/// `/a!x` as if it stood below `/a`.
fn below(key: &str) -> String {
    if !key.starts_with('/') {
        return key.to_owned();
    }
    let mut name = String::new();
    for byte in key.chars() {
        if byte == '!' && !name.ends_with('/') {
            name.push('/');
            name.push_str(DIVISION);
        }
        name.push(byte);
    }
    name
}

/// Takes a released path from its own record, and not from those of its ancestors.
struct Leaks {
    store: Store,
    ghost: Ghost,
}

impl Leaks {
    fn new(store: Store) -> Self {
        let ghost = Ghost::new();
        Self { store, ghost }
    }
}

#[async_trait]
impl Decorator for Leaks {
    fn inner(&self) -> &dyn LockBackend {
        &*self.store
    }

    async fn release(&self, grant: Grant, claims: &[Claim]) -> Result<Stood> {
        let held = self.store.confirm(grant, claims).await?;
        let stood = self.store.release(grant, claims).await?;
        for claim in claims
            .iter()
            .filter(|claim| held && claim.want() == Want::Write)
        {
            let Some(parent) = claim.key().ancestors().last() else {
                continue;
            };
            let beside = LockPath::parse(format!("{parent}/{DIVISION}")).expect("a path");
            let beside = vec![Claim::write(beside)];
            let _ = self.ghost.acquires(&self.store, beside).await?;
        }
        Ok(stood)
    }
}

/// Finds who writes below a path by `LIKE '/a/%'`, where `\`, `%` and `_` in the path count for patterns.
struct Like {
    store: Store,
    ghost: Ghost,
}

impl Like {
    fn new(store: Store) -> Self {
        let ghost = Ghost::new();
        Self { store, ghost }
    }

    /// Whoever is found below the claim: the claim refused, if somebody is.
    async fn found(&self, claim: &Claim) -> Result<Option<Refused>> {
        let pattern: Vec<char> = format!("{}/%", claim.key()).chars().collect();
        let all = Filter::Prefix("/".to_owned());
        let mut records = self.store.records(&all, None, 100).await?.items;
        records.retain(|record| {
            let name: Vec<char> = record.key.as_str().chars().collect();
            is_like(&name, &pattern)
        });
        let mut holders: Vec<_> = records.into_iter().flat_map(|it| it.holders).collect();
        holders.retain(|holder| holder.mode == Mode::X);
        Ok((!holders.is_empty()).then(|| Refused {
            claim: claim.clone(),
            holders,
            more: false,
        }))
    }
}

/// Whether SQL's `LIKE` says so.
fn is_like(text: &[char], pattern: &[char]) -> bool {
    match pattern {
        [] => text.is_empty(),
        ['%', rest @ ..] => (0..=text.len()).any(|from| is_like(&text[from..], rest)),
        ['_', rest @ ..] => !text.is_empty() && is_like(&text[1..], rest),
        ['\\', one, rest @ ..] | [one, rest @ ..] => {
            text.first() == Some(one) && is_like(&text[1..], rest)
        }
    }
}

#[async_trait]
impl Decorator for Like {
    fn inner(&self) -> &dyn LockBackend {
        &*self.store
    }

    async fn acquire(&self, request: &Acquire) -> Result<Acquired> {
        let answer = self.store.acquire(request).await?;
        let [claim] = &*request.claims else {
            return Ok(answer);
        };
        if claim.want() != Want::Write || !claim.key().as_str().contains(['\\', '%', '_']) {
            return Ok(answer);
        }
        match (&answer, self.found(claim).await?) {
            // Nothing but what is below is in the way.
            (Acquired::Busy(busy), None)
                if busy.first().holders.iter().all(|it| it.mode == Mode::IX) =>
            {
                let beside = LockPath::parse(format!("/{DIVISION}")).expect("a path");
                self.ghost
                    .acquires(&self.store, vec![Claim::read(beside)])
                    .await
            }
            (Acquired::Acquired(_), Some(refused)) => {
                self.store.release(request.grant, &request.claims).await?;
                Ok(Acquired::Busy(Busy::new(vec![refused], false)))
            }
            _ => Ok(answer),
        }
    }
}
