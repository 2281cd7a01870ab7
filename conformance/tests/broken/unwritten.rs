//! Mistakes in which an answer comes before its write, or without it.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use lockcore::backend::{
    Acquired, Adopt, Adopted, Adoption, End, Incarnation, IntentChange, Registered, Renewal,
    Renewed, Settled,
};
use lockcore::{
    Claim, Life, LockBackend, LockKey, Result, SessionId, SessionState, Want, async_trait,
};
use lockcore_conformance::{Decorator, Law};
use tokio::time::sleep;

use crate::Broken;
use crate::support::{Ghost, Store, life, lock};

pub(crate) fn all() -> Vec<Broken> {
    let early = |how| move |store| Early { store, how };
    vec![
        Broken::new(
            "close answered before its write",
            Law::DeadStaysDead,
            early(End::Close),
        ),
        Broken::new(
            "revocation answered before its write",
            Law::DeadStaysDead,
            early(End::Revoke),
        ),
        Broken::new(
            "first of several deaths written",
            Law::DeadStaysDead,
            FirstOnly,
        ),
        Broken::new(
            "adoption written when it is settled",
            Law::Recovery,
            Late::new,
        ),
    ]
}

/// The answer that a death would have.
fn dead(mut state: SessionState) -> SessionState {
    if state.life == Life::Living {
        state.life = Life::Dead;
    }
    state
}

/// Answers a death at once, and writes it a moment later.
struct Early {
    store: Store,
    how: End,
}

#[async_trait]
impl Decorator for Early {
    fn inner(&self) -> &dyn LockBackend {
        &*self.store
    }

    async fn end(&self, sessions: &[SessionId], how: End) -> Result<Vec<SessionState>> {
        if how != self.how {
            return self.store.end(sessions, how).await;
        }
        let states = self.store.end(sessions, End::IfDue).await?;
        let (store, sessions) = (self.store.clone(), sessions.to_vec());
        #[expect(
            clippy::disallowed_methods,
            reason = "nobody waits for a write that comes after its answer"
        )]
        tokio::spawn(async move {
            sleep(Duration::from_millis(1)).await;
            store.end(&sessions, how).await
        });
        Ok(states.into_iter().map(dead).collect())
    }
}

/// Writes the first death of a request, and answers all of them.
struct FirstOnly(Store);

#[async_trait]
impl Decorator for FirstOnly {
    fn inner(&self) -> &dyn LockBackend {
        &*self.0
    }

    async fn end(&self, sessions: &[SessionId], how: End) -> Result<Vec<SessionState>> {
        if how == End::IfDue || sessions.len() < 2 {
            return self.0.end(sessions, how).await;
        }
        let mut states = self.0.end(&sessions[..1], how).await?;
        let rest = self.0.end(&sessions[1..], End::IfDue).await?;
        states.extend(rest.into_iter().map(dead));
        Ok(states)
    }
}

/// Answers an adoption from what it has read, and writes it with the settlement.
struct Late {
    store: Store,
    ghost: Ghost,
    intents: Mutex<HashMap<SessionId, Registered>>,
    answered: Mutex<HashMap<(SessionId, u64), SessionId>>,
}

impl Late {
    fn new(store: Store) -> Self {
        Self {
            store,
            ghost: Ghost::new(),
            intents: Mutex::default(),
            answered: Mutex::default(),
        }
    }
}

#[async_trait]
impl Decorator for Late {
    fn inner(&self) -> &dyn LockBackend {
        &*self.store
    }

    async fn renew(&self, session: SessionId, renewal: &Renewal) -> Result<Renewed> {
        let renewed = self.store.renew(session, renewal).await?;
        if let (true, IntentChange::Put(left)) = (renewed.is_living(), &renewal.intent) {
            lock(&self.intents).insert(session, left.clone());
        }
        Ok(renewed)
    }

    async fn adopt(
        &self,
        session: SessionId,
        seen: u64,
        adopter: SessionId,
        how: Adopt,
        within: Incarnation,
    ) -> Result<Adopted> {
        let state = self.store.end(&[session], End::IfDue).await?.remove(0);
        let left = lock(&self.intents).get(&session).cloned();
        let (Adopt::Take, Life::Abandoned, Some(left)) = (how, state.life, left) else {
            return self.store.adopt(session, seen, adopter, how, within).await;
        };
        if state.adoption != seen || life(&self.store, adopter).await? != Life::Living {
            return Ok(Adopted::NotAdopted);
        }
        let number = seen + 1;
        // A token as great as an adoption's would be.
        let key = LockKey::flat(format!("token {session} {number}")).expect("a short name");
        let claims = vec![Claim::new(key, Want::Create).expect("of that kind")];
        let Acquired::Acquired(token) = self.ghost.acquires(&self.store, claims).await? else {
            return Ok(Adopted::NotAdopted);
        };
        lock(&self.answered).insert((session, number), adopter);
        Ok(Adopted::Adopted(Adoption {
            number,
            token,
            left,
        }))
    }

    async fn settle(
        &self,
        session: SessionId,
        adoption: u64,
        adopter: SessionId,
        within: Incarnation,
    ) -> Result<Settled> {
        let answered = lock(&self.answered).remove(&(session, adoption));
        if let Some(adopter) = answered {
            let seen = adoption - 1;
            self.store
                .adopt(session, seen, adopter, Adopt::Take, within)
                .await?;
        }
        self.store.settle(session, adoption, adopter, within).await
    }
}
