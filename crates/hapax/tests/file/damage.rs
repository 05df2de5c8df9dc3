//! Damaged files: no damaged data is served, and no key looks new because of the damage.

use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

use hapax::store::sqlite::OpenError;
use hapax::{Audit, Hapax};
use hapax_core::record::State;
use hapax_core::store::{Lifetime, StoreErrorKind, Written};
use hapax_core::{Store, StoreError};
use rusqlite::types::Value;

use super::shop::{
    HOUR, Shop, answer, charge, charge_many, claim, finish, id, retry, sweep_all, win,
};

/// The record is gone after twenty minutes.
const FADED: Lifetime = Lifetime {
    retention: Duration::from_secs(600),
    tombstone: Duration::from_secs(600),
};
const KEPT: Lifetime = Lifetime {
    retention: HOUR,
    tombstone: HOUR,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_piece_of_the_roll_is_read_from_the_heads() {
    for damage in [
        "UPDATE roll SET prefixes = zeroblob(length(prefixes))",
        "UPDATE roll SET checksum = checksum + 1",
        "DELETE FROM roll",
    ] {
        let shop = Shop::new();
        let store = Arc::new(shop.open().await);
        charge_many(&store, (0..20_000).map(|i| i.to_string()), KEPT).await;
        drop(store);
        let raw = shop.raw();
        assert_eq!(raw.execute(damage, []).unwrap(), 1, "{damage}");
        drop(raw);

        let store = shop.open().await;
        assert_eq!(store.stats().records, 20_000);
        for i in 0..20_000 {
            assert!(
                matches!(
                    store.put_if(claim(&i.to_string())).await.unwrap(),
                    Written::Lost(_)
                ),
                "{i} would run twice"
            );
        }
    }
}

/// A closed store with one piece of the index snapshot, which lists `hurt` after a few other
/// records.
async fn rolled(before: usize) -> Shop {
    let shop = Shop::new();
    let store = Arc::new(shop.open().await);
    charge_many(&store, (0..before).map(|i| i.to_string()), KEPT).await;
    charge(&*store, "hurt", "paid", KEPT).await;
    charge_many(&store, (before..17_000).map(|i| i.to_string()), KEPT).await;
    drop(store);
    shop
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_piece_of_the_roll_is_written_anew_and_fails_no_write() {
    let shop = rolled(0).await;
    let checksum = || {
        shop.raw()
            .query_row("SELECT checksum FROM roll", [], |row| row.get::<_, i64>(0))
            .unwrap()
    };
    let written = checksum();
    assert_eq!(
        shop.raw()
            .execute("UPDATE roll SET checksum = checksum + 1", []),
        Ok(1)
    );
    let store = shop.open().await;
    charge(&store, "new", "paid", KEPT).await;
    drop(store);
    assert_eq!(checksum(), written);
}

/// Changes every column of a head, in a way that SQLite cannot detect. If the index snapshot lists
/// the row, only its own key fails.
#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_was_changed_is_never_believed() {
    let columns = "id state fence token version attempts incarnation lease_until fingerprint policy created_at claimed_at finished_at \
                   expires_at tombstone_until status answer namespace principal method path key checksum request_id";
    for column in columns.split_whitespace() {
        let shop = Shop::new();
        let store = Arc::new(shop.open().await);
        charge(&*store, "hurt", "paid", KEPT).await;
        charge_many(&store, (0..17_000).map(|i| i.to_string()), KEPT).await;
        drop(store);
        let raw = shop.raw();
        let changed = match column {
            "id" | "token" | "fingerprint" => format!("{column} = zeroblob(length({column}))"),
            "namespace" | "method" | "path" | "key" | "request_id" => {
                format!("{column} = {column} || 'x'")
            }
            "principal" => "principal = 'somebody'".to_owned(),
            _ => format!("{column} = {column} + 1"),
        };
        assert_eq!(
            raw.execute(
                &format!("UPDATE heads SET {changed} WHERE key = 'hurt'"),
                []
            )
            .unwrap(),
            1
        );
        drop(raw);

        let store = shop.open().await;
        for result in [
            store.put_if(claim("hurt")).await.map(drop),
            store.get(vec![id("hurt")]).await.map(drop),
        ] {
            assert_eq!(
                result.as_ref().map_err(StoreError::kind),
                Err(StoreErrorKind::Corrupt),
                "{column}"
            );
        }
        assert!(
            matches!(store.put_if(claim("7")).await.unwrap(), Written::Lost(_)),
            "the others are well"
        );
        charge(&store, "another", "paid", KEPT).await;
    }
}

/// One changed bit sets the end of its tombstone far in the past.
#[tokio::test(flavor = "multi_thread")]
async fn a_sweep_removes_nothing_that_it_cannot_believe() {
    let shop = rolled(0).await;
    let past = "UPDATE heads SET tombstone_until = tombstone_until & ~(1 << 50) WHERE key = 'hurt'";
    assert_eq!(shop.raw().execute(past, []), Ok(1));
    let store = shop.open().await;
    assert_eq!(store.sweep(100).await.unwrap().total(), 0);
    assert_eq!(
        store
            .put_if(claim("hurt"))
            .await
            .map_err(|error| error.kind()),
        Err(StoreErrorKind::Corrupt)
    );
}

/// The unreadable row is at the front of its expiry queue. The other queues are swept, the file is
/// not reopened because of it, and a write in the same commit as the sweep succeeds.
#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_cannot_be_read_is_not_swept_and_harms_nobody_else() {
    let shop = rolled(0).await;
    assert_eq!(
        shop.raw()
            .execute("UPDATE heads SET id = x'00' WHERE key = 'hurt'", []),
        Ok(1)
    );
    let store = shop.open().await;
    // Due before the others, so it gets its own expiry queue.
    charge(
        &store,
        "another",
        "paid",
        Lifetime {
            retention: HOUR / 2,
            tombstone: HOUR / 2,
        },
    )
    .await;
    shop.clock.advance(HOUR * 3);
    let healthy = win(&store, claim("healthy")).await;

    let lock = shop.hold_up(&store).await;
    let (sweep, end) = (
        store.sweep(20_000),
        store.put_if(finish(&healthy, State::Completed, "paid", KEPT)),
    );
    drop(lock);
    let swept = sweep.await.unwrap();
    assert_eq!(
        (swept.buried, swept.removed),
        (17_002, 1),
        "every answer, and the one head of the other lane"
    );
    assert!(matches!(end.await.unwrap(), Written::Won(_)));
    for _ in 0..3 {
        assert_eq!(store.sweep(20_000).await.unwrap().total(), 0);
    }
    assert_eq!(store.stats().reopened, 0);
    assert!(store.put_if(claim("hurt")).await.is_err());
    assert_eq!(answer(&store, "healthy").await, Some(b"paid".to_vec()));
}

