//! `hapax keys` on a store file.

use hapax::Sqlite;
use hapax::core::outcome::Loss;
use tempfile::TempDir;

use super::fixture::{
    charges, directory, fill_people, hapax, hapax_with_input, id, lost, orders, refunds,
    without_age,
};
use super::harness::{Said, words};

/// Runs `hapax` with these arguments.
fn run(directory: &TempDir, line: &str) -> Said {
    hapax(directory.path(), &words(line))
}

/// Runs `hapax keys` on the store file.
fn keys(directory: &TempDir, line: &str) -> Said {
    run(directory, &format!("keys {line} --store sqlite:hapax.db"))
}

/// The lines of a listing for these keys.
fn expected(rows: &[(hapax::RecordId, &str)]) -> Vec<String> {
    rows.iter()
        .map(|(id, rest)| format!("{} {rest}", &id.to_string()[..8]))
        .collect()
}

#[tokio::test]
async fn every_key_is_listed_the_newest_first() {
    let directory = directory().await;
    let said = keys(&directory, "list");
    assert_eq!(
        (said.code, said.stderr.as_str()),
        (0, "looking into the store file hapax.db\n")
    );
    let all = expected(&[
        // The process that held the lease is gone, so the record is unknown.
        (
            id(&refunds(), "killed"),
            "unknown POST /v1/refunds killed (anonymous) 1 -",
        ),
        (
            id(&refunds(), "bytes"),
            "completed POST /v1/refunds bytes (anonymous) 1 200",
        ),
        (
            id(&orders(), "k 4"),
            "failed PATCH /v1/orders/7 k 4 eve\\u{202e}\\u{1b}[2J 1 404",
        ),
        (
            id(&refunds(), "order-3"),
            "unknown POST /v1/refunds order-3 (anonymous) 1 -",
        ),
        (
            id(&charges(), "order-3"),
            "unknown POST /v1/charges order-3 (anonymous) 1 -",
        ),
        (
            id(&charges(), "order-2"),
            "unknown POST /v1/charges order-2 (anonymous) 1 -",
        ),
        (
            id(&charges(), "order-1"),
            "completed POST /v1/charges order-1 (anonymous) 1 201",
        ),
    ]);
    assert_eq!(without_age(&said.stdout), all);
    let newest = keys(&directory, "list --limit 2");
    assert_eq!(without_age(&newest.stdout), all[..2]);
    newest.assert_told("there are older ones: raise --limit");
    let mut by_id = all.clone();
    by_id.sort();
    assert_eq!(without_age(&keys(&directory, "list --by-id").stdout), by_id);
}

/// A store with keys of several people, which no process has open.
async fn people() -> TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    let store = Sqlite::open(directory.path().join("hapax.db"))
        .await
        .expect("a store");
    fill_people(&store).await;
    directory
}

#[tokio::test]
async fn principals_are_typed_as_people_write_them() {
    let directory = people().await;
    let said = keys(&directory, "list --principal bob");
    said.assert_lines(0, 3);
    said.assert_told(
        "`bob` is 2 principals:\n  header:x-user bob\n  jwt:sub https://id.example.com bob\n",
    );
    let exact = keys(&directory, "list --principal 'header:x-user bob'");
    assert_eq!(
        (
            exact.code,
            exact.stdout.lines().count(),
            exact.stderr.contains("principals")
        ),
        (0, 2, false),
        "{}",
        exact.stderr
    );
    let eve = keys(&directory, "list --principal eve");
    assert_eq!(
        (
            eve.code,
            eve.stdout.lines().count(),
            eve.stderr.contains("principals")
        ),
        (0, 3, false),
        "{}",
        eve.stderr
    );
    let shown = keys(&directory, "show --key b-1 --principal bobby");
    shown.assert_printed("principal        header:x-user bobby\n");
    // An ambiguous name must not erase another person's answers.
    let said = keys(
        &directory,
        "forget --principal bob --reason r --by ada --yes",
    );
    said.assert_lines(2, 0);
    said.assert_told("nothing was changed: these may be several people");
}

