//! The audit log in the file: it survives reopening, copies, older formats and kills, and damage to
//! it is detected.

use std::sync::Arc;

use hapax::store::sqlite::{Options, Sqlite, View};
use hapax_core::audit::{Action, LogEntry, LogQuery, Signed};
use hapax_core::record::{Head, State};
use hapax_core::store::{Change, Condition, Lifetime, Put, StoreErrorKind, Written};
use hapax_core::{OperationIds, RecordId, Store, Timestamp};
use hapax_testkit::ManualClock;
use hapax_testkit::crash::{self, Child};

use super::shop::{HOUR, Shop, answer, assert_sound, charge, claim, finish, id, win};

const KEPT: Lifetime = Lifetime {
    retention: HOUR,
    tombstone: HOUR,
};

fn forget(head: &Head) -> Put {
    let signed = Signed::new("ada", "it was asked for").unwrap();
    Put {
        id: head.id,
        condition: Condition::Version {
            version: head.version,
        },
        change: Change::Forget(KEPT, signed),
    }
}

async fn log(store: &dyn Store) -> Vec<LogEntry> {
    store.log(LogQuery::after(0, 1_000)).await.unwrap()
}

#[tokio::test]
async fn the_log_is_there_after_reopening_in_a_backup_and_for_other_processes() {
    let shop = Shop::new();
    let store = shop.open().await;
    for key in ["first", "second"] {
        let head = charge(&store, key, "paid", KEPT).await;
        win(&store, forget(&head)).await;
    }
    let written = log(&store).await;
    assert_eq!(written.len(), 2);
    let view = View::open(&shop.path).unwrap();
    assert_eq!(view.log(&LogQuery::after(0, 10)).unwrap(), written);
    assert_eq!(
        view.log(&LogQuery::latest(1).of(id("first"))).unwrap(),
        written[..1]
    );

    let copy = shop.directory.path().join("copy.db");
    store.backup(&copy).await.unwrap();
    drop((store, view));
    for path in [&shop.path, &copy] {
        let store = shop.open_at(path).await.unwrap();
        assert_eq!(log(&store).await, written);
        let head = charge(&store, "third", "paid", KEPT).await;
        win(&store, forget(&head)).await;
        assert_eq!(log(&store).await.last().unwrap().sequence, 3);
    }
    assert_sound(&shop.raw());
}

/// The file was written by the version before the audit log. It has one record of each kind.
#[tokio::test]
async fn a_file_of_format_2_keeps_everything_and_gets_a_log() {
    let shop = Shop::new();
    std::fs::write(&shop.path, include_bytes!("format-2.db")).unwrap();
    let view = View::open(&shop.path).unwrap();
    assert_eq!(
        view.log(&LogQuery::latest(10)).unwrap(),
        [],
        "a file that nobody has opened yet has no log, and can be looked at"
    );
    assert_eq!(view.get(&[id("paid")]).unwrap().records.len(), 1);

    let first_rule = view.operation_ids().unwrap();
    let store = shop.open().await;
    assert_eq!(
        answer(&store, "paid").await,
        Some(b"paid by format 2".to_vec())
    );
    let ids = store.info().await.unwrap().operation_ids();
    for (key, word) in [
        ("paid", "completed"),
        ("expired", "expired"),
        ("lost", "unknown"),
        ("running", "unknown"),
    ] {
        let record = store.get(vec![id(key)]).await.unwrap();
        let head = &record.records[0].as_ref().unwrap().head;
        assert_eq!(head.state_at(record.now).word(), word, "{key}");
        let operation = ids.make(&head.id, head.created_at);
        assert_eq!(
            operation,
            first_rule.make(&head.id, head.created_at),
            "{key} would be another operation"
        );
        assert_eq!(
            operation,
            OperationIds::new(*ids.secret(), Timestamp::from_micros(u64::MAX))
                .make(&head.id, head.created_at)
        );
        assert!(
            matches!(store.put_if(claim(key)).await.unwrap(), Written::Lost(_)),
            "{key} would run twice"
        );
    }
    let head = store
        .get(vec![id("paid")])
        .await
        .unwrap()
        .records
        .remove(0)
        .unwrap()
        .head;
    let error = store.put_if(forget(&head)).await.unwrap_err();
    assert_eq!(
        error.kind(),
        StoreErrorKind::Unerased,
        "its answer has no seal, and that is said: {error}"
    );
    assert_eq!(
        (answer(&store, "paid").await, log(&store).await.len()),
        (None, 1)
    );
    win(
        &store,
        forget(
            &store
                .get(vec![id("paid")])
                .await
                .unwrap()
                .records
                .remove(0)
                .unwrap()
                .head,
        ),
    )
    .await;
    assert_eq!(log(&store).await.len(), 2);
    assert_eq!(
        view.log(&LogQuery::latest(10)).unwrap().len(),
        2,
        "a view that was open before sees it too"
    );
    let new = charge(&store, "new", "paid", KEPT).await;
    assert!(new.request_id.is_some());
    let heads =
        [id("lost"), id("new")].map(|id| view.get(&[id]).unwrap().records.remove(0).unwrap().head);
    assert_eq!(
        heads.map(|head| head.request_id),
        [None, new.request_id],
        "such a view sees new columns too"
    );
    drop(store);
    let format: i64 = shop
        .raw()
        .query_row("PRAGMA user_version", [], |row| row.get(0))
        .unwrap();
    assert!(format > 2);
    assert_sound(&shop.raw());
    assert_eq!(log(&shop.open().await).await.len(), 2);
}

