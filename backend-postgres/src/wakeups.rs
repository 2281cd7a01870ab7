//! `Wakeups`: who waits is told by a notification on a connection of its own, or polls where a pooler stands
//! between.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use lockcore::backend::{self, Changed, Standing, Wakeups, never};
use lockcore::{Claim, ErrorKind, Operation, Result, SessionId};
use sqlx::Row as _;
use sqlx::postgres::{PgListener, PgNotification, PgPoolOptions};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::{sleep, timeout};

use crate::PostgresBackend;
use crate::claims::{Asks, entries, keys};
use crate::connections::Link;
use crate::error::{Failure, Outcome};
use crate::sql::{Call, Value};

/// Longest time from one poll to the next, and how much earlier polls come at random, where nobody is notified.
pub(crate) const POLL_EVERY: Duration = Duration::from_millis(25);
const JITTER_MS: u64 = 10;
/// So many of those in the way are followed: any of them may go.
const FOLLOWED: usize = 64;
/// How long a key is kept that nobody watches any more.
const KEPT: Duration = Duration::from_millis(500);
/// Time from the loss of the connection that listens to the next attempt to make one.
const AGAIN: Duration = Duration::from_millis(250);
/// After so long without a word, the connection that listens is tried: what lies between may have forgotten it.
const SILENCE: Duration = Duration::from_secs(5);

#[async_trait]
impl Wakeups for PostgresBackend {
    async fn watch(&self, claims: &[Claim]) -> Result<Changed> {
        let changed = match &self.watches {
            Some(watches) => watches.watch(&self.link, claims).await,
            None => poll(Arc::clone(&self.link), claims).await,
        };
        changed.map_err(Failure::of(Operation::Watch))
    }

    async fn watch_session(&self, session: SessionId) -> Result<Changed> {
        match &self.watches {
            Some(watches) => watches
                .watch_session(session)
                .map_err(Failure::of(Operation::Watch)),
            None => Ok(never()),
        }
    }
}

/// The watches of this process, and the connection that listens for them.
pub(crate) struct Watches {
    shared: Arc<Shared>,
    task: Standing,
}

struct Shared {
    channel: String,
    /// The server's process of the connection that listens; 0 if there is none.
    pid: AtomicI64,
    keys: Mutex<HashMap<String, Watched>>,
    /// Who watches a session.
    sessions: Arc<backend::Watches>,
    /// Keys that nobody watches any more, and rows that nobody knows.
    ended: mpsc::UnboundedSender<(i64, String)>,
}

/// A key of which this process is told, or will be.
struct Watched {
    /// Of its row, which no other has.
    id: i64,
    /// Its row is there.
    stands: bool,
    /// Somebody looks after a while whether it is still watched.
    ending: bool,
    watches: HashMap<u64, Arc<Notify>>,
}

impl Watched {
    fn new() -> Self {
        Self {
            id: rand::random(),
            stands: false,
            ending: false,
            watches: HashMap::new(),
        }
    }

    fn wake(&self) {
        self.watches.values().for_each(|told| told.notify_one());
    }
}

impl Shared {
    fn keys(&self) -> MutexGuard<'_, HashMap<String, Watched>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn heard(&self, notification: &PgNotification) {
        if notification.channel() == self.channel {
            self.told(notification.payload());
        } else if let Ok(session) = notification.payload().parse() {
            self.sessions.wake_session(session);
        }
    }

    /// A row's number and its key; nothing, if all shall look.
    fn told(&self, payload: &str) {
        let Some((id, key)) = payload.split_once(' ') else {
            self.keys().values().for_each(Watched::wake);
            return;
        };
        match (id.parse(), self.keys().get(key)) {
            (Ok(id), Some(watched)) if watched.id == id => watched.wake(),
            // The request for it came late.
            (Ok(id), _) => self.end(id, key),
            _ => {}
        }
    }

    /// The rows are of the connection that listened.
    fn lost(&self) {
        for (key, watched) in self.keys().drain() {
            watched.wake();
            self.end(watched.id, &key);
        }
        self.sessions.wake_everybody();
    }

    /// Whether somebody listens.
    fn stands(&self) -> Outcome<i64> {
        match self.pid.load(Ordering::Acquire) {
            0 => {
                let what = "the connection that listens is broken";
                Err(Failure::Found(ErrorKind::Unavailable, what.into()))
            }
            pid => Ok(pid),
        }
    }

    fn end(&self, id: i64, key: &str) {
        // Without the task that hears it nobody is told either.
        let _ = self.ended.send((id, key.to_owned()));
    }

    /// Whether the row is not needed any more: then it is forgotten here.
    fn forgets(&self, id: i64, key: &str) -> bool {
        let mut keys = self.keys();
        match keys.get_mut(key) {
            Some(watched) if watched.id == id => {
                watched.ending = false;
                let unwatched = watched.watches.is_empty();
                if unwatched {
                    keys.remove(key);
                }
                unwatched
            }
            _ => true,
        }
    }
}

