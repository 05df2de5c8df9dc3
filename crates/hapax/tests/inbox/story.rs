//! The Rust API: the same story in a transaction of any driver.

use std::time::{Duration, SystemTime};

use hapax::core::Timestamp;
use hapax::core::store::{Column, Dialect, Statement, Value};
use hapax::inbox::{
    Cause, Gaps, Receipt, ReceiveError, Received, ToPark, Window, failed, park, park_again,
    parked_done, receive, receive_all, recovered, set_window, sweep, take_parked,
};
use hapax::join::Session;

/// The effect of a message.
async fn apply<S: Session>(session: &mut S, message: &str) {
    let dialect = session.dialect();
    let sql = match dialect {
        Dialect::Postgres => {
            "INSERT INTO effects VALUES (convert_from($1, 'UTF8')) RETURNING 1::int8"
        }
        Dialect::Sqlite => "INSERT INTO effects VALUES (CAST(?1 AS TEXT)) RETURNING 1",
    };
    let statement = Statement {
        dialect,
        sql,
        values: vec![Value::Bytes(Some(message.as_bytes().to_vec()))],
        columns: &[Column::Int],
        now: None,
    };
    session.run(&statement).await.expect("an effect");
}

pub fn ago(age: Duration) -> Timestamp {
    Timestamp::from_system_time(SystemTime::now() - age)
}

pub const DAY: Duration = Duration::from_secs(24 * 60 * 60);

