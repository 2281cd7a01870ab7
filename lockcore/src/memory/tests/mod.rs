//! Both forms, by the same tests, in short words: `write /a` is a claim, `/a IX 1/2 living` a holder.

mod claims;
mod compare;
mod failover;
mod inspect;
mod interleaved;
mod recovery;
mod sessions;
mod wakeups;

use std::sync::Arc;
use std::time::Duration;

use super::MemoryBackend;
use crate::{
    Acquire, Acquired, Busy, Claim, ClaimStore, End, FencingToken, Grant, Holder, Incarnation,
    Intent, IntentChange, Label, Life, LockKey, LockPath, Opened, OwnerId, Ranges, Registered,
    Renewal, Renewed, SessionId, SessionStore, Want, prepare,
};

const TTL: Duration = Duration::from_secs(30);

fn both() -> [Arc<MemoryBackend>; 2] {
    [MemoryBackend::new(), MemoryBackend::records()]
}

fn id(session: u128) -> SessionId {
    SessionId::new(session)
}

fn grant(session: u128, n: u64) -> Grant {
    Grant {
        session: id(session),
        n,
    }
}

fn key(text: &str) -> LockKey {
    LockKey::parse(text).unwrap()
}

fn claim(text: &str) -> Claim {
    let (want, name) = text.split_once(' ').unwrap();
    let want = match want {
        "create" => Want::Create,
        "upsert" => Want::Upsert,
        "share" => Want::Share { limit: None },
        "write" => return Claim::write(LockPath::parse(name).unwrap()),
        "read" => return Claim::read(LockPath::parse(name).unwrap()),
        limited => Want::Share {
            limit: limited.strip_prefix("share:").unwrap().parse().ok(),
        },
    };
    Claim::new(key(name), want).unwrap()
}

fn claims(texts: &[&str]) -> Vec<Claim> {
    prepare(texts.iter().map(|text| claim(text)).collect()).unwrap()
}

/// A request by an owner of its own.
fn request(session: u128, n: u64, texts: &[&str]) -> Acquire {
    let owner = OwnerId {
        session: id(session),
        m: n,
    };
    Acquire::new(grant(session, n), owner, claims(texts))
}

/// The same request by the session's owner 100.
fn owned(mut request: Acquire) -> Acquire {
    request.owner.m = 100;
    request
}

async fn open(store: &MemoryBackend, sessions: impl IntoIterator<Item = u128>) {
    for session in sessions {
        let label = Label::parse(format!("process {session}")).unwrap();
        let opened = store.open(id(session), &label, TTL).await.unwrap();
        assert_eq!(opened, Opened::Opened(Incarnation::UNKNOWN));
    }
}

async fn ask(store: &MemoryBackend, request: &Acquire) -> Acquired {
    store.acquire(request).await.unwrap()
}

async fn granted(store: &MemoryBackend, request: &Acquire) -> FencingToken {
    match ask(store, request).await {
        Acquired::Acquired(token) => token,
        other => panic!("{store:?} did not grant {request:?}: {other:?}"),
    }
}

async fn busy(store: &MemoryBackend, request: &Acquire) -> Busy {
    match ask(store, request).await {
        Acquired::Busy(busy) => busy,
        other => panic!("{store:?} did not refuse {request:?}: {other:?}"),
    }
}

async fn release(store: &MemoryBackend, request: &Acquire) {
    store.release(request.grant, &request.claims).await.unwrap();
}

async fn end(store: &MemoryBackend, session: u128, how: End) -> Life {
    store.end(&[id(session)], how).await.unwrap()[0].life
}

fn renewal(seq: u64, retired: &str, intent: IntentChange) -> Renewal {
    let retired: Ranges = retired.parse().unwrap();
    Renewal::new(seq, retired, intent)
}

async fn renew(store: &MemoryBackend, session: u128, renewal: Renewal) -> Renewed {
    store.renew(id(session), &renewal).await.unwrap()
}

fn intent(token: FencingToken) -> IntentChange {
    IntentChange::Put(Registered {
        token,
        intent: Intent::new(b"rename".to_vec()).unwrap(),
    })
}

fn shown(holders: &[Holder]) -> Vec<String> {
    let one = |holder: &Holder| {
        let who = holder.grant.map_or("foreign".to_owned(), |grant| {
            format!("{}/{}", grant.session.get(), grant.n)
        });
        format!("{} {} {who} {}", holder.key, holder.mode, holder.life)
    };
    holders.iter().map(one).collect()
}