/// A watch that stands until it is dropped.
struct Watch {
    shared: Arc<Shared>,
    number: u64,
    keys: Vec<String>,
    told: Arc<Notify>,
}

impl Watch {
    /// Watches, and the rows that are missing yet.
    fn begin(shared: &Arc<Shared>, keys: Vec<String>) -> (Self, Vec<(i64, String)>) {
        let watch = Self {
            shared: Arc::clone(shared),
            number: rand::random(),
            keys,
            told: Arc::default(),
        };
        let mut watched_keys = shared.keys();
        let mut missing = Vec::new();
        for key in &watch.keys {
            let watched = watched_keys.entry(key.clone()).or_insert_with(Watched::new);
            let told = Arc::clone(&watch.told);
            watched.watches.insert(watch.number, told);
            if !watched.stands {
                missing.push((watched.id, key.clone()));
            }
        }
        drop(watched_keys);
        (watch, missing)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut keys = self.shared.keys();
        for key in &self.keys {
            if let Some(watched) = keys.get_mut(key)
                && watched.watches.remove(&self.number).is_some()
                && watched.watches.is_empty()
                && !watched.ending
            {
                watched.ending = true;
                self.shared.end(watched.id, key);
            }
        }
    }
}

impl Watches {
    /// Begins to listen; `None` if what is told does not arrive, because something between us and the server changes
    /// connections.
    pub(crate) async fn start(link: &Arc<Link>) -> Outcome<Option<Self>> {
        let channel = format!("lockkeeper_{:032x}", rand::random::<u128>());
        let place = link.place();
        let (mut listener, pid) = timeout(link.timeout, listen(link, &channel))
            .await
            .map_err(|_| Failure::NoConnection)??;
        // Nobody has to wait for a disk or a standby to learn whether this arrives.
        let probe = format!(
            "SELECT set_config('synchronous_commit', 'off', true), pg_notify('{channel}', '')"
        );
        link.raw(link.deadline(), probe).await?;
        let arrives = async {
            while listener.recv().await?.channel() != channel {}
            Ok::<_, sqlx::Error>(())
        };
        if !matches!(timeout(link.timeout, arrives).await, Ok(Ok(()))) {
            return Ok(None);
        }
        let (ended, heard) = mpsc::unbounded_channel();
        let shared = Arc::new(Shared {
            channel,
            pid: AtomicI64::new(pid),
            keys: Mutex::default(),
            sessions: Arc::default(),
            ended,
        });
        // In another runtime another one is made.
        let first = Mutex::new(Some(Listening::new(&shared, listener, place)));
        let heard = Arc::new(tokio::sync::Mutex::new(heard));
        let (ours, link) = (Arc::clone(&shared), Arc::clone(link));
        let task = Standing::begin(move || {
            let first = first.lock().unwrap_or_else(PoisonError::into_inner).take();
            let listening = hear(Arc::clone(&ours), first, Arc::clone(&link));
            let forgetting = forget(Arc::clone(&ours), Arc::clone(&link), Arc::clone(&heard));
            Box::pin(async move {
                tokio::join!(listening, forgetting);
            })
        });
        Ok(Some(Self { shared, task }))
    }

    async fn watch(&self, link: &Link, claims: &[Claim]) -> Outcome<Changed> {
        self.task.stands();
        // First the watch, then the look whether somebody listens: what is lost between the two is not missed.
        let (watch, missing) = Watch::begin(&self.shared, keys(claims));
        let pid = self.shared.stands()?;
        if !missing.is_empty() {
            let (ids, keys): (Vec<i64>, Vec<String>) = missing.iter().cloned().unzip();
            let values = [
                Value::Ints(ids.into_iter().map(Some).collect()),
                Value::Text(Some(self.shared.channel.clone())),
                Value::Int(pid),
                Value::Texts(keys),
            ];
            link.call(link.deadline(), &Call::new("watch", values))
                .await?;
            let mut keys = self.shared.keys();
            for (id, key) in &missing {
                if let Some(watched) = keys.get_mut(key).filter(|watched| watched.id == *id) {
                    watched.stands = true;
                }
            }
        }
        Ok(Box::pin(async move { watch.told.notified().await }))
    }

    fn watch_session(&self, session: SessionId) -> Outcome<Changed> {
        self.task.stands();
        let watch = backend::Watches::add_session(&self.shared.sessions, session);
        self.shared.stands()?;
        Ok(Box::pin(watch.changed()))
    }
}

