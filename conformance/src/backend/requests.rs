//! A request sent again, late, after its release, after its number is over: in every order.

use std::fmt;
use std::time::Duration;

use futures_util::future::{FutureExt as _, try_join_all};
use futures_util::poll;
use lockcore::Want;
use lockcore::backend::{Acquire, Acquired, IntentChange, Renewed};
use lockcore::limits::MAX_OVER_RANGES;
use tokio::time::{sleep, timeout};

use crate::actor::{Actor, SHARE, share};
use crate::case::Case;
use crate::each::each;
use crate::scene::Scene;
use crate::verdict::{Under, Verdict, Wrong, cases, ensure, ensure_eq, within};

pub(super) fn cases() -> Vec<Case> {
    cases! { Backend "requests";
        OneGrantPerRequest:
            what_is_sent_again_is_one_holder,
            copies_at_the_same_time_are_one_holder,
            a_batch_sent_again_is_one_holder_on_each_key,
            a_share_sent_again_counts_once_under_its_limit,
            a_copy_beside_a_waiting_rival_is_granted,
            a_copy_of_an_upsert_beside_its_owners_other_grant;
        TokensOnlyRise:
            a_copy_never_has_a_smaller_token;
        UnknownIsSettled:
            copies_a_release_and_over_leave_nothing_in_every_order,
            a_copy_after_the_release_is_healed_by_the_next_renewal,
            a_request_that_nobody_waits_for_is_settled_by_over,
            a_copy_after_another_took_the_key_takes_nothing,
            a_number_that_is_over_holds_nothing_before_it_arrives,
            a_batch_whose_number_is_over_holds_nothing,
            over_holds_for_these_numbers_only,
            over_in_many_ranges,
            over_frees_ancestors,
            over_is_of_its_session_only,
            over_shows_in_the_sessions_state,
            over_is_not_taken_from_an_overtaken_renewal;
        WaitingEnds:
            a_request_that_nobody_polls_keeps_no_other_waiting;
    }
}

const KINDS: [(&str, Want, &str); 5] = [
    ("create", Want::Create, "k"),
    ("upsert", Want::Upsert, "k"),
    ("share", SHARE, "k"),
    ("write", Want::Write, "/a/b/c"),
    ("read", Want::Read, "/a/b/c"),
];

/// What may happen to a request: two copies of it, its release, and the renewal that says that it is over.
#[derive(Clone, Copy, PartialEq)]
enum Event {
    Acquire,
    Release,
    Over,
}

/// Every order of two copies, the release and the renewal.
fn orders() -> Vec<[Event; 4]> {
    use Event::{Acquire, Over, Release};
    let mut orders = Vec::new();
    for release in 0..4 {
        for retired in (0..4).filter(|retired| *retired != release) {
            let mut order = [Acquire; 4];
            order[release] = Release;
            order[retired] = Over;
            orders.push(order);
        }
    }
    orders
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Event::Acquire => "acquire",
            Event::Release => "release",
            Event::Over => "over",
        })
    }
}

/// A request of one kind, and what happens to it in which order.
struct Course {
    kind: &'static str,
    want: Want,
    key: &'static str,
    order: [Event; 4],
}

impl fmt::Display for Course {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [first, second, third, fourth] = self.order;
        let kind = self.kind;
        write!(f, "{kind} {first} {second} {third} {fourth}")
    }
}

async fn copies_a_release_and_over_leave_nothing_in_every_order(scene: Scene) -> Verdict {
    let process = scene.actor().await?;
    let courses = KINDS.into_iter().flat_map(|(kind, want, key)| {
        let course = move |order| Course {
            kind,
            want,
            key,
            order,
        };
        orders().into_iter().map(course)
    });
    each(courses, async |course| {
        // A session says which of its numbers are over, so each has its own.
        in_order(&scene, &scene.beside(&process).await?, course).await
    })
    .await
}

