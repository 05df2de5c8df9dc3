//! `hapax migrate`

use hapax_testkit::servers::Postgres;
use serde_json::Value;

use super::harness::words;
use super::{as_role, database, hapax, hapax_with, migrated, nowhere};

#[test]
fn a_database_is_prepared_once() {
    let Some(postgres) = Postgres::shared() else {
        return;
    };
    let url = postgres.database();
    let said = hapax(&["migrate", "--store", &url]);
    said.assert_code(0);
    assert!(said.stdout.starts_with("applied 1 "), "{}", said.stdout);
    said.assert_printed(&format!("{url} has schema version "));
    let again = hapax(&["migrate", "--store", &url, "--json"]);
    let told: Value = serde_json::from_str(&again.stdout).unwrap();
    assert_eq!(
        (
            again.code,
            &told["applied"],
            told["version"].as_u64() >= Some(1)
        ),
        (0, &serde_json::json!([]), true),
        "{told}"
    );
    assert!(
        hapax(&["migrate", "--store", &url])
            .stdout
            .ends_with(": nothing was due\n")
    );
}

#[test]
fn a_dry_run_prints_what_would_run_and_changes_nothing() {
    let Some(postgres) = Postgres::shared() else {
        return;
    };
    let url = postgres.database();
    postgres.psql("postgres", "CREATE ROLE dry LOGIN");
    let dry = hapax(&[
        "migrate",
        "--store",
        &url,
        "--dry-run",
        "--role",
        "dry",
        "--user",
        "dry",
        "--namespace",
        "o'hara",
    ]);
    assert_eq!((dry.code, dry.stderr.as_str()), (0, ""));
    assert!(
        dry.stdout.contains("CREATE SCHEMA hapax")
            && dry
                .stdout
                .contains("GRANT USAGE ON SCHEMA hapax TO \"dry\"")
    );
    assert_eq!(
        postgres.psql(database(&url), "SELECT to_regnamespace('hapax') IS NULL"),
        "t",
        "nothing was changed"
    );
    // The printed script has the same effect when it is run by hand.
    postgres.psql(database(&url), &dry.stdout);
    let given = "SELECT convert_from(name, 'UTF8') FROM hapax.namespaces";
    assert_eq!(postgres.psql(database(&url), given), "o'hara");
    assert!(
        hapax(&["migrate", "--store", &url])
            .stdout
            .ends_with(": nothing was due\n")
    );
    let done = hapax(&["migrate", "--store", &url, "--dry-run"]);
    done.assert_lines(0, 0);
    done.assert_told("nothing is due");
}

#[test]
fn a_role_that_completes_is_granted_that() {
    let Some(postgres) = Postgres::shared() else {
        return;
    };
    let url = postgres.database();
    postgres.psql("postgres", "CREATE ROLE completing LOGIN");
    let dry = hapax(&[
        "migrate",
        "--store",
        &url,
        "--dry-run",
        "--role",
        "node",
        "--completer",
        "completing",
    ]);
    dry.assert_code(0);
    for words in [
        "GRANT USAGE ON SCHEMA hapax TO \"node\"",
        "hapax.complete(text, int8, int8, jsonb, text) TO \"completing\"",
    ] {
        assert!(dry.stdout.contains(words), "{words}");
    }
    let said = hapax(&["migrate", "--store", &url, "--completer", "completing"]);
    said.assert_code(0);
    assert!(
        said.stdout
            .ends_with("; the role completing may complete operations\n"),
        "{}",
        said.stdout
    );
    let may = |function: &str| {
        let sql =
            format!("SELECT has_function_privilege('completing', 'hapax.{function}', 'EXECUTE')");
        postgres.psql(database(&url), &sql)
    };
    assert_eq!(
        [
            "complete(text, int8, int8, jsonb, bytea)",
            "get(bytea[], int8)"
        ]
        .map(may),
        ["t", "f"]
    );
    let told = hapax(&[
        "migrate",
        "--store",
        &url,
        "--completer",
        "completing",
        "--json",
    ]);
    let told: Value = serde_json::from_str(&told.stdout).unwrap();
    assert_eq!(
        (&told["completer"], &told["role"]),
        (&Value::from("completing"), &Value::Null)
    );
    let said = hapax(&[
        "migrate",
        "--store",
        &url,
        "--completer",
        "nobody_of_that_name",
    ]);
    assert!(
        said.code == 1 && said.stderr.contains("nobody_of_that_name"),
        "{}",
        said.stderr
    );
}

#[test]
fn without_a_server_a_dry_run_prints_all_of_it() {
    let url = nowhere();
    let dry = hapax(&["migrate", "--store", &url, "--dry-run"]);
    dry.assert_code(0);
    assert!(
        dry.stdout.contains("CREATE SCHEMA hapax") && dry.stderr.contains("here is all of it"),
        "{}",
        dry.stderr
    );
    let json: Value =
        serde_json::from_str(&hapax(&["migrate", "--store", &url, "--dry-run", "--json"]).stdout)
            .unwrap();
    assert!(
        json["due"][0]["sql"]
            .as_str()
            .unwrap()
            .contains("CREATE SCHEMA hapax")
    );
}

