//! The namespace's schema: found, made, brought up to date, and what it and the server are like.

use std::borrow::Cow;

use lockcore::ErrorKind;
use lockcore::backend::Namespace;
use sqlx::postgres::PgRow;

use crate::connections::Link;
use crate::error::{Failure, Outcome};
use crate::record::{broken, column, only};
use crate::sql::{Call, VERSION, Value, fits, grant, identifier, make_way, migration};

/// The oldest server whose multiranges and functions are those that we use.
const OLDEST: i64 = 140_000;
/// Whoever makes or changes a schema holds this lock of the server's.
const ONE_AT_A_TIME: i64 = 0x6c6f_636b_6b65_6570;
/// What is told to who may not do what is needed.
const NOT_OURS: &str = "the namespace is not there or of an older program, and the user may not make it: have the owner \
                        call PostgresBackend::init";

/// What the server and the namespace are like.
#[derive(Debug)]
pub(crate) struct About {
    /// So many latches there are at least for all who use the server.
    pub(crate) latches: i64,
    /// `synchronous_commit`.
    pub(crate) synchronous: String,
    pub(crate) fsync: bool,
    /// `synchronous_standby_names`.
    pub(crate) standbys: String,
    /// Standbys and replication slots, as far as the server knows now.
    pub(crate) copies: i64,
}

struct Found {
    schema: bool,
    /// Our functions are in it.
    made: Option<Made>,
    /// Something else is in it.
    other: bool,
}

struct Made {
    owner: String,
    /// We may do what the owner may.
    by_us: bool,
    /// What is said of the program that has made the functions.
    said: Option<String>,
    /// Who may call them.
    roles: Vec<String>,
}

impl Made {
    /// Of an older program, or of another text.
    fn is_old(&self) -> bool {
        make_way(self.said.as_deref())
    }
}

/// Finds the namespace, and makes it or brings it up to date where that is needed and allowed.
pub(crate) async fn find_or_make(link: &Link, namespace: &Namespace) -> Outcome<About> {
    let mut found = look(link, namespace).await?;
    if found.made.is_none() {
        if found.other {
            return Err(Failure::config(format!(
                "the schema {:?} holds something else: use another namespace",
                namespace.as_str()
            )));
        }
        make(link, namespace, false, &found).await?;
        found = look(link, namespace).await?;
    }
    let rows = ask_about(link).await?;
    let version: i64 = only(&rows, "r_version")?;
    if version < VERSION {
        return Err(Failure::config(format!(
            "the namespace has version {version} of the stored shape, whose programs do not see who waits, and this one knows \
             {VERSION}: use another namespace, or remove this one when nobody uses it any more"
        )));
    }
    if version > VERSION {
        return Err(Failure::config(format!(
            "the namespace has version {version} of the stored shape and this program knows {VERSION}: update the program"
        )));
    }
    let (old, by_us) = found
        .made
        .as_ref()
        .map_or((true, false), |made| (made.is_old(), made.by_us));
    if old && by_us {
        make(link, namespace, true, &found).await?;
        return About::read(&ask_about(link).await?);
    }
    if old {
        let asked = link.raw(link.deadline(), fits(namespace)).await?;
        if !only::<bool>(&asked, "r_fits")? {
            return Err(Failure::Found(ErrorKind::Unauthorized, NOT_OURS.into()));
        }
    }
    About::read(&rows)
}

/// Gives these roles the rights that they need.
pub(crate) async fn let_in(link: &Link, namespace: &Namespace, roles: &[&str]) -> Outcome<()> {
    let text: String = roles.iter().map(|role| grant(namespace, role)).collect();
    if !text.is_empty() {
        // Two at once would be in each other's way at a function.
        let text = format!("SELECT pg_advisory_xact_lock({ONE_AT_A_TIME}); {text}");
        link.raw(link.deadline(), text).await?;
    }
    Ok(())
}

