//! The schema is created, migrated, and reports why it cannot be used.

use std::time::Duration;

use hapax::Postgres;
use hapax::store::postgres::schema::{self, MigrateError, Migration, migrate, migrations};
use hapax::store::postgres::{ConnectOptions, OpenError};
use hapax_core::operation::GRACE;
use hapax_core::{Store, Timestamp};
use hapax_testkit::servers;

use crate::place;

#[tokio::test]
async fn a_database_that_is_not_prepared_is_refused_and_one_that_is_opens() {
    let Some(server) = servers::Postgres::shared() else {
        return;
    };
    let url = server.database();
    let Err(error) = Postgres::open(&url).await else {
        panic!("opened without a schema")
    };
    assert!(matches!(error, OpenError::NotMigrated { .. }), "{error}");
    // As a `main` prints it that returns the error: the command to run, with the database.
    let command = format!("hapax migrate --store {}", options(&url));
    assert!(format!("{error:?}").contains(&command), "{error:?}");

    let mut applied = Vec::new();
    let status = migrate(&options(&url), &migrations(), |migration| {
        applied.push(migration.version);
    })
    .await
    .expect("migrated");
    assert_eq!(
        (status.version(), status.due.as_slice(), applied.last()),
        (schema::VERSION, &[][..], Some(&schema::VERSION))
    );
    place::open(&url)
        .await
        .info()
        .await
        .expect("it can be used");
    // A second migration has nothing to do.
    migrate(&options(&url), &migrations(), |migration| {
        panic!("{} again", migration.version)
    })
    .await
    .expect("nothing to do");
}

#[tokio::test]
async fn a_program_migrates_by_itself_as_often_as_it_likes() {
    let Some(server) = servers::Postgres::shared() else {
        return;
    };
    let url = server.database();
    for _ in 0..2 {
        Postgres::migrate(&url).await.expect("migrated");
    }
    Postgres::open(&url).await.expect("it is prepared");
    let error = Postgres::migrate("mysql://db").await.unwrap_err();
    assert!(matches!(error, OpenError::Options(_)), "{error}");
}

#[tokio::test]
async fn two_that_migrate_at_once_do_no_harm() {
    let Some(server) = servers::Postgres::shared() else {
        return;
    };
    let url = server.database();
    let (options, migrations) = (options(&url), migrations());
    let (a, b) = tokio::join!(
        migrate(&options, &migrations, |_| {}),
        migrate(&options, &migrations, |_| {})
    );
    assert_eq!(a.expect("one of them"), b.expect("the other"));
    place::open(&url).await;
}

#[tokio::test]
async fn a_migration_that_fails_leaves_nothing_behind() {
    let Some((_, url)) = place::prepared().await else {
        return;
    };
    let broken = next("CREATE TABLE hapax.half_done (id int4); SELECT 1 / 0;", 1);
    let Err(error) = migrate(&options(&url), &with(broken), |_| {}).await else {
        panic!("it divides by zero")
    };
    assert!(
        matches!(error, MigrateError::Refused { .. })
            && error.to_string().contains("division by zero"),
        "{error}"
    );
    assert_eq!(
        schema::status(&options(&url))
            .await
            .expect("a status")
            .version(),
        schema::VERSION
    );
    let found = place::session(&url)
        .await
        .query("SELECT to_regclass('hapax.half_done') IS NULL", &[])
        .await
        .expect("asked");
    assert!(found[0].get::<_, bool>(0));
}

#[tokio::test]
async fn what_was_applied_is_never_taken_back_or_changed() {
    let Some((_, url)) = place::prepared().await else {
        return;
    };
    let mut changed = migrations();
    changed[0].sql.push_str("-- and one more line\n");
    let Err(error) = migrate(&options(&url), &changed, |_| {}).await else {
        panic!("another one under the same number")
    };
    assert!(
        matches!(error, MigrateError::Different { version: 1, .. }),
        "{error}"
    );

    migrate(&options(&url), &with(next("SELECT 1;", 1)), |_| {})
        .await
        .expect("the next one");
    let Err(error) = migrate(&options(&url), &migrations(), |_| {}).await else {
        panic!("an older program")
    };
    assert!(matches!(error, MigrateError::Ahead { .. }), "{error}");
}

