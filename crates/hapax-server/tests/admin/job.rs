//! What a job of the upstream can settle, and what it cannot.

use serde_json::{Value, json};

use crate::harness::Answer;
use crate::world::{SETTLE_TOKEN, World, text};

/// The open unknowns, as the job sees them.
async fn unknowns(world: &World) -> Vec<Value> {
    let page = world.ask_as_job("GET", "/v1/unknown", "").await.json();
    page["unknown"].as_array().expect("a list").clone()
}

async fn settle(world: &World, found: &Value) -> Answer {
    world
        .ask_as_job("POST", "/v1/settle", &found.to_string())
        .await
}

/// The settlement of the only unknown with this outcome.
async fn said(world: &World, outcome: Value) -> Value {
    let open = unknowns(world).await;
    assert_eq!(open.len(), 1, "{open:?}");
    let mut found = json!({"operation_id": open[0]["operation_id"], "fence": open[0]["fence"], "reason": "by the ledger"});
    found
        .as_object_mut()
        .unwrap()
        .extend(outcome.as_object().unwrap().clone());
    found
}

#[tokio::test]
async fn the_job_is_told_what_its_upstream_knows_and_no_more() {
    let world = World::guarded().await;
    world.completed("done").await;
    world.lost("lost").await;
    let open = unknowns(&world).await;
    assert_eq!(open.len(), 1, "{open:?}");
    let members: Vec<_> = open[0]
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    assert_eq!(
        members,
        [
            "fence",
            "key",
            "method",
            "operation_id",
            "path",
            "record",
            "since"
        ]
    );
    // The job sees the values that the service received with the request.
    let seen = world.origin.ledger().all().pop().unwrap();
    let sent = |name: &str| {
        seen.head
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .unwrap()
            .trim()
            .to_owned()
    };
    assert_eq!(open[0]["operation_id"], sent("hapax-operation:"));
    assert_eq!(open[0]["fence"].to_string(), sent("hapax-fence:"));
    assert_eq!(
        (&open[0]["key"], &open[0]["path"]),
        (&json!("lost"), &json!("/v1/charges"))
    );
    world.end().await;
}

#[tokio::test]
async fn done_with_an_answer_is_replayed_and_the_effect_stays_one() {
    let world = World::guarded().await;
    world.lost("k").await;
    assert_eq!(world.post("/v1/charges", "k").await.status, 409);
    let found = said(&world, json!({"outcome": "done", "status": 201, "headers": [["x-charge", "ch_9"]], "body": "charged"})).await;
    let settled = settle(&world, &found).await;
    assert_eq!(
        (settled.status, settled.json()["already"].clone()),
        (200, json!(false))
    );
    let replay = world.post("/v1/charges", "k").await;
    assert_eq!(
        (replay.status, replay.text(), replay.field("x-charge")),
        (201, "charged", Some("ch_9"))
    );
    assert_eq!(world.origin.ledger().count("k"), 1);
    assert!(unknowns(&world).await.is_empty());

    // The job repeats a settlement whose answer was lost; then a different outcome is sent.
    let again = settle(&world, &found).await;
    assert_eq!(
        (again.status, again.json()["already"].clone()),
        (200, json!(true))
    );
    for other in [
        json!({"outcome": "not-done"}),
        json!({"outcome": "done", "status": 200}),
        json!({"outcome": "done-without-answer"}),
    ] {
        let mut found =
            json!({"operation_id": found["operation_id"], "fence": found["fence"], "reason": "r"});
        found
            .as_object_mut()
            .unwrap()
            .extend(other.as_object().unwrap().clone());
        assert_eq!(
            settle(&world, &found).await.refusal(),
            (409, "settled-otherwise".to_owned()),
            "{found}"
        );
    }
    let log = world.ask("GET", "/v1/log", "").await.json();
    let entries = log["entries"].as_array().unwrap();
    assert_eq!(
        (entries.len(), &entries[0]["by"], &entries[0]["reason"]),
        (1, &json!("settle-token"), &json!("by the ledger")),
        "{log}"
    );
    world.end().await;
}

