//! `hapax store copy`: from a file to Postgres and back, with gateways before and after.

use std::path::Path;

use hapax_testkit::origin::{Origin, Step};
use hapax_testkit::servers::Postgres;

use super::serve::gateway;
use super::{as_role, hapax, migrated};

fn file(directory: &Path, name: &str) -> String {
    format!("sqlite:{}", directory.join(name).display())
}

fn copy(from: &str, to: &str) -> String {
    let said = hapax(&["store", "copy", from, to]);
    said.assert_code(0);
    said.stdout
}

fn is_replay(answer: &str) -> bool {
    answer.starts_with("HTTP/1.1 200") && answer.contains("idempotent-replayed: true")
}

/// The error of `serve` on this store.
fn refused(url: &str) -> String {
    let said = hapax(&[
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--store",
        url,
        "--upstream",
        "http://127.0.0.1:1",
    ]);
    assert!(
        said.code == 2 || said.code == 3,
        "{} {}",
        said.code,
        said.stderr
    );
    said.stderr
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_done_on_a_file_is_replayed_from_postgres_and_back_and_never_done_twice() {
    let Some(postgres) = Postgres::shared() else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let (here, there, upstream) = (
        file(directory.path(), "hapax.db"),
        migrated(postgres),
        Origin::start().await,
    );
    let on_file = gateway(&here, &upstream);
    assert!(
        on_file
            .charge("order-1", b"amount=1")
            .starts_with("HTTP/1.1 200")
    );
    upstream.script([Step::Read, Step::Reset]);
    assert!(
        on_file
            .charge("order-2", b"amount=2")
            .starts_with("HTTP/1.1 502")
    );
    on_file.end();

    let said = copy(&here, &there);
    assert!(
        said.starts_with("2 records") && said.lines().count() == 1,
        "{said}"
    );
    assert!(
        refused(&here).contains("was moved to postgres://"),
        "{}",
        refused(&here)
    );
    let on_postgres = gateway(&there, &upstream);
    assert!(is_replay(&on_postgres.charge("order-1", b"amount=1")));
    assert!(
        on_postgres
            .charge("order-1", b"amount=9")
            .starts_with("HTTP/1.1 422")
    );
    assert!(
        on_postgres
            .charge("order-2", b"amount=2")
            .contains("outcome-unknown")
    );
    assert!(
        on_postgres
            .charge("order-3", b"amount=3")
            .starts_with("HTTP/1.1 200")
    );

    // A node that was not stopped keeps using the old store: it causes no second effect.
    assert!(copy(&there, &here).starts_with("3 records"));
    assert!(
        refused(&there).contains("was moved to sqlite:"),
        "{}",
        refused(&there)
    );
    let left_behind = on_postgres.charge("order-4", b"amount=4");
    assert!(left_behind.starts_with("HTTP/1.1 503"), "{left_behind}");
    let on_file = gateway(&here, &upstream);
    for (key, body) in [("order-1", b"amount=1"), ("order-3", b"amount=3")] {
        assert!(is_replay(&on_file.charge(key, body)), "{key}");
    }
    assert!(
        on_file
            .charge("order-4", b"amount=4")
            .starts_with("HTTP/1.1 200")
    );
    for key in ["order-1", "order-2", "order-3", "order-4"] {
        assert_eq!(upstream.ledger().count(key), 1, "{key}");
    }
}

#[test]
fn what_cannot_be_copied_is_refused_in_words_and_by_code() {
    let Some(postgres) = Postgres::shared() else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let (here, there) = (file(directory.path(), "hapax.db"), migrated(postgres));
    let try_copy = |args: &[&str]| {
        let said = hapax(&[&["store", "copy"], args].concat());
        (said.code, said.stderr)
    };
    let (code, said) = try_copy(&[&here, &there]);
    assert!(
        code == 3 && said.contains("there is no store at"),
        "{code} {said}"
    );
    let (code, said) = try_copy(&["memory:", &there]);
    assert!(
        code == 2 && said.contains("memory: is gone with its process"),
        "{code} {said}"
    );
    let (code, said) = try_copy(&[&there, &there]);
    assert!(
        code == 2 && said.contains("name two stores"),
        "{code} {said}"
    );
    let (code, said) = try_copy(&[&there, &postgres.database()]);
    assert!(code == 2 && said.contains("hapax migrate"), "{code} {said}");
    let (code, said) = try_copy(&["--give-up", &there, &here]);
    assert!(
        code == 1 && said.contains("nothing was given up"),
        "{code} {said}"
    );

    // The role of a node may use the store, but not move it.
    postgres.psql("postgres", "CREATE ROLE node LOGIN");
    assert_eq!(
        hapax(&["migrate", "--store", &there, "--role", "node"]).code,
        0
    );
    let (code, said) = try_copy(&[&as_role(&there, "node"), &here]);
    assert!(
        code == 2 && said.contains("owns schema hapax"),
        "{code} {said}"
    );
}

#[test]
fn what_was_done_is_said_as_json_too() {
    let Some(postgres) = Postgres::shared() else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let (here, there) = (file(directory.path(), "hapax.db"), migrated(postgres));
    let said = hapax(&["store", "copy", "--json", "--quiet", &there, &here]);
    let json: serde_json::Value = serde_json::from_str(&said.stdout).unwrap();
    assert_eq!(
        (&json["records"], &json["resumed"], &json["running"]),
        (&0.into(), &false.into(), &0.into())
    );
    assert!(
        json["to"].as_str().unwrap().starts_with("sqlite:/") && said.stderr.is_empty(),
        "{json} {}",
        said.stderr
    );
}
