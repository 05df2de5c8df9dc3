//! Mistakes on the command line and in files, and databases that are not there.

use crate::harness::{self, Program, Signal, words};
use crate::{free_address, guest, hapax};

#[test]
fn wrong_flags_end_with_2_and_say_what_to_write() {
    for (line, said) in [
        ("relay", "where to? Give --to stdout:"),
        ("relay --to stdout:", "which database?"),
        (
            "relay --store memory: --to stdout:",
            "memory: has no outbox",
        ),
        ("relay --store redis://a --to stdout:", "has no outbox"),
        (
            "relay --store sqlite:/nowhere/a.db --to stdout:",
            "there is no file /nowhere/a.db",
        ),
        (
            "relay --store postgres://a@b/c --to pigeon:",
            "there is no destination `pigeon:`",
        ),
        (
            "relay --store postgres://a@b/c --to stdout",
            "write stdout: with a colon",
        ),
        (
            "relay --store postgres://a@b/c --to stdout: --reader 'a b'",
            "the name of a reader is",
        ),
        (
            "relay --store postgres://a@b/c --to stdout: --give-up never",
            "hold",
        ),
        (
            "relay --store postgres://a@b/c --to stdout: --attempts 0",
            "0 is not in 1..=1000000",
        ),
        ("outbox list", "which database?"),
        ("outbox show abc --store postgres://a@b/c", "abc"),
        (
            "outbox skip 0192f7a0-0000-7000-8000-000000000000 --store postgres://a@b/c",
            "--reason",
        ),
    ] {
        let ended = hapax(line);
        assert_eq!(ended.code, 2, "{line}: {}", ended.stderr);
        assert!(ended.stderr.contains(said), "{line}: {}", ended.stderr);
    }
}

#[test]
fn mistakes_in_a_file_have_their_line() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("hapax.toml");
    for (settings, line, said) in [
        (
            "[relay.orders]\ngive_up = \"hold\"\n",
            1,
            "the relay `orders` lacks `to`",
        ),
        (
            "[relay.orders]\nto = \"pigeon:\"\n",
            2,
            "there is no destination `pigeon:`",
        ),
        (
            "[relay.orders]\nto = \"null:\"\ngiveup = \"hold\"\n",
            3,
            "did you mean `give_up`?",
        ),
        (
            "[relay.orders]\nto = \"null:\"\npoll = \"2m\"\n",
            3,
            "write at most \"60s\"",
        ),
        (
            "[relay.\"a b\"]\nto = \"null:\"\n",
            1,
            "the name of a reader is",
        ),
        (
            "[relay]\nto = \"null:\"\n",
            2,
            "write [relay.orders] and its settings below",
        ),
    ] {
        harness::replace(&file, &format!("store = \"postgres://a@b/c\"\n{settings}"));
        let ended = hapax(&format!("relay --config {}", file.display()));
        assert_eq!(ended.code, 2, "{settings}: {}", ended.stderr);
        ended.assert_told(&format!("hapax.toml:{}:", line + 1));
        ended.assert_told(said);
    }
}

#[tokio::test]
async fn files_without_an_outbox_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let embedded = directory.path().join("hapax.db");
    drop(hapax::Sqlite::open(&embedded).await.unwrap());
    let other = directory.path().join("other.db");
    let connection = rusqlite::Connection::open(&other).unwrap();
    connection
        .execute_batch("CREATE TABLE orders (id)")
        .unwrap();
    let (_kept, good) = guest().await;
    for (path, code, said) in [
        (&embedded, 2, "is the embedded store of a gateway"),
        (&other, 2, "the file has no outbox"),
        (&good, 0, "stdout: published 0"),
    ] {
        let line = format!(
            "relay --once --to stdout: --store sqlite:{}",
            path.display()
        );
        let ended = hapax(&line);
        assert_eq!(ended.code, code, "{}", ended.stderr);
        ended.assert_told(said);
    }
}

#[test]
fn a_database_that_is_not_there_is_tried_again_until_a_signal() {
    let nobody = free_address();
    let store = format!("postgres://postgres@{nobody}/hapax");
    let once = hapax(&format!("relay --once --to stdout: --store {store}"));
    once.assert_code(3);
    let line = format!("relay --log text --to stdout: --store {store}");
    let mut relay = Program::start(harness::hapax().args(words(&line)));
    relay.wait_for("the relay begins anew");
    relay.wait_for("the relay begins anew");
    relay.signal(Signal::INT);
    assert_eq!(relay.ended().code(), Some(0));
}
