//! `hapax serve` on a Postgres.

use std::process::Command;
use std::time::{Duration, Instant};

use hapax_testkit::origin::Origin;
use hapax_testkit::servers::Postgres;

use super::harness::{Program, SERVE, Signal, serve_on, words};
use super::{as_role, database, hapax, hapax_with, migrated, nowhere};

/// A gateway on this database.
pub fn gateway(url: &str, upstream: &Origin) -> Program {
    serve_on(url, upstream.address())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_one_node_has_done_another_replays() {
    let Some(postgres) = Postgres::shared() else {
        return;
    };
    let (url, upstream) = (migrated(postgres), Origin::start().await);
    let (one, other) = (gateway(&url, &upstream), gateway(&url, &upstream));
    assert!(
        one.charge("order-1", b"amount=1")
            .starts_with("HTTP/1.1 200")
    );
    let replay = other.charge("order-1", b"amount=1");
    assert!(
        replay.starts_with("HTTP/1.1 200") && replay.contains("idempotent-replayed: true"),
        "{replay}"
    );
    assert!(
        other
            .charge("order-1", b"amount=2")
            .starts_with("HTTP/1.1 422")
    );
    assert_eq!(upstream.ledger().count("order-1"), 1);
    assert!(one.ask("/readyz").starts_with("HTTP/1.1 200"));
    let metrics = one.ask("/metrics");
    for line in [
        "hapax_postgres_failing 0",
        "hapax_postgres_commits_lost_total 0",
        "hapax_postgres_failovers_total 0",
    ] {
        assert!(
            metrics.lines().any(|have| have == line),
            "{line} in\n{metrics}"
        );
    }
    let count = |name: &str| {
        metrics
            .lines()
            .find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok())
    };
    assert!(
        count("hapax_postgres_batches_total") >= Some(2)
            && count("hapax_postgres_connections_made_total") >= Some(1),
        "{metrics}"
    );
    assert!(!metrics.contains("hapax_sqlite"), "{metrics}");
}

/// The role of a gateway may only call functions.
#[tokio::test(flavor = "multi_thread")]
async fn a_role_with_no_more_than_its_grants_serves() {
    let Some(postgres) = Postgres::shared() else {
        return;
    };
    let (url, upstream) = (migrated(postgres), Origin::start().await);
    postgres.psql("postgres", "CREATE ROLE least LOGIN");
    let least = as_role(&url, "least");
    let refused = hapax(
        &[
            &SERVE[..],
            &["--store", &least, "--upstream", "http://127.0.0.1:1"],
        ]
        .concat(),
    );
    assert!(
        refused.code == 2 && refused.stderr.contains("hapax migrate --role"),
        "{} {}",
        refused.code,
        refused.stderr
    );
    let said = hapax(&["migrate", "--store", &url, "--role", "least"]);
    assert!(
        said.code == 0 && said.stdout.contains("the role least may use it"),
        "{}{}",
        said.stdout,
        said.stderr
    );
    let gateway = gateway(&least, &upstream);
    assert!(
        gateway
            .charge("order-1", b"amount=1")
            .starts_with("HTTP/1.1 200")
    );
    assert!(
        gateway
            .charge("order-1", b"amount=1")
            .contains("idempotent-replayed: true")
    );
    for table in ["heads", "meta", "audit", "answers_00"] {
        let denied = postgres.try_psql(
            database(&url),
            &format!("SET ROLE least; SELECT * FROM hapax.{table}"),
        );
        assert!(
            denied
                .as_ref()
                .is_err_and(|why| why.contains("permission denied")),
            "{table}: {denied:?}"
        );
    }
    assert_eq!(
        hapax(&["keys", "list", "--store", &least])
            .stdout
            .lines()
            .count(),
        1
    );
}

