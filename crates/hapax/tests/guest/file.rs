//! The states of a file when it is opened, and the damage it may have.

use std::time::Duration;

use hapax::store::guest::{OpenError, Options};
use hapax::{Guest, Sqlite};
use hapax_core::record::State;
use hapax_core::store::StoreErrorKind;
use hapax_core::{OperationIds, Store, Timestamp};
use rusqlite::Connection;

use super::shop::{LEASE, Shop, claim, complete, look, ordering, takeover, win};

#[tokio::test]
async fn a_file_that_is_not_there_is_created_and_one_without_a_log_gets_one() {
    let shop = Shop::new();
    let mode = |connection: &Connection| {
        connection
            .pragma_query_value(None, "journal_mode", |row| row.get::<_, String>(0))
            .unwrap()
    };
    assert_eq!(mode(&shop.connect()), "delete");
    drop(shop.guest().await);
    assert_eq!(mode(&shop.connect()), "wal");

    let new = shop.directory.path().join("new.db");
    drop(Guest::open(&new).await.unwrap());
    Guest::open(&new).await.unwrap();
}

#[tokio::test]
async fn a_store_that_hapax_owns_alone_takes_no_guests_and_the_other_way_round() {
    let shop = Shop::new();
    let own = shop.directory.path().join("hapax.db");
    let owner = Sqlite::open(&own).await.unwrap();
    for is_open in [true, false] {
        let error = Guest::open(&own).await.err().unwrap();
        assert!(matches!(error, OpenError::OwnStore { .. }), "{error}");
        assert!(error.to_string().contains("Sqlite::open"), "{error}");
        if is_open {
            win(&owner, claim("k")).await;
        }
    }
    drop(owner);
    assert!(matches!(
        Guest::open(&own).await,
        Err(OpenError::OwnStore { .. })
    ));
    assert!(
        matches!(
            look(&Sqlite::open(&own).await.unwrap(), claim("k").id).await,
            (State::Unknown, None)
        ),
        "it is as it was"
    );

    drop(shop.guest().await);
    assert!(matches!(
        Sqlite::open(&shop.path).await,
        Err(OpenError::NotAStore { .. })
    ));
    let new = shop.directory.path().join("new.db");
    drop(Guest::open(&new).await.unwrap());
    assert!(matches!(
        Sqlite::open(&new).await,
        Err(OpenError::NotAStore { .. })
    ));
}

#[tokio::test]
async fn what_cannot_be_opened_says_why() {
    let shop = Shop::new();
    for path in ["", ":memory:"] {
        assert!(matches!(Guest::open(path).await, Err(OpenError::NotAPath)));
    }
    let diary = shop.directory.path().join("diary.txt");
    std::fs::write(
        &diary,
        "Dear diary, this is not a database, but it is longer than a header.".repeat(20),
    )
    .unwrap();
    assert!(Guest::open(&diary).await.is_err());
    assert!(
        std::fs::read_to_string(&diary)
            .unwrap()
            .starts_with("Dear diary")
    );
    assert!(
        Guest::open(shop.directory.path().join("nowhere/shop.db"))
            .await
            .is_err()
    );

    drop(shop.guest().await);
    shop.connect()
        .execute("UPDATE hapax_meta SET format = 99", [])
        .unwrap();
    let error = Guest::open(&shop.path).await.err().unwrap();
    assert!(
        matches!(
            error,
            OpenError::Newer {
                found: 99,
                known: 5,
                ..
            }
        ),
        "{error}"
    );
}

#[tokio::test]
async fn a_file_that_somebody_keeps_locked_is_not_opened_and_not_waited_for_forever() {
    let shop = Shop::new();
    let mut connection = shop.connect();
    let transaction = ordering(&mut connection, "slow");
    let options = Options {
        busy_timeout: Duration::from_millis(10),
        ..shop.options()
    };
    let error = Guest::open_with(&shop.path, options).await.err().unwrap();
    assert!(matches!(error, OpenError::Locked { .. }), "{error:?}");
    transaction.commit().unwrap();
    shop.guest().await;
}

#[tokio::test]
async fn a_damaged_answer_is_an_error_and_never_a_replay() {
    let shop = Shop::new();
    let guest = shop.guest().await;
    let head = win(&guest, claim("k")).await;
    win(&guest, complete(&head, "the answer, undamaged")).await;
    let other = win(&guest, claim("other")).await;
    win(&guest, complete(&other, "another answer")).await;
    let user = shop.connect();
    user.execute("UPDATE hapax_answers SET content = (SELECT content FROM hapax_answers ORDER BY answer DESC LIMIT 1)", [])
        .unwrap();

    assert_eq!(
        guest.get(vec![head.id]).await.unwrap_err().kind(),
        StoreErrorKind::Corrupt
    );
    assert_eq!(
        guest.put_if(claim("k")).await.unwrap_err().kind(),
        StoreErrorKind::Corrupt
    );
    assert_eq!(
        look(&guest, other.id).await,
        (State::Completed, Some("another answer".to_owned()))
    );
    user.execute("DELETE FROM hapax_answers", []).unwrap();
    assert_eq!(
        guest.get(vec![other.id]).await.unwrap_err().kind(),
        StoreErrorKind::Corrupt
    );
}

