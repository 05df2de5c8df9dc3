//! What `hapax.emit` and `hapax.emit_all` do, and refuse.

use hapax_testkit::servers::Postgres;
use tokio_postgres::error::SqlState;

use crate::place::{Database, Inbox};

fn code(error: &tokio_postgres::Error) -> &str {
    error.code().map_or("", SqlState::code)
}

#[tokio::test]
async fn a_message_exists_if_and_only_if_its_transaction_commits() {
    let Some(database) = Database::new().await else {
        return;
    };
    let session = database.session().await;
    let sql = "BEGIN; SELECT hapax.emit('t', 'a', 'committed'); COMMIT;
               BEGIN; SELECT hapax.emit('t', 'a', 'rolled back'); ROLLBACK;
               BEGIN; SELECT hapax.emit('t', 'a', 'before'); SAVEPOINT s; SELECT hapax.emit('t', 'a', 'in it');
               SELECT hapax.emit('t', 'b', 'in it'); ROLLBACK TO s; SELECT hapax.emit('t', 'b', 'after'); COMMIT";
    session.batch_execute(sql).await.expect("emits");
    let inbox = Inbox::new();
    let counts = database.relay(&inbox).run_once().await.expect("a round");
    assert_eq!(inbox.texts(), ["committed", "before", "after"]);
    assert_eq!(counts.published, 3);
    // A second round has nothing left.
    let counts = database.relay(&inbox).run_once().await.expect("a round");
    assert_eq!(counts.published, 0);
}

#[tokio::test]
async fn a_message_carries_what_it_was_given() {
    let Some(database) = Database::new().await else {
        return;
    };
    let session = database.session().await;
    let sql = r#"SELECT hapax.emit('orders', 'o-1', '{"a": 1}'::jsonb, '{"ce-type": "x"}', version => 7),
                 hapax.emit('orders', NULL, '\x00ff'::bytea, ordered => false), hapax.emit('orders', 'o-2', 'text')"#;
    let row = session.query_one(sql, &[]).await.expect("emits");
    let inbox = Inbox::new();
    database.relay(&inbox).run_once().await.expect("a round");
    let messages = inbox.messages();
    let [json, bytes, text] = messages.as_slice() else {
        panic!("{messages:?}");
    };
    assert_eq!(json.id.to_string(), row.get::<_, uuid::Uuid>(0).to_string());
    assert_eq!(
        (json.content_type(), &*json.payload),
        ("application/json", &b"{\"a\": 1}"[..])
    );
    assert_eq!((json.version, json.header("ce-type")), (Some(7), Some("x")));
    assert_eq!((bytes.key.as_deref(), bytes.ordered), (None, false));
    assert_eq!(
        (bytes.content_type(), &*bytes.payload),
        ("application/octet-stream", &[0, 255][..])
    );
    assert_eq!(text.content_type(), "text/plain; charset=utf-8");
    let version = |text: &str| {
        uuid::Uuid::parse_str(text)
            .expect("a UUID")
            .get_version_num()
    };
    assert_eq!(version(&json.id.to_string()), 7, "without an operation");
}