/// A row whose number has changed is not found, or takes the place of another row.
#[tokio::test(flavor = "multi_thread")]
async fn no_key_runs_again_whichever_bit_of_a_rows_number_is_flipped() {
    let shop = rolled(5_000).await;
    let place = "SELECT row, id FROM heads WHERE key = 'hurt'";
    let (row, id): (i64, Vec<u8>) = shop
        .raw()
        .query_row(place, [], |row| Ok((row.get(0)?, row.get(1)?)))
        .unwrap();
    let near = shop.keys(&format!("row BETWEEN {row} - 20 AND {row} + 20"));
    // The row number as encoded in the file, before the record: a varint of seven bits to a byte,
    // with the highest bit set in every byte but the last.
    let number: Vec<u8> = (0..7)
        .rev()
        .map(|i| (row >> (7 * i)) as u8 & 0x7f | if i > 0 { 0x80 } else { 0 })
        .collect();
    let whole = std::fs::read(&shop.path).unwrap();
    let record = whole
        .windows(id.len())
        .position(|bytes| bytes == id)
        .unwrap();
    let at = whole[..record]
        .windows(number.len())
        .rposition(|bytes| bytes == number)
        .unwrap();
    assert!(
        record - at < 200,
        "{} bytes before the id: not its row's number",
        record - at
    );

    let file = std::fs::OpenOptions::new()
        .write(true)
        .open(&shop.path)
        .unwrap();
    let (mut refused, mut errors, mut right) = (0, 0, 0);
    for bit in 0..number.len() * 8 {
        let byte = at + bit / 8;
        file.write_all_at(&[whole[byte] ^ 1 << (bit % 8)], byte as u64)
            .unwrap();
        match shop.open_at(&shop.path).await {
            Err(_) => refused += 1,
            Ok(store) => {
                for key in &near {
                    match store.put_if(claim(key)).await {
                        Ok(Written::Won(_)) => {
                            panic!("{key} would run twice with bit {bit} flipped")
                        }
                        Ok(Written::Lost(_)) => right += 1,
                        Err(_) => errors += 1,
                    }
                }
                assert!(
                    store.put_if(claim("hurt")).await.is_err(),
                    "found with bit {bit} flipped"
                );
            }
        }
        file.write_all_at(&whole[byte..=byte], byte as u64).unwrap();
    }
    hapax_testkit::report!(
        "{refused} files refused; of the keys around it in the others {right} right, {errors} errors"
    );
    assert!(
        errors > 0 && right > 0,
        "a run without both of these shows nothing"
    );
    let store = shop.open().await;
    for key in &near {
        assert!(answer(&store, key).await.is_some(), "{key}");
    }
}