async fn in_order(scene: &Scene, a: &Actor, course: &Course) -> Verdict {
    // Its own key, with its name; of a path, the first component.
    let key = match course.key.strip_prefix("/a") {
        Some(below) => format!("/{course}{below}"),
        None => course.to_string(),
    };
    let request = a.ask(&[(course.want, &key)]);
    let mut retired = false;
    for event in course.order {
        match event {
            Event::Acquire => match a.send(&request).await? {
                Acquired::Acquired(_) if !retired || !a.backend().info().atomic => {}
                Acquired::Void if retired => {}
                answer => {
                    return Err(Wrong(format!(
                        "a copy {} its number was over: {answer:?}",
                        if retired { "after" } else { "before" }
                    )));
                }
            },
            Event::Release => a.release(&request).await?,
            Event::Over => {
                a.retired(&[&request]).await?;
                retired = true;
            }
        }
    }
    scene.free(&key).await?;
    if key.starts_with('/') {
        scene.free(&format!("/{course}")).await?;
    }
    Ok(())
}

async fn what_is_sent_again_is_one_holder(scene: Scene) -> Verdict {
    let a = scene.actor().await?;
    for (kind, want, key) in KINDS {
        sent_again(&scene, &a, want, key).await.about(kind)?;
    }
    Ok(())
}

async fn sent_again(scene: &Scene, a: &Actor, want: Want, key: &str) -> Verdict {
    let request = a.ask(&[(want, key)]);
    for _ in 0..3 {
        a.take(&request).await?;
        one_holder_on(scene, &request, key).await?;
    }
    a.release(&request).await?;
    scene.free(key).await
}

async fn one_holder_on(scene: &Scene, request: &Acquire, key: &str) -> Verdict {
    let Some(record) = scene.record(key).await? else {
        return Err(Wrong(format!("{key} is held and not listed")));
    };
    let grants: Vec<_> = record.holders.iter().map(|holder| holder.grant).collect();
    ensure_eq!(grants, [Some(request.grant)], "holders of {key}");
    Ok(())
}

async fn copies_at_the_same_time_are_one_holder(scene: Scene) -> Verdict {
    let a = scene.actor().await?;
    for (_, want, key) in KINDS {
        let request = a.ask(&[(want, key)]);
        try_join_all((0..5).map(|_| a.take(&request))).await?;
        one_holder_on(&scene, &request, key).await?;
        a.release(&request).await?;
        scene.free(key).await?;
    }
    Ok(())
}

async fn a_batch_sent_again_is_one_holder_on_each_key(scene: Scene) -> Verdict {
    let a = scene.actor().await?;
    let batch = a.ask(&[
        (Want::Write, "/a/1"),
        (Want::Write, "/a/2"),
        (Want::Read, "/b"),
    ]);
    for _ in 0..3 {
        a.take(&batch).await?;
    }
    for key in ["/a/1", "/a/2", "/b"] {
        one_holder_on(&scene, &batch, key).await?;
    }
    a.release(&batch).await?;
    for key in ["/a", "/b"] {
        scene.free(key).await?;
    }
    Ok(())
}

async fn a_share_sent_again_counts_once_under_its_limit(scene: Scene) -> Verdict {
    let [a, b, c] = scene.actors().await?;
    let request = a.ask(&[(share(2), "s")]);
    for _ in 0..3 {
        a.take(&request).await?;
    }
    let second = b.ask(&[(share(2), "s")]);
    for _ in 0..3 {
        b.take(&second).await?;
    }
    a.take(&request).await?;
    c.refused(&c.ask(&[(share(2), "s")])).await?;
    a.release(&request).await?;
    c.hold(&[(share(2), "s")]).await?;
    Ok(())
}

async fn a_copy_beside_a_waiting_rival_is_granted(scene: Scene) -> Verdict {
    let [a, b] = scene.actors().await?;
    for (_, want, key) in [KINDS[0], KINDS[1], KINDS[3]] {
        let request = a.ask(&[(want, key)]);
        a.take(&request).await?;
        b.refused(&b.ask(&[(want, key)])).await?;
        a.take(&request).await?;
        b.refused(&b.ask(&[(want, key)])).await?;
        a.release(&request).await?;
    }
    Ok(())
}

