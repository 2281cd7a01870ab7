//! Opening, renewing, ending.

use super::*;
use crate::Inspect;

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
