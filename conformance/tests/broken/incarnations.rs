//! Mistakes of a store that has a name.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use libtest_mimic::{Failed, Trial};
use lockcore::backend::{
    Acquire, Acquired, Incarnation, IntentChange, LockBackend, Opened, Ranges, Renewal, Renewed,
};
use lockcore::{Grant, Label, MemoryBackend, Result, SessionId};
use lockcore_conformance::{Decorated, Decorator, Law, World, cases, check};

use crate::support::{Granted, Store};
use crate::world::Memory;
use crate::{Broken, FORMS};

/// It never takes over from another one, so it may have any.
const NAME: Incarnation = Incarnation::new(7);
/// Nobody asks for more numbers at once.
const MOST: u64 = 1_000;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mistake {
    None,
    LooksForNoGrant,
    GrantsWhatIsMeantForAnother,
    RenewsWhatIsMeantForAnother,
    WritesAndSaysThatItIsAnother,
}

pub(crate) fn all() -> Vec<Broken> {
    [
        ("renewal without its grants", Mistake::LooksForNoGrant),
        (
            "grant meant for another incarnation",
            Mistake::GrantsWhatIsMeantForAnother,
        ),
        (
            "renewal meant for another incarnation",
            Mistake::RenewsWhatIsMeantForAnother,
        ),
        (
            "renewal that is written by another incarnation",
            Mistake::WritesAndSaysThatItIsAnother,
        ),
    ]
    .map(|(name, mistake)| {
        Broken::new(name, Law::OneWriter, move |store| {
            Named::new(store, mistake)
        })
    })
    .into()
}

/// A store with a name and without a mistake passes.
pub(crate) fn well() -> Vec<Trial> {
    let trial = |(form, make): (&str, fn() -> Arc<MemoryBackend>)| {
        Trial::test(format!("{form}::well_named"), move || {
            let world: Arc<dyn World> = Arc::new(Memory {
                name: "named".to_owned(),
                make: Arc::new(make),
                wrap: Arc::new(|store| Arc::new(Decorated(Named::new(store, Mistake::None)))),
            });
            let cases = cases();
            let mut of_sessions = 0;
            for case in cases.iter().filter(|case| case.law() == Law::OneWriter) {
                of_sessions += 1;
                check(case, &world, 1).map_err(|failure| Failed::from(failure.to_string()))?;
            }
            assert!(of_sessions > 4);
            Ok(())
        })
    };
    FORMS.map(trial).into()
}

struct Named {
    store: Store,
    granted: Granted,
    mistake: Mistake,
}

impl Named {
    fn new(store: Store, mistake: Mistake) -> Self {
        Self {
            store,
            granted: Granted::default(),
            mistake,
        }
    }

    async fn has(&self, session: SessionId, renewal: &Renewal) -> Result<bool> {
        for (from, to) in renewal.granted.as_slice() {
            for n in *from..=*to.min(&from.saturating_add(MOST)) {
                let grant = Grant { session, n };
                let held = self.granted.of(session);
                let Some(held) = held.iter().find(|held| held.grant == grant) else {
                    return Ok(false);
                };
                if !self.store.confirm(grant, &held.claims).await? {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }
}

fn is_meant_for_another(meant: Incarnation) -> bool {
    meant.is_known() && meant != NAME
}

#[async_trait]
impl Decorator for Named {
    fn inner(&self) -> &dyn LockBackend {
        &*self.store
    }

    async fn open(&self, session: SessionId, label: &Label, ttl: Duration) -> Result<Opened> {
        Ok(match self.store.open(session, label, ttl).await? {
            Opened::Opened(_) => Opened::Opened(NAME),
            Opened::Used => Opened::Used,
        })
    }

    async fn renew(&self, session: SessionId, renewal: &Renewal) -> Result<Renewed> {
        // An old one changes nothing, and says whether the session is dead.
        let old = Renewal::new(0, Ranges::EMPTY, IntentChange::Keep);
        if self.store.renew(session, &old).await? == Renewed::Dead {
            return Ok(Renewed::Dead);
        }
        if is_meant_for_another(renewal.incarnation) {
            match self.mistake {
                Mistake::RenewsWhatIsMeantForAnother => {}
                Mistake::WritesAndSaysThatItIsAnother => {
                    self.store.renew(session, renewal).await?;
                    return Ok(Renewed::Moved(NAME));
                }
                _ => return Ok(Renewed::Moved(NAME)),
            }
        } else if self.mistake != Mistake::LooksForNoGrant && !self.has(session, renewal).await? {
            return Ok(Renewed::Forgotten);
        }
        self.store.renew(session, renewal).await
    }

    async fn acquire(&self, request: &Acquire) -> Result<Acquired> {
        let grants_all = self.mistake == Mistake::GrantsWhatIsMeantForAnother;
        if is_meant_for_another(request.incarnation) && !grants_all {
            return Ok(Acquired::Moved);
        }
        let answer = self.store.acquire(request).await?;
        if matches!(answer, Acquired::Acquired(_)) {
            self.granted.note(request);
        }
        Ok(answer)
    }
}