fn message<'a>(id: &'a str, entity: Option<(&'a str, i64)>) -> Received<'a> {
    Received {
        id,
        at: Some(ago(DAY)),
        entity,
    }
}

/// Messages in one transaction, whatever the driver is. Each runs of it find what was committed.
pub async fn story<S: Session>(tx: &mut S, is_first: bool) {
    let new = if is_first {
        Receipt::New
    } else {
        Receipt::Duplicate
    };
    let at = Some(ago(DAY));
    // The digests of both ways agree.
    let receipt = receive(tx, "stock", "größe", at).await.expect("receives");
    assert_eq!(receipt, new);
    if receipt == Receipt::New {
        apply(tx, "größe").await;
    }
    assert_eq!(
        receive(tx, "stock", "größe", at).await.expect("receives"),
        Receipt::Duplicate
    );
    let batch = [
        message("größe", None),
        message("a", Some(("e", 5))),
        message("b", Some(("e", 7))),
        message("a", Some(("e", 5))),
        Received {
            id: "old",
            at: Some(ago(20 * DAY)),
            entity: None,
        },
        Received {
            id: "ahead",
            at: Some(ago(Duration::ZERO).after(DAY)),
            entity: None,
        },
        Received {
            id: "untimed",
            at: None,
            entity: None,
        },
        message("early", Some(("e", 4))),
    ];
    use Receipt::{Ahead, Duplicate, Gap, Stale, TooOld};
    let receipts = receive_all(tx, "stock", &batch, Gaps::Park)
        .await
        .expect("receives");
    let stale = if is_first { Stale } else { Duplicate };
    let gap = if is_first { Gap } else { Duplicate };
    let expected = [Duplicate, new, gap, Duplicate, TooOld, Ahead, new, stale];
    assert_eq!(receipts, expected);
    for (message, receipt) in batch.iter().zip(&receipts) {
        if *receipt == Receipt::New {
            apply(tx, message.id).await;
        }
    }
    if !is_first {
        return;
    }
    // The gap is parked, closes, and is applied.
    let gap = ToPark {
        id: Some("b"),
        cause: Cause::Gap,
        reason: "waits for version 6",
        topic: Some("orders"),
        key: Some("zero \0 byte"),
        entity: Some(("e", 7)),
        at,
        headers: &[("name".to_owned(), "a \"value\"\0".to_owned())],
        payload: b"\x00\xff",
    };
    assert!(park(tx, "stock", &gap).await.expect("parks"));
    assert!(!park(tx, "stock", &gap).await.expect("parks"));
    assert_eq!(take_parked(tx, "stock").await.expect("takes"), None);
    let receipts = receive_all(tx, "stock", &[message("c", Some(("e", 6)))], Gaps::Park).await;
    assert_eq!(receipts.expect("receives"), [Receipt::New]);
    apply(tx, "c").await;
    let taken = take_parked(tx, "stock")
        .await
        .expect("takes")
        .expect("it was released");
    assert_eq!(
        (&*taken.id, taken.cause, taken.version),
        ("b", Cause::Gap, Some(7))
    );
    assert_eq!(taken.key.as_deref(), Some("zero \u{fffd} byte"));
    assert_eq!(
        taken.headers,
        [("name".to_owned(), "a \"value\"\u{fffd}".to_owned())]
    );
    assert_eq!((&*taken.payload, taken.at), (&b"\x00\xff"[..], at));
    // It fails once, and is counted.
    assert_eq!(failed(tx, "stock", "b", "no").await.expect("counts"), 1);
    assert!(park_again(tx, "stock", "b", "no").await.expect("parks"));
    assert_eq!(take_parked(tx, "stock").await.expect("takes"), None);
    // What is parked is not forgotten.
    assert!(!recovered(tx, "stock", "b").await.expect("forgets"));
    // Without an id.
    let unnamed = ToPark {
        id: None,
        cause: Cause::NoId,
        entity: None,
        ..gap
    };
    assert!(park(tx, "stock", &unnamed).await.expect("parks"));
    assert!(!park(tx, "stock", &unnamed).await.expect("parks"));
    assert!(
        !parked_done(tx, "stock", "never parked")
            .await
            .expect("asked")
    );
    assert_eq!(failed(tx, "stock", "x", "one").await.expect("counts"), 1);
    assert_eq!(failed(tx, "stock", "x", "two").await.expect("counts"), 2);
    assert!(recovered(tx, "stock", "x").await.expect("forgets"));
    assert_eq!(
        receive_all(tx, "stock", &[message("b", Some(("e", 7)))], Gaps::Park)
            .await
            .expect("receives"),
        [Receipt::New]
    );
    apply(tx, "b").await;
    settings(tx).await;
}

/// Windows, and what is refused before anything is sent.
async fn settings<S: Session>(tx: &mut S) {
    let old = Some(ago(20 * DAY));
    for (window, expected) in [
        (Window::Limited(30 * DAY), Receipt::New),
        (Window::Forever, Receipt::Duplicate),
        (Window::Limited(39 * DAY), Receipt::Duplicate),
    ] {
        set_window(tx, "windows", window).await.expect("a window");
        assert_eq!(
            receive(tx, "windows", "m", old).await.expect("receives"),
            expected,
            "{window:?}"
        );
    }
    set_window(tx, "windows", Window::Limited(2 * DAY))
        .await
        .expect("a window");
    assert_eq!(
        receive(tx, "windows", "n", old).await.expect("receives"),
        Receipt::TooOld
    );
    sweep(tx, ago(Duration::ZERO)).await.expect("sweeps");
    let refused = [
        receive(tx, "", "m", None).await.map(drop),
        receive(tx, "c", "", None).await.map(drop),
        receive(tx, "c", "a\0b", None).await.map(drop),
        receive(tx, "c", &"x".repeat(1025), None).await.map(drop),
        set_window(tx, "c", Window::Limited(Duration::from_secs(5))).await,
        receive_all(tx, "c", &[message("", None)], Gaps::Apply)
            .await
            .map(drop),
    ];
    for refused in refused {
        assert!(
            matches!(refused, Err(ReceiveError::Invalid(_))),
            "{refused:?}"
        );
    }
    assert_eq!(
        receive_all(tx, "c", &[], Gaps::Apply)
            .await
            .expect("nothing"),
        []
    );
}

/// What is committed in the end.
pub const EFFECTS: &str = "a b c größe untimed";

/// Begins a transaction, tells the story in it, and ends it: rolled back, committed, and again.
macro_rules! told {
    ($tx:ident = $begin:expr, $session:expr, $commit:expr, $roll_back:expr) => {
        for (is_first, commits) in [(true, false), (true, true), (false, true)] {
            let mut $tx = $begin;
            $crate::story::story($session, is_first).await;
            if commits {
                $commit.expect("commits");
            } else {
                $roll_back.expect("rolls back");
            }
        }
    };
}
pub(crate) use told;
