//! What operators do with messages that are held.

use std::process::Command;

use hapax_testkit::servers::Postgres;
use rustix::process::{Pid, kill_process};

use crate::harness::{self, Program, Signal, database_name, migrated, words};
use crate::{guest, hapax, insert, lines};

pub const HELD: &str = "0192f7a0-0000-7000-8000-000000000001";
pub const BEHIND: &str = "0192f7a0-0000-7000-8000-000000000002";
const SIGNED: &str = "--by ada --reason 'the endpoint is fixed'";

/// A database with the reader `stdout`, for which a message is held and another waits behind it.
pub fn with_held(postgres: &Postgres) -> String {
    let url = migrated(postgres);
    hapax(&format!("relay --once --store {url} --to stdout:")).assert_code(0);
    let row = |id: &str, state: i32, reason: &str| {
        format!(
            "('stdout', nextval('hapax.outbox_seq'), {state}, {}, {reason}, hapax.clock(), '{id}', 'orders', 'o-1', true, '{{}}', '{id}')",
            i32::from(state == 2)
        )
    };
    let sql = format!(
        "INSERT INTO hapax.deliveries (reader, seq, state, attempts, reason, at, id, topic, key, ordered, headers, payload) VALUES {}, {};
         UPDATE hapax.readers SET set_aside = 2",
        row(HELD, 2, "'404'"),
        row(BEHIND, 1, "NULL")
    );
    postgres.psql(database_name(&url), &sql);
    url
}

#[test]
fn a_held_message_is_shown_and_sent_again() {
    let Some(postgres) = Postgres::shared() else {
        return;
    };
    let url = with_held(postgres);
    let listed = hapax(&format!("outbox list --store {url} --json"));
    listed.assert_lines(0, 2);
    let messages = lines(&listed.stdout);
    assert_eq!(
        (
            &messages[0]["id"],
            &messages[0]["state"],
            &messages[0]["reason"]
        ),
        (&HELD.into(), &"held".into(), &"404".into())
    );
    assert_eq!(messages[1]["state"], "waiting");
    let held = hapax(&format!(
        "outbox list --store {url} --state held --reader stdout"
    ));
    held.assert_lines(0, 1);
    hapax(&format!("outbox list --store {url} --state dead")).assert_code(1);
    let shown = hapax(&format!("outbox show {HELD} --store {url}"));
    shown.assert_printed("reader    stdout: held after 1 attempts: 404");
    let readers = hapax(&format!("outbox readers --store {url} --json"));
    let reader = lines(&readers.stdout).remove(0);
    assert_eq!(
        (
            &reader["held"],
            &reader["waiting"],
            &reader["oldest"]["key"]
        ),
        (&1.into(), &1.into(), &"o-1".into())
    );
    // It waits for the one before.
    let early = hapax(&format!("outbox retry {BEHIND} --store {url} {SIGNED}"));
    early.assert_code(1);
    hapax(&format!("outbox retry {HELD} --store {url} {SIGNED}")).assert_code(0);
    let relay = format!("relay --once --store {url} --to stdout:");
    assert_eq!(lines(&hapax(&relay).stdout)[0]["id"], HELD);
    assert_eq!(lines(&hapax(&relay).stdout)[0]["id"], BEHIND);
    let log = hapax(&format!("keys log --store {url}"));
    log.assert_printed("outbox-retry\tada\t");
    log.assert_printed(&format!("the endpoint is fixed (stdout, {HELD})"));
}

#[test]
fn a_skipped_message_lets_the_later_ones_go() {
    let Some(postgres) = Postgres::shared() else {
        return;
    };
    let url = with_held(postgres);
    let skipped = hapax(&format!("outbox skip {HELD} --store {url} --json {SIGNED}"));
    skipped.assert_code(0);
    assert_eq!(lines(&skipped.stdout)[0]["reader"], "stdout");
    let said = hapax(&format!("relay --once --store {url} --to stdout:"));
    assert_eq!(lines(&said.stdout)[0]["id"], BEHIND);
    hapax(&format!("outbox skip {HELD} --store {url} {SIGNED}")).assert_code(1);
}

