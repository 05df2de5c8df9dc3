//! What a role that receives may do.

use crate::place::Database;

#[tokio::test]
async fn a_receiver_may_receive_and_park_and_nothing_else() {
    let Some(database) = Database::new().await else {
        return;
    };
    let role = format!("receiver_{}", database.name);
    let grants = hapax::store::postgres::schema::receiver_grants(&role);
    database.server.psql(
        &database.name,
        &format!("CREATE ROLE {role} LOGIN; {grants}"),
    );
    let as_role = |sql: &str| {
        database
            .server
            .try_psql(&database.name, &format!("SET ROLE {role}; {sql}"))
    };
    for sql in [
        "SELECT hapax.receive('c', 'm', now())",
        "SELECT hapax.receive('c', 'm')",
        "SELECT hapax.receive_all('c', '[[\"m\", null, \"e\", 1]]', 'park')",
        "SELECT hapax.receive_message('c', 'm', NULL)",
        "SELECT hapax.receive_batch('c', '{}', '{}', NULL, NULL, false)",
        "SELECT hapax.set_window('c', '2 days')",
        "SELECT hapax.receipts_sweep()",
        "SELECT hapax.message_failed('c', 'm', 'x')",
        "SELECT hapax.message_recovered('c', 'm')",
        "SELECT hapax.park('c', 'n', 'failed')",
        "SELECT hapax.park_again('c', 'n')",
        "SELECT * FROM hapax.parked_take('c')",
        "SELECT hapax.parked_done('c', 'n')",
    ] {
        as_role(sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
    }
    for sql in [
        "SELECT * FROM hapax.receipts",
        "INSERT INTO hapax.receipts_00 VALUES (gen_random_uuid(), 1, 1)",
        "TRUNCATE hapax.receipts_00",
        "SELECT * FROM hapax.parked",
        "SELECT hapax.parked_skip('c', 'n', 'me', 'x')",
        "SELECT hapax.parked_retry('c', 'n', true, 'me', 'x')",
        "SELECT * FROM hapax.parked_list(NULL, NULL, 0, 1)",
        "SELECT * FROM hapax.parked_find(NULL, 'n')",
        "SELECT * FROM hapax.consumers_now()",
        "SELECT hapax.receive_one('c', 'm', 1)",
        "SELECT hapax.receive_here('c', '{}', '{}', NULL, NULL, false)",
        "SELECT hapax.receipt_insert(0, gen_random_uuid(), 1, 1)",
        "SELECT hapax.emit('t', 'k', 'p')",
    ] {
        let error = as_role(sql).expect_err(sql);
        assert!(error.contains("permission denied"), "{sql}: {error}");
    }
}