#[tokio::test]
async fn nothing_matched_is_told_with_what_was_searched() {
    let directory = people().await;
    for (args, sentence) in [
        (
            "list --principal mallory",
            "nothing matched --principal mallory among 7 keys",
        ),
        (
            "list --json --by-id --principal mallory",
            "nothing matched --principal mallory among 7 keys",
        ),
        (
            "list --state running --older-than 2h",
            "nothing matched --state running --older-than 2h among 1 key",
        ),
        (
            "list --path /v2/** --older-than 90s",
            "nothing matched --path /v2/** --older-than 90s among 7 keys",
        ),
        (
            "show --key b-9 --path /v1/**",
            "nothing matched --key b-9 --path /v1/** among 7 keys",
        ),
        (
            "forget --principal mallory --reason r --yes",
            "nothing matched --principal mallory among 7 keys: nothing to do",
        ),
    ] {
        let said = keys(&directory, args);
        assert_eq!(
            (said.code, said.stdout.as_str()),
            (1, ""),
            "{args:?}: {}",
            said.stderr
        );
        assert!(
            said.stderr.ends_with(&format!("hapax: {sentence}\n")),
            "{args:?}: {}",
            said.stderr
        );
    }
}

#[tokio::test]
async fn forgetting_a_principal_proves_what_was_erased_and_what_is_left() {
    let directory = people().await;
    let forget = |principal: &'static str| {
        keys(
            &directory,
            &format!(
                "forget --principal '{principal}' --reason 'erasure request 7' --by ada --yes"
            ),
        )
    };
    let said = forget("header:x-user bob");
    said.assert_lines(0, 2);
    said.assert_told("forgotten: 2 records, 2 of them with an answer");
    said.assert_told("looked again: 2 records of header:x-user bob, of which 2 have neither an answer nor a fingerprint");
    // The unknown record is left, so the command does not succeed.
    let said = forget("eve");
    said.assert_lines(1, 2);
    said.assert_told("left out: 1 key of unknown outcome");
    said.assert_told("looked again: 3 records of eve, of which 2 have neither");
    assert!(
        said.stderr
            .ends_with("hapax: 1 record of eve left: 1 of unknown outcome: settle these first\n"),
        "{}",
        said.stderr
    );
    // Other people's records are kept.
    let bob = keys(
        &directory,
        "show --key b-1 --principal 'jwt:sub https://id.example.com bob' --answer",
    );
    assert!(
        bob.stdout.ends_with("jwt:sub https://id.example.com bob\n"),
        "{}{}",
        bob.stdout,
        bob.stderr
    );
}

/// The command looks at all keys, not only those within the limit, to decide who is meant and what
/// is left to do.
#[tokio::test]
async fn a_limit_neither_hides_another_person_nor_stops_an_erasure() {
    let directory = people().await;
    let forget = |principal: &'static str| {
        let line = format!(
            "forget --principal '{principal}' --limit 1 --reason 'erasure request 8' --by ada --yes"
        );
        keys(&directory, &line)
    };
    let said = forget("bob");
    said.assert_lines(2, 0);
    said.assert_told("these may be several people");
    let first = forget("header:x-user bob");
    first.assert_lines(1, 1);
    let second = forget("header:x-user bob");
    second.assert_lines(0, 1);
    second.assert_told("of which 2 have neither an answer nor a fingerprint");
}

