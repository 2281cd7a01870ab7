//! Acquiring, releasing, confirming, sweeping.

use super::*;
use crate::limits::{MAX_LISTED, MAX_OWN_BELOW, MAX_WAITERS, TOMBSTONE_KEPT};
use crate::{ErrorKind, Inspect, Sweep};

#[tokio::test(start_paused = true)]
async fn a_request_sent_again_is_granted_whatever_came_beside_it() {
    for store in both() {
        open(&store, [1, 2]).await;
        granted(&store, &request(1, 1, &["share:1 s"])).await;
        granted(&store, &request(2, 1, &["share s"])).await;
        granted(&store, &request(1, 1, &["share:1 s"])).await;

        granted(&store, &owned(request(1, 2, &["share k"]))).await;
        granted(&store, &owned(request(1, 3, &["upsert k"]))).await;
        granted(&store, &owned(request(1, 2, &["share k"]))).await;
        let refusal = busy(&store, &request(2, 2, &["create k"])).await;
        assert_eq!(
            shown(&refusal.first().holders),
            ["k IS 1/2 living", "k X 1/3 living"]
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_batch_is_granted_whole_or_refused_whole() {
    for store in both() {
        open(&store, [1, 2, 3]).await;
        granted(&store, &request(1, 1, &["upsert b", "upsert d"])).await;
        let refusal = busy(
            &store,
            &request(2, 1, &["upsert a", "upsert b", "upsert c", "upsert d"]),
        )
        .await;
        let refused: Vec<&str> = refusal
            .refused()
            .iter()
            .map(|refused| refused.claim.key().as_str())
            .collect();
        assert_eq!((refused, refusal.more), (vec!["b", "d"], false));
        granted(&store, &request(3, 1, &["upsert a", "upsert c"])).await;

        // Of two paths with one ancestor only one is refused, by what is held there.
        granted(&store, &request(1, 2, &["read /x"])).await;
        let refusal = busy(&store, &request(2, 2, &["read /x/a", "write /x/b"])).await;
        assert_eq!(refusal.first().claim, claim("write /x/b"));
        assert_eq!(shown(&refusal.first().holders), ["/x S 1/2 living"]);
    }
}

/// They are gone through once, and not by everybody who is refused.
#[tokio::test(start_paused = true)]
async fn a_refusal_removes_the_dead_that_it_has_met() {
    const DEAD: usize = 12_000;
    let store = MemoryBackend::new();
    open(&store, [1, 2, 3]).await;
    let paths: Vec<String> = (0..DEAD).map(|n| format!("write /a/{n:05}")).collect();
    let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
    granted(&store, &request(1, 1, &paths)).await;
    granted(&store, &request(2, 1, &["read /a/z"])).await;
    store.end(&[SessionId::new(1)], End::Close).await.unwrap();
    for _ in 0..2 {
        let refusal = busy(&store, &request(3, 1, &["write /a"])).await;
        assert_eq!(shown(&refusal.first().holders), ["/a IS 2/1 living"]);
    }
    let left = store.sweep(Sweep::All, DEAD).await.unwrap();
    assert_eq!(left.removed, 0, "of {DEAD}");
    store.end(&[SessionId::new(2)], End::Close).await.unwrap();
    granted(&store, &request(3, 1, &["write /a"])).await;
}

#[tokio::test(start_paused = true)]
async fn refusals_are_bounded() {
    for store in both() {
        let count = MAX_LISTED + 1;
        open(&store, [1, 2]).await;
        for n in 1..=count {
            let texts: Vec<String> = vec![format!("upsert {n}"), format!("read /a/{n}")];
            let n = u64::try_from(n).unwrap();
            granted(&store, &request(1, n, &[&texts[0]])).await;
            granted(&store, &request(1, 100 + n, &[&texts[1]])).await;
        }
        let texts: Vec<String> = (1..=count).map(|n| format!("upsert {n}")).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let refusal = busy(&store, &request(2, 1, &texts)).await;
        assert_eq!((refusal.refused().len(), refusal.more), (MAX_LISTED, true));
        let refusal = busy(&store, &request(2, 2, &texts[1..])).await;
        assert_eq!((refusal.refused().len(), refusal.more), (MAX_LISTED, false));

        let refusal = busy(&store, &request(2, 3, &["write /a"])).await;
        let first = refusal.first();
        assert_eq!((first.holders.len(), first.more), (MAX_LISTED, true));
        release(&store, &request(1, 101, &["read /a/1"])).await;
        let refusal = busy(&store, &request(2, 4, &["write /a"])).await;
        let first = refusal.first();
        assert_eq!((first.holders.len(), first.more), (MAX_LISTED, false));
    }
}

#[tokio::test(start_paused = true)]
async fn a_dead_session_is_granted_no_batch_that_is_checked() {
    for store in both() {
        open(&store, [1]).await;
        end(&store, 1, End::Revoke).await;
        for session in [1, 7] {
            let several = request(session, 1, &["upsert a", "upsert b"]);
            assert_eq!(ask(&store, &several).await, Acquired::Void);
            let mut joined = request(session, 2, &["upsert a"]);
            joined.joined = true;
            assert_eq!(ask(&store, &joined).await, Acquired::Void);
        }
        let all = crate::Filter::Prefix(String::new());
        assert_eq!(store.records(&all, None, 9).await.unwrap().items, []);
        assert!(
            store.sweep(Sweep::All, 9).await.unwrap().removed == 0,
            "nothing was left behind"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_lone_claim_of_a_dead_session_is_in_nobodys_way() {
    for store in both() {
        open(&store, [2]).await;
        let late = ask(&store, &request(1, 1, &["create k"])).await;
        assert_eq!(
            late == Acquired::Void,
            store.form == super::super::Form::Atomic
        );
        granted(&store, &request(2, 1, &["create k"])).await;
    }
}

#[tokio::test(start_paused = true)]
async fn confirm_is_for_what_is_held_by_a_living_session() {
    for store in both() {
        open(&store, [1, 2]).await;
        let held = request(1, 1, &["write /a/b", "read /c"]);
        granted(&store, &held).await;
        let confirm = async |grant, texts: &[&str]| {
            let claims = claims(texts);
            store.confirm(grant, &claims).await.unwrap()
        };
        assert!(confirm(held.grant, &["write /a/b", "read /c"]).await);
        assert!(!confirm(held.grant, &["write /a/b", "read /d"]).await);
        assert!(!confirm(held.grant, &["write /c"]).await);
        assert!(!confirm(grant(1, 2), &["read /c"]).await);
        assert!(!confirm(grant(2, 1), &["read /c"]).await);
        renew(&store, 1, renewal(1, "1-1", IntentChange::Keep)).await;
        assert!(!confirm(held.grant, &["read /c"]).await, "over");
        let held = request(2, 1, &["upsert k"]);
        granted(&store, &held).await;
        assert!(confirm(held.grant, &["upsert k"]).await);
        end(&store, 2, End::Revoke).await;
        assert!(!confirm(held.grant, &["upsert k"]).await, "dead");
    }
}

#[tokio::test(start_paused = true)]
async fn a_sweep_takes_what_does_not_count_and_nothing_else() {
    for store in both() {
        open(&store, [1, 2, 3]).await;
        for n in 1..=3 {
            granted(&store, &request(1, n, &["share s"])).await;
        }
        granted(&store, &request(2, 1, &["share s"])).await;
        let token = granted(&store, &request(3, 1, &["upsert k"])).await;
        renew(&store, 3, renewal(1, "", intent(token))).await;
        let swept = |removed, more| (removed, more);
        let sweep = async |which, limit| {
            let swept = store.sweep(which, limit).await.unwrap();
            (swept.removed, swept.more)
        };
        assert_eq!(sweep(Sweep::All, 9).await, swept(0, false));
        end(&store, 1, End::Close).await;
        end(&store, 3, End::Close).await;
        assert_eq!(sweep(Sweep::Session(id(2)), 9).await, swept(0, false));
        assert_eq!(sweep(Sweep::Session(id(1)), 2).await, swept(2, true));
        assert_eq!(sweep(Sweep::Session(id(1)), 2).await, swept(1, false));
        busy(&store, &request(2, 9, &["create s"])).await;
        busy(&store, &request(2, 10, &["create k"])).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_takeover_leaves_nothing_to_sweep() {
    for store in both() {
        open(&store, [1]).await;
        granted(&store, &request(1, 1, &["upsert k", "upsert l"])).await;
        store.advance(TTL);
        open(&store, [2]).await;
        granted(&store, &request(2, 1, &["upsert k", "upsert l"])).await;
        let swept = store.sweep(Sweep::All, 9).await.unwrap();
        assert_eq!(swept.removed, 0, "{store:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_sweep_of_all_ends_what_is_due_and_forgets_the_old() {
    for store in both() {
        open(&store, [1, 2, 3]).await;
        let token = granted(&store, &request(2, 1, &["upsert k"])).await;
        renew(&store, 2, renewal(1, "", intent(token))).await;
        granted(&store, &request(1, 1, &["create g"])).await;
        store.advance(TTL);
        let sweep = async |which| store.sweep(which, 9).await.unwrap().removed;
        let lives = async || {
            let states = store.sessions(None, 9).await.unwrap().items;
            states.iter().map(|state| state.life).collect::<Vec<_>>()
        };
        assert_eq!(sweep(Sweep::All).await, 1, "the holder of g");
        assert_eq!(lives().await, [Life::Dead, Life::Abandoned, Life::Dead]);
        store.advance(TOMBSTONE_KEPT - Duration::from_millis(1));
        assert_eq!(sweep(Sweep::All).await, 0);
        store.advance(Duration::from_millis(1));
        assert_eq!(sweep(Sweep::Session(id(1))).await, 0, "all or none");
        assert_eq!(sweep(Sweep::All).await, 2, "the dead sessions");
        assert_eq!(lives().await, [Life::Abandoned], "an intent is kept");

        // Long dead and settled now: remembered from now on.
        let any = Incarnation::UNKNOWN;
        let adopt = store.adopt(id(2), 0, id(9), crate::Adopt::Take, any);
        let number = adopt.await.unwrap().adoption().unwrap().number;
        let settled = store.settle(id(2), number, id(9), any).await;
        assert!(settled.unwrap().is_settled());
        assert_eq!(sweep(Sweep::All).await, 1, "the holder of k");
        assert_eq!(lives().await, [Life::Dead]);
    }
}

/// One action of the store serves nobody else, so that it looks at so much and no more. Where every ancestor is a record,
/// nothing below is looked at.
#[tokio::test(start_paused = true)]
async fn who_holds_very_much_below_a_path_is_refused_that_path() {
    for (store, is_refused) in [
        (MemoryBackend::new(), true),
        (MemoryBackend::records(), false),
    ] {
        open(&store, [1, 2]).await;
        let below = |n: u64, keys: std::ops::Range<usize>| {
            let mut request = owned(request(1, n, &["write /a"]));
            let path = |key| LockPath::parse(format!("/a/{n}/{key:05}")).unwrap();
            request.claims = keys.map(|key| Claim::write(path(key))).collect();
            request
        };
        let half = MAX_OWN_BELOW / 2;
        for n in 1..=2 {
            granted(&store, &below(n, 0..half)).await;
        }
        let all = owned(request(1, 3, &["write /a"]));
        granted(&store, &all).await;
        release(&store, &all).await;
        granted(&store, &below(4, 0..1)).await;
        let all = owned(request(1, 5, &["read /a"]));
        let asked = store.acquire(&all).await;
        assert_eq!(asked.is_err(), is_refused, "{store:?}: {asked:?}");
        if let Err(error) = asked {
            assert_eq!(error.kind(), ErrorKind::Limit, "{error}");
            // All of a batch count, and a part of it can be had.
            let both = owned(request(1, 6, &["write /a/1", "write /a/2", "write /a/4"]));
            let error = store.acquire(&both).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Limit, "{error}");
            granted(&store, &owned(request(1, 7, &["write /a/1"]))).await;
        }
        // Somebody else is refused by the first that he meets.
        busy(&store, &request(2, 1, &["write /a"])).await;
    }
}

/// The line of a key has a thousand places: who asks when all are taken is asked for again, and stands in nobody's way.
#[tokio::test(start_paused = true)]
async fn a_line_has_its_bound() {
    for store in both() {
        open(&store, [1, 2, 3]).await;
        let held = request(1, 1, &["create k"]);
        granted(&store, &held).await;
        let most = u64::try_from(MAX_WAITERS).unwrap();
        let waits = |n| request(2, n, &["create k"]).waiting();
        for n in 1..=most + 1 {
            busy(&store, &waits(n)).await;
        }
        release(&store, &held).await;
        for n in 1..most {
            release(&store, &waits(n)).await;
        }
        let later = request(3, 1, &["create k"]);
        busy(&store, &later).await;
        release(&store, &waits(most)).await;
        granted(&store, &later).await;
    }
}
