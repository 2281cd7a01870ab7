//! The backend itself: connecting, and its properties.

use std::fmt;
use std::sync::Arc;

use lockcore::backend::{Namespace, SmallBatches, Standing};
use lockcore::{Claim, Durability, Error, Grant, Info, LockBackend, Operation};
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions as _, PgConnection, PgPool};
use tokio::time::Instant;

use crate::claims::{self, SWEPT_AT_ONCE, confirmation};
use crate::config::PostgresConfig;
use crate::connections::{Link, Own, Source, asking, lock_timeout};
use crate::error::{Failure, NAME, Outcome};
use crate::namespace::{About, find_or_make, let_in, remove};
use crate::record::only;
use crate::sql;
use crate::wakeups::{POLL_EVERY, Watches};

/// The most keys of a batch: as many latches are taken at once.
const KEYS_PER_BATCH: i64 = 1_000;
/// The server has one table for all latches and locks. A batch takes at most this fraction of it.
const PART_OF_LATCHES: i64 = 8;

/// Locks in a schema of a PostgreSQL database.
///
/// Its operations are those of lockcore's traits. Dropping the future of an operation loses the answer; a request that
/// was sent may still be executed. Its connection is not used for anything else. A connection of the backend's own is
/// closed when the server has answered; if the server does not answer, its process there is ended.
///
/// # Examples
///
/// Compiled and not run, because it needs a server; the conformance suite does the same with one.
///
/// ```no_run
/// use lockcore::LockBackend;
/// use lockcore_postgres::{PostgresBackend, PostgresConfig};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let config = PostgresConfig::parse("postgres://me@localhost/app?namespace=fs")?;
/// let backend = PostgresBackend::connect(config).await?;
/// assert_eq!(backend.info().name, "postgres");
/// # Ok(())
/// # }
/// ```
pub struct PostgresBackend {
    pub(crate) link: Arc<Link>,
    /// `None` if waiters poll.
    pub(crate) watches: Option<Watches>,
    info: Info,
    pub(crate) small: SmallBatches,
    /// Checks whether another server is the primary by now.
    asking: Option<Standing>,
}

impl PostgresBackend {
    /// Connects to the server. Creates the schema of the namespace if there is none and the user may, or replaces the
    /// functions of an older program there. Several processes may do so at once, while others use it.
    ///
    /// # Errors
    ///
    /// Of kind [`Config`](lockcore::ErrorKind::Config): a schema that holds something else or is of another version, a
    /// server older than 14, or a database that is not in UTF-8. [`Unauthorized`](lockcore::ErrorKind::Unauthorized): a
    /// user who is not let in, or may not create the schema or a function that is missing there.
    /// [`Unavailable`](lockcore::ErrorKind::Unavailable): a standby. Of another kind if the server fails.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves at most the schema.
    pub async fn connect(config: PostgresConfig) -> Result<Arc<Self>, Error> {
        Self::connected(own_link(&config), &config)
            .await
            .map_err(Failure::of(Operation::Connect))
    }