#[tokio::test]
async fn filters_hold_together() {
    let directory = directory().await;
    let listed = |line: &str| {
        let said = keys(&directory, &format!("list {line}"));
        assert_eq!(
            said.code,
            i32::from(said.stdout.is_empty()),
            "{line}: {}",
            said.stderr
        );
        let keys = said
            .stdout
            .lines()
            .map(|line| line.split('\t').nth(3).expect("a key").to_owned());
        let mut keys: Vec<_> = keys.collect();
        keys.sort();
        keys.join(" ")
    };
    assert_eq!(listed("--state unknown"), "killed order-2 order-3 order-3");
    assert_eq!(
        listed("--state unknown --path /v1/charges"),
        "order-2 order-3"
    );
    assert_eq!(listed("--path /v1/orders/*"), "k 4");
    assert_eq!(listed("--method patch"), "k 4");
    assert_eq!(
        listed("--principal (anonymous) --state completed"),
        "bytes order-1"
    );
    assert_eq!(listed("--older-than 1h"), "");
    assert_eq!(listed("--newer-than 1h --state failed"), "k 4");
    assert_eq!(listed("--state running"), "");
}

#[tokio::test]
async fn what_is_not_there_to_ask_for_is_refused() {
    let directory = directory().await;
    for (args, code, word) in [
        (
            "keys list --state lost --store sqlite:hapax.db",
            2,
            "`lost` is no state",
        ),
        (
            "keys list --path v1 --store sqlite:hapax.db",
            2,
            "begins with `/`",
        ),
        (
            "keys list --older-than soon --store sqlite:hapax.db",
            2,
            "`soon` is no duration",
        ),
        (
            "keys list --older-than 90 --store sqlite:hapax.db",
            2,
            "`90` lacks its unit: write \"90s\"",
        ),
        ("health --timeout 2", 2, "`2` lacks its unit: write \"2s\""),
        ("demo --for 5", 2, "`5` lacks its unit: write \"5s\""),
        (
            "keys list --limit 10001 --store sqlite:hapax.db",
            2,
            "--json --by-id",
        ),
        ("keys list --store hapax.db", 2, "write sqlite:hapax.db"),
        ("keys list --store memory:", 2, "ask that one, with --admin"),
        (
            "keys list --store sqlite:other.db",
            3,
            "there is no store file other.db",
        ),
        (
            "keys list --admin http://127.0.0.1:1",
            3,
            "nobody answers at 127.0.0.1:1",
        ),
        ("keys list --admin 127.0.0.1", 2, "http://HOST:PORT"),
        ("keys show abc --store sqlite:hapax.db", 2, "is no id"),
        (
            "keys show 0123456 --store sqlite:hapax.db",
            1,
            "no key whose id begins with 0123456",
        ),
        (
            "keys settle --reason r --outcome not-done --store sqlite:hapax.db",
            2,
            "say which keys",
        ),
        (
            "keys settle 0123456 --outcome not-done --store sqlite:hapax.db",
            2,
            "--reason",
        ),
        (
            "keys settle 0123456 --reason r --store sqlite:hapax.db",
            2,
            "--outcome",
        ),
        (
            "keys settle 0123456 --reason r --outcome done --store sqlite:hapax.db",
            2,
            "--without-answer",
        ),
    ] {
        let said = run(&directory, args);
        assert_eq!(said.code, code, "{args:?}: {}", said.stderr);
        assert!(said.stderr.contains(word), "{args:?}: {}", said.stderr);
        assert_eq!(said.stdout, "", "{args:?}");
    }
    assert!(!directory.path().join("other.db").exists());
}

#[tokio::test]
async fn json_has_one_object_a_line_and_whole_ids() {
    let directory = directory().await;
    let said = keys(&directory, "list --json --method PATCH");
    assert_eq!(said.stdout.lines().count(), 1);
    assert!(
        said.stdout.contains("\\u202e") && !said.stdout.contains(['\u{202e}', '\u{1b}']),
        "{}",
        said.stdout
    );
    let object: serde_json::Value = serde_json::from_str(&said.stdout).expect("an object");
    assert_eq!(object["id"], id(&orders(), "k 4").to_string());
    assert_eq!(object["principal"], "eve\u{202e}\u{1b}[2J");
    assert_eq!(
        (&object["state"], &object["status"], &object["answer_kept"]),
        (&"failed".into(), &404.into(), &true.into())
    );
    let limited = keys(&directory, "list --json --by-id --limit 3");
    assert_eq!(limited.stdout.lines().count(), 3);
    let last: serde_json::Value =
        serde_json::from_str(limited.stdout.lines().last().unwrap()).unwrap();
    let after = last["id"].as_str().unwrap();
    limited.assert_told(&format!("--after {after}"));
    let rest = keys(&directory, &format!("list --json --by-id --after {after}"));
    assert_eq!(rest.stdout.lines().count(), 4);
    assert!(!rest.stderr.contains("--after"), "{}", rest.stderr);
}

