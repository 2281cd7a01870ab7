//! What the client tells `metrics` and `tracing`.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
    SharedString, Unit,
};
use tokio::time::sleep;

use crate::client::tests::spy::{Call, Fate, Spy};
use crate::{Attempt, ErrorKind, Label, Locks, MemoryBackend, Note, NoteKind, Operation, Released};

/// Remembers the last value of each instrument, or how many values a histogram has, and their sum.
#[derive(Default, Clone)]
struct Told(Arc<Mutex<BTreeMap<String, Arc<Value>>>>);

#[derive(Default, Debug)]
struct Value {
    /// A gauge as its bits, or the sum of a histogram.
    bits: AtomicU64,
    count: AtomicU64,
}

impl Value {
    fn get(&self) -> f64 {
        f64::from_bits(self.bits.load(Ordering::Relaxed))
    }

    fn add(&self, more: f64) {
        self.bits
            .store((self.get() + more).to_bits(), Ordering::Relaxed);
    }
}

impl CounterFn for Value {
    fn increment(&self, value: u64) {
        self.count.fetch_add(value, Ordering::Relaxed);
    }

    fn absolute(&self, _: u64) {
        unreachable!("nothing is counted so");
    }
}

impl GaugeFn for Value {
    fn increment(&self, value: f64) {
        self.add(value);
    }

    fn decrement(&self, value: f64) {
        self.add(-value);
    }

    fn set(&self, value: f64) {
        self.bits.store(value.to_bits(), Ordering::Relaxed);
    }
}

impl HistogramFn for Value {
    fn record(&self, value: f64) {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.add(value);
    }
}

impl Told {
    fn value(&self, key: &Key) -> Arc<Value> {
        let labels = key.labels();
        let labels: Vec<String> = labels
            .map(|label| format!("{}={}", label.key(), label.value()))
            .collect();
        let name = format!("{}{{{}}}", key.name(), labels.join(","));
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(all.entry(name).or_default())
    }

    fn of(&self, name: &str) -> Arc<Value> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let value = all
            .get(name)
            .unwrap_or_else(|| panic!("no {name} in {:?}", all.keys()));
        Arc::clone(value)
    }

    fn count(&self, name: &str) -> u64 {
        self.of(name).count.load(Ordering::Relaxed)
    }
}

impl Recorder for Told {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.value(key))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.value(key))
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(self.value(key))
    }
}

/// A client whose instruments are these.
fn told(spy: &Arc<Spy>) -> (Locks, Told) {
    let told = Told::default();
    let locks = metrics::with_local_recorder(&told, || spy.locks());
    (locks, told)
}

fn renews(call: &Call) -> bool {
    matches!(call, Call::Renew(..))
}

const STORE: &str = "store=memory";

#[tokio::test(start_paused = true)]
async fn acquisitions_guards_and_requests_are_counted() {
    let spy = Spy::new(MemoryBackend::new());
    let (locks, told) = told(&spy);
    let acquisitions = |scheme: &str, outcome: &str| {
        told.count(&format!(
            "lockkeeper.acquisitions{{{STORE},scheme={scheme},outcome={outcome}}}"
        ))
    };
    let gauge = |name: &str| told.of(&format!("lockkeeper.{name}{{{STORE}}}")).get();
    let guard = locks.lock("k").acquire().await.unwrap();
    assert_eq!(
        (gauge("guards"), gauge("sessions"), gauge("waiters")),
        (1.0, 1.0, 0.0)
    );
    let other = locks.semaphore("s", 3).acquire().await.unwrap();
    let busy = locks.lock("k").try_acquire().await.unwrap();
    assert!(matches!(busy, Attempt::Busy(_)));
    {
        let mut waits = std::pin::pin!(locks.lock("k").acquire());
        assert!(
            tokio::time::timeout(Duration::from_secs(2), &mut waits)
                .await
                .is_err()
        );
        assert_eq!(gauge("waiters"), 1.0);
    }
    assert_eq!(acquisitions("lock", "cancelled"), 1);
    assert_eq!(gauge("waiters"), 0.0);
    assert_eq!(guard.release().await.unwrap(), Released::Released);
    drop(other);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(acquisitions("lock", "granted"), 1);
    assert_eq!(acquisitions("share", "granted"), 1);
    assert_eq!(acquisitions("lock", "busy"), 1);
    assert_eq!(gauge("guards"), 0.0);
    let hold = told.of(&format!("lockkeeper.hold.seconds{{{STORE}}}"));
    assert_eq!(hold.count.load(Ordering::Relaxed), 2);
    assert!(hold.get() >= 2.0, "the first was held over a wait of 2 s");
    assert_eq!(
        told.count(&format!("lockkeeper.handovers{{{STORE},by=store}}")),
        2
    );
    let requests = |operation: Operation, outcome: &str| {
        told.count(&format!(
            "lockkeeper.requests{{{STORE},operation={operation},outcome={outcome}}}"
        ))
    };
    assert_eq!(requests(Operation::Open, "answered"), 1);
    assert!(requests(Operation::Acquire, "answered") >= 3);
    assert_eq!(requests(Operation::Acquire, "unavailable"), 0);
    spy.decide(|call| match call {
        Call::Acquire(_) => Fate::Fails(ErrorKind::Unavailable),
        _ => Fate::Answered,
    });
    locks.lock("k").try_acquire().await.unwrap_err();
    assert_eq!(requests(Operation::Acquire, "unavailable"), 1);
    assert_eq!(acquisitions("lock", "store"), 1);
}

