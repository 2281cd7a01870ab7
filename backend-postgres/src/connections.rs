//! The way to the server: connections, and one attempt of one call.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lockcore::backend::{Standing, Together};
use sqlx::postgres::{PgArguments, PgConnectOptions, PgRow};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, PgConnection, PgPool};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::{Instant, timeout_at};

use crate::error::{Failure, Outcome, ends_connection};
use crate::hosts::{Connected, Hosts, Process};
use crate::sql::{Call, Value, identifier};

/// Where connections come from.
pub(crate) enum Source {
    /// Our own. A connection on which anything failed, or that was given up, is closed.
    Own(Box<Own>),
    /// The application's.
    Pool(PgPool),
}

/// Connections of our own, without the pings of a pool: what is idle is used, and may turn out to be broken. They are
/// made one after the other: one costs as much as many operations, and mostly another comes back before. All who need one
/// make it together, and stand in a queue for it and for those that come back, renewals first. None of them holds what the
/// others wait for: a future may be kept and not polled.
pub(crate) struct Own {
    hosts: Arc<Hosts>,
    connections: Mutex<Connections>,
    making: Together<Outcome<Connected>>,
    most: Arc<Semaphore>,
    /// One more, for renewals: however many wait for something else, a lease does not end by it.
    one_more: Arc<Semaphore>,
    /// For one renewal that was late, instead of that, until its process has ended.
    late: Arc<Semaphore>,
    timeout: Duration,
    pooled: bool,
}

#[derive(Default)]
struct Connections {
    /// Each with the time of its last answer. While somebody waits there are none.
    idle: Vec<(Instant, Connected)>,
    waiting: VecDeque<oneshot::Sender<Connected>>,
    /// Which server was found last: when it was started.
    server: Option<String>,
    /// When they were left: those made before are to a server that is the primary no more.
    left: Option<Instant>,
}

/// Whose request it is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lane {
    Renewals,
    Others,
}

/// A place in the queue. What is handed to who has left goes to the next.
struct Place<'a> {
    own: &'a Own,
    handed: oneshot::Receiver<Connected>,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.handed.close();
        if let Ok(connected) = self.handed.try_recv() {
            self.own.give(connected);
        }
        let mut connections = lock(&self.own.connections);
        connections.waiting.retain(|next| !next.is_closed());
    }
}

/// A connection on which something was sent. Whoever does not wait for the answer leaves it to a task, so that no other
/// connection takes the place of one that the server is still at work for.
struct UnderWay {
    sent: Option<Sent>,
    place: Option<OwnedSemaphorePermit>,
    process: Process,
    timeout: Duration,
    pooled: bool,
}

type Sent = Pin<Box<dyn Future<Output = (Connected, sqlx::Result<Vec<PgRow>>)> + Send>>;

impl Drop for UnderWay {
    fn drop(&mut self) {
        let Some(sent) = self.sent.take() else { return };
        // What a pooler has begun it ends itself, and its process is another one's meanwhile.
        if let (false, Ok(runtime)) = (self.pooled, Handle::try_current()) {
            let place = self.place.take();
            let end = self.process.clone().end(self.timeout);
            runtime.spawn(async move {
                tokio::select! {
                    _ = sent => {}
                    () = end => {}
                }
                drop(place);
            });
        }
    }
}

impl Own {
    pub(crate) fn new(
        options: Vec<PgConnectOptions>,
        most: usize,
        timeout: Duration,
        pooled: bool,
    ) -> Self {
        Self {
            hosts: Arc::new(Hosts::new(options, timeout)),
            connections: Mutex::default(),
            making: Together::default(),
            most: Arc::new(Semaphore::new(most)),
            one_more: Arc::new(Semaphore::new(1)),
            late: Arc::new(Semaphore::new(1)),
            timeout,
            pooled,
        }
    }

