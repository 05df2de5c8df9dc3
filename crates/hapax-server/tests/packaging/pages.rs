//! The commands in `docs/operations.md` do what the page says.

use std::path::Path;
use std::process::Command;

use hapax_testkit::origin::{Origin, Step};

use super::harness::serve_on;
use super::like::is_like;
use super::tools::{ended, text};

#[tokio::test(flavor = "multi_thread")]
async fn the_way_out_of_an_unknown_is_as_the_page_says() {
    let directory = tempfile::tempdir().unwrap();
    let upstream = Origin::start().await;
    let store = format!("sqlite:{}", directory.path().join("hapax.db").display());
    let program = serve_on(&store, upstream.address());
    // Two customers at once: settling one must not affect the other.
    for key in ["order-17", "order-18"] {
        upstream.script([Step::Read, Step::Reset]);
        assert!(program.charge(key, b"amount=1").starts_with("HTTP/1.1 502"));
        assert!(program.charge(key, b"amount=1").contains("outcome-unknown"));
    }

    let page = text("docs/operations.md");
    let blocks = page
        .split("```")
        .skip(1)
        .step_by(2)
        .filter_map(|block| block.strip_prefix("console\n"));
    let id = id_of(program.admin, "order-17");
    let mut commands = 0;
    for command in blocks.flat_map(|block| block.split("$ ").skip(1)) {
        let (line, expected) = command.split_once('\n').unwrap();
        let (line, expected) = (line.replace(ID, &id), expected.replace(ID, &id));
        let here = format!("http://{}", program.admin);
        let printed = shell(&line.replace("http://127.0.0.1:4001", &here))
            .replace('\t', "  ")
            .replace(&here, "http://127.0.0.1:4001");
        assert!(
            is_like(&expected, &printed),
            "$ {line}\n{printed}\nexpected:\n{expected}"
        );
        commands += 1;
    }
    assert!(commands >= 4, "{commands} commands");

    let answer = program.charge("order-17", b"amount=1");
    assert!(
        answer.starts_with("HTTP/1.1 201")
            && answer.contains("idempotent-replayed: true")
            && answer.contains("ch_17"),
        "{answer}"
    );
    assert_eq!(upstream.ledger().count("order-17"), 1, "it ran once");
    let other = program.charge("order-18", b"amount=1");
    assert!(
        other.starts_with("HTTP/1.1 409") && other.contains("outcome-unknown"),
        "somebody else's answer: {other}"
    );
}

/// The id in the page's example.
const ID: &str = "466dbfb0";

/// The id of a key in the listing.
fn id_of(admin: std::net::SocketAddr, key: &str) -> String {
    let listed = shell(&format!(
        "hapax keys list --state unknown --admin http://{admin}"
    ));
    let line = listed
        .lines()
        .find(|line| line.contains(key))
        .unwrap_or_else(|| panic!("{listed}"));
    line.split('\t').next().unwrap().to_owned()
}

/// Runs a line in a shell with the built program on the path. Returns both outputs.
fn shell(line: &str) -> String {
    let program = Path::new(env!("CARGO_BIN_EXE_hapax")).parent().unwrap();
    let path = format!(
        "{}:{}",
        program.display(),
        std::env::var("PATH").unwrap_or_default()
    );
    ended(
        Command::new("sh")
            .args(["-c", &format!("exec 2>&1; {line}")])
            .env("PATH", path)
            .env("USER", "ada"),
    )
    .1
}