#[tokio::test]
async fn a_lost_attempt_is_shown_with_its_cause_and_the_command_that_settles_it() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = Sqlite::open(directory.path().join("hapax.db"))
        .await
        .expect("a store");
    let losses = [
        (
            "answered",
            Loss::Answered(500),
            "the service answered 500, which does not say whether it acted",
        ),
        (
            "timed-out",
            Loss::TimedOut,
            "the service did not answer in time",
        ),
        (
            "lapsed",
            Loss::Lapsed,
            "the lease ended without an outcome: the node went away or lost the store",
        ),
        (
            "not-joined",
            Loss::NotJoined(Some(201)),
            "the service answered 201, but did not complete the record in the transaction of its effect",
        ),
    ];
    for (key, loss, _) in losses {
        lost(&store, &charges(), key, loss).await;
    }
    drop(store);
    let show = |line: &str| keys(&directory, &format!("show {line}"));
    for (key, loss, sentence) in losses {
        let id = id(&charges(), key).to_string();
        let said = show(&id);
        let status = match loss {
            Loss::Answered(status) | Loss::NotJoined(Some(status)) => status.to_string(),
            _ => "none known".to_owned(),
        };
        for line in [
            "request id       request-7",
            &format!("why              {sentence}"),
            &format!("status           {status}"),
        ] {
            assert!(
                said.stdout.lines().any(|shown| shown == line),
                "{line}\n{}",
                said.stdout
            );
        }
        let json = show(&format!("{id} --json"));
        let shown: serde_json::Value = serde_json::from_str(&json.stdout).expect("an object");
        assert_eq!(
            (&shown["cause"]["code"], &shown["cause"]["detail"]),
            (&key.into(), &sentence.into())
        );
        assert_eq!(shown["request_id"], "request-7");
        assert!(
            shown["status"].as_u64().is_none_or(|status| status < 1000),
            "{shown}"
        );
        // The printed command must work.
        let command = said
            .stdout
            .lines()
            .find(|line| line.contains("--without-answer"))
            .expect("a command");
        let line = command.trim().strip_prefix("hapax ").expect(command);
        run(&directory, line).assert_code(0);
        let after = show(&id).stdout;
        assert!(
            after.contains("state            completed\n")
                && after.contains("request id       request-7\n"),
            "{after}"
        );
        assert!(
            !after.contains("why  ") && !after.contains("keys settle"),
            "{after}"
        );
    }
}

#[tokio::test]
async fn a_key_is_shown_by_the_beginning_of_its_id() {
    let directory = directory().await;
    let id = id(&charges(), "order-1").to_string();
    let said = keys(&directory, &format!("show {} --answer", &id[..6]));
    said.assert_code(0);
    for line in [
        &format!("id               {id}")[..],
        "state            completed",
        "a repeat         gets the kept answer",
        "operation        POST /v1/charges",
        "key              order-1",
        "principal        (anonymous)",
        "status           201",
        "made with        2 sha256 auto, header content-encoding, header content-type",
        "HTTP 201",
        "content-type: application/json",
        "x-odd: a\\u{1b}b",
        "{\"id\":\"ch_1\",",
        "\"note\":\"\\u{1b}[31m\"}",
    ] {
        assert!(
            said.stdout.lines().any(|shown| shown == line),
            "{line}\n{}",
            said.stdout
        );
    }
    let times = said
        .stdout
        .lines()
        .find(|line| line.starts_with("replays until"))
        .expect("a time");
    assert!(
        times.ends_with("(in 23h 59m)") || times.ends_with("(in 1d)"),
        "{times}"
    );
    let without = keys(&directory, &format!("show {id}"));
    assert!(!without.stdout.contains("ch_1"), "{}", without.stdout);
}