#[tokio::test]
async fn not_done_lets_the_next_repeat_run_and_only_that() {
    let world = World::guarded().await;
    world.lost("k").await;
    let found = said(&world, json!({"outcome": "not-done"})).await;
    assert_eq!(settle(&world, &found).await.json()["state"], "retryable");
    assert_eq!(settle(&world, &found).await.json()["already"], true);
    world.answers(201, "", "charged");
    assert_eq!(world.post("/v1/charges", "k").await.status, 201);
    assert_eq!(world.post("/v1/charges", "k").await.status, 201);
    assert_eq!(
        world.origin.ledger().count("k"),
        2,
        "the lost one, and one more"
    );
    assert_eq!(
        settle(&world, &found).await.refusal(),
        (409, "settled-otherwise".to_owned()),
        "it has run since"
    );
    world.end().await;
}

#[tokio::test]
async fn what_is_known_of_one_attempt_says_nothing_of_the_next() {
    let world = World::guarded().await;
    world.lost("k").await;
    let first = said(&world, json!({"outcome": "not-done"})).await;
    let mut early = first.clone();
    early["fence"] = json!(first["fence"].as_u64().unwrap() - 1);
    assert_eq!(
        settle(&world, &early).await.refusal(),
        (409, "other-fence".to_owned())
    );
    assert_eq!(settle(&world, &first).await.status, 200);
    world.lost("k").await;
    assert_eq!(
        settle(&world, &first).await.refusal(),
        (409, "other-fence".to_owned()),
        "the second attempt may have had its effect"
    );
    assert_eq!(world.found("key=k").await["state"], "unknown");
    world.end().await;
}

#[tokio::test]
async fn only_a_fence_that_the_ended_attempt_may_have_had_is_answered_with_already() {
    let world = World::guarded().await;
    world.lost("k").await;
    let found = said(&world, json!({"outcome": "not-done"})).await;
    let lost = found["fence"].as_u64().unwrap();
    assert_eq!(settle(&world, &found).await.json()["already"], false);
    let settled = world.found("key=k").await["fence"].as_u64().unwrap();
    let of = |fence: u64| {
        let mut found = found.clone();
        found["fence"] = json!(fence);
        found
    };
    assert_eq!(settle(&world, &of(lost)).await.json()["already"], true);
    for fence in [0, lost - 1, settled, settled + 1] {
        assert_eq!(
            settle(&world, &of(fence)).await.refusal(),
            (409, "other-fence".to_owned()),
            "{fence} of {lost} and {settled}"
        );
    }

    // A record that ended by itself keeps the fence of its attempt.
    world.retryable("other").await;
    let entry = world.found("key=other").await;
    let fence = entry["fence"].as_u64().unwrap();
    let of = |fence: u64| json!({"record": entry["id"], "fence": fence, "outcome": "not-done", "reason": "r"});
    assert_eq!(settle(&world, &of(fence)).await.json()["already"], true);
    for fence in [fence - 1, fence + 1] {
        assert_eq!(
            settle(&world, &of(fence)).await.refusal(),
            (409, "other-fence".to_owned())
        );
    }
    world.end().await;
}

#[tokio::test]
async fn what_is_running_is_not_settled_and_says_when_to_ask_again() {
    let world = World::guarded().await;
    let asking = world.running("k").await;
    let entry = world.found("key=k").await;
    let found = json!({"record": entry["id"], "fence": entry["fence"], "outcome": "not-done", "reason": "r"});
    let got = settle(&world, &found).await;
    assert_eq!(got.refusal(), (409, "in-flight".to_owned()));
    let seconds: u64 = got.field("retry-after").expect("advice").parse().unwrap();
    assert!((1..=11).contains(&seconds), "{seconds}");
    world.origin.go();
    assert_eq!(asking.await.unwrap().status, 201);
    world.end().await;
}

