//! Opening, renewing, ending.

use super::*;
use crate::Inspect;

#[tokio::test(start_paused = true)]
async fn an_id_is_opened_once() {
    for store in both() {
        open(&store, [1, 2]).await;
        let label = Label::parse("again").unwrap();
        assert_eq!(end(&store, 2, End::Close).await, Life::Dead);
        assert_eq!(end(&store, 3, End::IfDue).await, Life::Dead, "a tombstone");
        for used in [1, 2, 3] {
            let opened = store.open(id(used), &label, TTL).await.unwrap();
            assert_eq!(opened, Opened::Used, "{used}");
        }
        let states = store.sessions(None, 10).await.unwrap().items;
        let shown: Vec<_> = states
            .iter()
            .map(|state| (state.session.get(), state.label.as_str(), state.life))
            .collect();
        assert_eq!(
            shown,
            [
                (1, "process 1", Life::Living),
                (2, "process 2", Life::Dead),
                (3, "", Life::Dead)
            ]
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_renewal_is_written_by_rising_number_and_never_creates() {
    for store in both() {
        let keep = |seq, over| renewal(seq, over, IntentChange::Keep);
        assert_eq!(renew(&store, 1, keep(1, "")).await, Renewed::Dead);
        open(&store, [1]).await;
        assert_eq!(renew(&store, 1, keep(5, "1-4")).await, Renewed::Living);
        for late in [5, 4] {
            assert_eq!(renew(&store, 1, keep(late, "")).await, Renewed::Overtaken);
        }
        let state = &store.end(&[id(1)], End::IfDue).await.unwrap()[0];
        assert_eq!(
            (state.life, state.over.to_string()),
            (Life::Living, "1-4".to_owned())
        );
        assert_eq!(end(&store, 1, End::Revoke).await, Life::Dead);
        assert_eq!(renew(&store, 1, keep(6, "")).await, Renewed::Dead);
    }
}

#[tokio::test(start_paused = true)]
async fn a_session_ends_when_it_is_due_and_not_before() {
    for store in both() {
        open(&store, [1, 2]).await;
        store.advance(TTL - Duration::from_millis(1));
        assert_eq!(end(&store, 1, End::IfDue).await, Life::Living);
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(
            renew(&store, 2, renewal(1, "", IntentChange::Keep)).await,
            Renewed::Living,
            "due, and not dead yet"
        );
        assert_eq!(end(&store, 1, End::IfDue).await, Life::Dead);
        assert_eq!(end(&store, 2, End::IfDue).await, Life::Living);
        store.advance(TTL);
        store.retreat(TTL);
        assert_eq!(end(&store, 2, End::IfDue).await, Life::Living);
    }
}

#[tokio::test(start_paused = true)]
async fn end_answers_each_in_the_order_asked() {
    for store in both() {
        open(&store, [1, 2]).await;
        let states = store
            .end(&[id(2), id(9), id(1)], End::Revoke)
            .await
            .unwrap();
        let ids: Vec<u128> = states.iter().map(|state| state.session.get()).collect();
        assert_eq!(ids, [2, 9, 1]);
        assert!(states.iter().all(|state| state.life == Life::Dead));
    }
}

#[tokio::test(start_paused = true)]
async fn pages_of_sessions_have_every_session_once() {
    for store in both() {
        open(&store, 1..=5).await;
        let mut ids = Vec::new();
        let mut after = None;
        loop {
            let page = store.sessions(after.as_deref(), 2).await.unwrap();
            assert!(page.items.len() <= 2);
            ids.extend(page.items.iter().map(|state| state.session.get()));
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(ids, [1, 2, 3, 4, 5]);
        let error = store.sessions(Some("page 2"), 2).await.unwrap_err();
        assert_eq!(error.kind(), crate::ErrorKind::Config);
    }
}