#[tokio::test]
async fn a_key_is_shown_by_what_the_caller_sent() {
    let directory = directory().await;
    let by_key = |line: &str| keys(&directory, &format!("show --key {line}"));
    let found = by_key("order-2");
    let id = id(&charges(), "order-2").to_string();
    found.assert_printed(&id);
    let at_once = by_key("order-2 --path /v1/charges --principal (anonymous)");
    at_once.assert_printed(&id);
    let several = by_key("order-3");
    let listed = expected(&[
        (
            super::fixture::id(&refunds(), "order-3"),
            "unknown POST /v1/refunds order-3 (anonymous) 1 -",
        ),
        (
            super::fixture::id(&charges(), "order-3"),
            "unknown POST /v1/charges order-3 (anonymous) 1 -",
        ),
    ]);
    assert_eq!(
        (several.code, without_age(&several.stdout)),
        (0, listed),
        "{}",
        several.stderr
    );
    several.assert_told("2 records have this key: show one of them with `hapax keys show ID`");
    let none = by_key("order-9");
    none.assert_code(1);
    none.assert_told("nothing matched --key order-9 among 7 keys");
    let bytes = by_key("bytes --answer");
    assert!(
        bytes.stdout.contains("(2 bytes that are no text"),
        "{}",
        bytes.stdout
    );
}