#[test]
fn what_cannot_be_migrated_says_what_to_do() {
    for (args, code, words) in [
        (
            &words("migrate --store sqlite:hapax.db")[..],
            2,
            "needs no migration",
        ),
        (
            &words("migrate --store memory:"),
            2,
            "has nothing to migrate",
        ),
        (&["migrate"], 2, "which database?"),
        (
            &words("migrate --store hapax"),
            2,
            "lacks the kind of store",
        ),
        (&["migrate", "--store", &nowhere()], 3, "127.0.0.1"),
    ] {
        let said = hapax(args);
        assert_eq!(
            (said.code, said.stdout.as_str()),
            (code, ""),
            "{args:?}: {}",
            said.stderr
        );
        assert!(said.stderr.contains(words), "{args:?}: {}", said.stderr);
    }
    let Some(postgres) = Postgres::shared() else {
        return;
    };
    let url = migrated(postgres);
    let said = hapax(&["migrate", "--store", &url, "--role", "nobody_of_that_name"]);
    assert!(
        said.code == 1 && said.stderr.contains("nobody_of_that_name"),
        "{}",
        said.stderr
    );
    postgres.psql("postgres", "CREATE ROLE stranger LOGIN");
    let said = hapax(&[
        "migrate",
        "--store",
        &as_role(&postgres.database(), "stranger"),
    ]);
    assert!(
        said.code == 1 && said.stderr.contains("permission denied"),
        "{}",
        said.stderr
    );
}

#[test]
fn the_database_is_named_by_a_configuration_a_variable_or_the_variables_of_postgres() {
    let Some(postgres) = Postgres::shared() else {
        return;
    };
    let (directory, url) = (tempfile::tempdir().unwrap(), postgres.database());
    let config = directory.path().join("hapax.toml");
    // Without an upstream, which only `hapax serve` needs.
    std::fs::write(&config, format!("store = \"{url}\"\n")).unwrap();
    let said = hapax(&["migrate", "--config", config.to_str().unwrap()]);
    said.assert_code(0);
    let said = hapax_with(&["migrate"], &[("HAPAX__STORE", &url)]);
    assert!(
        said.stdout.ends_with(": nothing was due\n"),
        "{}",
        said.stderr
    );
    let port = postgres.port().to_string();
    let variables = [
        ("PGHOST", "127.0.0.1"),
        ("PGPORT", &port),
        ("PGUSER", "postgres"),
        ("PGDATABASE", database(&url)),
    ];
    let said = hapax_with(&words("migrate --store postgres://"), &variables);
    assert!(
        said.stdout.ends_with(": nothing was due\n"),
        "{}",
        said.stderr
    );
    std::fs::write(
        &config,
        "store = \"postgres://ada:hunter2@db/hapax?sslmod=require\"\n",
    )
    .unwrap();
    let said = hapax(&["migrate", "--config", config.to_str().unwrap()]);
    assert!(
        said.code == 2
            && said.stderr.contains("hapax.toml:1:9")
            && !said.stderr.contains("hunter2"),
        "{}",
        said.stderr
    );
}

#[test]
fn an_operator_says_that_the_database_was_restored() {
    let Some(postgres) = Postgres::shared() else {
        return;
    };
    let url = postgres.database();
    let said = hapax(&[
        "migrate",
        "--store",
        &url,
        "--restored",
        "--by",
        "ada",
        "--reason",
        "the disk of db-1 failed",
    ]);
    said.assert_code(0);
    for words in [
        "written into the audit log",
        "Every fence from now on is above ",
        "sent again, they run again",
    ] {
        assert!(said.stdout.contains(words), "{words}: {}", said.stdout);
    }
    let log = "SELECT convert_from(action, 'UTF8'), convert_from(signed_by, 'UTF8'), convert_from(reason, 'UTF8') FROM hapax.audit";
    assert_eq!(
        postgres.psql(database(&url), log),
        "restored|ada|the disk of db-1 failed"
    );
    let told = hapax(&["migrate", "--store", &url, "--restored", "--json"]);
    let told: Value = serde_json::from_str(&told.stdout).unwrap();
    let floor = postgres.psql(database(&url), "SELECT floor FROM hapax.pace");
    assert_eq!(
        (
            told["restored"]["epoch"].as_u64(),
            told["restored"]["fences_above"].to_string()
        ),
        (Some(2), floor)
    );
    let said = hapax(&["migrate", "--store", &url, "--reason", "why"]);
    said.assert_code(2);
    said.assert_told("--restored");
}

#[test]
fn a_role_that_emits_is_granted_that() {
    let Some(postgres) = Postgres::shared() else {
        return;
    };
    let url = postgres.database();
    postgres.psql("postgres", "CREATE ROLE emitting LOGIN");
    let dry = hapax(&[
        "migrate",
        "--store",
        &url,
        "--dry-run",
        "--emitter",
        "emitting",
    ]);
    dry.assert_code(0);
    assert!(
        dry.stdout
            .contains("GRANT USAGE ON SCHEMA hapax TO \"emitting\""),
        "{}",
        dry.stdout
    );
    let said = hapax(&["migrate", "--store", &url, "--emitter", "emitting"]);
    said.assert_code(0);
    assert!(
        said.stdout
            .ends_with("; the role emitting may emit messages\n"),
        "{}",
        said.stdout
    );
    let emits = "SET ROLE emitting; SELECT hapax.emit('orders', 'o-1', 'paid') IS NOT NULL";
    assert!(postgres.psql(database(&url), emits).ends_with('t'));
    let reads = "SET ROLE emitting; SELECT hapax.readers_now()";
    let refused = postgres.try_psql(database(&url), reads).unwrap_err();
    assert!(refused.contains("permission denied"), "{refused}");
    let missing = hapax(&["migrate", "--store", &url, "--emitter", "nobody-here"]);
    missing.assert_code(1);
}