#[tokio::test]
async fn a_record_that_cannot_be_read_stops_neither_the_sweep_nor_its_neighbours() {
    let shop = Shop::new();
    let guest = shop.guest().await;
    let (bad, good) = (
        win(&guest, claim("bad")).await,
        win(&guest, claim("good")).await,
    );
    let sql = "UPDATE hapax_heads SET policy = 'from the future' WHERE key = 'bad'";
    assert_eq!(shop.connect().execute(sql, []).unwrap(), 1);
    shop.clock.advance(LEASE);
    // Sweeps one record at a time, so that a damaged one could block the sweep for ever.
    let lost = [
        guest.sweep(1).await.unwrap().lost,
        guest.sweep(1).await.unwrap().lost,
    ];
    assert_eq!(lost, [1, 0]);
    assert_eq!(look(&guest, good.id).await.0, State::Unknown);
    assert_eq!(
        guest.get(vec![bad.id]).await.unwrap_err().kind(),
        StoreErrorKind::Unsupported
    );
    let (damaged, fine) = tokio::join!(guest.put_if(claim("bad")), guest.put_if(claim("fine")));
    assert!(damaged.is_err() && fine.is_ok());
}

/// A record that was claimed before operation ids distinguished the lives of a key.
#[tokio::test]
async fn a_file_of_format_1_keeps_its_operations() {
    let shop = Shop::new();
    let before = win(&shop.guest().await, claim("k")).await;
    shop.connect()
        .execute_batch(
            "ALTER TABLE hapax_meta DROP COLUMN lives_us; ALTER TABLE hapax_audit DROP COLUMN created_at;
             DROP TABLE hapax_parked; DROP TABLE hapax_versions; DROP TABLE hapax_receipts; DROP TABLE hapax_consumers;
             DROP TABLE hapax_deliveries; DROP TABLE hapax_readers; DROP TABLE hapax_outbox; ALTER TABLE hapax_heads DROP COLUMN request_id; UPDATE hapax_meta SET format = 1",
        )
        .unwrap();

    let guest = shop.guest().await;
    let ids = guest.info().await.unwrap().operation_ids();
    let first_rule = OperationIds::new(*ids.secret(), Timestamp::from_micros(u64::MAX));
    shop.clock.advance(LEASE);
    let after = win(&guest, takeover("k", &before)).await;
    assert_eq!(
        ids.make(&after.id, after.created_at),
        first_rule.make(&before.id, before.created_at),
        "the service would take it for another operation"
    );
    // For a while a process of the previous version and this one make the same operation ids. After
    // that, each life has its own id.
    shop.clock.advance(hapax_core::operation::GRACE);
    let new = win(&guest, claim("new")).await;
    assert_ne!(
        ids.make(&new.id, new.created_at),
        first_rule.make(&new.id, new.created_at)
    );
    drop(guest);
    assert_eq!(
        shop.guest().await.info().await.unwrap().operation_ids(),
        ids,
        "told once"
    );
}

/// A record that was claimed before records had a request id. Meanwhile a process of the previous
/// version has the file open.
#[tokio::test]
async fn a_file_of_format_2_gets_request_ids() {
    let shop = Shop::new();
    let before = win(&shop.guest().await, claim("old")).await;
    let older = shop.connect();
    older
        .execute_batch(
            "DROP TABLE hapax_parked; DROP TABLE hapax_versions; DROP TABLE hapax_receipts; DROP TABLE hapax_consumers;
             DROP TABLE hapax_deliveries; DROP TABLE hapax_readers; DROP TABLE hapax_outbox; ALTER TABLE hapax_heads DROP COLUMN request_id; UPDATE hapax_meta SET format = 2",
        )
        .unwrap();

    let guest = shop.guest().await;
    let head = guest
        .get(vec![before.id])
        .await
        .unwrap()
        .records
        .remove(0)
        .unwrap()
        .head;
    assert_eq!((head.fence, head.request_id), (before.fence, None));
    let new = win(&guest, claim("new")).await;
    assert!(new.request_id.is_some());
    assert_eq!(
        win(&guest, complete(&new, "paid")).await.request_id,
        new.request_id
    );
    // The older process writes rows without the column.
    let columns = "id, state, fence, token, version, attempts, lease_until, fingerprint, policy, created_at, claimed_at, finished_at, \
                   expires_at, tombstone_until, status, answer, namespace, principal, method, path, key, due";
    let sql = format!(
        "INSERT OR REPLACE INTO hapax_heads ({columns}) SELECT {columns} FROM hapax_heads WHERE key = 'new'"
    );
    assert_eq!(older.execute(&sql, []).unwrap(), 1);
    assert_eq!(
        guest
            .get(vec![new.id])
            .await
            .unwrap()
            .records
            .remove(0)
            .unwrap()
            .head
            .request_id,
        None
    );
    drop(guest);
    shop.guest().await.get(vec![new.id]).await.unwrap();
}