    async fn run(
        &self,
        deadline: Instant,
        lane: Lane,
        statement: Statement,
    ) -> Outcome<Vec<PgRow>> {
        let place = timeout_at(deadline, self.place(lane)).await;
        let place = place.ok().flatten().ok_or(Failure::NoConnection)?;
        let connected = timeout_at(deadline, self.connection(lane)).await;
        let mut connected = connected.map_err(|_| {
            self.distrust_making();
            Failure::NoConnection
        })??;
        let begun = Instant::now();
        let mut under_way = UnderWay {
            process: connected.process.clone(),
            sent: None,
            place: Some(place),
            timeout: self.timeout,
            pooled: self.pooled,
        };
        let sent = under_way.sent.insert(Box::pin(async move {
            let answer = statement.send(&mut connected.connection).await;
            (connected, answer)
        }));
        let answer = timeout_at(deadline, sent).await;
        match answer {
            Ok((connected, answer)) => {
                under_way.sent = None;
                match &answer {
                    Ok(_) => self.give(connected),
                    Err(error) if ends_connection(error) => self.distrust(begun),
                    Err(_) => {}
                }
                answer.map_err(Failure::Sent)
            }
            Err(_) => {
                self.distrust(begun);
                // The next renewal does not wait until the process has ended. One that is late, too, does.
                let of_renewals = under_way.place.as_ref();
                let of_renewals =
                    of_renewals.is_some_and(|it| Arc::ptr_eq(it.semaphore(), &self.one_more));
                if of_renewals && let Ok(late) = Arc::clone(&self.late).try_acquire_owned() {
                    under_way.place = Some(late);
                }
                Err(Failure::Late)
            }
        }
    }

    /// What has answered nothing since then may have ended with the one that failed; what has, has not.
    fn distrust(&self, since: Instant) {
        self.distrust_making();
        let mut connections = lock(&self.connections);
        connections.idle.retain(|(answered, _)| *answered > since);
    }

    /// What is being made may never be.
    fn distrust_making(&self) {
        self.hosts.forget();
        self.making.forget();
    }

    /// One of the places; nothing, if there are none any more.
    async fn place(&self, lane: Lane) -> Option<OwnedSemaphorePermit> {
        let most = Arc::clone(&self.most).acquire_owned();
        let one_more = Arc::clone(&self.one_more).acquire_owned();
        let place = tokio::select! {
            biased;
            place = most => place,
            place = one_more, if lane == Lane::Renewals => place,
        };
        place.ok()
    }

    /// Another server is the primary.
    fn leave(&self) {
        self.distrust_making();
        let mut connections = lock(&self.connections);
        connections.left = Some(Instant::now());
        connections.idle.clear();
    }

    /// A new one. Those to another server are left: it may be the primary no more, and not know.
    fn made(&self, connected: Connected) {
        let mut connections = lock(&self.connections);
        let (server, since) = (&connected.process.started, connected.process.since);
        let before = connections.server.replace(server.clone());
        if before.is_some_and(|before| before != *server) {
            connections.left = connections.left.max(Some(since));
            connections.idle.retain(|(_, it)| it.process.since >= since);
        }
        drop(connections);
        self.give(connected);
    }

    /// To who waits, or for later.
    fn give(&self, mut connected: Connected) {
        let mut connections = lock(&self.connections);
        if connections
            .left
            .is_some_and(|left| connected.process.since < left)
        {
            return;
        }
        while let Some(next) = connections.waiting.pop_front() {
            match next.send(connected) {
                Ok(()) => return,
                Err(back) => connected = back,
            }
        }
        connections.idle.push((Instant::now(), connected));
    }

    /// One that is idle or comes back, or a new one. A login takes a second where many begin at once.
    async fn connection(&self, lane: Lane) -> Outcome<Connected> {
        let (next, handed) = oneshot::channel();
        {
            let mut connections = lock(&self.connections);
            if let Some((_, connected)) = connections.idle.pop() {
                return Ok(connected);
            }
            match lane {
                Lane::Renewals => connections.waiting.push_front(next),
                Lane::Others => connections.waiting.push_back(next),
            }
        }
        let mut place = Place { own: self, handed };
        loop {
            tokio::select! {
                biased;
                handed = &mut place.handed => return handed.map_err(|_| Failure::NoConnection),
                made = self.making() => {
                    if let Some(made) = made {
                        self.made(made?);
                    }
                }
            }
        }
    }

