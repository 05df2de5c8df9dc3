//! What goes wrong with an outbox in Postgres, one test each. Every test also shows the naive way
//! that fails, so that it would notice if the real one fell into the trap.

use std::time::Duration;

use hapax_flow::outbox::{Held, Outbox, PageLimit, PostgresOutbox, Take};
use hapax_testkit::servers::Postgres;
use tokio_postgres::Client;

use crate::naive::{ByNumber, BySnapshot, ByXmin};
use crate::place::{self, Database, Inbox};

/// A reader that is moved on by hand.
struct Walker {
    outbox: PostgresOutbox,
    held: Held,
    position: <PostgresOutbox as Outbox>::Position,
    page: PageLimit,
}

impl Walker {
    async fn begin(url: &str) -> Walker {
        let outbox = place::outbox(url);
        let taken = outbox
            .take("walker", "test", Duration::from_secs(3600))
            .await;
        let Ok(Take::Taken { held, position, .. }) = taken else {
            panic!("{taken:?}");
        };
        let page = PageLimit {
            messages_max: 1000,
            bytes_max: 1 << 20,
        };
        Walker {
            outbox,
            held,
            position,
            page,
        }
    }

    /// Everything that is new, and a mark.
    async fn walk(&mut self) -> Vec<String> {
        let mut texts = Vec::new();
        loop {
            let page = self
                .outbox
                .page(&self.position, self.page)
                .await
                .expect("a page");
            assert!(page.messages.len() <= self.page.messages_max);
            let text = |message: &hapax_core::flow::Envelope| {
                String::from_utf8_lossy(&message.payload).into_owned()
            };
            texts.extend(page.messages.iter().map(text));
            self.position = page.next;
            if page.messages.is_empty() && !page.look_again {
                break;
            }
        }
        self.outbox
            .mark(&self.held, &self.position, 0, &[])
            .await
            .expect("a mark");
        texts
    }
}

async fn run(session: &Client, sql: &str) {
    session
        .batch_execute(sql)
        .await
        .unwrap_or_else(|error| panic!("{sql}: {error:?}"));
}

async fn emit(session: &Client, key: &str, text: &str) {
    run(
        session,
        &format!("SELECT hapax.emit('t', '{key}', '{text}')"),
    )
    .await;
}

/// Edits a function of the schema, to plant a bug in it.
async fn plant(session: &Client, function: &str, was: &str, becomes: &str) {
    let sql = "SELECT pg_get_functiondef(p.oid) FROM pg_proc AS p WHERE p.pronamespace = 'hapax'::regnamespace AND p.proname = $1";
    let text: String = session
        .query_one(sql, &[&function])
        .await
        .expect("a function")
        .get(0);
    assert!(text.contains(was), "{text}");
    run(session, &text.replace(was, becomes)).await;
}

#[tokio::test]
async fn a_number_that_commits_late_is_not_passed_over() {
    let Some(database) = Database::new().await else {
        return;
    };
    let (early, late) = (database.session().await, database.session().await);
    let (mut real, mut naive) = (Walker::begin(&database.url).await, ByNumber::new());
    run(&early, "BEGIN").await;
    emit(&early, "a", "first number").await;
    emit(&late, "b", "second number").await;
    assert_eq!(
        (real.walk().await, naive.walk(&late).await),
        (vec!["second number".into()], vec!["second number".into()])
    );
    run(&early, "COMMIT").await;
    assert_eq!(real.walk().await, ["first number"]);
    assert_eq!(
        naive.walk(&late).await,
        Vec::<String>::new(),
        "the naive one loses it"
    );
}

#[tokio::test]
async fn an_open_transaction_holds_nobody_up_not_even_in_another_database() {
    let Some(database) = Database::new().await else {
        return;
    };
    let elsewhere = place::session(&database.server.database()).await;
    let session = database.session().await;
    let (mut real, mut naive) = (Walker::begin(&database.url).await, ByXmin::new());
    run(&elsewhere, "BEGIN; SELECT pg_current_xact_id()").await;
    emit(&session, "a", "one").await;
    assert_eq!(real.walk().await, ["one"]);
    assert_eq!(
        naive.walk(&session).await,
        Vec::<String>::new(),
        "the naive one stands still"
    );
    run(&elsewhere, "ROLLBACK").await;
    // Transactions of other tests hold it up too.
    let mut late = Vec::new();
    while late.is_empty() {
        late = naive.walk(&session).await;
    }
    assert_eq!(late, ["one"]);
    assert_eq!(real.walk().await, Vec::<String>::new());
}