async fn look(link: &Link, namespace: &Namespace) -> Outcome<Found> {
    let text = format!(
        "SELECT current_setting('server_version_num')::bigint AS r_server,
            current_setting('server_encoding') AS r_encoding,
            pg_is_in_recovery() AS r_standby,
            EXISTS (SELECT FROM pg_namespace WHERE nspname = '{namespace}') AS r_schema,
            EXISTS (SELECT FROM pg_namespace n
                    WHERE n.nspname = '{namespace}' AND (
                        EXISTS (SELECT FROM pg_class c WHERE c.relnamespace = n.oid)
                        OR EXISTS (SELECT FROM pg_proc p WHERE p.pronamespace = n.oid)
                        OR EXISTS (SELECT FROM pg_type t WHERE t.typnamespace = n.oid)
                        OR EXISTS (SELECT FROM pg_extension e WHERE e.extnamespace = n.oid))) AS r_other,
            made.*
         FROM (VALUES (1)) one LEFT JOIN (
            SELECT pg_get_userbyid(p.proowner)::text AS r_owner, pg_has_role(p.proowner, 'MEMBER') AS r_by_us,
                   obj_description(p.oid, 'pg_proc') AS r_said,
                   ARRAY(SELECT DISTINCT pg_get_userbyid(a.grantee)::text FROM aclexplode(p.proacl) a
                         WHERE a.grantee NOT IN (0, p.proowner)) AS r_roles
            FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
            WHERE n.nspname = '{namespace}' AND p.proname = 'about' AND p.pronargs = 0
                AND (obj_description(p.oid, 'pg_proc') LIKE 'lockkeeper %'
                    -- A dump may leave out what is said.
                    OR (SELECT count(*) = 3 FROM pg_class c WHERE c.relnamespace = n.oid
                        AND c.relkind = 'r' AND c.relname IN ('meta', 'sessions', 'holders')))
         ) made ON true"
    );
    let rows = link.raw(link.deadline(), text).await?;
    let row = rows.first().ok_or_else(|| broken("an answer has no row"))?;
    let (server, encoding): (i64, &str) = (column(row, "r_server")?, column(row, "r_encoding")?);
    if server < OLDEST {
        return Err(Failure::config(
            "the server is older than PostgreSQL 14: update it",
        ));
    }
    if encoding != "UTF8" {
        return Err(Failure::config(format!(
            "the database is in {encoding}, and keys are in UTF-8: make one with ENCODING 'UTF8'"
        )));
    }
    if column(row, "r_standby")? {
        let what = "the server is a standby: connect to the primary";
        return Err(Failure::Found(ErrorKind::Unavailable, what.into()));
    }
    if namespace.as_str().starts_with("pg_") {
        return Err(Failure::config(
            "the server keeps names that begin with pg_ to itself: use another namespace",
        ));
    }
    Ok(Found {
        schema: column(row, "r_schema")?,
        made: match column(row, "r_owner")? {
            Some(owner) => Some(Made {
                owner,
                by_us: column(row, "r_by_us")?,
                said: column(row, "r_said")?,
                roles: column(row, "r_roles")?,
            }),
            None => None,
        },
        other: column(row, "r_other")?,
    })
}

/// Makes the namespace, or changes it, in one transaction. Several processes may do so at once: they do it one after the
/// other. Who has used it goes on, and is given the rights to what is new.
async fn make(link: &Link, namespace: &Namespace, is_there: bool, found: &Found) -> Outcome<()> {
    let said = |found: &Found| found.made.as_ref().map(|made| made.said.clone());
    let mut later = None;
    loop {
        let before = later.as_ref().unwrap_or(found);
        let text = changes(namespace, is_there, before);
        let Err(failure) = link.raw(link.deadline(), text).await else {
            return Ok(());
        };
        // Somebody else was first, or it is done though we were not told.
        let after = look(link, namespace).await?;
        let made = after.made.as_ref();
        if made.is_some_and(|made| !is_there || !made.is_old()) {
            return Ok(());
        }
        if made.is_none() || said(&after) == said(before) {
            return Err(match failure {
                Failure::Sent(error)
                    if error
                        .as_database_error()
                        .is_some_and(|e| e.code() == Some(Cow::Borrowed("42501"))) =>
                {
                    Failure::Found(ErrorKind::Unauthorized, NOT_OURS.into())
                }
                failure => failure,
            });
        }
        // That one is older, too.
        later = Some(after);
    }
}

/// What makes the namespace, or changes it, if it is as it was found.
fn changes(namespace: &Namespace, is_there: bool, found: &Found) -> String {
    let mut text = format!("SELECT pg_advisory_xact_lock({ONE_AT_A_TIME});");
    if let Some(made) = &found.made {
        // It fails if another program was first: the functions of a newer one stay.
        let mut said = String::new();
        Value::Text(made.said.clone()).literal(&mut said);
        text += &format!(
            "SELECT 1 / (obj_description(p.oid, 'pg_proc') IS NOT DISTINCT FROM {said})::int
             FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
             WHERE n.nspname = '{namespace}' AND p.proname = 'about' AND p.pronargs = 0;"
        );
        // What is new is the owner's, too, and runs with no greater rights.
        text += &format!("SET LOCAL ROLE {};", identifier(&made.owner));
    }
    text += &migration(namespace, is_there, found.schema);
    let roles = found.made.iter().flat_map(|made| &made.roles);
    text.extend(roles.map(|role| grant(namespace, role)));
    text
}

/// Removes the namespace, if it is there and ours.
pub(crate) async fn remove(link: &Link, namespace: &Namespace) -> Outcome<()> {
    let found = look(link, namespace).await?;
    if !found.schema {
        return Ok(());
    }
    if found.made.is_none() {
        return Err(Failure::config(format!(
            "the schema {:?} holds no locks: remove it by hand",
            namespace.as_str()
        )));
    }
    // Whoever uses a table of it is waited for. The server stops waiting before we do: it would remove it later, when
    // nobody expects it any more.
    let text = format!(
        "SET LOCAL lock_timeout = {}; SET LOCAL client_min_messages = warning;
         SELECT pg_advisory_xact_lock({ONE_AT_A_TIME}); DROP SCHEMA IF EXISTS {} CASCADE",
        (link.timeout / 2).as_millis().clamp(1, 600_000),
        link.schema
    );
    link.raw(link.deadline(), text).await.map(drop)
}

async fn ask_about(link: &Link) -> Outcome<Vec<PgRow>> {
    link.call(link.deadline(), &Call::new("about", [])).await
}

impl About {
    fn read(rows: &[PgRow]) -> Outcome<Self> {
        Ok(Self {
            latches: only(rows, "r_latches")?,
            synchronous: only(rows, "r_synchronous")?,
            fsync: only(rows, "r_fsync")?,
            standbys: only(rows, "r_standbys")?,
            copies: only(rows, "r_copies")?,
        })
    }
}
