//! Mistakes with what is above and below a path.

use lockcore::backend::Stood;
use lockcore::{Claim, Grant, LockBackend, LockPath, Result, Want, async_trait};
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
