//! `Wakeups`: who waits is told by a notification on a connection of its own, or looks by itself where a pooler stands
//! between.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use lockcore::{Changed, Claim, ErrorKind, Operation, Result, Wakeups};
use sqlx::Row as _;
use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};
use tokio::sync::{Notify, mpsc};
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

use crate::PostgresBackend;
use crate::claims::{Asks, entries, keys};
use crate::connections::Link;
use crate::error::{Failure, Outcome};
use crate::sql::{Call, Value};

/// Longest time from one look to the next, and how much earlier looks come at random, where nobody is told.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(25);
const JITTER_MS: u64 = 10;
/// So many of those in the way are followed: any of them may go.
const FOLLOWED: usize = 64;
/// Time from the loss of the connection that listens to the next attempt to make one.
const AGAIN: Duration = Duration::from_millis(250);

#[async_trait]
impl Wakeups for PostgresBackend {
    async fn watch(&self, claims: &[Claim]) -> Result<Changed> {
        let changed = match &self.watches {
            Some(watches) => watches.watch(&self.link, claims).await,
            None => look(Arc::clone(&self.link), claims).await,
        };
        changed.map_err(Failure::of(Operation::Watch))
    }
}

/// The watches of this process, and the connection that listens for them.
pub(crate) struct Watches {
    shared: Arc<Shared>,
    task: AbortHandle,
}

struct Shared {
    channel: String,
    /// The server's process of the connection that listens; 0 if there is none.
    pid: AtomicI64,
    watching: Mutex<HashMap<i64, Arc<Notify>>>,
    /// Watches that nobody needs any more, whose rows may still be there.
    ended: mpsc::UnboundedSender<i64>,
}

impl Shared {
    fn watching(&self) -> MutexGuard<'_, HashMap<i64, Arc<Notify>>> {
        self.watching.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `*`, or watches by their numbers, whose rows are gone.
    fn told(&self, payload: &str) {
        if payload == "*" {
            return self.wake_all();
        }
        for id in payload.split(',').filter_map(|id| id.parse().ok()) {
            if let Some(told) = self.watching().remove(&id) {
                told.notify_one();
            }
        }
    }

    fn wake_all(&self) {
        self.watching().values().for_each(|told| told.notify_one());
    }
}

/// A watch that stands until it is dropped.
struct Watch {
    shared: Arc<Shared>,
    id: i64,
    told: Arc<Notify>,
}

impl Drop for Watch {
    fn drop(&mut self) {
        if self.shared.watching().remove(&self.id).is_some() {
            // Without the task that hears it nobody is told either.
            let _ = self.shared.ended.send(self.id);
        }
    }
}

impl Watches {
    /// Begins to listen; `None` if what is told does not arrive, because something between us and the server changes
    /// connections.
    pub(crate) async fn start(
        link: &Arc<Link>,
        options: &PgConnectOptions,
    ) -> Outcome<Option<Self>> {
        let channel = format!("lockkeeper_{:032x}", rand::random::<u128>());
        let (mut listener, pid) = timeout(link.timeout, listen(options, &channel))
            .await
            .map_err(|_| Failure::NoConnection)?
            .map_err(Failure::Connecting)?;
        // Nobody has to wait for a disk or a standby to learn whether this arrives.
        let probe = format!(
            "SELECT set_config('synchronous_commit', 'off', true), pg_notify('{channel}', '')"
        );
        link.raw(link.deadline(), probe).await?;
        if !matches!(timeout(link.timeout, listener.recv()).await, Ok(Ok(_))) {
            return Ok(None);
        }
        let (ended, heard) = mpsc::unbounded_channel();
        let shared = Arc::new(Shared {
            channel,
            pid: AtomicI64::new(pid),
            watching: Mutex::default(),
            ended,
        });
        let listening = hear(Arc::clone(&shared), listener, options.clone());
        let forgetting = forget(Arc::clone(link), heard);
        #[expect(
            clippy::disallowed_methods,
            reason = "the task belongs to the connection that listens, and ends with the backend"
        )]
        let task = tokio::spawn(async move {
            tokio::join!(listening, forgetting);
        });
        Ok(Some(Self {
            shared,
            task: task.abort_handle(),
        }))
    }

    async fn watch(&self, link: &Link, claims: &[Claim]) -> Outcome<Changed> {
        let told = Arc::new(Notify::new());
        let id = rand::random();
        // First the watch, then the look whether somebody listens: what is lost between the two is not missed.
        self.shared.watching().insert(id, Arc::clone(&told));
        let watch = Watch {
            shared: Arc::clone(&self.shared),
            id,
            told,
        };
        let pid = self.shared.pid.load(Ordering::Acquire);
        if pid == 0 {
            let what = "the connection that listens is broken";
            return Err(Failure::Found(ErrorKind::Unavailable, what.into()));
        }
        let values = [
            Value::Int(id),
            Value::Text(Some(self.shared.channel.clone())),
            Value::Int(pid),
            Value::Texts(keys(claims)),
        ];
        link.call(link.deadline(), &Call::new("watch", values))
            .await?;
        Ok(Box::pin(async move { watch.told.notified().await }))
    }
}