/// Changes every column of `meta`. If, for example, its clock were ahead, every record would be
/// expired.
#[tokio::test]
async fn what_the_store_says_of_itself_is_not_believed_once_it_was_changed() {
    let shop = Shop::new();
    let store = shop.open().await;
    charge(&store, "paid", "yes", KEPT).await;
    drop(store);
    for column in "name secret epoch floor incarnation boot_id boot_us clock_us copied_us checksum"
        .split_whitespace()
    {
        let raw = shop.raw();
        let read = format!("SELECT {column} FROM meta");
        let before: Value = raw.query_row(&read, [], |row| row.get(0)).unwrap();
        let changed = match &before {
            Value::Integer(number) => Value::Integer(number ^ 1 << 20),
            Value::Text(text) => Value::Text(format!("{text}x")),
            Value::Blob(bytes) => Value::Blob(bytes.iter().map(|byte| byte ^ 1).collect()),
            other => panic!("{column} is {other:?}"),
        };
        let set = |value: &Value| {
            assert_eq!(
                raw.execute(&format!("UPDATE meta SET {column} = ?1"), [value]),
                Ok(1)
            );
        };
        set(&changed);
        let Err(error) = shop.open_at(&shop.path).await else {
            panic!("opened with another {column}")
        };
        assert!(
            matches!(error, OpenError::Damaged { .. }),
            "{column}: {error}"
        );
        set(&before);
    }
    assert_eq!(
        answer(&shop.open().await, "paid").await,
        Some(b"yes".to_vec())
    );
}

/// Its head is intact, and forgetting needs only the head.
#[tokio::test]
async fn a_key_with_a_damaged_answer_can_be_forgotten() {
    let shop = Shop::new();
    let store = shop.open().await;
    charge(&store, "hurt", "paid", KEPT).await;
    charge(&store, "well", "paid", KEPT).await;
    drop(store);
    let damage = "UPDATE answers SET content = zeroblob(length(content)) WHERE row = (SELECT answer FROM heads WHERE key = 'hurt')";
    assert_eq!(shop.raw().execute(damage, []), Ok(1));
    let store = Arc::new(shop.open().await);
    let hapax = Hapax::builder_shared(store.clone()).build();
    assert_eq!(hapax.look(id("hurt")).await.unwrap().1, State::Completed);
    hapax
        .forget(
            id("hurt"),
            Audit {
                by: "ada",
                reason: "its answer is damaged",
            },
        )
        .await
        .unwrap();
    let Written::Lost(seen) = store.put_if(claim("hurt")).await.unwrap() else {
        panic!("it would run twice")
    };
    assert_eq!(seen.record.unwrap().head.state.word(), "expired");
    assert_eq!(answer(&*store, "well").await, Some(b"paid".to_vec()));
}