    /// Makes one, with all others who do. It is over for all when it is made, or after the timeout: the server waits for
    /// who has left it for a while only.
    async fn making(&self) -> Option<Outcome<Connected>> {
        let begin = || {
            let hosts = Arc::clone(&self.hosts);
            async move { hosts.connect().await }
        };
        self.making.make(self.timeout, begin).await
    }
}

/// How often several servers are asked again which of them is the primary.
const ASKED_AGAIN: Duration = Duration::from_secs(10);

/// Asks them again and again, where there are several: an old primary that was cut off goes on with those whom it still
/// reaches, and does not know.
pub(crate) fn asking(link: &Arc<Link>) -> Option<Standing> {
    let several = matches!(&link.source, Source::Own(own) if own.hosts.are_several());
    let link = Arc::clone(link);
    several.then(|| Standing::begin(move || Box::pin(ask_again(Arc::clone(&link)))))
}

async fn ask_again(link: Arc<Link>) {
    let Source::Own(own) = &link.source else {
        return;
    };
    loop {
        // From one question to the next: nothing tells of a change.
        tokio::time::sleep(ASKED_AGAIN).await;
        // To which one the requests go: who listens may have found the other.
        let server = lock(&own.connections).server.clone();
        let Some(server) = server else { continue };
        let another = timeout_at(link.deadline(), own.hosts.have_another(&server)).await;
        if another.unwrap_or(false) {
            own.leave();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How the server is reached and called.
pub(crate) struct Link {
    pub(crate) source: Source,
    /// The namespace's, as the server reads it.
    pub(crate) schema: String,
    /// The channel on which owners of sessions are told.
    pub(crate) news: String,
    pub(crate) timeout: Duration,
    /// A pooler gives each transaction a connection of its own choice: nothing may be prepared.
    pub(crate) pooled: bool,
}

impl Link {
    pub(crate) fn new(source: Source, namespace: &str, timeout: Duration, pooled: bool) -> Self {
        Self {
            source,
            schema: identifier(namespace),
            news: format!("lockkeeper:{namespace}"),
            timeout,
            pooled,
        }
    }

    /// When an operation that begins now must be done.
    pub(crate) fn deadline(&self) -> Instant {
        Instant::now() + self.timeout
    }

    /// Where who listens connects to.
    pub(crate) async fn primary(&self) -> Outcome<PgConnectOptions> {
        match &self.source {
            Source::Own(own) => own.hosts.primary_options().await,
            Source::Pool(pool) => {
                Ok(PgConnectOptions::clone(&pool.connect_options()).disable_statement_logging())
            }
        }
    }

    /// Which of several servers that is now, if that is known.
    pub(crate) fn place(&self) -> Option<usize> {
        match &self.source {
            Source::Own(own) => own.hosts.primary(),
            Source::Pool(_) => None,
        }
    }

    /// One attempt of a call, and the rows of its answer.
    pub(crate) async fn call(&self, deadline: Instant, call: &Call) -> Outcome<Vec<PgRow>> {
        self.call_in(Lane::Others, deadline, call).await
    }

    /// The same, before all others.
    pub(crate) async fn renew(&self, deadline: Instant, call: &Call) -> Outcome<Vec<PgRow>> {
        self.call_in(Lane::Renewals, deadline, call).await
    }

    async fn call_in(&self, lane: Lane, deadline: Instant, call: &Call) -> Outcome<Vec<PgRow>> {
        // Longer than that nobody waits for an answer; a setting of the connection's is not ours.
        let setting = || format!("SET LOCAL lock_timeout = {}", lock_timeout(self.timeout));
        // Between its parts the program may stand still, and it has locks meanwhile.
        let ends = || {
            format!(
                "SET LOCAL idle_in_transaction_session_timeout = {}",
                self.timeout.as_millis().clamp(1, 60_000)
            )
        };
        let with_parameters = || call.with_parameters(&self.schema);
        let statement = match &self.source {
            _ if !self.pooled => Statement::Prepared(with_parameters(), arguments(&call.values)?),
            Source::Pool(_) if call.secret => Statement::Apart(
                format!("BEGIN; {}; {}", setting(), ends()),
                with_parameters(),
                arguments(&call.values)?,
            ),
            _ => {
                let call = call.with_literals(&self.schema);
                Statement::Raw(format!("{}; {call}", setting()))
            }
        };
        self.run(deadline, lane, statement).await
    }

    /// One attempt of a text, which may be several statements: they are one transaction.
    pub(crate) async fn raw(&self, deadline: Instant, text: String) -> Outcome<Vec<PgRow>> {
        let statement = Statement::Raw(text);
        self.run(deadline, Lane::Others, statement).await
    }

    async fn run(
        &self,
        deadline: Instant,
        lane: Lane,
        statement: Statement,
    ) -> Outcome<Vec<PgRow>> {
        match &self.source {
            Source::Own(own) => own.run(deadline, lane, statement).await,
            Source::Pool(pool) => {
                let mut connection = timeout_at(deadline, pool.acquire())
                    .await
                    .map_err(|_| Failure::NoConnection)?
                    .map_err(Failure::Connecting)?;
                let sent = timeout_at(deadline, statement.send(&mut connection)).await;
                let answer = sent.map_err(|_| Failure::Late);
                let answer = answer.and_then(|answer| answer.map_err(Failure::Sent));
                if answer.is_err() {
                    connection.close_on_drop();
                }
                answer
            }
        }
    }
}

/// What is sent to the server.
enum Statement {
    Raw(String),
    Prepared(String, PgArguments),
    /// In a transaction that is begun so: a pooler gives all of it to one connection of its own. The arguments are not in
    /// the text, which the program's connections may log; what theirs log cannot be changed.
    Apart(String, String, PgArguments),
}

impl Statement {
    async fn send(self, connection: &mut PgConnection) -> sqlx::Result<Vec<PgRow>> {
        match self {
            Self::Raw(text) => {
                let sent = sqlx::raw_sql(AssertSqlSafe(text)).fetch_all(connection);
                sent.await
            }
            Self::Prepared(text, arguments) => {
                let sent = sqlx::query_with(AssertSqlSafe(text), arguments).fetch_all(connection);
                sent.await
            }
            Self::Apart(begin, text, arguments) => {
                let mut transaction = connection.begin_with(AssertSqlSafe(begin)).await?;
                let sent = sqlx::query_with(AssertSqlSafe(text), arguments).persistent(false);
                let rows = sent.fetch_all(&mut *transaction).await?;
                transaction.commit().await?;
                Ok(rows)
            }
        }
    }
}

/// In milliseconds: the server gives up a latch before nobody waits for its answer any more.
pub(crate) fn lock_timeout(timeout: Duration) -> u128 {
    (timeout * 4 / 5).as_millis().clamp(1, 4_000)
}

fn arguments(values: &[Value]) -> Outcome<PgArguments> {
    use sqlx::Arguments as _;
    let mut arguments = PgArguments::default();
    for value in values {
        let added = match value.clone() {
            Value::Flag(value) => arguments.add(value),
            Value::Int(value) => arguments.add(value),
            Value::MaybeInt(value) => arguments.add(value),
            Value::Ints(value) => arguments.add(value),
            Value::Text(value) => arguments.add(value),
            Value::Texts(value) => arguments.add(value),
            Value::Bytes(value) => arguments.add(value),
            Value::ManyBytes(value) => arguments.add(value),
        };
        added.map_err(|error| Failure::Connecting(sqlx::Error::Encode(error)))?;
    }
    Ok(arguments)
}