async fn a_copy_of_an_upsert_beside_its_owners_other_grant(scene: Scene) -> Verdict {
    let a = scene.actor().await?;
    let owner = a.owner();
    let first = a.hold_as(owner, &[(Want::Upsert, "d")]).await?;
    let second = a.hold_as(owner, &[(Want::Upsert, "d")]).await?;
    a.take(&first).await?;
    a.release(&second).await?;
    a.holds(&first).await?;
    a.holds_no_more(&second).await?;
    one_holder_on(&scene, &first, "d").await?;
    a.release(&first).await?;
    scene.free("d").await
}

async fn a_copy_never_has_a_smaller_token(scene: Scene) -> Verdict {
    let [a, b] = scene.actors().await?;
    for (_, want, key) in KINDS {
        let request = a.ask(&[(want, key)]);
        let mut last = a.take(&request).await?;
        for n in 0..5 {
            b.hold(&[(SHARE, &format!("{n} beside {key}"))]).await?;
            let again = a.take(&request).await?;
            ensure!(again >= last, "a copy's token went from {last} to {again}");
            last = again;
        }
        a.release(&request).await?;
        let next = scene.token_of(key).await?;
        ensure!(
            next > last,
            "the next holder's token {next} is greater than {last}"
        );
    }
    Ok(())
}

async fn a_copy_after_the_release_is_healed_by_the_next_renewal(scene: Scene) -> Verdict {
    let a = scene.actor().await?;
    for (_, want, key) in KINDS {
        let request = a.hold(&[(want, key)]).await?;
        a.release(&request).await?;
        a.take(&request).await?;
        scene.held(key).await?;
        let retired = format!("1-{}", request.grant.n);
        a.renew(&retired, IntentChange::Keep).await?;
        scene.free(key).await?;
    }
    Ok(())
}

async fn a_copy_after_another_took_the_key_takes_nothing(scene: Scene) -> Verdict {
    let [a, b] = scene.actors().await?;
    for (_, want, key) in [KINDS[0], KINDS[1], KINDS[3]] {
        let request = a.hold(&[(want, key)]).await?;
        a.release(&request).await?;
        let taken = b.hold(&[(want, key)]).await?;
        a.refused(&request).await?;
        b.holds(&taken).await?;
        one_holder_on(&scene, &taken, key).await?;
        b.release(&taken).await?;
        scene.free(key).await?;
    }
    Ok(())
}

/// Given up at moments before, during and after a round trip; it may arrive whenever it likes.
async fn a_request_that_nobody_waits_for_is_settled_by_over(scene: Scene) -> Verdict {
    let a = scene.actor().await?;
    let round_trip = scene.round_trip().await?;
    let mut sent = Vec::new();
    for (kind, want, key) in KINDS {
        for eighths in [0, 1, 2, 4, 6, 8, 10] {
            let key = format!("{key} {kind} {eighths}");
            let request = a.ask(&[(want, &key)]);
            let patience = round_trip * eighths / 8;
            // Whether it was answered is all the same: the sender does not know.
            let _ = timeout(patience, a.send(&request)).await;
            sent.push((key, request));
        }
    }
    for (_, request) in &sent {
        a.release(request).await?;
    }
    let requests: Vec<&Acquire> = sent.iter().map(|(_, request)| request).collect();
    a.retired(&requests).await?;
    // Once at once, and once when all that is still on the way has come.
    for _ in 0..2 {
        each(sent.iter().map(|(key, _)| key), async |key| {
            scene.free(key).await.map(drop)
        })
        .await?;
        sleep(round_trip * 2).await;
    }
    Ok(())
}