#[test]
fn a_reader_is_started_and_removed() {
    let Some(postgres) = Postgres::shared() else {
        return;
    };
    let url = with_held(postgres);
    let sql = "UPDATE hapax.readers SET stopped = 'the token was revoked'";
    postgres.psql(database_name(&url), sql);
    let relay = format!("relay --once --store {url} --to stdout:");
    let stopped = hapax(&relay);
    stopped.assert_code(1);
    stopped.assert_told("the token was revoked");
    hapax(&format!("outbox readers --store {url}"))
        .assert_printed("stopped: the token was revoked");
    let start = format!("outbox readers start stdout --store {url} {SIGNED}");
    hapax(&start).assert_code(0);
    hapax(&start).assert_code(1);
    hapax(&relay).assert_code(0);
    let remove = format!("outbox readers remove stdout --store {url} {SIGNED}");
    hapax(&remove).assert_code(0);
    let none = hapax(&format!("outbox readers --store {url}"));
    none.assert_code(1);
    none.assert_told("there are no readers");
}

#[test]
fn an_open_transaction_that_holds_messages_back_is_named() {
    let Some(postgres) = Postgres::shared() else {
        return;
    };
    let url = with_held(postgres);
    let mut writer = postgres.client("psql");
    writer.args([
        "--no-psqlrc",
        "--quiet",
        "--tuples-only",
        "--no-align",
        "--dbname",
        &url,
    ]);
    writer.args([
        "--command",
        "BEGIN; SELECT hapax.emit('t', 'k', 'open'), pg_backend_pid(); SELECT pg_sleep(600)",
    ]);
    let mut writer = writer
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let pid = loop {
        let readers = hapax(&format!("outbox readers --store {url} --json"));
        if let Some(pid) = lines(&readers.stdout)[0]["writer"]["pid"].as_i64() {
            break pid;
        }
    };
    let ended = postgres.psql(
        database_name(&url),
        &format!("SELECT pg_terminate_backend({pid})"),
    );
    assert_eq!(ended, "t");
    writer.wait().unwrap();
}

#[tokio::test]
async fn a_sqlite_file_has_the_same_commands_and_log() {
    let (_directory, path) = guest().await;
    let store = format!("sqlite:{}", path.display());
    insert(&path, "o-1", "first");
    insert(&path, "o-1", "second");
    let relay = format!("relay --once --store {store} --to stdout:");
    hapax(&relay).assert_lines(0, 2);
    let connection = rusqlite::Connection::open(&path).unwrap();
    let sql = "INSERT INTO hapax_deliveries (reader, seq, state, attempts, reason, at, id, topic, key, ordered, headers, payload)
               SELECT 'stdout', seq, 4 - seq - 1, 1, '404', at, id, topic, key, ordered, headers, payload FROM hapax_outbox";
    // Without a sweep both are still in the outbox: the first is held, the second waits behind it.
    connection.execute_batch(sql).unwrap();
    connection
        .execute_batch(
            "UPDATE hapax_readers SET set_aside = 2; UPDATE hapax_deliveries SET due_at = NULL",
        )
        .unwrap();
    let listed = hapax(&format!("outbox list --store {store} --json"));
    let messages = lines(&listed.stdout);
    let states: Vec<_> = messages.iter().map(|message| &message["state"]).collect();
    assert_eq!(states, ["held", "waiting"]);
    let (held, behind) = (
        messages[0]["id"].as_str().unwrap(),
        messages[1]["id"].as_str().unwrap(),
    );
    let readers = hapax(&format!("outbox readers --store {store} --json"));
    assert_eq!(lines(&readers.stdout)[0]["held"], 1);
    hapax(&format!("outbox show {held} --store {store}")).assert_printed("first");
    hapax(&format!("outbox retry {behind} --store {store} {SIGNED}")).assert_code(1);
    hapax(&format!("outbox retry {held} --store {store} {SIGNED}")).assert_code(0);
    assert_eq!(lines(&hapax(&relay).stdout)[0]["payload"], "first");
    hapax(&format!("outbox skip {behind} --store {store} {SIGNED}")).assert_code(0);
    hapax(&relay).assert_lines(0, 0);
    connection
        .execute_batch("UPDATE hapax_readers SET stopped = 'revoked'")
        .unwrap();
    hapax(&format!(
        "outbox readers start stdout --store {store} {SIGNED}"
    ))
    .assert_code(0);
    hapax(&format!(
        "outbox readers remove stdout --store {store} {SIGNED}"
    ))
    .assert_code(0);
    let sql =
        "SELECT group_concat(action, ' ') FROM (SELECT action FROM hapax_audit ORDER BY sequence)";
    let log: String = connection.query_row(sql, [], |row| row.get(0)).unwrap();
    assert_eq!(log, "outbox-retry outbox-skip reader-start reader-remove");
    // The log is one that the library reads: its checksums are right.
    let guest = hapax::store::guest::Guest::open(&path).await.unwrap();
    let engine = hapax::Hapax::builder(guest).sweep(None).build();
    let query = hapax::core::audit::LogQuery {
        record: None,
        from: hapax::core::audit::Start::After(0),
        limit: 10,
    };
    assert_eq!(engine.log(query).await.unwrap().len(), 4);
}