#[tokio::test]
async fn a_program_works_on_a_newer_schema_for_as_long_as_that_serves_it() {
    let Some((_, url)) = place::prepared().await else {
        return;
    };
    let running = place::open(&url).await;
    migrate(
        &options(&url),
        &with(next("ALTER TABLE hapax.heads ADD COLUMN more int4;", 1)),
        |_| {},
    )
    .await
    .expect("the next one");
    running.info().await.expect("one that ran before it");
    place::open(&url)
        .await
        .info()
        .await
        .expect("one that was started after it");

    place::session(&url)
        .await
        .batch_execute("UPDATE hapax.meta SET oldest = schema")
        .await
        .expect("left behind");
    let Err(error) = Postgres::open(&url).await else {
        panic!("left behind, and opened")
    };
    assert!(matches!(error, OpenError::TooNew { .. }), "{error}");
    assert!(running.info().await.is_err());
    let read = running
        .get(vec![hapax_core::RecordId::from_bytes([1; 32])])
        .await;
    assert_eq!(
        read.expect_err("it reads what it does not understand")
            .kind(),
        hapax_core::store::StoreErrorKind::Unsupported
    );
}

/// From version 2 on, operation ids distinguish the lives of a key. Programs of version 1 make ids
/// by the first rule, so for an hour all programs do.
#[tokio::test]
async fn programs_of_version_1_go_on_until_lives_are_told_apart() {
    let Some(server) = servers::Postgres::shared() else {
        return;
    };
    let url = server.database();
    migrate(&options(&url), &migrations()[..1], |_| {})
        .await
        .expect("version 1");
    let session = place::session(&url).await;
    let (role, sql) = (
        format!("node_{}", uuid::Uuid::new_v4().simple()),
        "UPDATE hapax.pace SET clock_floor = hapax.now()",
    );
    let granted =
        format!("CREATE ROLE {role}; GRANT EXECUTE ON FUNCTION hapax.pulse() TO {role}; {sql}");
    session
        .batch_execute(&granted)
        .await
        .expect("a store that somebody uses");
    migrate(&options(&url), &migrations(), |_| {})
        .await
        .expect("version 2");

    let oldest = async || {
        session
            .query_one("SELECT oldest FROM hapax.pulse()", &[])
            .await
            .expect("asked")
            .get::<_, i32>(0)
    };
    let info = place::open(&url).await.info().await.expect("this version");
    let grace = info.lives_since.since(info.now);
    assert!(
        grace <= GRACE && grace > GRACE - Duration::from_secs(60),
        "{grace:?}"
    );
    assert_eq!(oldest().await, 1);
    let later = |minutes: i64| format!("UPDATE hapax.pace SET skew = {}", minutes * 60_000_000);
    session.batch_execute(&later(58)).await.expect("later");
    assert_eq!(oldest().await, 1);
    session.batch_execute(&later(59)).await.expect("later");
    assert_eq!(oldest().await, 2, "while both still make the same ids");
    // The grants of nodes' roles also cover the new functions.
    for function in ["lives_since()", "keep_time(int8)"] {
        let sql = format!(
            "SELECT has_function_privilege('{role}', 'hapax.{function}', 'EXECUTE'), has_function_privilege('public', 'hapax.{function}', 'EXECUTE')"
        );
        let may = session.query_one(&sql, &[]).await.expect("asked");
        assert_eq!(
            (may.get::<_, bool>(0), may.get::<_, bool>(1)),
            (true, false),
            "{function}"
        );
    }
    session
        .batch_execute(&format!("DROP OWNED BY {role}; DROP ROLE {role}"))
        .await
        .expect("cleared up");
    // A new database begins with the second rule.
    let url = server.database();
    place::migrate(&url).await;
    assert_eq!(
        place::open(&url)
            .await
            .info()
            .await
            .expect("info")
            .lives_since,
        Timestamp::ZERO
    );
}