#[tokio::test]
async fn the_order_is_that_of_commits_and_not_of_transactions() {
    let Some(database) = Database::new().await else {
        return;
    };
    let (first, second) = (database.session().await, database.session().await);
    let (mut real, mut naive) = (Walker::begin(&database.url).await, ByXmin::new());
    run(&first, "BEGIN; SELECT pg_current_xact_id()").await;
    emit(&second, "a", "commits first").await;
    emit(&first, "a", "commits second").await;
    run(&first, "COMMIT").await;
    assert_eq!(real.walk().await, ["commits first", "commits second"]);
    // Transactions of other tests hold it up.
    let mut turned = Vec::new();
    while turned.len() < 2 {
        turned.extend(naive.walk(&second).await);
    }
    assert_eq!(
        turned,
        ["commits second", "commits first"],
        "the naive one turns them round"
    );
}

/// A transaction that emits before it waits for a row. Without the lock on the key its number is
/// lower than that of the one that commits before it.
#[tokio::test]
async fn a_transaction_that_emits_before_it_waits_for_a_row_is_not_published_too_early() {
    let Some(database) = Database::new().await else {
        return;
    };
    let (one, other) = (database.session().await, database.session().await);
    run(
        &one,
        "CREATE TABLE account (balance int); INSERT INTO account VALUES (1)",
    )
    .await;
    let mut real = Walker::begin(&database.url).await;
    for ordered in [false, true] {
        run(&other, "BEGIN; UPDATE account SET balance = 2").await;
        run(
            &one,
            &format!(
                "BEGIN; SELECT hapax.emit('t', 'a', 'waits for the row', ordered => {ordered})"
            ),
        )
        .await;
        let waiting = async {
            match one.batch_execute("UPDATE account SET balance = 3").await {
                Ok(()) => run(&one, "COMMIT").await,
                Err(_) => run(&one, "ROLLBACK").await,
            }
        };
        let holding = async {
            wait_for_a_waiter(&database).await;
            let emit = format!("SELECT hapax.emit('t', 'a', 'has the row', ordered => {ordered})");
            match other.batch_execute(&emit).await {
                Ok(()) => run(&other, "COMMIT").await,
                Err(_) => run(&other, "ROLLBACK").await,
            }
        };
        tokio::join!(waiting, holding);
        let published = real.walk().await;
        if ordered {
            assert_eq!(
                published.len(),
                1,
                "the database has ended one of the two: {published:?}"
            );
        } else {
            assert_eq!(
                published,
                ["waits for the row", "has the row"],
                "the naive emit turns them round"
            );
        }
    }
}

