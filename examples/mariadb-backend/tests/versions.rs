//! Tables of another version are refused before anything is written. Needs a server.

use lockcore::ErrorKind;
use mariadb_backend::MariaDbBackend;
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, MySqlConnection, Row as _};

/// As `tests/support` has it.
const SERVER: &str = "LOCKKEEPER_TEST_MARIADB";

#[tokio::test]
async fn another_version_is_refused_and_not_changed() {
    let server = std::env::var(SERVER).unwrap_or_else(|_| panic!("{SERVER} is not set"));
    let name = format!("versions_{:032x}", rand::random::<u128>());
    let mut owner = MySqlConnection::connect(&server).await.unwrap();
    let run = AssertSqlSafe(format!("CREATE DATABASE {name}; USE {name}"));
    sqlx::raw_sql(run).execute(&mut owner).await.unwrap();
    let url = format!("{server}/{name}");
    for (version, says) in [(2, "use another database"), (4, "update the program")] {
        let made = format!(
            "CREATE TABLE lockkeeper_tokens (version INT NOT NULL PRIMARY KEY, last BIGINT UNSIGNED NOT NULL);
             INSERT INTO lockkeeper_tokens VALUES ({version}, 5)"
        );
        sqlx::raw_sql(AssertSqlSafe(made))
            .execute(&mut owner)
            .await
            .unwrap();
        let error = MariaDbBackend::connect(&url).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
        let said = error.to_string();
        assert!(said.contains(&format!("version {version}")), "{said}");
        assert!(said.contains(says), "{said}");
        let tables = owner.fetch_all("SHOW TABLES").await.unwrap();
        assert_eq!(tables.len(), 1, "no table was made");
        let rows = owner.fetch_all("SELECT * FROM lockkeeper_tokens").await;
        let rows = rows.unwrap();
        assert_eq!(rows.len(), 1);
        assert_eq!(rows[0].get::<i32, _>(0), version);
        owner.execute("DROP TABLE lockkeeper_tokens").await.unwrap();
    }
    // Nor does a program of version 2 get into ours: this is how it makes its counter.
    MariaDbBackend::connect(&url).await.unwrap();
    let theirs = "INSERT IGNORE INTO lockkeeper_tokens (version, last) VALUES (2, 0)";
    let refused = owner.execute(theirs).await.unwrap_err();
    assert!(refused.to_string().contains("CONSTRAINT"), "{refused}");
    MariaDbBackend::connect(&url).await.unwrap();
    let dropped = AssertSqlSafe(format!("DROP DATABASE {name}"));
    owner.execute(dropped).await.unwrap();
}