/// From version 4 on, records have a request id. A program of version 3 sends none and reads fewer
/// columns; these are its statements.
#[tokio::test]
async fn programs_of_version_3_go_on_without_request_ids() {
    let Some(server) = servers::Postgres::shared() else {
        return;
    };
    let url = server.database();
    migrate(&options(&url), &migrations()[..3], |_| {})
        .await
        .expect("version 3");
    let session = place::session(&url).await;
    let role = format!("node_{}", uuid::Uuid::new_v4().simple());
    let claims = "GRANT EXECUTE ON FUNCTION hapax.claim";
    session
        .batch_execute(&format!("CREATE ROLE {role}; {claims} TO {role}"))
        .await
        .expect("a role");
    let number = |id: u8| format!("decode(repeat('{id:02x}', 32), 'hex')");
    let claim = async |id: u8, after: Option<i64>| {
        let (id, fence) = (
            number(id),
            after.map_or("NULL".to_owned(), |fence| fence.to_string()),
        );
        let token = "'00000000-0000-0000-0000-000000000007'::uuid";
        let sql = format!(
            "SELECT * FROM hapax.claim(ARRAY[{id}], ARRAY[{fence}]::int8[], ARRAY[{token}], ARRAY[60000000]::int8[], ARRAY[1]::int8[],
             ARRAY[{id}], ARRAY['n']::bytea[], ARRAY[NULL]::bytea[], ARRAY['POST']::bytea[], ARRAY['/']::bytea[], ARRAY['k']::bytea[],
             ARRAY[NULL]::int8[])"
        );
        session.query_one(&sql, &[]).await.expect("claimed")
    };
    assert_eq!(claim(1, None).await.get::<_, i16>("verdict"), 1);
    migrate(&options(&url), &migrations(), |_| {})
        .await
        .expect("version 4");

    let columns = |row: &tokio_postgres::Row| {
        row.columns()
            .iter()
            .map(|column| column.name().to_owned())
            .collect::<Vec<_>>()
    };
    let seen = claim(1, None).await;
    assert_eq!(
        (
            seen.get::<_, i16>("verdict"),
            seen.get::<_, Option<&[u8]>>("request_id")
        ),
        (0, None),
        "a record from before"
    );
    assert_eq!(
        columns(&seen).iter().position(|name| name == "answer"),
        Some(23),
        "{:?}",
        columns(&seen)
    );
    assert_eq!(claim(2, None).await.get::<_, i16>("verdict"), 1);
    let may = format!(
        "SELECT has_function_privilege('{role}', p.oid, 'EXECUTE'), has_function_privilege('public', p.oid, 'EXECUTE')"
    );
    let sql = format!(
        "{may} FROM pg_proc AS p WHERE p.pronamespace = 'hapax'::regnamespace AND p.proname = 'claim'"
    );
    let may = session.query_one(&sql, &[]).await.expect("one function");
    assert_eq!(
        (may.get::<_, bool>(0), may.get::<_, bool>(1)),
        (true, false)
    );

    // It takes over a record that was claimed by this version. The record must not keep the id of
    // the earlier request.
    session
        .batch_execute("UPDATE hapax.heads SET request_id = 'request-7', lease_until = 0")
        .await
        .expect("lapsed");
    let fence: i64 = claim(2, None).await.get("fence");
    assert_eq!(claim(2, Some(fence)).await.get::<_, i16>("verdict"), 1);
    let ids = session
        .query(
            "SELECT state, status, request_id FROM hapax.records ORDER BY id",
            &[],
        )
        .await
        .expect("the records");
    let shown =
        |row: &tokio_postgres::Row| (row.get::<_, String>(0), row.get::<_, Option<String>>(2));
    assert_eq!(
        ids.iter().map(shown).collect::<Vec<_>>(),
        [
            ("unknown".to_owned(), Some("request-7".to_owned())),
            ("running".to_owned(), None)
        ]
    );
    session
        .batch_execute("UPDATE hapax.heads SET state = 5, status = 1003, expires_at = 1 << 60")
        .await
        .expect("lost");
    let statuses = session
        .query("SELECT status FROM hapax.records", &[])
        .await
        .expect("the records");
    assert!(
        statuses
            .iter()
            .all(|row| row.get::<_, Option<i32>>(0).is_none()),
        "what is no status is not shown as one"
    );
    session
        .batch_execute(&format!("DROP OWNED BY {role}; DROP ROLE {role}"))
        .await
        .expect("cleared up");
}