    /// As [`connect`](Self::connect), with connections of the application's pool, each for one round trip, and with one
    /// connection of the backend's own, to the same server, that listens. Of the configuration only the namespace, the
    /// timeout and the pooler setting matter. A pool that tests its connections before it hands them out costs one more
    /// round trip for each operation. If the pool logs statements, it logs those of the backend too; none contains an
    /// intent. Therefore registering an intent behind a pooler takes four round trips.
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect).
    ///
    /// # Cancel safety
    ///
    /// As [`connect`](Self::connect).
    pub async fn from_pool(pool: PgPool, config: PostgresConfig) -> Result<Arc<Self>, Error> {
        let link = Link::new(
            Source::Pool(pool),
            config.namespace.as_str(),
            config.timeout,
            config.pooled,
        );
        Self::connected(link, &config)
            .await
            .map_err(Failure::of(Operation::Connect))
    }

    /// Creates the namespace's schema or updates it, as its owner, and grants these roles the rights that they need to
    /// use it: to call its functions, and none to its tables.
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves what was done by then. Call it again.
    pub async fn init(config: PostgresConfig, roles: &[&str]) -> Result<(), Error> {
        let link = own_link(&config);
        let done = async {
            find_or_make(&link, &config.namespace).await?;
            let_in(&link, &config.namespace, roles).await
        };
        done.await.map_err(Failure::of(Operation::Connect))
    }

    /// The SQL by which [`init`](Self::init) creates a namespace that does not exist yet, for an administrator who reads
    /// it first: run it in one transaction, as the role that is to own the schema. A newer version of this library may
    /// replace the functions, if it connects as that role.
    #[must_use]
    pub fn sql(namespace: &Namespace, roles: &[&str]) -> String {
        let mut text = sql::migration(namespace, false, false);
        for role in roles {
            text.push('\n');
            text += &sql::grant(namespace, role);
        }
        text
    }

    /// Removes the namespace's schema with everything in it. A holder of a lock in it loses the lock at its deadline
    /// and is not asked. End all users first: the next program that connects recreates the schema. A schema that does
    /// not exist is no error.
    ///
    /// Only the owner of the schema (the user who created it) or a superuser may do that.
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect). A schema that is not of this library is not removed.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves all of the namespace or nothing.
    pub async fn remove(config: PostgresConfig) -> Result<(), Error> {
        let link = own_link(&config);
        let removed = remove(&link, &config.namespace).await;
        removed.map_err(Failure::of(Operation::Remove))
    }

    async fn connected(link: Link, config: &PostgresConfig) -> Outcome<Arc<Self>> {
        let about = find_or_make(&link, &config.namespace).await?;
        let link = Arc::new(link);
        let watches = match config.pooled {
            true => None,
            false => Watches::start(&link).await?,
        };
        let info = info(&about, watches.is_some());
        Ok(Arc::new(Self {
            asking: asking(&link),
            small: claims::small(&link),
            link,
            watches,
            info,
        }))
    }

    /// Whether the grants hold all of their claims and their session lives, asked inside the application's own
    /// transaction in the same database, before or after its writes. Until the transaction ends, nobody can end the
    /// session or release the grants. So the transaction is committed only while the locks are held. Renewals go on.
    /// `false` for a guard that was given back, and without any grant.
    ///
    /// Ask in the transaction itself. A savepoint (a nested transaction of sqlx) that is rolled back takes the answer with
    /// it: ask again then.
    ///
    /// A request to end the session waits for the transaction for a second. Then a session that is due counts as
    /// living, and any other end fails. So keep the transaction short.
    ///
    /// # Errors
    ///
    /// Of kind [`Config`](lockcore::ErrorKind::Config) in a transaction that is not `READ COMMITTED`; otherwise as in
    /// every operation. The transaction is then broken: roll it back.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the connection in the middle of a request. Drop the transaction too.
    ///
    /// # Examples
    ///
    /// Compiled and not run, because it needs a server; the tests do the same with one.
    ///
    /// ```no_run
    /// # async fn example(
    /// #     backend: std::sync::Arc<lockcore_postgres::PostgresBackend>,
    /// #     pool: sqlx::PgPool,
    /// # ) -> Result<(), Box<dyn std::error::Error>> {
    /// let locks = lockcore::Locks::builder(backend.clone()).build()?;
    /// let guard = locks.documents(["account/1"]).acquire().await?;
    /// let mut transaction = pool.begin().await?;
    /// sqlx::query("UPDATE account SET balance = balance + 10 WHERE id = 1")
    ///     .execute(&mut *transaction)
    ///     .await?;
    /// if backend.confirm_in(&mut transaction, guard.grants()).await? {
    ///     transaction.commit().await?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn confirm_in(
        &self,
        transaction: &mut PgConnection,
        grants: impl IntoIterator<Item = (Grant, &[Claim])> + Send,
    ) -> Result<bool, Error> {
        let calls: Vec<_> = grants
            .into_iter()
            .map(|(grant, claims)| confirmation(grant, claims).with_literals(&self.link.schema))
            .collect();
        let some = !calls.is_empty();
        for text in calls {
            let rows = sqlx::raw_sql(AssertSqlSafe(text)).fetch_all(&mut *transaction);
            let rows = rows.await.map_err(Failure::Sent);
            let held = rows.and_then(|rows| only(&rows, "confirm"));
            if !held.map_err(Failure::of(Operation::Confirm))? {
                return Ok(false);
            }
        }
        Ok(some)
    }

    /// The link and the deadline of an operation that begins now.
    pub(crate) fn begin(&self) -> (&Link, Instant) {
        self.asking.iter().for_each(Standing::stands);
        (&self.link, self.link.deadline())
    }
}

fn driver_options(config: &PostgresConfig, options: &PgConnectOptions) -> PgConnectOptions {
    // A statement may have an intent in it.
    let options = options.clone().disable_statement_logging();
    let options = match options.get_application_name() {
        Some(_) => options,
        None => options.application_name("lockkeeper"),
    };
    if config.pooled {
        // Poolers refuse settings that they do not know.
        return options.extra_float_digits(None).statement_cache_capacity(0);
    }
    options.options([
        ("default_transaction_isolation", "read committed"),
        ("lock_timeout", &lock_timeout(config.timeout).to_string()),
    ])
}

fn own_link(config: &PostgresConfig) -> Link {
    let hosts = config.hosts.iter();
    let hosts = hosts.map(|host| driver_options(config, host)).collect();
    let own = Own::new(hosts, config.connections, config.timeout, config.pooled);
    Link::new(
        Source::Own(Box::new(own)),
        config.namespace.as_str(),
        config.timeout,
        config.pooled,
    )
}

fn info(about: &About, pushed: bool) -> Info {
    let mut info = Info::new(NAME, "the server's wall clock");
    let keys = (about.latches / PART_OF_LATCHES).clamp(100, KEYS_PER_BATCH);
    info.keys_per_batch = usize::try_from(keys).unwrap_or(100);
    info.sweep_limit = SWEPT_AT_ONCE;
    info.poll = (!pushed).then_some(POLL_EVERY);
    // `off` is not heeded where something is granted.
    let waits_for_standbys = !about.standbys.trim().is_empty()
        && matches!(
            about.synchronous.as_str(),
            "on" | "off" | "remote_apply" | "remote_write"
        );
    info.durability = Durability {
        crash: true,
        power_loss: about.fsync,
        failover: waits_for_standbys || about.copies == 0,
    };
    info
}

impl LockBackend for PostgresBackend {
    fn info(&self) -> Info {
        self.info.clone()
    }
}

impl fmt::Debug for PostgresBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresBackend")
            .field("schema", &self.link.schema)
            .finish_non_exhaustive()
    }
}