#[tokio::test(start_paused = true)]
async fn losses_are_told_with_their_cause_and_only_once() {
    let spy = Spy::new(MemoryBackend::new());
    let (locks, told) = told(&spy);
    let lost = |cause: &str| told.count(&format!("lockkeeper.lost{{{STORE},cause={cause}}}"));
    // Broken by an operator.
    let guard = locks.lock("k").acquire().await.unwrap();
    let [(grant, _)] = guard.grants().collect::<Vec<_>>()[..] else {
        panic!("one grant");
    };
    let label = |text: &str| Label::parse(text).unwrap();
    let now = std::time::UNIX_EPOCH;
    let note = Note::new(NoteKind::Evict, label("ops"), label("stuck"), now).about(grant.n);
    assert!(locks.backend().note(grant.session, &note).await.unwrap());
    guard.lost().await;
    assert_eq!((lost("broken"), lost("deadline")), (1, 0));
    drop(guard);
    // No renewal gets through.
    let guard = locks.lock("k").acquire().await.unwrap();
    sleep(Duration::from_secs(15)).await;
    let margin = told.of(&format!("lockkeeper.renewal.margin.seconds{{{STORE}}}"));
    assert!(margin.count.load(Ordering::Relaxed) >= 1);
    spy.decide(|call| match renews(call) {
        true => Fate::Fails(ErrorKind::Unavailable),
        false => Fate::Answered,
    });
    guard.lost().await;
    sleep(Duration::from_secs(60)).await;
    assert_eq!((lost("broken"), lost("deadline"), lost("dead")), (1, 1, 0));
    let failures = told.count(&format!("lockkeeper.renewal.failures{{{STORE}}}"));
    assert!(failures >= 2, "{failures}");
    drop(guard);
    // What a program gives back, or leaves, is not lost.
    spy.answer_all();
    let guard = locks.lock("k").acquire().await.unwrap();
    assert_eq!(guard.release().await.unwrap(), Released::Released);
    let left = locks.lock("i").intent(&"half done").unwrap();
    drop(left.acquire().await.unwrap());
    drop(locks);
    sleep(Duration::from_secs(120)).await;
    assert_eq!((lost("broken"), lost("deadline"), lost("dead")), (1, 1, 0));
    let gauge = |name: &str| told.of(&format!("lockkeeper.{name}{{{STORE}}}")).get();
    assert_eq!((gauge("guards"), gauge("sessions")), (0.0, 0.0));
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_is_held_for_too_long_is_told_whoever_gives_it_back() {
    let spy = Spy::new(MemoryBackend::new());
    let (locks, told) = told(&spy);
    let lost = || told.count(&format!("lockkeeper.lost{{{STORE},cause=too_long}}"));
    let longest = Duration::from_secs(60);
    let asks = |key: &str| locks.lock(key).max_hold(longest);
    let work = async |time: Duration| {
        let works = asks("k").run(|_| async move {
            sleep(time).await;
            Ok::<_, std::io::Error>(())
        });
        works.await.is_ok()
    };
    assert!(work(longest / 2).await && !work(longest * 2).await);
    assert_eq!(lost(), 1, "the work has obeyed");
    let guard = asks("k").acquire().await.unwrap();
    sleep(longest * 4).await;
    assert_eq!(lost(), 2, "it was taken from the program");
    drop(guard);
    let guard = asks("k").acquire().await.unwrap();
    guard.lost().await;
    drop(guard.release().await);
    sleep(longest * 4).await;
    assert_eq!(lost(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_waits_for_the_last_one_is_not_late() {
    let spy = Spy::new(MemoryBackend::new());
    let told = Told::default();
    let ttl = Duration::from_secs(6);
    let locks = metrics::with_local_recorder(&told, || spy.builder().ttl(ttl).build().unwrap());
    let guard = locks.lock("k").acquire().await.unwrap();
    spy.decide(|call| match renews(call) {
        true => Fate::AnsweredAfter(Duration::from_millis(2_500)),
        false => Fate::Answered,
    });
    sleep(Duration::from_secs(30)).await;
    let late = told.of(&format!("lockkeeper.renewal.late.seconds{{{STORE}}}"));
    let count = late.count.load(Ordering::Relaxed);
    assert!(count >= 4, "{count}");
    assert!(late.get() < 0.1, "{} s", late.get());
    assert!(guard.is_valid());
}

/// What is told to `tracing`, as text.
#[derive(Clone, Default)]
struct Events(Arc<Mutex<Vec<String>>>);

impl tracing::Subscriber for Events {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        struct Text(String);
        impl tracing::field::Visit for Text {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                self.0 += &format!(" {}={value:?}", field.name());
            }
        }
        let metadata = event.metadata();
        let mut text = Text(format!("{} {}", metadata.level(), metadata.target()));
        event.record(&mut text);
        self.0.lock().unwrap().push(text.0);
    }

    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

#[tokio::test(start_paused = true)]
async fn near_misses_and_losses_are_warnings() {
    let events = Events::default();
    let _listens = tracing::subscriber::set_default(events.clone());
    // Of one listener alone, whoever meets an event first decides for all whether anybody listens: it may be another test, on a
    // thread of its own. Of two, both are asked.
    let _second = tracing::Dispatch::new(events.clone());
    // Other tests may have met the events just before, when nobody listened.
    drop(
        Spy::new(MemoryBackend::new())
            .locks()
            .lock("k")
            .acquire()
            .await,
    );
    tracing::callsite::rebuild_interest_cache();
    let said = |parts: &[&str]| {
        let events = events.0.lock().unwrap();
        events
            .iter()
            .any(|event| parts.iter().all(|part| event.contains(part)))
    };
    let spy = Spy::new(MemoryBackend::new());
    let locks = spy.locks();
    let guard = locks.lock("k").acquire().await.unwrap();
    assert!(said(&[
        "DEBUG lockkeeper ",
        "acquisition",
        "scheme=\"lock\"",
        "outcome=\"granted\""
    ]));
    assert!(said(&[
        "DEBUG lockkeeper::request",
        "operation=acquire",
        "outcome=\"answered\""
    ]));
    let busy = locks.lock("k").wait(Duration::from_secs(1)).acquire().await;
    busy.unwrap_err();
    // One fails; the next is acknowledged when the lease is nearly over.
    let mut failed = false;
    spy.decide(move |call| match renews(call) {
        true if !std::mem::replace(&mut failed, true) => Fate::Fails(ErrorKind::Unavailable),
        true => Fate::AnsweredAfter(Duration::from_secs(15)),
        false => Fate::Answered,
    });
    sleep(Duration::from_secs(26)).await;
    assert!(guard.is_valid());
    assert!(
        said(&["WARN lockkeeper ", "near miss", "took_ms=150"]),
        "{:?}",
        events.0
    );
    spy.decide(|call| match renews(call) {
        true => Fate::Fails(ErrorKind::Unavailable),
        false => Fate::Answered,
    });
    guard.lost().await;
    sleep(Duration::from_secs(1)).await;
    assert!(said(&["WARN lockkeeper ", "renewal failed", "failures=1"]));
    assert!(
        said(&["WARN lockkeeper ", "lost", "cause=\"deadline\""]),
        "{:?}",
        events.0
    );
}