#[tokio::test]
async fn a_schema_that_is_too_old_is_refused() {
    let Some((_, url)) = place::prepared().await else {
        return;
    };
    place::session(&url)
        .await
        .batch_execute("UPDATE hapax.meta SET schema = 0")
        .await
        .expect("set back");
    let Err(error) = Postgres::open(&url).await else {
        panic!("too old, and opened")
    };
    assert!(
        matches!(error, OpenError::TooOld { found: 0, .. })
            && error.to_string().contains("hapax migrate"),
        "{error}"
    );
}

/// The role of a service may call the functions, and touch no table.
#[tokio::test]
async fn a_role_needs_nothing_but_what_is_granted() {
    let Some((server, url)) = place::prepared().await else {
        return;
    };
    let session = place::session(&url).await;
    session
        .batch_execute("CREATE ROLE \"a service\" LOGIN")
        .await
        .expect("a role");
    let database = url.rsplit('/').next().expect("a database");
    let theirs = server.url(database).replace("postgres@", "a%20service@");

    let Err(error) = Postgres::open(&theirs).await else {
        panic!("opened without a right")
    };
    assert!(matches!(error, OpenError::NotAllowed { .. }), "{error}");
    session
        .batch_execute(&schema::grants("a service"))
        .await
        .expect("granted");
    let bench = place::shared_bench(&theirs).await;
    for case in [
        "an_attempt_completes_its_record",
        "a_settlement_and_a_forgetting_are_written_down",
        "a_sweep_writes_down_lapsed_attempts",
    ] {
        hapax_contract::run(case, bench.clone()).await;
    }
    for table in ["heads", "answers_00", "meta", "audit"] {
        let read = place::session(&theirs)
            .await
            .batch_execute(&format!("SELECT * FROM hapax.{table}"))
            .await;
        assert_eq!(
            read.expect_err("it reads a table")
                .code()
                .map(|code| code.code()),
            Some("42501"),
            "{table}"
        );
    }
    session
        .batch_execute("DROP OWNED BY \"a service\"; DROP ROLE \"a service\"")
        .await
        .expect("removed");
}

/// The role was granted access before these functions existed.
#[tokio::test]
async fn a_role_may_use_what_a_later_version_adds() {
    let Some(server) = servers::Postgres::shared() else {
        return;
    };
    let url = server.database();
    migrate(&options(&url), &migrations()[..1], |_| {})
        .await
        .expect("the first version");
    let session = place::session(&url).await;
    let first = "GRANT USAGE ON SCHEMA hapax TO early; GRANT EXECUTE ON FUNCTION hapax.pulse, hapax.sweep, hapax.turn TO early";
    session
        .batch_execute(&format!("CREATE ROLE early LOGIN; {first}"))
        .await
        .expect("granted");
    migrate(&options(&url), &migrations(), |_| {})
        .await
        .expect("the rest");
    let store = place::open(&url.replace("postgres@", "early@")).await;
    store.sweep(1).await.expect("swept");
    assert_eq!(
        store.info().await.expect("the store info").counts,
        Some(hapax_core::store::Counts::default())
    );
    session
        .batch_execute("DROP OWNED BY early; DROP ROLE early")
        .await
        .expect("removed");
}

