//! Every change by hand is in the log, with its author and reason.

use serde_json::{Value, json};

use crate::harness::words;
use crate::world::{World, send, text};

async fn entries(world: &World, query: &str) -> Vec<Value> {
    let page = world
        .ask("GET", &format!("/v1/log{query}"), "")
        .await
        .json();
    page["entries"]
        .as_array()
        .unwrap_or_else(|| panic!("{page}"))
        .clone()
}

fn sequences(entries: &[Value]) -> Vec<u64> {
    entries
        .iter()
        .map(|entry| entry["sequence"].as_u64().unwrap())
        .collect()
}

#[tokio::test]
async fn every_change_by_hand_is_logged_whoever_makes_it() {
    let world = World::guarded().await;
    for key in ["a", "b", "c"] {
        world.lost(key).await;
    }
    world.completed("d").await;
    assert!(entries(&world, "").await.is_empty());

    let bulk = [
        "settle",
        "--state",
        "unknown",
        "--route",
        "/v1/charges",
        "--outcome",
        "not-done",
        "--reason",
        "bank down",
        "--by",
        "ada",
        "--yes",
    ];
    let ran = world.run(&bulk).await;
    assert_eq!(
        text(&ran.stdout).lines().count(),
        3,
        "{}",
        text(&ran.stderr)
    );
    let id = world.found("key=d").await["id"]
        .as_str()
        .unwrap()
        .to_owned();
    let forgot = world
        .ask(
            "POST",
            &format!("/v1/keys/{id}/forget"),
            r#"{"by":"bob","reason":"erasure request 7"}"#,
        )
        .await;
    assert_eq!(
        (forgot.status, forgot.json()["state"].clone()),
        (200, json!("expired"))
    );
    // A refused change is not logged.
    let refused = world
        .ask(
            "POST",
            &format!("/v1/keys/{id}/settle"),
            r#"{"outcome":"not-done","by":"bob","reason":"r"}"#,
        )
        .await;
    assert_eq!(refused.refusal(), (409, "not-now".to_owned()));

    let all = entries(&world, "").await;
    assert_eq!(sequences(&all), [4, 3, 2, 1], "newest first");
    assert_eq!(
        (&all[0]["action"], &all[0]["by"], &all[0]["reason"]),
        (
            &json!("forget"),
            &json!("bob (admin-token)"),
            &json!("erasure request 7")
        )
    );
    let record = &all[0]["record"];
    assert_eq!(
        (&record["id"], &record["before"], &record["after"]),
        (&json!(id), &json!("completed"), &json!("expired"))
    );
    for entry in &all[1..] {
        assert_eq!(
            (&entry["action"], &entry["by"], &entry["record"]["after"]),
            (
                &json!("settle"),
                &json!("ada (admin-token)"),
                &json!("retryable")
            )
        );
    }
    let mut keys: Vec<_> = all
        .iter()
        .map(|entry| entry["record"]["key"].as_str().unwrap())
        .collect();
    keys.sort_unstable();
    assert_eq!(keys, ["a", "b", "c", "d"]);
    assert_eq!(sequences(&entries(&world, "?after=2").await), [3, 4]);
    assert_eq!(sequences(&entries(&world, "?before=3&limit=1").await), [2]);
    assert_eq!(
        sequences(&entries(&world, &format!("?record={id}")).await),
        [4]
    );
    assert_eq!(
        world
            .ask("GET", "/v1/log?after=1&before=2", "")
            .await
            .refusal()
            .0,
        400
    );
    world.end().await;
}

#[tokio::test]
async fn nobody_signs_with_a_token_they_did_not_present() {
    let world = World::start(|_| {}).await;
    world.lost("k").await;
    let ask = async |method: &str, target: &str, body: &str| {
        send(
            world.admin(),
            method,
            target,
            &[("Content-Type", "application/json")],
            body,
        )
        .await
    };
    let page = ask("GET", "/v1/keys?key=k", "").await.json();
    let id = page["keys"][0]["id"].as_str().unwrap();
    for by in [
        "settle-token",
        "admin-token",
        "ada (admin-token)",
        "ada (Settle-Token)",
    ] {
        for (target, outcome) in [
            (format!("/v1/keys/{id}/settle"), r#""outcome":"not-done","#),
            (format!("/v1/keys/{id}/forget"), ""),
            ("/v1/reload".to_owned(), ""),
        ] {
            let got = ask(
                "POST",
                &target,
                &format!(r#"{{{outcome}"by":"{by}","reason":"r"}}"#),
            )
            .await;
            assert_eq!(got.refusal().0, 400, "{target}");
            assert!(got.text().contains("give a name alone"), "{}", got.text());
        }
        let args = [
            "settle",
            id,
            "--outcome",
            "not-done",
            "--reason",
            "r",
            "--by",
            by,
        ];
        let ran = world
            .keys(&args)
            .env_remove("HAPAX__ADMIN_TOKEN")
            .output()
            .await
            .unwrap();
        assert_eq!(
            (
                ran.status.code(),
                text(&ran.stderr).contains("give a name alone")
            ),
            (Some(2), true),
            "{}",
            text(&ran.stderr)
        );
    }
    assert_eq!(ask("GET", "/v1/log", "").await.json()["entries"], json!([]));
    world.end().await;
}

#[tokio::test]
async fn the_command_pages_through_the_log() {
    let world = World::start(|_| {}).await;
    for number in 0..5 {
        world.lost(&format!("k{number}")).await;
    }
    let all = [
        "settle",
        "--state",
        "unknown",
        "--outcome",
        "done",
        "--without-answer",
        "--by",
        "ada",
        "--reason",
        "seen at the bank",
        "--yes",
    ];
    let run = async |args: &[&str]| {
        let ran = world
            .keys(args)
            .env_remove("HAPAX__ADMIN_TOKEN")
            .output()
            .await
            .unwrap();
        assert!(ran.status.success(), "{}", text(&ran.stderr));
        text(&ran.stdout)
    };
    run(&all).await;
    let numbers = |lines: &str| {
        lines
            .lines()
            .map(|line| line.split('\t').next().unwrap().to_owned())
            .collect::<Vec<_>>()
            .join(" ")
    };
    let log = run(&["log"]).await;
    assert_eq!(numbers(&log), "1 2 3 4 5", "the newest last");
    let cells: Vec<_> = log.lines().next().unwrap().split('\t').collect();
    assert_eq!(
        (
            cells.len(),
            cells[2],
            cells[3],
            cells[5],
            cells[7],
            cells[8]
        ),
        (
            9,
            "settle",
            "ada",
            "POST /v1/charges",
            "unknown -> completed",
            "seen at the bank"
        )
    );
    assert_eq!(numbers(&run(&words("log --limit 2")).await), "4 5");
    assert_eq!(
        numbers(&run(&words("log --limit 2 --before 4")).await),
        "2 3"
    );
    assert_eq!(
        numbers(&run(&words("log --limit 2 --after 0")).await),
        "1 2"
    );
    let id = cells[4];
    assert_eq!(numbers(&run(&["log", id]).await), "1", "{id}");
    let line: Value =
        serde_json::from_str(run(&words("log --json --limit 1")).await.trim_end()).unwrap();
    assert_eq!((&line["sequence"], &line["by"]), (&json!(5), &json!("ada")));
    world.end().await;
}