/// A connection that listens, and the server's process of it.
async fn listen(link: &Link, channel: &str) -> Outcome<(PgListener, i64)> {
    let pool = PgPoolOptions::new()
        .max_connections(1)
        .idle_timeout(None)
        .max_lifetime(None)
        .test_before_acquire(false)
        .connect_lazy_with(link.primary().await?);
    let listening = async {
        let mut listener = PgListener::connect_with(&pool).await?;
        listener.ignore_pool_close_event(true);
        listener.eager_reconnect(false);
        listener.listen_all([channel, link.news.as_str()]).await?;
        let pid = "SELECT pg_backend_pid()::bigint AS pid";
        let row = sqlx::raw_sql(pid).fetch_one(&mut listener).await?;
        Ok((listener, row.try_get("pid")?))
    };
    listening.await.map_err(Failure::Connecting)
}

/// The connection that listens. When it goes, also with a runtime that has never run it, everybody looks.
struct Listening {
    shared: Arc<Shared>,
    listener: PgListener,
    place: Option<usize>,
}

impl Listening {
    fn new(shared: &Arc<Shared>, listener: PgListener, place: Option<usize>) -> Self {
        Self {
            shared: Arc::clone(shared),
            listener,
            place,
        }
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.shared.pid.store(0, Ordering::Release);
        self.shared.lost();
    }
}

/// Hands on what is told. When the connection is lost, or the primary is another server, everybody looks, and another
/// one is made.
async fn hear(shared: Arc<Shared>, mut listening: Option<Listening>, link: Arc<Link>) {
    loop {
        if let Some(Listening {
            listener, place, ..
        }) = &mut listening
        {
            while hears(listener, &shared, link.timeout).await && link.place() == *place {}
        }
        listening = None;
        sleep(AGAIN).await;
        let again = timeout(link.timeout, listen(&link, &shared.channel)).await;
        if let Ok(Ok((listener, pid))) = again {
            listening = Some(Listening::new(&shared, listener, link.place()));
            shared.pid.store(pid, Ordering::Release);
        }
    }
}

/// Hands on what is told next; in silence, asks whether anybody is there, and returns whether that is so.
async fn hears(listener: &mut PgListener, shared: &Shared, patience: Duration) -> bool {
    if let Ok(heard) = timeout(SILENCE, listener.try_recv()).await {
        let Ok(Some(notification)) = heard else {
            return false;
        };
        shared.heard(&notification);
        return true;
    }
    let asked = sqlx::raw_sql("SELECT 1").execute(listener);
    matches!(timeout(patience, asked).await, Ok(Ok(_)))
}

/// Removes the rows of keys that nobody has watched for a while: who waits in turns needs no row for each turn. What is
/// left behind is told to nobody.
async fn forget(
    shared: Arc<Shared>,
    link: Arc<Link>,
    ended: Arc<tokio::sync::Mutex<mpsc::UnboundedReceiver<(i64, String)>>>,
) {
    let mut ended = ended.lock().await;
    let mut some = Vec::new();
    while ended.recv_many(&mut some, 1_000).await > 0 {
        sleep(KEPT).await;
        let gone = some.drain(..).filter(|(id, key)| shared.forgets(*id, key));
        let ids: Vec<Option<i64>> = gone.map(|(id, _)| Some(id)).collect();
        if !ids.is_empty() {
            let call = Call::new("unwatch", [Value::Ints(ids)]);
            // A connection of a runtime that has ended fails at the first answer that is not there yet, and so perhaps not at
            // the first request. A row that stays costs a notification, and goes after the next one, or with the next sweep.
            for _ in 0..2 {
                if link.call(link.deadline(), &call).await.is_ok() {
                    break;
                }
            }
        }
    }
}

/// A watch that polls the store itself, in a task: whoever waits may do something else meanwhile, and a request that
/// nobody is at would keep a connection.
async fn poll(link: Arc<Link>, claims: &[Claim]) -> Outcome<Changed> {
    let call = Call::new("watched", Asks::of(claims, None).values());
    let seen = in_the_way(&link, &call).await?;
    let (mut changed, told) = oneshot::channel::<()>();
    if let Some(seen) = seen {
        #[expect(
            clippy::disallowed_methods,
            reason = "the task ends when nobody watches any more"
        )]
        tokio::spawn(async move {
            loop {
                let early = Duration::from_millis(rand::random_range(0..=JITTER_MS));
                tokio::select! {
                    () = changed.closed() => return,
                    () = sleep(POLL_EVERY - early) => {}
                }
                // A store that cannot be read ends the watch, too: the client asks by itself, and will see the error.
                match in_the_way(&link, &call).await {
                    Ok(Some(now)) if now.is_superset(&seen) => {}
                    _ => return,
                }
            }
        });
    }
    Ok(Box::pin(async move {
        let _ = told.await;
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
