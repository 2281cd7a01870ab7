//! Intents: left behind, adopted by number, settled once.

use super::*;
use crate::Adopt::{GiveUp, Take};
use crate::{Adopt, Adoption, Incarnation};

async fn adopt(store: &MemoryBackend, seen: u64, adopter: u128, how: Adopt) -> Option<Adoption> {
    let any = Incarnation::UNKNOWN;
    let adopted = store.adopt(id(1), seen, id(adopter), how, any).await;
    adopted.unwrap().adoption()
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
