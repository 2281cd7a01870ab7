//! Mistakes of a store that has a name.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use libtest_mimic::{Failed, Trial};
use lockcore::backend::{
    Acquire, Acquired, Adopt, Adopted, Incarnation, IntentChange, LockBackend, Opened, Ranges,
    Renewal, Renewed, Settled,
};
use lockcore::{Grant, Label, MemoryBackend, Result, SessionId};
use lockcore_conformance::{Case, Decorated, Decorator, Fixture, Law, Layer, cases, check};

use crate::fixture::Memory;
use crate::support::{Granted, Store};
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
    TakesWhatIsMeantForAnother,
    GivesUpWhatIsMeantForAnother,
    SettlesWhatIsMeantForAnother,
}

pub(crate) fn all() -> Vec<Broken> {
    let of_sessions = [
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
    ];
    let of_adoptions = [
        (
            "adoption meant for another incarnation",
            Mistake::TakesWhatIsMeantForAnother,
        ),
        (
            "giving up meant for another incarnation",
            Mistake::GivesUpWhatIsMeantForAnother,
        ),
        (
            "settlement meant for another incarnation",
            Mistake::SettlesWhatIsMeantForAnother,
        ),
    ];
    let of_sessions = of_sessions.map(|it| (Law::OneWriter, it));
    let of_adoptions = of_adoptions.map(|it| (Law::Recovery, it));
    let all = of_sessions.into_iter().chain(of_adoptions);
    all.map(|(law, (name, mistake))| {
        Broken::new(name, law, move |store| Named::new(store, mistake))
    })
    .collect()
}

/// A store with a name and without a mistake passes.
pub(crate) fn well() -> Vec<Trial> {
    let trial = |(form, make): (&str, fn() -> Arc<MemoryBackend>)| {
        Trial::test(format!("{form}::well_named"), move || {
            let fixture: Arc<dyn Fixture> = Arc::new(Memory {
                name: "named".to_owned(),
                make: Arc::new(make),
                wrap: Arc::new(|store| Arc::new(Decorated(Named::new(store, Mistake::None)))),
            });
            let cases = cases();
            let laws = [Law::OneWriter, Law::Recovery];
            let mut checked = 0;
            let of_laws =
                |case: &&Case| laws.contains(&case.law()) && case.layer() != Layer::Processes;
            for case in cases.iter().filter(of_laws) {
                checked += 1;
                check(case, &fixture, 1).map_err(|failure| Failed::from(failure.to_string()))?;
            }
            assert!(checked > 20);
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

    async fn adopt(
        &self,
        session: SessionId,
        seen: u64,
        adopter: SessionId,
        how: Adopt,
        within: Incarnation,
    ) -> Result<Adopted> {
        let ignores = match how {
            Adopt::Take => Mistake::TakesWhatIsMeantForAnother,
            Adopt::GiveUp => Mistake::GivesUpWhatIsMeantForAnother,
        };
        if is_meant_for_another(within) && self.mistake != ignores {
            return Ok(Adopted::Moved);
        }
        self.store.adopt(session, seen, adopter, how, within).await
    }

    async fn settle(
        &self,
        session: SessionId,
        adoption: u64,
        adopter: SessionId,
        within: Incarnation,
    ) -> Result<Settled> {
        let ignores = self.mistake == Mistake::SettlesWhatIsMeantForAnother;
        if is_meant_for_another(within) && !ignores {
            return Ok(Settled::Moved);
        }
        self.store.settle(session, adoption, adopter, within).await
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