/// A request whose number is over: void, or where the store learns that too late, granted and not counted.
async fn void_or_uncounted(a: &Actor, request: &Acquire) -> Verdict {
    match a.send(request).await? {
        Acquired::Void => Ok(()),
        Acquired::Acquired(_) if !a.backend().info().atomic => Ok(()),
        answer => Err(Wrong(format!("{} is over: {answer:?}", request.grant))),
    }
}

async fn a_number_that_is_over_holds_nothing_before_it_arrives(scene: Scene) -> Verdict {
    let a = scene.actor().await?;
    let requests: Vec<Acquire> = KINDS
        .iter()
        .map(|(_, want, key)| a.ask(&[(*want, key)]))
        .collect();
    a.retired(&requests.iter().collect::<Vec<_>>()).await?;
    for request in &requests {
        void_or_uncounted(&a, request).await?;
        scene.free(request.claims[0].key().as_str()).await?;
    }
    Ok(())
}

async fn a_batch_whose_number_is_over_holds_nothing(scene: Scene) -> Verdict {
    let a = scene.actor().await?;
    let batch = a.ask(&[
        (Want::Upsert, "d1"),
        (Want::Upsert, "d2"),
        (Want::Upsert, "d3"),
    ]);
    a.retired(&[&batch]).await?;
    void_or_uncounted(&a, &batch).await?;
    for key in ["d1", "d2", "d3"] {
        scene.free(key).await?;
    }
    Ok(())
}

async fn over_holds_for_these_numbers_only(scene: Scene) -> Verdict {
    let a = scene.actor().await?;
    let owner = a.owner();
    let first = a
        .hold_as(owner, &[(Want::Upsert, "d"), (Want::Upsert, "e")])
        .await?;
    let second = a.hold_as(owner, &[(Want::Upsert, "d")]).await?;
    let third = a.hold(&[(Want::Create, "c")]).await?;
    a.retired(&[&first]).await?;
    // Before somebody else takes a part of it.
    a.holds_no_more(&first).await?;
    scene.free("e").await?;
    for request in [&second, &third] {
        ensure!(a.confirms(request).await?, "{} is not over", request.grant);
        scene.held(request.claims[0].key().as_str()).await?;
    }
    one_holder_on(&scene, &second, "d").await
}

async fn over_in_many_ranges(scene: Scene) -> Verdict {
    let a = scene.actor().await?;
    let mut held = Vec::new();
    let mut retired = Vec::new();
    for n in 0..40 {
        let request = a.hold(&[(Want::Create, &format!("k{n}"))]).await?;
        if n % 2 == 0 {
            held.push(request);
        } else {
            retired.push(request);
        }
    }
    a.retired(&retired.iter().collect::<Vec<_>>()).await?;
    for request in &held {
        ensure!(
            a.confirms(request).await?,
            "{} is between two ranges",
            request.grant
        );
        scene.held(request.claims[0].key().as_str()).await?;
    }
    for request in &retired {
        scene.free(request.claims[0].key().as_str()).await?;
    }
    over_in_as_many_ranges_as_a_client_sends(&scene).await
}

/// Every other number, most of which nobody ever had.
async fn over_in_as_many_ranges_as_a_client_sends(scene: &Scene) -> Verdict {
    let a = scene.actor().await?;
    let last = 2 * u64::try_from(MAX_OVER_RANGES)?;
    let mut held = Vec::new();
    for n in [last - 2, last - 1, last] {
        let mut request = a.ask(&[(Want::Create, &format!("of {n}"))]);
        request.grant.n = n;
        a.take(&request).await?;
        held.push(request);
    }
    let odd = |up_to: u64| {
        let ranges = (1..=up_to).step_by(2).map(|n| format!("{n}-{n}"));
        ranges.collect::<Vec<String>>().join(",")
    };
    for retired in [odd(last - 3), odd(last - 1)] {
        a.renew(&retired, IntentChange::Keep).await?;
        let state = scene.state(a.session()).await?;
        ensure_eq!(
            state.retired.to_string(),
            retired,
            "the numbers that are over"
        );
        for request in &held {
            let over = state.retired.contains(request.grant.n);
            ensure_eq!(
                a.confirms(request).await?,
                !over,
                "whether {} is held",
                request.grant
            );
            let key = request.claims[0].key().as_str();
            match over {
                true => scene.free(key).await.map(drop)?,
                false => scene.held(key).await.map(drop)?,
            }
        }
    }
    Ok(())
}

