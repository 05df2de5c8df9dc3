//! schemathesis, installed from PyPI, reads the document of a running gateway. It sends allowed and
//! forbidden requests to every operation, on records in every state: there must be no 5xx, and no
//! status, content type or body that the document does not have.

use std::time::Duration;

use serde_json::Value;

use crate::harness::install::{Installed, Language, install};
use crate::harness::{Answer, words};
use crate::world::{ADMIN_TOKEN, World, text};

/// For each operation and phase.
const EXAMPLES: &str = "20";
const LONGEST: Duration = Duration::from_secs(100);

/// Without `positive_data_acceptance`: the document states some rules only in prose, namely that an
/// outcome `done` needs a status and that header fields must be valid.
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,response_schema_conformance,negative_data_rejection,unsupported_method,ignored_auth";

#[tokio::test(flavor = "multi_thread")]
async fn nothing_that_the_document_allows_or_forbids_gets_an_answer_it_does_not_have() {
    let wanted = (
        "requirements.txt",
        include_str!("requirements.txt").to_owned(),
    );
    // The hooks fill in the requests: half of the ids belong to existing records.
    let hooks = ("hooks.py", include_str!("hooks.py").to_owned());
    let Some(Installed { directory, .. }) =
        install("schemathesis", Language::Python, &[wanted], &[hooks])
    else {
        return;
    };
    let world = World::guarded().await;
    let asking = fill(&world).await;
    let ids = ids(&world).await;

    let mut program = tokio::process::Command::new(directory.join("bin/schemathesis"));
    program
        .arg("run")
        .arg(format!("http://{}/openapi.json", world.admin()));
    program.args([
        "--header",
        &format!("Authorization: Bearer {ADMIN_TOKEN}"),
        "--checks",
        CHECKS,
        "--mode",
        "all",
    ]);
    program.args([
        "--phases",
        "examples,coverage,fuzzing",
        "--max-examples",
        EXAMPLES,
        "--seed",
        "17",
        "--no-color",
        "--continue-on-failure",
    ]);
    program.args(words(
        "--workers 1 --generation-database none --request-timeout 40",
    ));
    program
        .env("SCHEMATHESIS_HOOKS", "hooks")
        .env("PYTHONPATH", &directory)
        .env("HAPAX_IDS", ids.join(" "))
        .env("NO_PROXY", "127.0.0.1");
    let ran = tokio::time::timeout(
        LONGEST,
        program.current_dir(&directory).kill_on_drop(true).output(),
    )
    .await
    .expect("it ends")
    .unwrap();
    let told = text(&ran.stdout);
    assert!(ran.status.success(), "{told}{}", text(&ran.stderr));
    let summary: Vec<_> = told
        .lines()
        .filter(|line| {
            line.contains("Test cases") || line.contains("generated") || line.contains("Tested")
        })
        .collect();
    hapax_testkit::report!("schemathesis: {}", summary.join("; "));

    // The run changed records, and did not change the running one.
    let log = world.ask("GET", "/v1/log?limit=1000", "").await.json();
    let changed = log["entries"].as_array().unwrap().len();
    hapax_testkit::report!("schemathesis changed {changed} records by hand");
    assert!(
        changed > 0,
        "it never got as far as a change: the run shows little"
    );
    world.origin.go();
    assert_eq!(asking.await.unwrap().status, 201);
    world.end().await;
}

/// Records in every state.
async fn fill(world: &World) -> tokio::task::JoinHandle<Answer> {
    for number in 0..20 {
        world.lost(&format!("lost-{number}")).await;
    }
    for number in 0..3 {
        world.completed(&format!("done-{number}")).await;
        world.failed(&format!("failed-{number}")).await;
        world.retryable(&format!("retryable-{number}")).await;
        world.expired(&format!("expired-{number}")).await;
    }
    world.running("running").await
}

/// The ids of all records. Checks that each state is among them.
async fn ids(world: &World) -> Vec<String> {
    let page = world.ask("GET", "/v1/keys?limit=1000", "").await.json();
    let keys = page["keys"].as_array().unwrap();
    for state in [
        "running",
        "completed",
        "failed",
        "retryable",
        "unknown",
        "expired",
    ] {
        assert!(keys.iter().any(|key| key["state"] == state), "{state}");
    }
    let of = |key: &Value| {
        [&key["id"], &key["operation_id"], &key["fence"]]
            .map(|part| {
                part.as_str()
                    .map_or_else(|| part.to_string(), str::to_owned)
            })
            .join(":")
    };
    keys.iter().map(of).collect()
}