/// Returns when a backend of the database waits for a lock.
async fn wait_for_a_waiter(database: &Database) {
    let session = database.session().await;
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
    while session
        .query_one(sql, &[])
        .await
        .expect("a count")
        .get::<_, i64>(0)
        == 0
    {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_running_transaction_above_the_snapshot_is_found() {
    let Some(database) = Database::new().await else {
        return;
    };
    let (writer, session) = (database.session().await, database.session().await);
    let (mut real, mut naive) = (Walker::begin(&database.url).await, BySnapshot::new());
    emit(&session, "a", "before").await;
    assert_eq!(
        (real.walk().await, naive.walk(&session).await),
        (vec!["before".into()], vec!["before".into()])
    );
    // Its id is the next one: no snapshot lists it as running until a later one has ended.
    run(&writer, "BEGIN").await;
    emit(&writer, "a", "running").await;
    assert!(naive.walk(&session).await.is_empty() && real.walk().await.is_empty());
    run(&writer, "COMMIT").await;
    assert_eq!(real.walk().await, ["running"]);
    assert_eq!(
        naive.walk(&session).await,
        Vec::<String>::new(),
        "the naive one loses it"
    );
}

#[tokio::test]
async fn a_transaction_gets_its_id_before_its_number() {
    let Some(database) = Database::new().await else {
        return;
    };
    let (writer, session) = (database.session().await, database.session().await);
    let pause = "PERFORM pg_advisory_xact_lock(1, 1);";
    let id = "x constant xid8 := pg_current_xact_id();";
    let number = "n := nextval('hapax.outbox_seq');";
    // The real order, with a pause in between; then the other one.
    plant(&session, "emit_here", number, &format!("{pause} {number}")).await;
    for is_naive in [false, true] {
        if is_naive {
            plant(&session, "emit_here", id, "x xid8;").await;
            plant(
                &session,
                "emit_here",
                &format!("{pause} {number}"),
                &format!("{number} {pause} x := pg_current_xact_id();"),
            )
            .await;
            // What takes an id before the number otherwise: the lock on the key and the setting do not.
        }
        let mut real = Walker::begin(&database.url).await;
        real.walk().await;
        run(&session, "BEGIN; SELECT pg_advisory_xact_lock(1, 1)").await;
        let emitting = emit(&writer, "a", "paused");
        let meanwhile = async {
            wait_for_a_waiter(&database).await;
            // Two marks, and other transactions in between.
            for _ in 0..3 {
                run(&session, "SAVEPOINT s; SELECT pg_current_xact_id()").await;
                run(&database.session().await, "SELECT pg_current_xact_id()").await;
                real.walk().await;
            }
            run(&session, "COMMIT").await;
        };
        tokio::join!(emitting, meanwhile);
        let published = real.walk().await;
        assert_eq!(
            published.len(),
            usize::from(!is_naive),
            "the naive emit loses it: {published:?}"
        );
    }
}

#[tokio::test]
async fn the_first_number_of_a_fresh_sequence_is_found() {
    for is_naive in [false, true] {
        let Some(database) = Database::new().await else {
            return;
        };
        let session = database.session().await;
        if is_naive {
            run(&session, "CREATE OR REPLACE FUNCTION hapax.outbox_top() RETURNS int8 LANGUAGE sql VOLATILE AS $$ SELECT last_value FROM hapax.outbox_seq $$").await;
        }
        let mut real = Walker::begin(&database.url).await;
        real.walk().await;
        real.walk().await;
        emit(&session, "a", "the very first").await;
        let published = real.walk().await;
        assert_eq!(
            published.len(),
            usize::from(!is_naive),
            "the naive one loses it: {published:?}"
        );
    }
}

#[tokio::test]
async fn savepoints_are_part_of_their_transaction() {
    let Some(database) = Database::new().await else {
        return;
    };
    let (writer, session) = (database.session().await, database.session().await);
    let mut real = Walker::begin(&database.url).await;
    run(
        &writer,
        "BEGIN; SELECT hapax.emit('t', 'a', '1'); SAVEPOINT s",
    )
    .await;
    emit(&session, "b", "other").await;
    assert_eq!(real.walk().await, ["other"]);
    run(&writer, "SELECT hapax.emit('t', 'a', '2'); RELEASE s; SAVEPOINT s; SELECT hapax.emit('t', 'c', 'gone'); ROLLBACK TO s").await;
    // The lock on `c` went with the savepoint, and so did the memory of it.
    emit(&session, "c", "other c").await;
    run(&writer, "SELECT hapax.emit('t', 'c', '3')").await;
    assert_eq!(real.walk().await, ["other c"]);
    run(&writer, "COMMIT").await;
    assert_eq!(real.walk().await, ["1", "2", "3"]);
}

#[tokio::test]
async fn a_prepared_transaction_is_published_when_it_commits_and_keeps_its_key() {
    let Some(server) = Postgres::with(&[("max_prepared_transactions", "5")]) else {
        return;
    };
    let url = server.database();
    place::migrate(&url).await;
    let (writer, session) = (place::session(&url).await, place::session(&url).await);
    let mut real = Walker::begin(&url).await;
    run(
        &writer,
        "BEGIN; SELECT hapax.emit('t', 'a', 'prepared'); PREPARE TRANSACTION 'p'",
    )
    .await;
    emit(&session, "b", "other").await;
    assert_eq!(real.walk().await, ["other"]);
    let waits = session
        .batch_execute("SET lock_timeout = '50ms'; SELECT hapax.emit('t', 'a', 'after it')")
        .await;
    assert_eq!(
        waits
            .expect_err("the key is locked")
            .code()
            .map(|code| code.code().to_owned())
            .as_deref(),
        Some("55P03")
    );
    run(&writer, "COMMIT PREPARED 'p'").await;
    emit(&session, "a", "after it").await;
    assert_eq!(real.walk().await, ["prepared", "after it"]);
}

#[tokio::test]
async fn one_late_transaction_of_many_rows_is_published_whole_in_bounded_pages() {
    let Some(database) = Database::new().await else {
        return;
    };
    let (writer, session) = (database.session().await, database.session().await);
    let mut real = Walker::begin(&database.url).await;
    run(
        &writer,
        "BEGIN; SELECT hapax.emit('t', NULL, n::text) FROM generate_series(1, 100000) AS n",
    )
    .await;
    for n in 0..50 {
        emit(&session, "a", &format!("other {n}")).await;
        assert_eq!(real.walk().await, [format!("other {n}")]);
    }
    run(&writer, "COMMIT").await;
    emit(&session, "a", "last").await;
    let published = real.walk().await;
    let expected: Vec<String> = (1..=100_000)
        .map(|n| n.to_string())
        .chain(["last".into()])
        .collect();
    assert_eq!(published.len(), expected.len());
    assert!(published == expected);
}

#[tokio::test]
async fn a_writer_that_idles_in_its_transaction_for_the_whole_run_holds_up_only_its_message() {
    let Some(database) = Database::new().await else {
        return;
    };
    let (idle, session) = (database.session().await, database.session().await);
    let mut real = Walker::begin(&database.url).await;
    run(&idle, "BEGIN").await;
    emit(&idle, "idle", "idle").await;
    let mut published = 0;
    for _ in 0..50 {
        run(
            &session,
            "SELECT hapax.emit('t', (n % 7)::text, n::text) FROM generate_series(1, 100) AS n",
        )
        .await;
        published += real.walk().await.len();
    }
    assert_eq!(published, 5000);
    run(&idle, "COMMIT").await;
    assert_eq!(real.walk().await, ["idle"]);
}

/// Moves the sequence to the next table of the ring.
async fn turn(session: &Client) {
    run(
        session,
        "SELECT setval('hapax.outbox_seq', ((hapax.outbox_top() >> 16) + 1) << 16)",
    )
    .await;
}

#[tokio::test]
async fn tables_are_emptied_when_every_reader_has_their_messages() {
    let Some(database) = Database::new().await else {
        return;
    };
    let (writer, session) = (database.session().await, database.session().await);
    let mut real = Walker::begin(&database.url).await;
    let count = "SELECT count(*) FROM hapax.outbox";
    let rows = async || {
        session
            .query_one(count, &[])
            .await
            .expect("a count")
            .get::<_, i64>(0)
    };
    let sweep = async || {
        session
            .query_one("SELECT hapax.outbox_sweep()", &[])
            .await
            .expect("sweeps")
            .get::<_, i32>(0)
    };
    // An emitter that is open keeps its table, whether its row is there yet or not.
    emit(&session, "a", "published").await;
    run(&writer, "BEGIN").await;
    emit(&writer, "b", "open").await;
    real.walk().await;
    turn(&session).await;
    for _ in 0..3 {
        real.walk().await;
        run(&session, "SELECT pg_current_xact_id()").await;
    }
    assert_eq!(sweep().await, 0, "an open emitter has its lock");
    run(&writer, "COMMIT").await;
    assert_eq!(sweep().await, 0, "its message is not published");
    assert_eq!(real.walk().await, ["open"]);
    // The reader's mark has to follow.
    for _ in 0..2 {
        run(&session, "SELECT pg_current_xact_id()").await;
        real.walk().await;
    }
    assert_eq!((sweep().await, rows().await), (1, 0));
    // A second reader that has not read keeps them.
    let idle = place::outbox(&database.url);
    let taken = idle
        .take("second", "test", Duration::from_secs(3600))
        .await
        .expect("taken");
    assert!(matches!(taken, Take::Taken { .. }));
    emit(&session, "a", "for both").await;
    turn(&session).await;
    for _ in 0..3 {
        run(&session, "SELECT pg_current_xact_id()").await;
        real.walk().await;
    }
    assert_eq!((sweep().await, rows().await), (0, 1));
}

/// An emitter that has its number, and writes its row after its table was emptied.
#[tokio::test]
async fn a_row_that_arrives_after_its_table_was_emptied_is_published() {
    let Some(database) = Database::new().await else {
        return;
    };
    let (writer, session) = (database.session().await, database.session().await);
    let number = "slot := ((n >> 16) & 15)::int4;";
    plant(
        &session,
        "emit_here",
        number,
        &format!("{number} PERFORM pg_advisory_xact_lock(1, 1);"),
    )
    .await;
    let mut real = Walker::begin(&database.url).await;
    emit(&session, "a", "published").await;
    run(&session, "BEGIN; SELECT pg_advisory_xact_lock(1, 1)").await;
    let other = database.session().await;
    let meanwhile = async {
        wait_for_a_waiter(&database).await;
        turn(&other).await;
        for _ in 0..3 {
            run(&other, "SELECT pg_current_xact_id()").await;
            real.walk().await;
        }
        let emptied: i32 = other
            .query_one("SELECT hapax.outbox_sweep()", &[])
            .await
            .expect("sweeps")
            .get(0);
        assert_eq!(emptied, 1);
        run(&session, "COMMIT").await;
    };
    tokio::join!(emit(&writer, "b", "late"), meanwhile);
    assert_eq!(real.walk().await, ["late"]);
}

/// The database of a primary, half published, goes on at its standby.
#[tokio::test]
async fn a_promotion_in_the_middle_of_a_page_loses_nothing() {
    let Some(mut primary) = Postgres::start() else {
        return;
    };
    let url = primary.database();
    let name = url.rsplit('/').next().expect("a name").to_owned();
    place::migrate(&url).await;
    let mut standby = primary.synchronous_standby();
    let (writer, open) = (place::session(&url).await, place::session(&url).await);
    run(
        &open,
        "BEGIN; SELECT hapax.emit('t', 'open', 'never committed')",
    )
    .await;
    run(
        &writer,
        "SELECT hapax.emit('t', (n % 5)::text, n::text) FROM generate_series(1, 100) AS n",
    )
    .await;
    let mut walker = Walker::begin(&url).await;
    walker.page.messages_max = 30;
    let page = walker
        .outbox
        .page(&walker.position, walker.page)
        .await
        .expect("a page");
    walker.position = page.next;
    walker
        .outbox
        .mark(&walker.held, &walker.position, 30, &[])
        .await
        .expect("a mark");
    assert_eq!(page.messages.len(), 30);
    primary.kill();
    standby.promote();
    standby.alone();
    let session = place::session(&standby.url(&name)).await;
    emit(&session, "5", "after").await;
    let outbox = place::outbox(&standby.url(&name));
    let taken = outbox
        .take("walker", "test", Duration::from_secs(3600))
        .await
        .expect("taken");
    let Take::Taken {
        held,
        position,
        news,
    } = taken
    else {
        panic!("{taken:?}")
    };
    assert_eq!(news, Some(hapax_flow::outbox::News::FailedOver));
    let mut walker = Walker {
        outbox,
        held,
        position,
        page: walker.page,
    };
    let expected: Vec<String> = (31..=100)
        .map(|n| n.to_string())
        .chain(["after".into()])
        .collect();
    assert_eq!(walker.walk().await, expected);
}

/// A dump of a database in which some messages are published, restored into another server.
#[tokio::test]
async fn a_restored_database_publishes_what_was_not_surely_published_and_what_comes_after() {
    let Some(old) = Postgres::shared() else {
        return;
    };
    for is_naive in [false, true] {
        let (url, new) = (
            old.database(),
            Postgres::made_anew().expect("it is installed"),
        );
        place::migrate(&url).await;
        let name = url.rsplit('/').next().expect("a name");
        let session = place::session(&url).await;
        // The old server has given many more ids than the new one.
        run(&session, "DO $$ BEGIN FOR n IN 1 .. 3000 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$").await;
        let mut walker = Walker::begin(&url).await;
        emit(&session, "a", "published").await;
        assert_eq!(walker.walk().await, ["published"]);
        walker.walk().await;
        emit(&session, "a", "not published").await;
        let dump = old.client("pg_dump").arg(name).output().expect("pg_dump");
        assert!(dump.status.success());
        let url = new.database();
        let name = url.rsplit('/').next().expect("a name");
        new.psql(name, &String::from_utf8_lossy(&dump.stdout));
        let session = place::session(&url).await;
        if is_naive {
            run(
                &session,
                "CREATE OR REPLACE FUNCTION hapax.outbox_rebase() RETURNS void LANGUAGE sql AS ''",
            )
            .await;
        }
        emit(&session, "a", "before the relay").await;
        let inbox = Inbox::new();
        let relay = hapax_flow::relay::Relay::new(
            place::outbox(&url),
            inbox.clone(),
            hapax_flow::relay::Options::new("walker"),
        );
        run(&session, "UPDATE hapax.readers SET lease_until = 0").await;
        relay.run_once().await.expect("a round");
        emit(&session, "a", "after the relay").await;
        relay.run_once().await.expect("a round");
        if is_naive {
            assert!(
                inbox.texts().len() < 3,
                "the naive one loses some: {:?}",
                inbox.texts()
            );
        } else {
            assert_eq!(
                inbox.texts(),
                ["not published", "before the relay", "after the relay"]
            );
        }
        assert_eq!(
            relay.progress().counts().failovers,
            if is_naive { 2 } else { 1 }
        );
    }
}
