//! `hapax store check`

use std::process::Command;

use hapax::Sqlite;
use hapax_testkit::origin::Origin;
use hapax_testkit::servers::Postgres;
use serde_json::Value;

use super::harness::Signal;
use super::{database, hapax, migrated, nowhere};

/// Checks the database while a gateway serves from it and sweeps it.
#[tokio::test(flavor = "multi_thread")]
async fn a_database_in_use_keeps_every_promise_and_is_left_tidy() {
    let Some(postgres) = Postgres::shared() else {
        return;
    };
    let (url, upstream) = (migrated(postgres), Origin::start().await);
    let gateway = super::serve::gateway(&url, &upstream);
    assert!(
        gateway
            .charge("order-1", b"amount=1")
            .starts_with("HTTP/1.1 200")
    );
    let said = hapax(&["store", "check", &url, "--json"]);
    assert_eq!(said.code, 0, "{}\n{}", said.stdout, said.stderr);
    let told: Value = serde_json::from_str(&said.stdout).unwrap();
    assert_eq!(told["broken"], 0);
    assert!(
        told["kept"].as_u64() > Some(100) && told["skipped"].as_u64() < Some(7),
        "{told}"
    );
    hapax_testkit::report!(
        "{} kept, {} skipped, {} s, left {}",
        told["kept"],
        told["skipped"],
        told["seconds"],
        told["left"]
    );

    let count = |condition: &str| {
        let sql = format!("SELECT count(*) FROM hapax.heads WHERE {condition}");
        postgres.psql(database(&url), &sql).parse::<u64>().unwrap()
    };
    let left = told["left"]["tombstones"].as_u64().unwrap()
        + told["left"]["tombstones_for_good"].as_u64().unwrap();
    assert_eq!(count("namespace LIKE 'contract:%'"), left);
    assert_eq!(
        count("namespace NOT LIKE 'contract:%'"),
        1,
        "what is there was left alone"
    );
    assert_eq!(
        hapax(&["keys", "list", "--state", "unknown", "--store", &url]).stdout,
        "",
        "nobody has to settle anything"
    );
    assert!(
        gateway
            .charge("order-1", b"amount=1")
            .contains("idempotent-replayed: true")
    );
    assert_eq!(upstream.ledger().count("order-1"), 1);
}

#[test]
fn a_database_that_breaks_a_promise_is_found_out() {
    let Some(postgres) = Postgres::shared() else {
        return;
    };
    let url = migrated(postgres);
    // Replaces the sweep with a function that does nothing.
    let body = "BEGIN RETURN QUERY SELECT 0, 0, 0, 0; END";
    let sql = "SELECT format('CREATE OR REPLACE FUNCTION hapax.sweep(%s) RETURNS %s LANGUAGE plpgsql AS $body$ BODY $body$', \
               pg_get_function_arguments(oid), pg_get_function_result(oid)) FROM pg_proc WHERE proname = 'sweep'";
    let replaced = postgres.psql(database(&url), sql).replace("BODY", body);
    postgres.psql(database(&url), &replaced);
    let said = hapax(&["store", "check", &url]);
    assert_eq!(said.code, 1, "{}", said.stdout);
    said.assert_printed("BROKEN   a sweep writes down lapsed attempts: ");
    said.assert_told("promises: Hapax must not be run on it");
    assert!(!said.stderr.contains("panicked"), "{}", said.stderr);
}

#[tokio::test]
async fn a_file_is_checked_while_nobody_uses_it() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("hapax.db");
    let url = format!("sqlite:{}", path.display());
    let said = hapax(&["store", "check", &url]);
    assert!(
        said.code == 3 && said.stderr.contains("there is no store file") && !path.exists(),
        "{}",
        said.stderr
    );
    let store = Sqlite::open(&path).await.unwrap();
    let said = hapax(&["store", "check", &url]);
    assert!(
        said.code == 3 && said.stderr.contains("in use"),
        "{}",
        said.stderr
    );
    drop(store);
    let said = hapax(&["store", "check", &url]);
    assert_eq!(said.code, 0, "{}{}", said.stdout, said.stderr);
    assert!(
        said.stdout.contains(" 0 broken, ") && said.stdout.contains("Left in it: "),
        "{}",
        said.stdout
    );
    said.assert_printed("SKIPPED  nothing but forgetting raises the epoch: ");
}

#[test]
fn what_cannot_be_checked_says_why() {
    let said = hapax(&["store", "check", "memory:"]);
    assert!(
        said.code == 0 && !said.stdout.contains("Left in it"),
        "{}{}",
        said.stdout,
        said.stderr
    );
    let said = hapax(&["store", "check", "hapax.db"]);
    assert!(
        said.code == 2 && said.stderr.contains("write sqlite:hapax.db"),
        "{}",
        said.stderr
    );
    assert_eq!(hapax(&["store", "check", &nowhere()]).code, 3);
    let Some(postgres) = Postgres::shared() else {
        return;
    };
    let said = hapax(&["store", "check", &postgres.database()]);
    assert!(
        said.code == 2 && said.stderr.contains("hapax migrate"),
        "{}",
        said.stderr
    );
}

#[test]
fn an_interrupted_check_clears_up() {
    let Some(postgres) = Postgres::shared() else {
        return;
    };
    let url = migrated(postgres);
    let mut check = Command::new(env!("CARGO_BIN_EXE_hapax"));
    let mut check = check
        .args(["store", "check", &url])
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    while postgres.psql(database(&url), "SELECT count(*) > 0 FROM hapax.heads") != "t" {
        assert!(
            check.try_wait().unwrap().is_none(),
            "it is over before it has begun"
        );
    }
    rustix::process::kill_process(rustix::process::Pid::from_child(&check), Signal::INT).unwrap();
    let ended = check.wait_with_output().unwrap();
    assert_eq!(
        ended.status.code(),
        Some(130),
        "{}",
        String::from_utf8_lossy(&ended.stderr)
    );
    assert_eq!(
        hapax(&["keys", "list", "--state", "unknown", "--store", &url]).stdout,
        ""
    );
    assert_eq!(
        hapax(&["keys", "list", "--state", "running", "--store", &url]).stdout,
        ""
    );
}