#[tokio::test]
async fn an_unknown_is_settled_as_done_with_its_answer() {
    let directory = directory().await;
    let id = id(&charges(), "order-2").to_string();
    let line = format!(
        "keys settle {} --outcome done --status 201 --header 'Content-Type: application/json' \
         --body - --reason 'ch_2 is in the ledger' --store sqlite:hapax.db",
        &id[..8]
    );
    let args = words(&line);
    let said = hapax_with_input(directory.path(), &args, br#"{"id":"ch_2"}"#);
    said.assert_code(0);
    said.assert_told("signed as ada@");
    assert_eq!(
        said.stdout,
        format!("settled\t{id}\tcompleted\tPOST /v1/charges\torder-2\n")
    );
    let shown = keys(&directory, &format!("show {id} --answer"));
    assert!(
        shown
            .stdout
            .ends_with("HTTP 201\ncontent-type: application/json\n\n{\"id\":\"ch_2\"}\n"),
        "{}",
        shown.stdout
    );
    let again = hapax_with_input(directory.path(), &args, b"{}");
    again.assert_lines(1, 0);
    again.assert_told("only an unknown outcome can be settled");
    assert!(
        again.stderr.ends_with("hapax: 1 of 1 key not settled\n"),
        "{}",
        again.stderr
    );
}

#[tokio::test]
async fn settling_by_filter_shows_what_it_would_do_and_wants_a_yes() {
    let directory = directory().await;
    // One answer cannot belong to several keys.
    let one_for_all = "settle --path /v1/** --outcome done --status 201 --body - --reason r --yes";
    let said = keys(&directory, one_for_all);
    said.assert_lines(2, 0);
    said.assert_told("this is about 4 keys, and an answer belongs to one");
    let settle = "settle --path /v1/** --outcome not-done --reason 'the bank was down' --by ops";
    let said = keys(&directory, settle);
    said.assert_lines(2, 0);
    said.assert_told("4 keys would be settled as not done: the next repeat of each RUNS it");
    assert!(
        said.stderr.contains("/v1/refunds") && said.stderr.contains("--yes"),
        "{}",
        said.stderr
    );
    let unknown = "list --state unknown";
    assert_eq!(
        keys(&directory, unknown).stdout.lines().count(),
        4,
        "nothing was changed"
    );

    let said = keys(&directory, &format!("{settle} --yes"));
    said.assert_code(0);
    let lines: Vec<_> = said.stdout.lines().collect();
    assert!(
        lines.len() == 4
            && lines
                .iter()
                .all(|line| line.starts_with("settled\t") && line.contains("\tretryable\t")),
        "{lines:?}"
    );
    assert_eq!(keys(&directory, unknown).stdout, "");
    let said = keys(&directory, settle);
    said.assert_code(1);
    said.assert_told("nothing to do");
}

#[tokio::test]
async fn part_of_a_change_that_fails_is_told_and_ends_badly() {
    let directory = directory().await;
    let (unknown, done) = (
        id(&charges(), "order-3").to_string(),
        id(&charges(), "order-1").to_string(),
    );
    let line = format!("settle {unknown} {done} --outcome done --without-answer --reason r");
    let said = keys(&directory, &line);
    assert_eq!(said.code, 1);
    assert_eq!(
        said.stdout,
        format!("settled\t{unknown}\tcompleted\tPOST /v1/charges\torder-3\n")
    );
    said.assert_told(&format!("not settled: {done}: "));
    assert!(
        said.stderr.ends_with("hapax: 1 of 2 keys not settled\n"),
        "{}",
        said.stderr
    );
}

#[tokio::test]
async fn a_forgotten_answer_is_gone_and_its_key_stays() {
    let directory = directory().await;
    let id = id(&charges(), "order-1").to_string();
    let said = keys(
        &directory,
        &format!("forget {id} --reason 'erasure request 7'"),
    );
    said.assert_code(0);
    assert_eq!(
        said.stdout,
        format!("forgotten\t{id}\texpired (completed)\tPOST /v1/charges\torder-1\n")
    );
    let shown = keys(&directory, &format!("show {id} --answer"));
    for line in [
        "a repeat         gets 410 key-expired",
        "fingerprint      erased",
        "There is no answer to show.",
    ] {
        assert!(
            shown.stdout.lines().any(|shown| shown == line),
            "{line}\n{}",
            shown.stdout
        );
    }
}

#[tokio::test]
async fn a_file_in_use_can_be_looked_at_and_says_who_can_change_it() {
    let directory = directory().await;
    let _owner = Sqlite::open(directory.path().join("hapax.db"))
        .await
        .expect("a store");
    assert_eq!(keys(&directory, "list").stdout.lines().count(), 7);
    let id = id(&charges(), "order-2").to_string();
    let said = keys(
        &directory,
        &format!("settle {id} --outcome not-done --reason r"),
    );
    said.assert_lines(3, 0);
    let process = format!("in use by process {}", std::process::id());
    assert!(
        said.stderr.contains(&process) && said.stderr.contains("--admin"),
        "{}",
        said.stderr
    );
}

#[tokio::test]
async fn without_flags_the_file_here_is_found_and_else_it_is_said_what_to_do() {
    // Another program may use the gateway's default port on this machine; then this test cannot
    // run.
    if std::net::TcpStream::connect("127.0.0.1:4001").is_ok() {
        return;
    }
    let directory = directory().await;
    let said = run(&directory, "keys list");
    assert_eq!(
        (said.code, said.stderr.as_str()),
        (0, "looking into the store file hapax.db\n")
    );
    let empty = tempfile::tempdir().unwrap();
    let said = run(&empty, "keys list");
    assert_eq!(said.code, 3);
    said.assert_told(
        "--admin http://HOST:PORT, --store sqlite:FILE, --store postgres://USER@HOST/DATABASE or --store redis://HOST:PORT",
    );
    assert_eq!(
        std::fs::read_dir(empty.path()).unwrap().count(),
        0,
        "looking makes no file"
    );
}
