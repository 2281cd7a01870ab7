//! The servers of one URL, of which one is the primary.

use std::collections::HashSet;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lockcore::ErrorKind;
use lockcore::backend::within;
use sqlx::postgres::PgConnectOptions;
use sqlx::{Connection as _, PgConnection, Row as _};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout_at};

use crate::error::{Failure, Outcome};

/// When one has said that it is the primary, the others have so long to say that they are, too; or a quarter of the time
/// of an operation, if that is less.
const OTHERS: Duration = Duration::from_secs(1);
const HELLO: &str = "SELECT pg_is_in_recovery() AS standby, pg_backend_pid() AS pid,
                     pg_postmaster_start_time()::text AS started";

pub(crate) struct Hosts {
    all: Vec<PgConnectOptions>,
    /// Which of several is the primary, until anything fails there.
    primary: Mutex<Option<usize>>,
    others: Duration,
}

/// What must be known to end what a connection has begun.
#[derive(Clone)]
pub(crate) struct Process {
    pub(crate) options: Arc<PgConnectOptions>,
    /// The server's number of it.
    pid: i32,
    /// When the server was started, which no other one was in the same microsecond.
    pub(crate) started: String,
    pub(crate) since: Instant,
}

/// A connection to a server.
pub(crate) struct Connected {
    pub(crate) connection: PgConnection,
    pub(crate) process: Process,
    standby: bool,
}

impl Connected {
    async fn to(options: PgConnectOptions) -> sqlx::Result<Self> {
        let mut connection = PgConnection::connect_with(&options).await?;
        let row = sqlx::raw_sql(HELLO).fetch_one(&mut connection).await?;
        Ok(Self {
            connection,
            process: Process {
                options: Arc::new(options),
                pid: row.try_get("pid")?,
                started: row.try_get("started")?,
                since: Instant::now(),
            },
            standby: row.try_get("standby")?,
        })
    }
}

impl Hosts {
    pub(crate) fn new(all: Vec<PgConnectOptions>, timeout: Duration) -> Self {
        Self {
            all,
            primary: Mutex::new(None),
            others: OTHERS.min(timeout / 4),
        }
    }

    /// A new connection to the primary. Where that is not known, all are asked: two that say so are refused, because
    /// each would grant what the other has granted.
    pub(crate) async fn connect(&self) -> Outcome<Connected> {
        if let [only] = &*self.all {
            let connected = Connected::to(only.clone()).await;
            return connected.map_err(Failure::Connecting);
        }
        if let Some(primary) = self.primary()
            && let Ok(connected) = Connected::to(self.all[primary].clone()).await
            && !connected.standby
        {
            return Ok(connected);
        }
        self.forget();
        let (primary, connected) = self.ask_all().await?;
        *self.lock() = Some(primary);
        Ok(connected)
    }

    /// Whether another one than this is the primary by now, or says that it is, too.
    pub(crate) async fn have_another(&self, than: &str) -> bool {
        match self.ask_all().await {
            Ok((_, connected)) => connected.process.started != than,
            Err(failure) => matches!(failure, Failure::TwoPrimaries),
        }
    }

    pub(crate) fn are_several(&self) -> bool {
        self.all.len() > 1
    }

    async fn ask_all(&self) -> Outcome<(usize, Connected)> {
        let mut asked = JoinSet::new();
        for (place, options) in self.all.iter().cloned().enumerate() {
            asked.spawn(async move { (place, Connected::to(options).await) });
        }
        let (mut primaries, mut standby, mut failed) = (Vec::new(), false, None);
        let mut until = None;
        loop {
            let answer = match until {
                Some(until) => within(until, pin!(asked.join_next())).await.flatten(),
                None => asked.join_next().await,
            };
            match answer {
                None => break,
                Some(Ok((_, Ok(connected)))) if connected.standby => standby = true,
                Some(Ok((place, Ok(connected)))) => {
                    until.get_or_insert_with(|| Instant::now() + self.others);
                    primaries.push((place, connected));
                }
                Some(Ok((_, Err(error)))) => failed = Some(error),
                // Its runtime ends.
                Some(Err(_)) => {}
            }
        }
        // One server may have two names.
        let servers: HashSet<&str> = primaries.iter().map(|(_, c)| &*c.process.started).collect();
        if servers.len() > 1 {
            return Err(Failure::TwoPrimaries);
        }
        match (primaries.into_iter().next(), failed) {
            (Some(primary), _) => Ok(primary),
            (None, _) if standby => {
                let what = "no server that answers is the primary: promote one";
                Err(Failure::Found(ErrorKind::Unavailable, what.into()))
            }
            (None, Some(error)) => Err(Failure::Connecting(error)),
            (None, None) => Err(Failure::NoConnection),
        }
    }

    /// Where who listens connects to.
    pub(crate) async fn primary_options(&self) -> Outcome<PgConnectOptions> {
        match (&*self.all, self.primary()) {
            ([only], _) => Ok(only.clone()),
            (all, Some(primary)) => Ok(all[primary].clone()),
            _ => Ok(PgConnectOptions::clone(
                &self.connect().await?.process.options,
            )),
        }
    }

    /// Which of several it is; `None` where it is not known, or there is one.
    pub(crate) fn primary(&self) -> Option<usize> {
        *self.lock()
    }

    /// Something failed there: another one may have taken over.
    pub(crate) fn forget(&self) {
        *self.lock() = None;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<usize>> {
        self.primary.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Process {
    /// Ends it, if the server does not answer by itself within that time: it would keep one of its connections, as long
    /// as a standby is away, for nobody.
    pub(crate) async fn end(self, patience: Duration) {
        sleep(patience).await;
        // A later one of the same number is another one's, and so is that of a server that has taken over.
        let (pid, age, started) = (self.pid, self.since.elapsed().as_millis(), &self.started);
        let text = format!(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
             WHERE pid = {pid} AND backend_start <= clock_timestamp() - interval '{age} ms'
               AND pg_postmaster_start_time()::text = '{started}'"
        );
        let ended = async {
            let mut other = PgConnection::connect_with(&self.options).await?;
            sqlx::raw_sql(sqlx::AssertSqlSafe(text))
                .execute(&mut other)
                .await?;
            other.close().await
        };
        // A server that cannot be reached has got nothing more from us, either.
        let _ = timeout_at(Instant::now() + patience, ended).await;
    }
}