/// Without an entry in the index snapshot, a changed id cannot be told from a new one.
#[tokio::test]
async fn a_changed_record_that_is_not_on_the_roll_yet_keeps_the_file_from_opening() {
    let shop = Shop::new();
    let store = shop.open().await;
    charge(&store, "done", "paid", KEPT).await;
    win(&store, claim("running")).await;
    drop(store);
    for key in ["done", "running"] {
        let raw = shop.raw();
        let id: Vec<u8> = raw
            .query_row("SELECT id FROM heads WHERE key = ?1", [key], |row| {
                row.get(0)
            })
            .unwrap();
        let set = |id: &[u8]| {
            raw.execute("UPDATE heads SET id = ?1 WHERE key = ?2", (id, key))
                .unwrap()
        };
        set(&[7; 32]);
        let Err(error) = shop.open_at(&shop.path).await else {
            panic!("opened without {key}")
        };
        assert!(matches!(error, OpenError::Damaged { .. }), "{error}");
        assert!(error.to_string().contains("restore a backup"), "{error}");
        set(&id);
    }
    shop.open().await;
}

#[tokio::test]
async fn a_file_that_was_cut_short_is_refused() {
    let shop = Shop::new();
    let store = shop.open().await;
    for i in 0..50 {
        charge(&store, &i.to_string(), vec![7; 4_000], KEPT).await;
    }
    drop(store);
    let length = std::fs::metadata(&shop.path).unwrap().len();
    let whole = std::fs::read(&shop.path).unwrap();
    for cut in [length - 4_096, length / 2, 4_096, 100] {
        std::fs::OpenOptions::new()
            .write(true)
            .open(&shop.path)
            .unwrap()
            .set_len(cut)
            .unwrap();
        let Err(error) = shop.open_at(&shop.path).await else {
            panic!("{cut} of {length} bytes opened")
        };
        assert!(
            matches!(
                error,
                OpenError::Damaged { .. } | OpenError::NotAStore { .. }
            ),
            "{cut} of {length}: {error}"
        );
        std::fs::write(&shop.path, &whole).unwrap();
    }
    shop.open().await;
}

/// Overwrites one page after the other with garbage. The store must refuse to open, or answer every
/// key correctly or with an error.
#[tokio::test]
async fn no_key_runs_again_whichever_page_is_damaged() {
    let shop = Shop::new();
    let store = shop.open().await;
    for i in 0..60 {
        charge(
            &store,
            &i.to_string(),
            format!("answer {i} {}", "x".repeat(900)),
            KEPT,
        )
        .await;
    }
    let unknown = win(&store, claim("unknown")).await;
    win(&store, finish(&unknown, State::Unknown, "", KEPT)).await;
    drop(store);
    let whole = std::fs::read(&shop.path).unwrap();
    let (mut refused, mut errors, mut right) = (0, 0, 0);
    for page in 0..whole.len() / 4_096 {
        let mut file = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(&shop.path)
            .unwrap();
        file.seek(SeekFrom::Start(page as u64 * 4_096)).unwrap();
        let mut rubbish = vec![0; 4_096];
        file.read_exact(&mut rubbish).unwrap();
        rubbish
            .iter_mut()
            .enumerate()
            .filter(|(at, _)| at % 3 == 0)
            .for_each(|(at, byte)| *byte = (at * 31) as u8 ^ 0x5a);
        file.seek(SeekFrom::Start(page as u64 * 4_096)).unwrap();
        file.write_all(&rubbish).unwrap();
        drop(file);
        match shop.open_at(&shop.path).await {
            Err(_) => refused += 1,
            Ok(store) => {
                for key in (0..60).map(|i| i.to_string()).chain(["unknown".to_owned()]) {
                    match store.put_if(claim(&key)).await {
                        Ok(Written::Won(_)) => {
                            panic!("{key} would run twice with page {page} damaged")
                        }
                        Ok(Written::Lost(seen)) => {
                            right += 1;
                            let answer = seen.record.unwrap().answer;
                            assert!(answer.is_none_or(|answer| {
                                answer.body.starts_with(format!("answer {key} ").as_bytes())
                            }));
                        }
                        Err(_) => errors += 1,
                    }
                }
            }
        }
        for end in ["-wal", "-shm"] {
            let _ = std::fs::remove_file(shop.beside(end));
        }
        std::fs::write(&shop.path, &whole).unwrap();
    }
    hapax_testkit::report!(
        "{} pages damaged: {refused} files refused; of the keys in the others {right} right, {errors} errors",
        whole.len() / 4_096
    );
    assert!(
        refused > 0 && errors > 0 && right > 0,
        "a run without all of these shows nothing"
    );
}

