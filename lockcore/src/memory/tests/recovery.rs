//! Intents: left behind, adopted by number, settled once.

use super::*;
use crate::Adopt::{GiveUp, Take};
use crate::{Adopt, Adoption, Incarnation};

/// A session 1 that died with an intent and holds `k`; sessions 2 and 3 live.
async fn left_behind(store: &MemoryBackend) -> FencingToken {
    open(store, [1, 2, 3]).await;
    let token = granted(store, &request(1, 1, &["upsert k"])).await;
    let put = renewal(1, "", intent(token));
    assert_eq!(renew(store, 1, put).await, Renewed::Living);
    assert_eq!(end(store, 1, End::Close).await, Life::Abandoned);
    token
}

async fn adopt(store: &MemoryBackend, seen: u64, adopter: u128, how: Adopt) -> Option<Adoption> {
    let any = Incarnation::UNKNOWN;
    let adopted = store.adopt(id(1), seen, id(adopter), how, any).await;
    adopted.unwrap().adoption()
}

async fn settle(store: &MemoryBackend, adoption: u64, adopter: u128) -> bool {
    let any = Incarnation::UNKNOWN;
    let settled = store.settle(id(1), adoption, id(adopter), any).await;
    settled.unwrap().is_settled()
}

#[tokio::test(start_paused = true)]
async fn what_is_abandoned_stays_held_until_it_is_settled() {
    for store in both() {
        let old = left_behind(&store).await;
        let refusal = busy(&store, &request(2, 1, &["create k"])).await;
        assert_eq!(shown(&refusal.first().holders), ["k X 1/1 abandoned"]);
        assert_eq!(
            renew(&store, 1, renewal(9, "1-1", IntentChange::Drop)).await,
            Renewed::Dead
        );

        let adoption = adopt(&store, 0, 2, Take).await.unwrap();
        assert_eq!((adoption.number, adoption.left.token), (1, old));
        assert_eq!(adoption.left.intent.as_bytes(), b"rename");
        assert!(adoption.token > old);
        let again = adopt(&store, 0, 2, Take).await.unwrap();
        assert_eq!(again.number, 1);
        assert!(again.token >= adoption.token);
        assert_eq!(adopt(&store, 0, 3, Take).await, None, "another was first");

        busy(&store, &request(2, 2, &["create k"])).await;
        assert!(!settle(&store, 0, 2).await);
        assert!(settle(&store, 1, 2).await);
        assert!(settle(&store, 1, 2).await, "answered alike");
        assert!(!settle(&store, 2, 2).await);
        assert!(!settle(&store, 1, 3).await, "another's");
        let later = granted(&store, &request(2, 3, &["create k"])).await;
        assert!(later > again.token);
        assert_eq!(adopt(&store, 1, 3, Take).await, None, "nothing is left");
    }
}

#[tokio::test(start_paused = true)]
async fn the_next_adopter_takes_over_and_the_former_settles_nothing() {
    for store in both() {
        left_behind(&store).await;
        adopt(&store, 0, 2, Take).await.unwrap();
        assert_eq!(end(&store, 2, End::Revoke).await, Life::Dead);
        assert_eq!(adopt(&store, 1, 3, Take).await.unwrap().number, 2);
        assert!(!settle(&store, 1, 2).await);
        busy(&store, &request(3, 1, &["create k"])).await;
        assert!(!settle(&store, 2, 2).await, "the number alone does not do");
        assert!(settle(&store, 2, 3).await);
    }
}

#[tokio::test(start_paused = true)]
async fn an_adoption_that_was_given_up_never_happens() {
    for store in both() {
        left_behind(&store).await;
        assert_eq!(adopt(&store, 0, 2, GiveUp).await, None);
        assert_eq!(adopt(&store, 0, 2, Take).await, None, "a late copy");
        assert!(!settle(&store, 1, 2).await, "nobody has that number");

        adopt(&store, 1, 2, Take).await.unwrap();
        assert_eq!(adopt(&store, 1, 3, GiveUp).await, None, "not its adoption");
        assert_eq!(adopt(&store, 1, 2, Take).await.unwrap().number, 2);
        assert_eq!(adopt(&store, 1, 2, GiveUp).await, None);
        assert_eq!(adopt(&store, 1, 2, Take).await, None, "used up");
        assert!(!settle(&store, 2, 2).await);
        assert_eq!(adopt(&store, 3, 3, Take).await.unwrap().number, 4);
    }
}

#[tokio::test(start_paused = true)]
async fn giving_up_comes_before_a_late_death_too() {
    for store in both() {
        open(&store, [1, 2]).await;
        let token = granted(&store, &request(1, 1, &["upsert k"])).await;
        renew(&store, 1, renewal(1, "", intent(token))).await;
        assert_eq!(adopt(&store, 0, 2, Take).await, None, "it lives");
        assert_eq!(adopt(&store, 0, 2, GiveUp).await, None);
        assert_eq!(end(&store, 1, End::Close).await, Life::Abandoned);
        assert_eq!(adopt(&store, 0, 2, Take).await, None);
        assert_eq!(adopt(&store, 1, 2, Take).await.unwrap().number, 2);
    }
}

#[tokio::test(start_paused = true)]
async fn discard_throws_away_what_is_abandoned_and_nothing_else() {
    for store in both() {
        left_behind(&store).await;
        assert_eq!(end(&store, 2, End::Discard).await, Life::Living);
        adopt(&store, 0, 2, Take).await.unwrap();
        let state = &store.end(&[id(1)], End::Discard).await.unwrap()[0];
        assert_eq!(
            (state.life, state.adoption, state.adopter),
            (Life::Dead, 2, None)
        );
        assert!(!settle(&store, 1, 2).await);
        assert_eq!(adopt(&store, 0, 2, Take).await, None);
        granted(&store, &request(2, 1, &["create k"])).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_intent_is_put_kept_and_dropped_by_renewals() {
    for store in both() {
        open(&store, [1, 2]).await;
        let token = granted(&store, &request(1, 1, &["upsert k"])).await;
        renew(&store, 1, renewal(2, "", intent(token))).await;
        renew(&store, 1, renewal(1, "", IntentChange::Drop)).await;
        renew(&store, 1, renewal(3, "", IntentChange::Keep)).await;
        renew(&store, 2, renewal(1, "", intent(token))).await;
        renew(&store, 2, renewal(2, "", IntentChange::Drop)).await;
        store.advance(TTL);
        assert_eq!(end(&store, 1, End::IfDue).await, Life::Abandoned);
        assert_eq!(end(&store, 2, End::IfDue).await, Life::Dead);
    }
}

#[tokio::test(start_paused = true)]
async fn a_late_copy_frees_nothing_of_what_is_abandoned() {
    for store in both() {
        open(&store, [1, 2]).await;
        let held = request(1, 1, &["write /a/b", "write /c"]);
        let token = granted(&store, &held).await;
        renew(&store, 1, renewal(1, "", intent(token))).await;
        end(&store, 1, End::Revoke).await;
        assert_eq!(ask(&store, &held).await, Acquired::Void);
        for text in ["read /a", "read /a/b", "read /c"] {
            busy(&store, &request(2, 1, &[text])).await;
        }
    }
}
