//! `--watch`: changes are printed as they happen.

use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout};

use crate::harness::words;
use crate::world::World;

struct Watching {
    lines: Lines<BufReader<ChildStdout>>,
    _program: Child,
}

impl Watching {
    fn start(world: &World, args: &[&str]) -> Watching {
        let mut program = world
            .keys(args)
            .stderr(Stdio::null())
            .spawn()
            .expect("the program is built");
        Watching {
            lines: BufReader::new(program.stdout.take().unwrap()).lines(),
            _program: program,
        }
    }

    async fn next(&mut self) -> String {
        let line = tokio::time::timeout(Duration::from_secs(20), self.lines.next_line())
            .await
            .expect("a change is told");
        line.unwrap().expect("it goes on")
    }

    async fn next_key(&mut self) -> (String, String, String) {
        let line: Value = serde_json::from_str(&self.next().await).unwrap();
        let word = |name: &str| line[name].as_str().unwrap().to_owned();
        (word("change"), word("key"), word("state"))
    }
}

fn triple(change: &str, key: &str, state: &str) -> (String, String, String) {
    (change.to_owned(), key.to_owned(), state.to_owned())
}

#[tokio::test]
async fn each_change_is_a_line() {
    let world = World::guarded().await;
    world.lost("first").await;
    let mut all = Watching::start(&world, &words("list --watch --json"));
    let mut unknown = Watching::start(&world, &words("list --watch --state unknown"));
    let mut log = Watching::start(&world, &["log", "--watch"]);
    assert_eq!(all.next_key().await, triple("new", "first", "unknown"));
    let line = unknown.next().await;
    assert!(
        line.starts_with("new\t") && line.contains("\tunknown\tPOST /v1/charges\tfirst\t"),
        "{line}"
    );

    let asking = world.running("second").await;
    assert_eq!(all.next_key().await, triple("new", "second", "running"));
    world.origin.go();
    asking.await.unwrap();
    assert_eq!(
        all.next_key().await,
        triple("changed", "second", "completed")
    );

    let id = world.found("key=first").await["id"]
        .as_str()
        .unwrap()
        .to_owned();
    world
        .ask(
            "POST",
            &format!("/v1/keys/{id}/settle"),
            r#"{"outcome":"not-done","by":"ada","reason":"not there"}"#,
        )
        .await;
    assert_eq!(
        all.next_key().await,
        triple("changed", "first", "retryable")
    );
    assert!(unknown.next().await.starts_with(&format!("gone\t{id}\t")));
    let line = log.next().await;
    assert!(
        line.starts_with("1\t") && line.ends_with("\tunknown -> retryable\tnot there"),
        "{line}"
    );
    world.end().await;
}

#[tokio::test]
async fn whoever_stops_reading_ends_it() {
    let world = World::guarded().await;
    world.lost("first").await;
    let mut watching = Watching::start(&world, &["list", "--watch"]);
    watching.next().await;
    let Watching {
        lines,
        mut _program,
    } = watching;
    drop(lines);
    world.lost("second").await;
    let ended = tokio::time::timeout(Duration::from_secs(20), _program.wait())
        .await
        .expect("it ends by itself")
        .unwrap();
    assert_eq!(ended.code(), Some(0));
    world.end().await;
}