impl Drop for Watches {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A connection that listens, and the server's process of it.
async fn listen(options: &PgConnectOptions, channel: &str) -> sqlx::Result<(PgListener, i64)> {
    let pool = PgPoolOptions::new()
        .max_connections(1)
        .idle_timeout(None)
        .max_lifetime(None)
        .test_before_acquire(false)
        .connect_lazy_with(options.clone());
    let mut listener = PgListener::connect_with(&pool).await?;
    listener.ignore_pool_close_event(true);
    listener.eager_reconnect(false);
    listener.listen(channel).await?;
    let pid = "SELECT pg_backend_pid()::bigint AS pid";
    let row = sqlx::raw_sql(pid).fetch_one(&mut listener).await?;
    Ok((listener, row.try_get("pid")?))
}

/// Hands on what is told. When the connection is lost, everybody looks, and another one is made.
async fn hear(shared: Arc<Shared>, listener: PgListener, options: PgConnectOptions) {
    let mut listening = Some(listener);
    loop {
        if let Some(listener) = &mut listening {
            while let Ok(Some(notification)) = listener.try_recv().await {
                shared.told(notification.payload());
            }
        }
        shared.pid.store(0, Ordering::Release);
        shared.wake_all();
        listening = None;
        sleep(AGAIN).await;
        if let Ok((listener, pid)) = listen(&options, &shared.channel).await {
            shared.pid.store(pid, Ordering::Release);
            listening = Some(listener);
        }
    }
}

/// Removes the rows of watches that have ended. What is left behind is told to nobody.
async fn forget(link: Arc<Link>, mut ended: mpsc::UnboundedReceiver<i64>) {
    let mut ids = Vec::new();
    while ended.recv_many(&mut ids, 1_000).await > 0 {
        let numbers = ids.drain(..).map(Some).collect();
        let call = Call::new("unwatch", [Value::Ints(numbers)]);
        // A row that stays costs a notification that nobody hears, and goes with the next sweep.
        let _ = link.call(link.deadline(), &call).await;
    }
}

/// A watch that looks at the store itself.
async fn look(link: Arc<Link>, claims: &[Claim]) -> Outcome<Changed> {
    let call = Call::new("watched", Asks::of(claims, None).values());
    let seen = in_the_way(&link, &call).await?;
    Ok(Box::pin(async move {
        let Some(seen) = seen else { return };
        loop {
            let early = Duration::from_millis(rand::random_range(0..=JITTER_MS));
            sleep(LOOK_EVERY - early).await;
            // A store that cannot be read ends the watch, too: the client asks by itself, and will see the error.
            match in_the_way(&link, &call).await {
                Ok(Some(now)) if now.is_superset(&seen) => {}
                _ => return,
            }
        }
    }))
}

/// Some of those in the way; `None` if there is nobody, or one may be made dead.
async fn in_the_way(link: &Link, call: &Call) -> Outcome<Option<BTreeSet<(Vec<u8>, i64)>>> {
    let entries = entries(&link.call(link.deadline(), call).await?)?;
    if entries.is_empty() || entries.iter().any(|entry| entry.due) {
        return Ok(None);
    }
    let places = entries.into_iter().take(FOLLOWED);
    Ok(Some(places.map(|entry| (entry.session, entry.n)).collect()))
}
