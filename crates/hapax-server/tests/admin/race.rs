//! A decision about a key that an operator was shown is not applied if the key has changed
//! meanwhile.

use std::process::Stdio;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::Command;

use crate::harness::{Answer, words};
use crate::world::{ADMIN_TOKEN, World};

/// Runs a command on a pseudo-terminal. Prints `asked` when the command asks, waits for a line, and
/// answers yes.
const TERMINAL: &str = r#"
import os, pty, sys
child, terminal = pty.fork()
if child == 0:
    os.execv(sys.argv[1], sys.argv[1:])
seen = b""
while b"[y/N]" not in seen:
    seen += os.read(terminal, 1024)
print("asked", flush=True)
sys.stdin.readline()
os.write(terminal, b"y\n")
try:
    while part := os.read(terminal, 1024):
        seen += part
except OSError:
    pass
print(seen.decode())
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"#;

impl World {
    async fn change(&self, entry: &Value, what: &str, body: &Value) -> Answer {
        self.ask(
            "POST",
            &format!("/v1/keys/{}/{what}", entry["id"].as_str().unwrap()),
            &body.to_string(),
        )
        .await
    }

    /// Settles the key as not done, retries it and loses it once more: another attempt of the same
    /// key.
    async fn lost_again(&self, entry: &Value, key: &str) {
        let settled = self
            .change(
                entry,
                "settle",
                &json!({"outcome": "not-done", "by": "bob", "reason": "r"}),
            )
            .await;
        assert_eq!(settled.status, 200, "{settled:?}");
        self.lost(key).await;
    }
}

/// The exit code and output of `hapax keys …` if `meanwhile` happens while it asks.
async fn asked(
    world: &World,
    args: &[&str],
    meanwhile: impl Future<Output = ()>,
) -> (Option<i32>, String) {
    let mut python = Command::new("python3");
    python
        .args(["-c", TERMINAL, env!("CARGO_BIN_EXE_hapax"), "keys"])
        .args(args);
    python.args([
        "--by",
        "ada",
        "--reason",
        "r",
        "--admin",
        &format!("http://{}", world.admin()),
    ]);
    python
        .env("HAPAX__ADMIN_TOKEN", ADMIN_TOKEN)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true);
    let mut child = python.spawn().unwrap();
    let (mut yes, mut said) = (
        child.stdin.take().unwrap(),
        BufReader::new(child.stdout.take().unwrap()),
    );
    let mut line = String::new();
    said.read_line(&mut line).await.unwrap();
    assert_eq!(line, "asked\n");
    meanwhile.await;
    yes.write_all(b"\n").await.unwrap();
    let mut rest = String::new();
    said.read_to_string(&mut rest).await.unwrap();
    (child.wait().await.unwrap().code(), rest)
}

#[tokio::test]
async fn an_operator_settles_the_attempt_that_was_shown_and_no_other() {
    let world = World::guarded().await;
    world.lost("k").await;
    let shown = world.found("key=k").await;
    world.lost_again(&shown, "k").await;
    let done = |entry: &Value| json!({"outcome": "done-without-answer", "fence": entry["fence"], "by": "ada", "reason": "r"});
    assert_eq!(
        world
            .change(&shown, "settle", &done(&shown))
            .await
            .refusal(),
        (409, "other-fence".to_owned())
    );
    let now = world.found("key=k").await;
    assert_eq!(
        (&now["state"], &now["attempts"]),
        (&json!("unknown"), &json!(2)),
        "nobody has looked at the second"
    );
    assert_eq!(world.change(&now, "settle", &done(&now)).await.status, 200);
    assert_eq!(
        world.change(&now, "settle", &done(&now)).await.refusal(),
        (409, "not-now".to_owned())
    );

    let forget = |version: &Value| json!({"version": version, "by": "ada", "reason": "r"});
    assert_eq!(
        world
            .change(&now, "forget", &forget(&now["version"]))
            .await
            .refusal(),
        (409, "changed-meanwhile".to_owned())
    );
    let settled = world.found("key=k").await;
    assert_eq!(settled["state"], "completed");
    assert_eq!(
        world
            .change(&now, "forget", &forget(&settled["version"]))
            .await
            .status,
        200
    );
    world.end().await;
}

#[tokio::test]
async fn a_yes_is_about_what_was_listed() {
    let world = World::guarded().await;
    world.lost("k").await;
    let shown = world.found("key=k").await;
    let args = [
        "settle",
        "--path",
        "/v1/charges",
        "--outcome",
        "done",
        "--without-answer",
    ];
    let (code, said) = asked(&world, &args, world.lost_again(&shown, "k")).await;
    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.contains("not settled: ") && said.contains("this is about"),
        "{said}"
    );
    let now = world.found("key=k").await;
    assert_eq!(
        (&now["state"], &now["attempts"]),
        (&json!("unknown"), &json!(2))
    );
    let (code, said) = asked(&world, &args, async {}).await;
    assert_eq!(
        (code, said.contains("settled\t")),
        (Some(0), true),
        "{said}"
    );

    let settled = world.found("key=k").await;
    let (code, said) = asked(&world, &words("forget --path /v1/charges"), async {
        assert_eq!(
            world
                .change(&settled, "forget", &json!({"by": "bob", "reason": "r"}))
                .await
                .status,
            200
        );
    })
    .await;
    assert_eq!(
        (code, said.contains("has changed meanwhile: look again")),
        (Some(1), true),
        "{said}"
    );
    world.end().await;
}