/// The tables that list the rows that have left have no checksum. Opening looks for the rows that
/// they would hide.
#[tokio::test(flavor = "multi_thread")]
async fn rows_that_are_said_to_have_left_and_have_not_keep_the_file_from_opening() {
    let shop = Shop::new();
    let store = Arc::new(shop.open().await);
    charge(&*store, "first", "paid", FADED).await;
    let retryable = win(&*store, claim("retryable")).await;
    win(&*store, finish(&retryable, State::Retryable, "", KEPT)).await;
    charge_many(&store, (0..17_000).map(|i| i.to_string()), KEPT).await;
    win(&*store, retry(&retryable)).await;
    shop.clock.advance(HOUR / 2);
    assert_eq!(
        sweep_all(&*store).await,
        2,
        "the answer and the head of the first"
    );
    drop(store);
    for table in ["fronts", "vacated"] {
        let raw = shop.raw();
        assert_eq!(
            raw.execute(&format!("UPDATE {table} SET row = row + 4096"), [])
                .unwrap(),
            1,
            "{table}"
        );
        let Err(error) = shop.open_at(&shop.path).await else {
            panic!("opened with another row in {table}")
        };
        assert!(matches!(error, OpenError::Damaged { .. }), "{error}");
        raw.execute(&format!("UPDATE {table} SET row = row - 4096"), [])
            .unwrap();
    }
    shop.open().await;
}

/// Rows that the index snapshot does not list yet: SQLite finds them by the numbers of neighbouring
/// rows, one of which is damaged.
#[tokio::test(flavor = "multi_thread")]
async fn no_row_is_passed_over_because_a_neighbours_number_is_damaged() {
    let shop = Shop::new();
    let store = Arc::new(shop.open().await);
    charge_many(&store, (0..300).map(|i| i.to_string()), KEPT).await;
    drop(store);
    let whole = std::fs::read(&shop.path).unwrap();
    let rows: Vec<(i64, Vec<u8>)> = {
        let raw = shop.raw();
        let mut rows = raw
            .prepare("SELECT row, id FROM heads ORDER BY row LIMIT 4 OFFSET 100")
            .unwrap();
        rows.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))
            .unwrap()
            .map(Result::unwrap)
            .collect()
    };
    let file = std::fs::OpenOptions::new()
        .write(true)
        .open(&shop.path)
        .unwrap();
    let mut refused = 0;
    for (row, id) in rows {
        // The row number as encoded in the page: seven bits to a byte, with the highest bit set in
        // all but the last.
        let number: Vec<u8> = (0..7)
            .rev()
            .map(|i| (row >> (7 * i)) as u8 & 0x7f | if i > 0 { 0x80 } else { 0 })
            .collect();
        let record = whole.windows(32).position(|bytes| bytes == id).unwrap();
        let at = whole[..record]
            .windows(7)
            .rposition(|bytes| bytes == number)
            .unwrap();
        for bit in 0..56 {
            let byte = at + bit / 8;
            file.write_all_at(&[whole[byte] ^ 1 << (bit % 8)], byte as u64)
                .unwrap();
            match shop.open_at(&shop.path).await {
                Err(_) => refused += 1,
                Ok(store) => assert_eq!(store.stats().records, 300, "row {row}, bit {bit}"),
            }
            file.write_all_at(&whole[byte..=byte], byte as u64).unwrap();
        }
    }
    hapax_testkit::report!("{refused} of 224 files refused");
    assert!(refused > 200);
}