#[tokio::test]
async fn refusals_say_what_is_wrong() {
    let Some(database) = Database::new().await else {
        return;
    };
    let session = database.session().await;
    for (sql, expected, said) in [
        (
            "SELECT hapax.emit('', 'k', 'p')",
            "22023",
            "a topic has 1 to 255 bytes",
        ),
        (
            "SELECT hapax.emit(E'a\\nb', 'k', 'p')",
            "22023",
            "a topic has",
        ),
        (
            "SELECT hapax.emit('t', '', 'p')",
            "22023",
            "the key of a message has 1 to 1024 bytes",
        ),
        (
            "SELECT hapax.emit('t', 'k', NULL::text)",
            "22023",
            "a message has a payload",
        ),
        (
            "SELECT hapax.emit('t', 'k', repeat('x', 1048577))",
            "HX010",
            "the payload has 1048577 bytes",
        ),
        (
            "SELECT hapax.emit('t', 'k', 'p', '[]')",
            "22023",
            "headers are an object",
        ),
        (
            "SELECT hapax.emit('t', 'k', 'p', '{\"Big\": \"x\"}')",
            "22023",
            "the header Big is none",
        ),
        (
            "SELECT hapax.emit('t', 'k', 'p', '{\"n\": 1}')",
            "22023",
            "the header n is none",
        ),
        (
            "SELECT hapax.emit('t', 'k', 'p', operation => 'nonsense')",
            "HX006",
            "this is no operation of this store",
        ),
        (
            "SELECT hapax.emit('t', 'k', 'p', step => 's')",
            "22023",
            "a step belongs to an operation",
        ),
        ("SELECT hapax.emit_all('{}')", "22023", "takes an array"),
        (
            "SELECT hapax.emit_all('[{\"topic\": \"t\", \"paylod\": 1}]')",
            "22023",
            "a message has no paylod",
        ),
        (
            "SELECT hapax.emit('t', n::text, 'p') FROM generate_series(1, 257) AS n",
            "HX011",
            "messages of 256 ordered keys",
        ),
        (
            "SELECT hapax.emit_all((SELECT jsonb_agg(jsonb_build_object('topic', 't', 'key', n::text, 'payload', n)) FROM generate_series(1, 257) AS n))",
            "HX011",
            "messages of 256 ordered keys",
        ),
    ] {
        let error = session.batch_execute(sql).await.expect_err(sql);
        let message = error.as_db_error().expect("of the database").message();
        assert!(message.contains(said), "{sql}: {message}");
        assert_eq!(code(&error), expected, "{sql}");
    }
    for sql in [
        "SELECT hapax.emit('t', (n % 256)::text, 'p') FROM generate_series(1, 1000) AS n",
        "SELECT hapax.emit('t', n::text, 'p', ordered => false) FROM generate_series(1, 1000) AS n",
        "SELECT hapax.emit('t', 'k', repeat('x', 1048576))",
    ] {
        session.batch_execute(sql).await.expect(sql);
    }
}

#[tokio::test]
async fn emit_all_keeps_the_given_order_and_says_the_ids() {
    let Some(database) = Database::new().await else {
        return;
    };
    let session = database.session().await;
    let sql = r#"SELECT hapax.emit_all('[
        {"topic": "t", "key": "z", "payload": {"n": 1}}, {"topic": "t", "key": "a", "payload_text": "two"},
        {"topic": "t", "key": "z", "payload_base64": "AP8=", "version": 3}, {"topic": "t", "payload": 4, "id": "00000000-0000-4000-8000-000000000001"}]')"#;
    let ids: Vec<uuid::Uuid> = session.query_one(sql, &[]).await.expect("emits").get(0);
    let inbox = Inbox::new();
    database.relay(&inbox).run_once().await.expect("a round");
    let published: Vec<_> = inbox
        .messages()
        .iter()
        .map(|message| message.id.to_string())
        .collect();
    let told: Vec<_> = ids.iter().map(ToString::to_string).collect();
    assert_eq!(published, told);
    assert_eq!(told[3], "00000000-0000-4000-8000-000000000001");
    let messages = inbox.messages();
    assert_eq!(&*messages[0].payload, b"{\"n\": 1}");
    assert_eq!(
        (&*messages[2].payload, messages[2].version),
        (&[0, 255][..], Some(3))
    );
}

/// Two transactions that emit A, B and B, A one by one wait for each other in a circle, and the
/// database ends one. `emit_all` locks in one order, so nobody does.
#[tokio::test]
async fn emit_all_locks_its_keys_in_one_order() {
    let Some(database) = Database::new().await else {
        return;
    };
    let all = |one: &str, other: &str| {
        format!(
            r#"SELECT hapax.emit_all('[{{"topic": "t", "key": "{one}", "payload": 1}}, {{"topic": "t", "key": "{other}", "payload": 1}}]')"#
        )
    };
    let rounds = 100;
    let writers = [all("a", "b"), all("b", "a")].map(|sql| {
        let url = database.url.clone();
        tokio::spawn(async move {
            let session = crate::place::session(&url).await;
            for _ in 0..rounds {
                session.batch_execute(&sql).await.expect("no deadlock");
            }
        })
    });
    for writer in writers {
        writer.await.expect("a writer");
    }
    // One by one: both have their first key, then ask for the other's.
    let (one, other) = (database.session().await, database.session().await);
    one.batch_execute("BEGIN; SELECT hapax.emit('t', 'a', '')")
        .await
        .expect("a");
    other
        .batch_execute("BEGIN; SELECT hapax.emit('t', 'b', '')")
        .await
        .expect("b");
    let (first, second) = tokio::join!(
        one.batch_execute("SELECT hapax.emit('t', 'b', '')"),
        other.batch_execute("SELECT hapax.emit('t', 'a', '')"),
    );
    let deadlocks =
        [&first, &second].map(|result| result.as_ref().err().map(code) == Some("40P01"));
    assert_eq!(deadlocks.iter().filter(|is_one| **is_one).count(), 1);
}

