//! Through a pooler, and past standbys.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use hapax_testkit::servers::{PgBouncer, Postgres};

use super::server::Server;
use super::*;

#[tokio::test]
async fn a_pooler_finds_nothing_to_refuse() {
    let Some(postgres) = Postgres::shared() else {
        return;
    };
    let Some(pooler) = PgBouncer::in_front_of(postgres) else {
        return;
    };
    let url = pooler.url("postgres");
    let connected = connected(&format!("{url}?application_name=till")).await;
    assert_eq!(ask(&connected, "SELECT 'in'").await, "in");
    // The store sends statements with their types given. Such a statement leaves nothing on the
    // server for the pool's next client.
    let rows = connected
        .client
        .query_typed(
            "SELECT $1::int4 + 1",
            &[(&1_i32, tokio_postgres::types::Type::INT4)],
        )
        .await
        .unwrap();
    assert_eq!(rows[0].get::<_, i32>(0), 2);
}

#[tokio::test]
async fn what_a_pooler_refuses_is_told_as_a_server_would() {
    let Some(server) = Server::shared() else {
        return;
    };
    let files = tempfile::tempdir().unwrap();
    // The pooler runs as another user.
    fs::set_permissions(files.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let users = files.path().join("users");
    fs::write(&users, "\"known\" \"hush-hush\"\n\"postgres\" \"\"\n").unwrap();
    fs::set_permissions(&users, fs::Permissions::from_mode(0o644)).unwrap();
    let settings = [
        ("auth_type", "scram-sha-256"),
        ("auth_file", users.to_str().unwrap()),
    ];
    let Some(pooler) = PgBouncer::with(&server.postgres, &settings) else {
        return;
    };
    let at = |password: &str, database: &str| {
        format!(
            "postgres://known:{password}@{}/{database}",
            pooler.address()
        )
    };
    connected(&at("hush-hush", "postgres")).await;
    assert_eq!(
        failure(&at("hush-not", "postgres")).await.kind(),
        ConnectKind::Password
    );
    let error = failure(&at("hush-hush", "nothing_here")).await;
    assert_eq!(
        error.kind(),
        ConnectKind::NoSuchDatabase,
        "{error} {:?}",
        std::error::Error::source(&error)
    );
}

#[tokio::test]
async fn a_standby_is_passed_over_until_it_is_promoted() {
    let Some(primary) = Postgres::start() else {
        return;
    };
    let mut standby = primary.synchronous_standby();
    let error = failure(&standby.url("postgres")).await;
    assert_eq!(error.kind(), ConnectKind::ReadOnly);
    assert!(error.to_string().contains("standby"), "{error}");
    let error = failure(&format!(
        "postgres://postgres@{},{}/postgres",
        standby.address(),
        standby.address()
    ))
    .await;
    assert!(error.to_string().starts_with("only standbys"), "{error}");

    let both = format!(
        "postgres://postgres@{},{}/postgres?target_session_attrs=any",
        standby.address(),
        primary.address()
    );
    let port = "SELECT current_setting('port')";
    assert_eq!(
        ask(&connected(&both).await, port).await,
        primary.port().to_string()
    );
    drop(primary);
    standby.promote();
    assert_eq!(
        ask(&connected(&both).await, port).await,
        standby.port().to_string()
    );
}