#[test]
fn a_namespace_that_belongs_to_two_calls_stops_the_start() {
    let Some(postgres) = Postgres::shared() else {
        return;
    };
    let url = postgres.database();
    hapax(&["migrate", "--store", &url, "--namespace", "shop"]).assert_code(0);
    let flags = ["--store", &url, "--upstream", "http://127.0.0.1:1"];
    let said = hapax_with(
        &[&SERVE[..], &flags].concat(),
        &[("HAPAX__NAMESPACE", "shop")],
    );
    said.assert_code(2);
    said.assert_told("namespace = \"shop\": it belongs to hapax.start");
}

#[test]
fn a_database_that_is_not_prepared_or_not_there_says_what_to_do() {
    let serve = |url: &str| {
        let begun = Instant::now();
        let said = hapax(
            &[
                &SERVE[..],
                &["--store", url, "--upstream", "http://127.0.0.1:1"],
            ]
            .concat(),
        );
        assert!(
            begun.elapsed() < Duration::from_secs(15),
            "it took {:?}",
            begun.elapsed()
        );
        (said.code, said.stderr)
    };
    let (code, stderr) = serve(&nowhere());
    assert!(
        code == 3 && stderr.contains("could not open the store"),
        "{code}: {stderr}"
    );
    let Some(postgres) = Postgres::shared() else {
        return;
    };
    let (code, stderr) = serve(&postgres.database());
    assert!(
        code == 2 && stderr.contains("run `hapax migrate --store "),
        "{code}: {stderr}"
    );
    let (code, stderr) = serve(&postgres.url("no_such_database"));
    assert!(
        code == 3 && stderr.contains("no_such_database"),
        "{code}: {stderr}"
    );
    let old = migrated(postgres);
    postgres.psql(database(&old), "UPDATE hapax.meta SET schema = 0");
    let (code, stderr) = serve(&old);
    assert!(
        code == 2 && stderr.contains("hapax migrate"),
        "{code}: {stderr}"
    );
    postgres.psql(
        database(&old),
        "UPDATE hapax.meta SET schema = 1000, oldest = 1000",
    );
    let (code, stderr) = serve(&old);
    assert!(
        code == 2 && stderr.contains("newer version of Hapax"),
        "{code}: {stderr}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_password_gets_in_and_is_never_shown() {
    let Some(postgres) = Postgres::start() else {
        return;
    };
    let (url, upstream) = (migrated(&postgres), Origin::start().await);
    postgres.psql("postgres", "CREATE ROLE app LOGIN PASSWORD 's3cr3t'");
    assert_eq!(
        hapax(&["migrate", "--store", &url, "--role", "app"]).code,
        0
    );
    let rules = postgres.data().join("pg_hba.conf");
    let before = std::fs::read_to_string(&rules).unwrap();
    std::fs::write(
        &rules,
        format!("host all app 127.0.0.1/32 scram-sha-256\n{before}"),
    )
    .unwrap();
    postgres.psql("postgres", "SELECT pg_reload_conf()");

    let serve = [&SERVE[..], &words("--upstream http://127.0.0.1:1 --store")].concat();
    let wrong = as_role(&url, "app:wr0ng");
    let said = hapax(&[&serve[..], &[&wrong]].concat());
    assert!(
        said.code == 3 && said.stderr.contains("password") && said.stderr.contains("app"),
        "{} {}",
        said.code,
        said.stderr
    );
    assert!(!said.stderr.contains("wr0ng"), "{}", said.stderr);
    let said = hapax_with(
        &[&serve[..], &[&as_role(&url, "app")]].concat(),
        &[("PGPASSWORD", "wr0ng")],
    );
    assert!(
        said.code == 3 && !said.stderr.contains("wr0ng"),
        "{}",
        said.stderr
    );

    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("hapax.toml");
    let write = |password: &str| {
        let store = as_role(&url, &format!("app:{password}"));
        let text = format!(
            "listen = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\nstore = \"{store}\"\n[upstream]\nurl = \"http://{}\"\n",
            upstream.address()
        );
        std::fs::write(&config, text).unwrap();
    };
    write("s3cr3t");
    let mut command = Command::new(env!("CARGO_BIN_EXE_hapax"));
    let mut gateway = Program::serve(
        command
            .args(words("serve --log text --config"))
            .arg(&config),
    );
    assert!(
        gateway
            .charge("order-1", b"amount=1")
            .starts_with("HTTP/1.1 200")
    );
    // A changed password counts as another store, which needs a restart.
    write("s3cr3t-and-more");
    let admin = format!("http://{}", gateway.admin);
    let said = hapax(&["reload", "--admin", &admin]);
    assert!(
        said.code == 1 && said.stderr.contains("`store` changed"),
        "{} {}{}",
        said.code,
        said.stdout,
        said.stderr
    );
    assert!(
        !format!("{}{}", said.stdout, said.stderr).contains("s3cr3t"),
        "{}{}",
        said.stdout,
        said.stderr
    );
    for args in [
        &["config", "print"][..],
        &words("config print --json"),
        &["config", "explain", "POST", "/"],
    ] {
        let said = hapax(&[args, &["--config", config.to_str().unwrap()]].concat());
        assert!(
            said.code == 0 && !format!("{}{}", said.stdout, said.stderr).contains("s3cr3t"),
            "{}",
            said.stdout
        );
    }
    gateway.signal(Signal::TERM);
    assert!(gateway.ended().success());
}

/// Requests get 503 within the deadline while the database is away, and the gateway recovers
/// without a restart.
#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_goes_away_and_comes_back_needs_no_restart() {
    let Some(mut postgres) = Postgres::start() else {
        return;
    };
    let (url, upstream) = (migrated(&postgres), Origin::start().await);
    let gateway = gateway(&url, &upstream);
    assert!(
        gateway
            .charge("order-1", b"amount=1")
            .starts_with("HTTP/1.1 200")
    );
    postgres.kill();
    let begun = Instant::now();
    let away = gateway.charge("order-2", b"amount=1");
    assert!(
        away.starts_with("HTTP/1.1 503") && away.contains("store-unavailable"),
        "{away}"
    );
    assert!(
        begun.elapsed() < Duration::from_secs(5),
        "{:?}",
        begun.elapsed()
    );
    let ready = gateway.ask("/readyz");
    assert!(
        ready.starts_with("HTTP/1.1 503") && ready.contains("the store fails"),
        "{ready}"
    );
    assert!(
        gateway
            .ask("/metrics")
            .contains("\nhapax_postgres_failing 1\n")
    );
    assert_eq!(
        upstream.ledger().count("order-2"),
        0,
        "nothing is dispatched without a claim"
    );
    postgres.start_again();
    let until = Instant::now() + Duration::from_secs(30);
    while !gateway.ask("/readyz").starts_with("HTTP/1.1 200") {
        assert!(
            Instant::now() < until,
            "it never came back: {}",
            gateway.ask("/readyz")
        );
    }
    assert!(
        gateway
            .charge("order-2", b"amount=1")
            .starts_with("HTTP/1.1 200")
    );
    assert!(
        gateway
            .charge("order-1", b"amount=1")
            .contains("idempotent-replayed: true")
    );
    assert_eq!(
        (
            upstream.ledger().count("order-1"),
            upstream.ledger().count("order-2")
        ),
        (1, 1)
    );
}

#[test]
fn a_backup_is_made_with_postgres_own_tools() {
    let said = hapax(&words(
        "store backup copy.db --store postgres://ada:s3cr3t@db/hapax",
    ));
    said.assert_lines(2, 0);
    assert!(
        said.stderr.contains("pg_basebackup") && said.stderr.contains("pg_dump"),
        "{}",
        said.stderr
    );
    assert!(
        !said.stderr.contains("s3cr3t") && !std::path::Path::new("copy.db").exists(),
        "{}",
        said.stderr
    );
}