#[tokio::test]
async fn a_message_by_hapax_start_has_the_operation_in_its_id_and_another_one_in_the_next_life() {
    let Some(database) = Database::new().await else {
        return;
    };
    let session = database.session().await;
    session
        .batch_execute("SELECT hapax.set_namespace('shop')")
        .await
        .expect("a namespace");
    let start = "SELECT (hapax.start('shop', 'ada', 'POST /orders', 'k', sha256('r'), request_id => 'req-1')).operation_id";
    let mut ids = Vec::new();
    for end in ["ROLLBACK", "COMMIT"] {
        session.batch_execute("BEGIN").await.expect("begins");
        let operation: String = session.query_one(start, &[]).await.expect("starts").get(0);
        let emit = "SELECT hapax.emit('t', 'k', 'placed', operation => $1, step => 'placed'), hapax.emit('t', 'k', 'one', operation => $1),
                    hapax.emit('t', 'k', 'two', operation => $1)";
        let row = session.query_one(emit, &[&operation]).await.expect("emits");
        ids.push([0, 1, 2].map(|column| row.get::<_, uuid::Uuid>(column)));
        let fence = "SELECT hapax.complete($1, (SELECT fence FROM hapax.heads), 201)";
        session
            .execute(fence, &[&operation])
            .await
            .expect("completes");
        session.batch_execute(end).await.expect("ends");
    }
    let [first, second] = ids.as_slice() else {
        unreachable!()
    };
    assert_ne!(first[1], first[2], "the ordinal is the default step");
    assert_ne!(
        first[0], second[0],
        "the first was rolled back: this is another life"
    );
    let inbox = Inbox::new();
    database.relay(&inbox).run_once().await.expect("a round");
    let messages = inbox.messages();
    assert_eq!(inbox.texts(), ["placed", "one", "two"]);
    assert_eq!(messages[0].id.to_string(), second[0].to_string());
    assert!(
        messages
            .iter()
            .all(|message| message.header("correlation-id") == Some("req-1"))
    );
    // An operation that this transaction has not begun is none.
    let error = session
        .query_one(
            "SELECT hapax.emit('t', 'k', 'p', operation => repeat('ab', 32))",
            &[],
        )
        .await;
    assert_eq!(code(&error.expect_err("no such operation")), "HX006");
}

#[tokio::test]
async fn an_emitter_may_emit_and_nothing_else() {
    let Some(database) = Database::new().await else {
        return;
    };
    let server: &Postgres = database.server;
    let role = format!("emitter_{}", database.name);
    let grants = hapax::store::postgres::schema::emitter_grants(&role);
    server.psql(
        &database.name,
        &format!("CREATE ROLE {role} LOGIN; {grants}"),
    );
    let as_role = |sql: &str| server.try_psql(&database.name, &format!("SET ROLE {role}; {sql}"));
    for sql in [
        "SELECT hapax.emit('t', 'k', 'p')",
        "SELECT hapax.emit('t', 'k', '{}'::jsonb)",
        "SELECT hapax.emit('t', 'k', '\\x00'::bytea)",
        "SELECT hapax.emit_all('[]')",
    ] {
        as_role(sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
    }
    for sql in [
        "SELECT * FROM hapax.outbox",
        "INSERT INTO hapax.outbox_00 SELECT * FROM hapax.outbox_00",
        "SELECT nextval('hapax.outbox_seq')",
        "SELECT * FROM hapax.readers",
        "SELECT * FROM hapax.outbox_page('3:3:', NULL, 0, -1, 1, 1)",
        "SELECT hapax.outbox_sweep()",
        "SELECT hapax.emit_here('t', 'k', '', '{}', gen_random_uuid(), true, 1)",
    ] {
        let error = as_role(sql).expect_err(sql);
        assert!(error.contains("permission denied"), "{sql}: {error}");
    }
}