/// An owner of part of the schema can make the rest of it do anything.
#[tokio::test]
async fn a_schema_that_somebody_else_owns_a_part_of_is_refused() {
    let Some((server, prepared)) = place::prepared().await else {
        return;
    };
    let url = server.database();
    let foreign = place::session(&url).await;
    foreign
        .batch_execute("CREATE ROLE mallory; CREATE SCHEMA hapax AUTHORIZATION mallory")
        .await
        .expect("a schema");
    let Err(error) = migrate(&options(&url), &migrations(), |_| {}).await else {
        panic!("migrated into it")
    };
    assert!(
        matches!(error, MigrateError::NotOurs { .. }) && error.to_string().contains("mallory"),
        "{error}"
    );
    let script = foreign
        .batch_execute(&migrations()[0].script())
        .await
        .expect_err("run by hand");
    assert!(
        script
            .as_db_error()
            .is_some_and(|said| said.message().contains("mallory")),
        "{script:?}"
    );

    let session = place::session(&prepared).await;
    session
        .batch_execute("ALTER FUNCTION hapax.now() OWNER TO mallory")
        .await
        .expect("given away");
    let Err(error) = schema::status(&options(&prepared)).await else {
        panic!("looked past it")
    };
    assert!(
        matches!(error, MigrateError::NotOurs { .. }) && error.to_string().contains("hapax.now()"),
        "{error}"
    );
    foreign
        .batch_execute("ROLLBACK; DROP OWNED BY mallory")
        .await
        .expect("removed");
    session
        .batch_execute("ALTER FUNCTION hapax.now() OWNER TO postgres; DROP ROLE mallory")
        .await
        .expect("removed");
}

#[tokio::test]
async fn whoever_may_not_migrate_is_told_who_may() {
    let Some((server, prepared)) = place::prepared().await else {
        return;
    };
    place::session(&prepared)
        .await
        .batch_execute("CREATE ROLE poor LOGIN")
        .await
        .expect("a role");
    let theirs = |url: &str| options(&url.replace("postgres@", "poor@"));
    let Err(error) = migrate(&theirs(&server.database()), &migrations(), |_| {}).await else {
        panic!("migrated without a right")
    };
    assert!(
        error.to_string().contains("GRANT CREATE ON DATABASE"),
        "{error}"
    );
    let Err(error) = schema::status(&theirs(&prepared)).await else {
        panic!("looked without a right")
    };
    assert!(
        error.to_string().contains("belongs to the role postgres"),
        "{error}"
    );
    let Err(error) = schema::look_for_role(&options(&prepared), "nobody's").await else {
        panic!("there is none")
    };
    assert!(
        error.to_string().contains("CREATE ROLE \"nobody's\" LOGIN"),
        "{error}"
    );
    schema::look_for_role(&options(&prepared), "poor")
        .await
        .expect("there is one");

    place::session(&prepared)
        .await
        .batch_execute("ALTER ROLE poor CONNECTION LIMIT 0")
        .await
        .expect("limited");
    let Err(error) = Postgres::open(&prepared.replace("postgres@", "poor@")).await else {
        panic!("one too many")
    };
    assert!(
        error
            .to_string()
            .contains("ALTER ROLE \"poor\" CONNECTION LIMIT"),
        "{error}"
    );
    place::session(&prepared)
        .await
        .batch_execute("DROP ROLE poor")
        .await
        .expect("removed");
}

#[tokio::test]
async fn a_database_whose_transactions_are_serializable_is_refused() {
    let Some((server, url)) = place::prepared().await else {
        return;
    };
    let database = url.rsplit('/').next().expect("a database");
    server.psql(
        "postgres",
        &format!("ALTER DATABASE {database} SET default_transaction_isolation = 'serializable'"),
    );
    let Err(error) = Postgres::open(&url).await else {
        panic!("opened")
    };
    assert!(
        matches!(error, OpenError::WrongIsolation { .. })
            && error.to_string().contains("ALTER ROLE"),
        "{error}"
    );
}

fn options(url: &str) -> ConnectOptions {
    ConnectOptions::parse(url).expect("a URL")
}

fn next(sql: &str, oldest: u32) -> Migration {
    Migration {
        version: schema::VERSION + 1,
        name: "next",
        sql: sql.to_owned(),
        oldest,
    }
}

fn with(next: Migration) -> Vec<Migration> {
    migrations().into_iter().chain([next]).collect()
}