#[tokio::test]
async fn an_entry_that_was_changed_is_an_error_and_the_others_can_be_read() {
    let columns = [
        "at = at + 1",
        "action = 'settle'",
        "signed_by = 'eve'",
        "reason = 'none'",
        "id = zeroblob(32)",
        "principal = ''",
        "path = '/other'",
        "key = 'other'",
        "before = 5",
        "before = 99",
        "after = 11",
        "status = 200",
        "fence = fence + 1",
        "version = 1",
        "sequence = 9",
    ];
    for change in columns {
        let shop = Shop::new();
        let store = shop.open().await;
        for key in ["first", "second", "third"] {
            let head = charge(&store, key, "paid", KEPT).await;
            win(&store, forget(&head)).await;
        }
        drop(store);
        shop.raw()
            .execute(&format!("UPDATE audit SET {change} WHERE sequence = 2"), [])
            .unwrap();
        let store = shop.open().await;
        let error = store.log(LogQuery::after(0, 10)).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Corrupt, "{change}");
        assert!(
            error
                .to_string()
                .contains(if change.starts_with("sequence") {
                    "entry 9"
                } else {
                    "entry 2"
                }),
            "{error}"
        );
        assert_eq!(store.log(LogQuery::after(0, 1)).await.unwrap().len(), 1);
        if !change.starts_with("sequence") {
            assert_eq!(
                store.log(LogQuery::after(2, 10)).await.unwrap().len(),
                1,
                "{change}"
            );
        }
        // A sweep removes neither a damaged entry nor any entry after it.
        shop.clock.advance(hapax_core::audit::KEPT_FOR * 2);
        super::shop::sweep_all(&store).await;
        assert!(store.log(LogQuery::after(1, 10)).await.is_err(), "{change}");
    }
}

const PATH: &str = "HAPAX_CHANGED_BY_HAND";
const KEYS: usize = 40;

/// A process that settles and forgets records is killed at any moment: every change has its entry,
/// and every entry its change.
#[tokio::test(flavor = "multi_thread")]
async fn after_a_kill_a_change_by_hand_and_its_entry_are_both_there_or_neither() {
    const TEST: &str =
        "audit::after_a_kill_a_change_by_hand_and_its_entry_are_both_there_or_neither";
    if crash::role().is_some() {
        return change_by_hand(&std::env::var(PATH).unwrap()).await;
    }
    let (mut changed, mut unchanged) = (0, 0);
    for round in 0..12 {
        let shop = Shop::new();
        let mut child = Child::spawn(TEST, "operator", &[(PATH, shop.path.to_str().unwrap())]);
        child.wait_for(&format!("changed {}.", round * 6));
        // The kill falls between two commits or within one.
        child.kill();
        let store = shop.open().await;
        let log = log(&store).await;
        for number in 0..KEYS {
            let id = id(&number.to_string());
            let entries: Vec<_> = log.iter().filter(|entry| touched(entry) == id).collect();
            let record = store
                .get(vec![id])
                .await
                .unwrap()
                .records
                .remove(0)
                .unwrap();
            let (is_settled, is_forgotten) = (
                record.head.state == State::Completed,
                record.head.fingerprint.is_none(),
            );
            let expected: &[Action] = match (is_settled, is_forgotten) {
                (true, _) => &[Action::Settle],
                (_, true) => &[Action::Settle, Action::Forget],
                _ => &[],
            };
            assert_eq!(
                entries
                    .iter()
                    .map(|entry| entry.action.clone())
                    .collect::<Vec<_>>(),
                expected,
                "{:?}",
                record.head
            );
            *(if expected.is_empty() {
                &mut unchanged
            } else {
                &mut changed
            }) += 1;
        }
        let numbers: Vec<_> = log.iter().map(|entry| entry.sequence).collect();
        assert_eq!(numbers, (1..=log.len() as u64).collect::<Vec<_>>());
    }
    hapax_testkit::report!("{changed} records changed by hand before a kill, {unchanged} not");
    assert!(
        changed > 0 && unchanged > 0,
        "the kills came too late or too early to show anything"
    );
}

fn touched(entry: &LogEntry) -> RecordId {
    entry.touched.as_ref().unwrap().id
}

/// Settles and then forgets every record, until the process is killed.
async fn change_by_hand(path: &str) {
    let options = Options {
        clock: Some(Arc::new(ManualClock::new())),
        ..Options::default()
    };
    let store = Sqlite::open_with(path, options).await.unwrap();
    let mut heads = Vec::new();
    for number in 0..KEYS {
        let head = win(&store, claim(&number.to_string())).await;
        heads.push(win(&store, finish(&head, State::Unknown, "", KEPT)).await);
    }
    crash::announce("changed 0.");
    for (number, head) in heads.into_iter().enumerate() {
        let signed = Signed::new("ada", "found in the books").unwrap();
        let settle = match finish(&head, State::Completed, "paid", KEPT).change {
            Change::Finish(finish) => Change::Settle(finish, signed),
            _ => unreachable!("as made"),
        };
        let condition = Condition::Version {
            version: head.version,
        };
        let settled = win(
            &store,
            Put {
                id: head.id,
                condition,
                change: settle,
            },
        )
        .await;
        crash::announce(format!("changed {}.", number * 2 + 1));
        win(&store, forget(&settled)).await;
        crash::announce(format!("changed {}.", number * 2 + 2));
    }
    std::future::pending::<()>().await;
}
