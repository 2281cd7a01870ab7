//! The way to the server: connections, and one attempt of one call.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sqlx::postgres::{PgArguments, PgConnectOptions, PgRow};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, PgPool};
use tokio::sync::{Notify, Semaphore};
use tokio::time::{Instant, timeout_at};

use crate::error::{Failure, Outcome};
use crate::sql::{Call, Value, identifier};

/// Where connections come from.
pub(crate) enum Source {
    /// Our own. A connection on which anything failed, or that was given up, is closed.
    Own(Box<Own>),
    /// The application's.
    Pool(PgPool),
}

/// Connections of our own, without the pings of a pool: what is idle is used, and may turn out to be broken. They are
/// made one after the other: one costs as much as many operations, and mostly another comes back before.
pub(crate) struct Own {
    options: PgConnectOptions,
    idle: Mutex<Vec<PgConnection>>,
    came_back: Notify,
    making: Semaphore,
    most: Semaphore,
}

impl Own {
    pub(crate) fn new(options: PgConnectOptions, most: usize) -> Self {
        Self {
            options,
            idle: Mutex::default(),
            came_back: Notify::new(),
            making: Semaphore::new(1),
            most: Semaphore::new(most),
        }
    }

    async fn run(&self, deadline: Instant, statement: Statement) -> Outcome<Vec<PgRow>> {
        let most = timeout_at(deadline, self.most.acquire()).await;
        let _one = most.map_err(|_| Failure::NoConnection)?;
        let mut connection = timeout_at(deadline, self.connection())
            .await
            .map_err(|_| Failure::NoConnection)?
            .map_err(Failure::Connecting)?;
        let answer = attempt(deadline, &mut connection, statement).await;
        match &answer {
            Ok(_) => {
                self.idle().push(connection);
                self.came_back.notify_one();
            }
            // The others were made to the same server, which may have ended.
            Err(Failure::Sent(error)) if error.as_database_error().is_none() => self.idle().clear(),
            Err(_) => {}
        }
        answer
    }

    /// One that is idle, or a new one.
    async fn connection(&self) -> sqlx::Result<PgConnection> {
        loop {
            if let Some(connection) = self.idle_one() {
                return Ok(connection);
            }
            tokio::select! {
                biased;
                () = self.came_back.notified() => {}
                _making = self.making.acquire() => {
                    return match self.idle_one() {
                        Some(connection) => Ok(connection),
                        None => PgConnection::connect_with(&self.options).await,
                    };
                }
            }
        }
    }

    fn idle_one(&self) -> Option<PgConnection> {
        self.idle().pop()
    }

    fn idle(&self) -> MutexGuard<'_, Vec<PgConnection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How the server is reached and called.
pub(crate) struct Link {
    pub(crate) source: Source,
    /// The namespace's, as the server reads it.
    pub(crate) schema: String,
    pub(crate) timeout: Duration,
    /// A pooler gives each transaction a connection of its own choice: nothing may be prepared.
    pub(crate) pooled: bool,
}

impl Link {
    pub(crate) fn new(source: Source, namespace: &str, timeout: Duration, pooled: bool) -> Self {
        Self {
            source,
            schema: identifier(namespace),
            timeout,
            pooled,
        }
    }

    /// When an operation that begins now must be done.
    pub(crate) fn deadline(&self) -> Instant {
        Instant::now() + self.timeout
    }

    /// One attempt of a call, and the rows of its answer.
    pub(crate) async fn call(&self, deadline: Instant, call: &Call) -> Outcome<Vec<PgRow>> {
        let statement = if self.pooled {
            Statement::Raw(call.with_literals(&self.schema))
        } else {
            Statement::Prepared(call.with_parameters(&self.schema), arguments(&call.values)?)
        };
        self.run(deadline, statement).await
    }

    /// One attempt of a text, which may be several statements: they are one transaction.
    pub(crate) async fn raw(&self, deadline: Instant, text: String) -> Outcome<Vec<PgRow>> {
        self.run(deadline, Statement::Raw(text)).await
    }

    async fn run(&self, deadline: Instant, statement: Statement) -> Outcome<Vec<PgRow>> {
        match &self.source {
            Source::Own(own) => own.run(deadline, statement).await,
            Source::Pool(pool) => {
                let mut connection = timeout_at(deadline, pool.acquire())
                    .await
                    .map_err(|_| Failure::NoConnection)?
                    .map_err(Failure::Connecting)?;
                let answer = attempt(deadline, &mut connection, statement).await;
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
}

async fn attempt(
    deadline: Instant,
    connection: &mut PgConnection,
    statement: Statement,
) -> Outcome<Vec<PgRow>> {
    let answer = match statement {
        Statement::Raw(text) => {
            let sent = sqlx::raw_sql(AssertSqlSafe(text)).fetch_all(connection);
            timeout_at(deadline, sent).await
        }
        Statement::Prepared(text, arguments) => {
            let sent = sqlx::query_with(AssertSqlSafe(text), arguments).fetch_all(connection);
            timeout_at(deadline, sent).await
        }
    };
    answer.map_err(|_| Failure::Late)?.map_err(Failure::Sent)
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