async fn over_frees_ancestors(scene: Scene) -> Verdict {
    let a = scene.actor().await?;
    let batch = a
        .hold(&[(Want::Write, "/a/b/c"), (Want::Read, "/a/d/e")])
        .await?;
    scene.held("/a").await?;
    a.retired(&[&batch]).await?;
    for path in ["/a/b", "/a/d", "/a"] {
        scene.free(path).await?;
    }
    Ok(())
}

async fn over_is_of_its_session_only(scene: Scene) -> Verdict {
    let [a, b] = scene.actors().await?;
    let (ours, theirs) = (
        a.hold(&[(SHARE, "s")]).await?,
        b.hold(&[(SHARE, "s")]).await?,
    );
    ensure_eq!(
        ours.grant.n,
        theirs.grant.n,
        "numbers of two sessions (the case's own)"
    );
    a.retired(&[&ours]).await?;
    b.holds(&theirs).await?;
    one_holder_on(&scene, &theirs, "s").await
}

async fn over_shows_in_the_sessions_state(scene: Scene) -> Verdict {
    let a = scene.actor().await?;
    ensure_eq!(
        scene.state(a.session()).await?.retired.to_string(),
        "",
        "over, at first"
    );
    for retired in ["2-2", "2-4", "1-4,7-9,20-20"] {
        a.renew(retired, IntentChange::Keep).await?;
        ensure_eq!(
            scene.state(a.session()).await?.retired.to_string(),
            retired,
            "over, renewed"
        );
    }
    Ok(())
}

async fn over_is_not_taken_from_an_overtaken_renewal(scene: Scene) -> Verdict {
    let a = scene.actor().await?;
    let request = a.hold(&[(Want::Create, "k")]).await?;
    let older = a.renewal(&format!("1-{}", request.grant.n), IntentChange::Keep);
    a.renew("", IntentChange::Keep).await?;
    a.renews(&older, Renewed::Overtaken).await?;
    a.holds(&request).await?;
    scene.held("k").await?;
    Ok(())
}

/// How often requests are polled before they are left.
const POLLS: usize = 8;
/// Longest that others take beside them: less than a store's own time-out, after which what is left would be in nobody's
/// way.
const BESIDE: Duration = Duration::from_secs(3);

/// A program may look at something else before it goes on with what it has begun, as the body of a `select!` does.
async fn a_request_that_nobody_polls_keeps_no_other_waiting(scene: Scene) -> Verdict {
    for polls in 1..=POLLS {
        // Its way to the store is new, so that what is made when it is needed first is made now.
        let a = scene.actor().await?;
        let left = a.ask(&[(Want::Create, &format!("left-{polls}"))]);
        let (backend, session) = (a.backend(), scene.session_id());
        let ttl = backend.info().min_ttl;
        let mut begun = [
            backend.watch_session(a.session()).map(drop).boxed().fuse(),
            backend.watch(&left.claims).map(drop).boxed().fuse(),
            backend.acquire(&left).map(drop).boxed().fuse(),
            backend
                .open(session, a.label(), ttl)
                .map(drop)
                .boxed()
                .fuse(),
        ];
        for _ in 0..polls {
            for request in &mut begun {
                let _ = poll!(request);
            }
            sleep(Duration::from_millis(1)).await;
        }
        let others = async {
            a.renew("", IntentChange::Keep).await?;
            let other = a.hold(&[(Want::Create, &format!("other-{polls}"))]).await?;
            drop(backend.watch(&other.claims).await?);
            a.release(&other).await
        };
        within(
            BESIDE,
            format!("others, beside what was polled {polls} times"),
            others,
        )
        .await??;
        drop(begun);
    }
    Ok(())
}
