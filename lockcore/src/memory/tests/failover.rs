//! A copy takes over: what was written since is forgotten, and whoever has a name to ask with is told.

use super::*;

/// Both forms, with a session each and the store's name.
async fn named() -> [(Arc<MemoryBackend>, Incarnation); 2] {
    let mut stores = Vec::new();
    for store in both() {
        let store = store.named();
        let label = Label::parse("named").unwrap();
        let Opened::Opened(name) = store.open(id(1), &label, TTL).await.unwrap() else {
            panic!("it is new");
        };
        assert!(name.is_known());
        stores.push((store, name));
    }
    stores.try_into().unwrap()
}

fn moving(seq: u64, to: Incarnation, granted: &str) -> Renewal {
    renewal(seq, "", IntentChange::Keep).within(to, granted.parse().unwrap())
}

/// The name that the store has now.
async fn moved(store: &MemoryBackend, before: Incarnation) -> Incarnation {
    match renew(store, 1, moving(90, before, "")).await {
        Renewed::Moved(name) => name,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_granted_since_is_forgotten_and_tokens_rise() {
    for (store, name) in named().await {
        let kept = request(1, 1, &["write /a/b"]).within(name);
        let lost = request(1, 2, &["write /c/d"]).within(name);
        granted(&store, &kept).await;
        let copy = store.copy();
        let token = granted(&store, &lost).await;
        store.fails_over(copy);
        for (request, held) in [(&kept, true), (&lost, false)] {
            let confirmed = store.confirm(request.grant, &request.claims).await;
            assert_eq!(confirmed.unwrap(), held, "{store:?} {}", request.grant);
        }
        let new = moved(&store, name).await;
        assert_ne!(new, name);
        let later = request(1, 3, &["write /c/d"]).within(new);
        assert!(granted(&store, &later).await > token);
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_meant_for_the_one_before_does_nothing() {
    for (store, name) in named().await {
        store.fails_over(store.copy());
        let asked = request(1, 1, &["write /a/b", "write /c"]).within(name);
        assert_eq!(ask(&store, &asked).await, Acquired::Moved);
        assert!(!store.confirm(asked.grant, &asked.claims).await.unwrap());
        let new = moved(&store, name).await;
        // It was not written: that number is still to be had.
        assert_eq!(renew(&store, 1, moving(1, new, "")).await, Renewed::Living);
    }
}

#[tokio::test(start_paused = true)]
async fn a_renewal_is_written_only_with_all_of_each_grant_that_it_names() {
    for (store, name) in named().await {
        granted(&store, &request(1, 1, &["write /a/b"]).within(name)).await;
        let copy = store.copy();
        granted(&store, &request(1, 2, &["upsert k"]).within(name)).await;
        store.fails_over(copy);
        let new = moved(&store, name).await;
        for (granted, answer) in [
            ("1-2", Renewed::Forgotten),
            ("2-2", Renewed::Forgotten),
            ("1-1", Renewed::Living),
        ] {
            assert_eq!(renew(&store, 1, moving(1, new, granted)).await, answer);
        }
    }
}

/// The copy was made between two records of one request.
#[tokio::test(start_paused = true)]
async fn a_grant_that_is_there_in_part_is_not_there() {
    let [_, (store, name)] = named().await;
    let asked = request(1, 1, &["write /a/b", "write /c"]).within(name);
    let mut execute = Box::pin(store.acquire(&asked));
    let half = |copy: &crate::MemoryCopy| copy.has(&key("/a/b")) && !copy.has(&key("/c"));
    let copy = loop {
        assert!(futures_util::poll!(&mut execute).is_pending());
        let copy = store.copy();
        if half(&copy) {
            break copy;
        }
    };
    assert!(matches!(execute.await.unwrap(), Acquired::Acquired(_)));
    store.fails_over(copy);
    let new = moved(&store, name).await;
    let answer = renew(&store, 1, moving(1, new, "1-1")).await;
    assert_eq!(answer, Renewed::Forgotten);
}

/// The request began before, and goes on after.
#[tokio::test(start_paused = true)]
async fn a_request_that_meets_another_one_on_its_way_takes_back_what_it_wrote() {
    let [_, (store, name)] = named().await;
    let asked = request(1, 1, &["write /a/b", "write /c"]).within(name);
    let mut execute = Box::pin(store.acquire(&asked));
    while !store.copy().has(&key("/a/b")) {
        assert!(futures_util::poll!(&mut execute).is_pending());
    }
    store.fails_over(store.copy());
    assert_eq!(execute.await.unwrap(), Acquired::Moved);
    assert!(!store.copy().has(&key("/a")), "it is taken back");
}

/// Without a name nobody is told, but who has more renewals acknowledged than the store knows of.
#[tokio::test(start_paused = true)]
async fn without_a_name_a_lost_renewal_tells() {
    for store in both() {
        open(&store, [1]).await;
        let keep = |seq| renewal(seq, "", IntentChange::Keep);
        let copy = store.copy();
        assert_eq!(renew(&store, 1, keep(1)).await, Renewed::Living);
        store.fails_over(copy);
        assert_eq!(renew(&store, 1, keep(2).after(1)).await, Renewed::Forgotten);
        assert_eq!(renew(&store, 1, keep(2)).await, Renewed::Living);
    }
}
