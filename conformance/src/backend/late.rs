//! What comes too late for a session that is dead, by every way to die.

use lockcore::{Acquire, Acquired, End, IntentChange, Life, Opened, Renewed, Want};

use crate::actor::{Actor, registered};
use crate::case::{Case, Layer};
use crate::law::Law;
use crate::scene::{Scene, short};
use crate::verdict::{Verdict, Wrong, ensure, ensure_eq};

pub(super) fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    for (word, death) in DEATHS {
        for (what, check) in AFTER {
            let name = format!("after_{word}_{what}");
            all.push(Case::new(
                Layer::Backend,
                "sessions",
                Law::DeadStaysDead,
                name,
                move |scene| Box::pin(after_death(scene, death, check)),
            ));
        }
    }
    all
}

/// The ways to die.
#[derive(Clone, Copy)]
enum Death {
    Close,
    Revoke,
    Due,
    /// By its own renewals only: nobody has looked since it is due.
    Swept,
}

const DEATHS: [(&str, Death); 4] = [
    ("close", Death::Close),
    ("revoke", Death::Revoke),
    ("expiry", Death::Due),
    ("close_and_sweep", Death::Swept),
];

/// What comes too late.
#[derive(Clone, Copy)]
enum Late {
    Renewal,
    Registration,
    Open,
    LoneClaim,
    Step,
    Joined,
    Copy,
    Confirm,
    Adoption,
}

const AFTER: [(&str, Late); 9] = [
    ("a_renewal_has_no_effect", Late::Renewal),
    ("a_registration_has_no_effect", Late::Registration),
    ("an_open_is_refused", Late::Open),
    ("a_lone_claim_does_not_count", Late::LoneClaim),
    ("a_step_is_void", Late::Step),
    ("a_joined_claim_is_void", Late::Joined),
    ("a_copy_of_a_granted_claim_does_not_count", Late::Copy),
    ("nothing_is_confirmed", Late::Confirm),
    ("there_is_nothing_to_adopt", Late::Adoption),
];

async fn after_death(scene: Scene, death: Death, late: Late) -> Verdict {
    let other = scene.actor().await?;
    let ttl = short(&other.backend().info());
    let a = match death {
        Death::Due => scene.actor_for(ttl).await?,
        Death::Close | Death::Revoke | Death::Swept => scene.actor().await?,
    };
    let held = a.ask(&[(Want::Create, "held before")]);
    let token = a.take(&held).await?;
    let state = match death {
        Death::Close => a.end(End::Close).await?,
        Death::Revoke => scene.end(a.session(), End::Revoke).await?,
        Death::Due => {
            scene.expire(ttl).await;
            scene.state(a.session()).await?
        }
        Death::Swept => {
            let state = a.end(End::Close).await?;
            scene.sweep_all().await?;
            state
        }
    };
    ensure_eq!(state.life, Life::Dead, "the session's state");
    match late {
        Late::Renewal => {
            let renewed = a.send_renewal(&a.renewal("", IntentChange::Keep)).await?;
            ensure_eq!(renewed, Renewed::Dead, "a late renewal");
        }
        Late::Registration => {
            let put = IntentChange::Put(registered(token, "too late")?);
            let renewed = a.send_renewal(&a.renewal("", put)).await?;
            ensure_eq!(renewed, Renewed::Dead, "a late registration");
        }
        Late::Open => {
            let opened = a.backend().open(a.session(), a.label(), ttl).await?;
            ensure_eq!(opened, Opened::Used, "a late open");
        }
        Late::LoneClaim => uncounted(&a, &a.ask(&[(Want::Create, "k")])).await?,
        Late::Step => void(&a, &a.ask(&[(Want::Upsert, "k"), (Want::Upsert, "l")])).await?,
        Late::Joined => {
            let mut request = a.ask(&[(Want::Upsert, "k")]);
            request.joined = true;
            void(&a, &request).await?;
        }
        Late::Copy => uncounted(&a, &held).await?,
        Late::Confirm => ensure!(!a.confirms(&held).await?, "a dead session holds nothing"),
        Late::Adoption => {
            ensure_eq!(
                other.adopt(a.session(), 0).await?,
                None,
                "adoption of a dead session"
            );
            ensure!(!other.settle(a.session(), 0).await?, "nothing is settled");
        }
    }
    ensure_eq!(
        scene.state(a.session()).await?.life,
        Life::Dead,
        "the session, later"
    );
    for key in ["held before", "k", "l"] {
        scene.free(key).await?;
    }
    Ok(())
}

/// Void, or where the store learns that too late, granted and not counted.
pub(super) async fn uncounted(a: &Actor, request: &Acquire) -> Verdict {
    match a.send(request).await? {
        Acquired::Void => Ok(()),
        Acquired::Acquired(_) if !a.backend().info().atomic => Ok(()),
        answer => Err(Wrong(format!("the session is dead: {answer:?}"))),
    }
}

async fn void(a: &Actor, request: &Acquire) -> Verdict {
    ensure_eq!(
        a.send(request).await?,
        Acquired::Void,
        "a request of a dead session"
    );
    Ok(())
}