#[test]
fn watching_prints_an_object_for_each_look_and_off_a_terminal_nothing_else() {
    let Some(postgres) = Postgres::shared() else {
        return;
    };
    let url = with_held(postgres);
    for what in ["list", "readers"] {
        let line = format!("outbox {what} --watch --store {url}");
        let refused = hapax(&line);
        refused.assert_code(2);
        refused.assert_told("add --json");
        let json = format!("{line} --json");
        let mut watching = Program::start(harness::hapax().args(words(&json)));
        let held = watching.wait_for(match what {
            "list" => "\"state\":\"held\"",
            _ => "\"held\":1",
        });
        assert_eq!(lines(&held).len(), 1, "{held}");
        watching.wait_for("\"at\":");
        // Not INT, which a shell lets jobs in the background ignore.
        watching.signal(Signal::TERM);
        watching.ended();
    }
}

/// On a terminal, which `script` makes: a table on the second screen, and the first screen again at
/// the end.
#[test]
fn on_a_terminal_a_table_is_drawn_and_the_terminal_is_restored() {
    let Some(postgres) = Postgres::shared() else {
        return;
    };
    if Command::new("script").arg("--version").output().is_err() {
        return hapax_testkit::skipped("there is no script(1) here");
    }
    let url = with_held(postgres);
    for signal in [Signal::INT, Signal::TERM] {
        let line = format!(
            "stty rows 24 columns 120; echo process $$; exec {} outbox list --watch --store {url}",
            env!("CARGO_BIN_EXE_hapax")
        );
        let words = [
            "--quiet",
            "--return",
            "--flush",
            "--command",
            &line,
            "/dev/null",
        ];
        let mut terminal = Program::start(Command::new("script").args(words));
        let said = terminal.wait_for("process ");
        let process = said.trim_start_matches("process ").trim().parse().unwrap();
        let title = terminal.wait_for("2 messages set aside");
        assert!(
            title.contains("\u{1b}[?1049h\u{1b}[?25l\u{1b}[H"),
            "{title:?}"
        );
        // It is drawn a second time, over the first.
        terminal.wait_for("2 messages set aside");
        kill_process(Pid::from_raw(process).unwrap(), signal).unwrap();
        assert_eq!(terminal.ended().code(), Some(0), "{}", terminal.log());
        assert!(
            terminal
                .log()
                .trim_end()
                .ends_with("\u{1b}[?25h\u{1b}[?1049l"),
            "{:?}",
            terminal.log()
        );
    }
}
