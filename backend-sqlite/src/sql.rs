//! Every statement, each from its own file in `server/`.
//!
//! None that runs for every key has a RETURNING clause or a list after IN: SQLite makes a table of its own for these,
//! which costs more than the rest of a small transaction.

macro_rules! statements {
    ($($name:ident = $file:literal;)*) => {
        $(pub(crate) const $name: &str = include_str!(concat!("../server/", $file, ".sql"));)*

        #[cfg(test)]
        pub(crate) const STATEMENTS: &[(&str, &str)] = &[$(($file, $name)),*];
    };
}

/// The tables, for a new file.
pub(crate) const SCHEMA: &str = include_str!("../server/schema.sql");
/// Every deciding transaction begins so: nothing that it reads changes before it writes.
pub(crate) const BEGIN: &str = "BEGIN IMMEDIATE";
/// A transaction that only reads.
pub(crate) const BEGIN_READ: &str = "BEGIN";
pub(crate) const COMMIT: &str = "COMMIT";
/// Writes the log back, and cuts it, unless somebody reads.
pub(crate) const TRUNCATE_LOG: &str = "PRAGMA wal_checkpoint(TRUNCATE)";
pub(crate) const ROLLBACK: &str = "ROLLBACK";

statements! {
    SESSION_LOAD = "session_load";
    SESSION_CREATE = "session_create";
    SESSION_PUT = "session_put";
    SESSIONS_PAGE = "sessions_page";
    SESSIONS_DUE = "sessions_due";
    SESSIONS_FORGET = "sessions_forget";
    INTENT_LOAD = "intent_load";
    INTENT_PUT = "intent_put";
    INTENT_DROP = "intent_drop";
    HOLDERS_ON_KEY = "holders_on_key";
    HOLDERS_BELOW = "holders_below";
    HOLDERS_OF_SESSION = "holders_of_session";
    HOLDER_PUT = "holder_put";
    HOLDER_ROW = "holder_row";
    HOLDER_DROP = "holder_drop";
    NEXT_SESSION_OF_HOLDERS = "next_session_of_holders";
    FIRST_KEY = "first_key";
    NEXT_KEY = "next_key";
    TOKEN_LOAD = "token_load";
    TOKEN_STORE = "token_store";
}

/// What the baseline of the benchmarks needs.
pub(crate) const BARE_TABLE: &str = include_str!("../server/bare_table.sql");
pub(crate) const BARE_WRITE: &str = include_str!("../server/bare_write.sql");

#[cfg(test)]
mod tests {
    use super::*;

    /// No statement of an operation scans a table or sorts: a large set must not slow down a small one.
    #[test]
    fn every_statement_finds_its_rows_by_an_index() {
        let conn = rusqlite::Connection::open_in_memory().unwrap();
        conn.execute_batch(SCHEMA).unwrap();
        for (name, sql) in STATEMENTS {
            let mut plan = conn.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
            let nulls = vec![rusqlite::types::Null; plan.parameter_count()];
            let steps: Vec<String> = plan
                .query_map(rusqlite::params_from_iter(nulls), |row| row.get("detail"))
                .unwrap()
                .collect::<Result<_, _>>()
                .unwrap();
            for step in steps {
                let slow = step.contains("USE TEMP B-TREE")
                    || (step.starts_with("SCAN") && step != "SCAN CONSTANT ROW");
                assert!(!slow, "{name}: {step}");
            }
        }
    }
}