#[tokio::test]
async fn a_record_is_named_by_either_of_its_names() {
    let world = World::guarded().await;
    for key in ["a", "b"] {
        world.lost(key).await;
    }
    let open = unknowns(&world).await;
    let found = |record: &Value, operation: &Value| {
        let mut found =
            json!({"fence": open[0]["fence"], "outcome": "done-without-answer", "reason": "r"});
        if record.is_string() {
            found["record"] = record.clone();
        }
        if operation.is_string() {
            found["operation_id"] = operation.clone();
        }
        found
    };
    let (record, operation) = (&open[0]["record"], &open[0]["operation_id"]);
    assert_eq!(
        settle(&world, &found(record, &open[1]["operation_id"]))
            .await
            .refusal()
            .0,
        400,
        "of two records"
    );
    assert_eq!(
        settle(&world, &found(&Value::Null, &Value::Null))
            .await
            .refusal()
            .0,
        400
    );
    let nobody = settle(&world, &found(&Value::Null, &json!("0".repeat(64)))).await;
    assert_eq!(nobody.refusal(), (404, "operation-not-found".to_owned()));
    assert_eq!(
        settle(&world, &found(&json!("0".repeat(64)), &Value::Null))
            .await
            .refusal(),
        (404, "key-not-found".to_owned())
    );
    assert_eq!(
        settle(&world, &found(record, &Value::Null)).await.json()["already"],
        false
    );
    assert_eq!(
        settle(&world, &found(&Value::Null, operation)).await.json()["already"],
        true,
        "it is found after it has ended too"
    );
    assert_eq!(
        settle(&world, &found(record, operation)).await.json()["already"],
        true
    );
    assert_eq!(unknowns(&world).await.len(), 1);
    world.end().await;
}

/// The job of `docs/admin.md`, exactly as printed there.
#[tokio::test]
async fn the_job_of_the_page_settles_by_its_ledger() {
    let page = include_str!("../../../../docs/admin.md");
    let (_, job) = page.split_once("```python reconcile.py\n").expect("a job");
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(
        directory.path().join("reconcile.py"),
        job.split_once("```").unwrap().0,
    )
    .unwrap();

    let world = World::guarded().await;
    for key in ["charged", "never"] {
        world.lost(key).await;
    }
    let ledger = rusqlite::Connection::open(directory.path().join("ledger.db")).unwrap();
    ledger
        .execute("CREATE TABLE charges (id TEXT, operation TEXT)", [])
        .unwrap();
    let seen = world
        .origin
        .ledger()
        .all()
        .into_iter()
        .find(|seen| seen.key == "charged")
        .unwrap();
    let operation = seen
        .head
        .lines()
        .find_map(|line| line.strip_prefix("hapax-operation:"))
        .unwrap()
        .trim()
        .to_owned();
    ledger
        .execute("INSERT INTO charges VALUES ('ch_7', ?)", [&operation])
        .unwrap();

    let run = async |longest: &str| {
        let mut python = tokio::process::Command::new("python3");
        python
            .arg("reconcile.py")
            .current_dir(directory.path())
            .env("NO_PROXY", "127.0.0.1");
        python
            .env("HAPAX_ADMIN", format!("http://{}", world.admin()))
            .env("HAPAX_SETTLE_TOKEN", SETTLE_TOKEN);
        let ran = python
            .env("LONGEST_REQUEST_SECONDS", longest)
            .output()
            .await
            .unwrap();
        assert!(
            ran.status.success(),
            "{}{}",
            text(&ran.stdout),
            text(&ran.stderr)
        );
        text(&ran.stdout)
    };
    assert_eq!(
        run("600").await,
        "POST /v1/charges charged completed\n",
        "the other may still be under way"
    );
    assert_eq!(run("0").await, "POST /v1/charges never retryable\n");
    assert_eq!(run("0").await, "");
    let replay = world.post("/v1/charges", "charged").await;
    assert_eq!((replay.status, replay.text()), (201, "{\"id\": \"ch_7\"}"));
    world.answers(201, "", "charged");
    assert_eq!(world.post("/v1/charges", "never").await.status, 201);
    assert_eq!(
        (
            world.origin.ledger().count("charged"),
            world.origin.ledger().count("never")
        ),
        (1, 2)
    );
    world.end().await;
}
