//! Files that are not what was written: nothing is served from them, and no key seems new because of it.

use std::io::{Read, Seek, SeekFrom, Write};
use std::sync::Arc;

use hapax::store::sqlite::OpenError;
use hapax_core::record::State;
use hapax_core::store::{Lifetime, StoreErrorKind, Written};
use hapax_core::{Store, StoreError};

use super::shop::{Shop, charge, charge_many, claim, finish, id, win};

const KEPT: Lifetime = Lifetime { retention: super::shop::HOUR, tombstone: super::shop::HOUR };

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_piece_of_the_roll_is_read_from_the_heads() {
    for damage in
        ["UPDATE roll SET prefixes = zeroblob(length(prefixes))", "UPDATE roll SET checksum = checksum + 1", "DELETE FROM roll"]
    {
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
            assert!(matches!(store.put_if(claim(&i.to_string())).await.unwrap(), Written::Lost(_)), "{i} would run twice");
        }
    }
}

/// Every column of a head: a change that SQLite has no way to notice. Where the roll names the row, only its own key suffers.
#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_was_changed_is_never_believed() {
    let columns = "id state fence token version attempts incarnation lease_until fingerprint policy created_at claimed_at finished_at \
                   expires_at tombstone_until status answer namespace principal method path key checksum";
    for column in columns.split_whitespace() {
        let shop = Shop::new();
        let store = Arc::new(shop.open().await);
        charge(&*store, "hurt", "paid", KEPT).await;
        charge_many(&store, (0..17_000).map(|i| i.to_string()), KEPT).await;
        drop(store);
        let raw = shop.raw();
        let changed = match column {
            "id" | "token" | "fingerprint" => format!("{column} = zeroblob(length({column}))"),
            "namespace" | "method" | "path" | "key" => format!("{column} = {column} || 'x'"),
            "principal" => "principal = 'somebody'".to_owned(),
            _ => format!("{column} = {column} + 1"),
        };
        assert_eq!(raw.execute(&format!("UPDATE heads SET {changed} WHERE key = 'hurt'"), []).unwrap(), 1);
        drop(raw);

        let store = shop.open().await;
        for result in [store.put_if(claim("hurt")).await.map(drop), store.get(vec![id("hurt")]).await.map(drop)] {
            assert_eq!(result.as_ref().map_err(StoreError::kind), Err(StoreErrorKind::Corrupt), "{column}");
        }
        assert!(matches!(store.put_if(claim("7")).await.unwrap(), Written::Lost(_)), "the others are well");
        charge(&store, "another", "paid", KEPT).await;
    }
}

/// Where no roll says which id was there, nobody could tell a changed id from a new one.
#[tokio::test]
async fn a_changed_record_that_is_not_on_the_roll_yet_keeps_the_file_from_opening() {
    let shop = Shop::new();
    let store = shop.open().await;
    charge(&store, "done", "paid", KEPT).await;
    win(&store, claim("running")).await;
    drop(store);
    for key in ["done", "running"] {
        let raw = shop.raw();
        let id: Vec<u8> = raw.query_row("SELECT id FROM heads WHERE key = ?1", [key], |row| row.get(0)).unwrap();
        let set = |id: &[u8]| raw.execute("UPDATE heads SET id = ?1 WHERE key = ?2", (id, key)).unwrap();
        set(&[7; 32]);
        let Err(error) = shop.open_at(&shop.path).await else { panic!("opened without {key}") };
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
        std::fs::OpenOptions::new().write(true).open(&shop.path).unwrap().set_len(cut).unwrap();
        let Err(error) = shop.open_at(&shop.path).await else { panic!("{cut} of {length} bytes opened") };
        assert!(matches!(error, OpenError::Damaged { .. } | OpenError::NotAStore { .. }), "{cut} of {length}: {error}");
        std::fs::write(&shop.path, &whole).unwrap();
    }
    shop.open().await;
}

/// Page after page is overwritten with rubbish. The store refuses to open, or answers every key with what is right or with an error.
#[tokio::test]
async fn no_key_runs_again_whichever_page_is_damaged() {
    let shop = Shop::new();
    let store = shop.open().await;
    for i in 0..60 {
        charge(&store, &i.to_string(), format!("answer {i} {}", "x".repeat(900)), KEPT).await;
    }
    let unknown = win(&store, claim("unknown")).await;
    win(&store, finish(&unknown, State::Unknown, "", KEPT)).await;
    drop(store);
    let whole = std::fs::read(&shop.path).unwrap();
    let (mut refused, mut errors, mut right) = (0, 0, 0);
    for page in 0..whole.len() / 4_096 {
        let mut file = std::fs::OpenOptions::new().read(true).write(true).open(&shop.path).unwrap();
        file.seek(SeekFrom::Start(page as u64 * 4_096)).unwrap();
        let mut rubbish = vec![0; 4_096];
        file.read_exact(&mut rubbish).unwrap();
        rubbish.iter_mut().enumerate().filter(|(at, _)| at % 3 == 0).for_each(|(at, byte)| *byte = (at * 31) as u8 ^ 0x5a);
        file.seek(SeekFrom::Start(page as u64 * 4_096)).unwrap();
        file.write_all(&rubbish).unwrap();
        drop(file);
        match shop.open_at(&shop.path).await {
            Err(_) => refused += 1,
            Ok(store) => {
                for key in (0..60).map(|i| i.to_string()).chain(["unknown".to_owned()]) {
                    match store.put_if(claim(&key)).await {
                        Ok(Written::Won(_)) => panic!("{key} would run twice with page {page} damaged"),
                        Ok(Written::Lost(seen)) => {
                            right += 1;
                            let answer = seen.record.unwrap().answer;
                            assert!(answer.is_none_or(|answer| answer.body.starts_with(format!("answer {key} ").as_bytes())));
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
    println!(
        "{} pages damaged: {refused} files refused; of the keys in the others {right} right, {errors} errors",
        whole.len() / 4_096
    );
    assert!(refused > 0 && errors > 0 && right > 0, "a run without all of these shows nothing");
}
