//! Which bytes of a forgotten answer are left.

use std::path::PathBuf;
use std::time::Duration;

use hapax::Guest;
use hapax::store::guest::Options;
use hapax_core::Store;
use hapax_core::audit::{LogQuery, Signed};
use hapax_core::record::Head;
use hapax_core::store::{Change, Condition, Lifetime, Put, StoreErrorKind};

use super::shop::{HOUR, Shop, claim, complete, joining, run, win};

const CANARY: &str = "canary 4929-1234-5678-9012;";

fn forgetting(head: &Head) -> Put {
    let change = Change::Forget(
        Lifetime {
            retention: HOUR,
            tombstone: HOUR,
        },
        Signed::new("ada", "erasure request").unwrap(),
    );
    Put {
        id: head.id,
        condition: Condition::Version {
            version: head.version,
        },
        change,
    }
}

/// The files that contain the answer. Another process reads them: closing a file that this process
/// has open would drop its locks.
fn files_with_canary(shop: &Shop) -> Vec<PathBuf> {
    let files = std::fs::read_dir(shop.directory.path())
        .unwrap()
        .map(|file| file.unwrap().path());
    let has_canary = |file: &PathBuf| {
        let read = std::process::Command::new("cat")
            .arg(file)
            .output()
            .unwrap();
        memchr::memmem::find(&read.stdout, CANARY.as_bytes()).is_some()
    };
    files.filter(has_canary).collect()
}

#[tokio::test]
async fn a_forgotten_answer_is_written_over_and_cut_from_the_log() {
    for bytes in [200, 100 << 10] {
        for is_joined in [false, true] {
            let shop = Shop::new();
            let guest = shop.guest().await;
            let body: String = CANARY.chars().cycle().take(bytes).collect();
            let head = win(&guest, claim("k")).await;
            if is_joined {
                run(&shop.connect(), &joining(&guest, &complete(&head, &body))).unwrap();
            } else {
                win(&guest, complete(&head, &body)).await;
            }
            let head = guest
                .get(vec![head.id])
                .await
                .unwrap()
                .records
                .remove(0)
                .unwrap()
                .head;
            assert!(
                !files_with_canary(&shop).is_empty(),
                "there is nothing to be forgotten"
            );
            let epoch = guest.info().await.unwrap().epoch;
            win(&guest, forgetting(&head)).await;
            assert_eq!(
                files_with_canary(&shop),
                Vec::<PathBuf>::new(),
                "{bytes} bytes, joined: {is_joined}"
            );
            assert_eq!(guest.info().await.unwrap().epoch, epoch + 1);
            assert_eq!(guest.log(LogQuery::latest(9)).await.unwrap().len(), 1);
        }
    }
}

#[tokio::test]
async fn a_reader_that_holds_the_log_is_told_of() {
    let shop = Shop::new();
    let options = Options {
        erase_timeout: Duration::from_millis(20),
        ..shop.options()
    };
    let guest = Guest::open_with(&shop.path, options).await.unwrap();
    let head = win(&guest, claim("k")).await;
    let head = win(&guest, complete(&head, CANARY)).await;
    let reader = shop.connect();
    reader
        .execute_batch("BEGIN; SELECT count(*) FROM orders")
        .unwrap();
    assert_eq!(
        guest.put_if(forgetting(&head)).await.unwrap_err().kind(),
        StoreErrorKind::Unerased
    );
    // The record is forgotten despite the error. Forgetting it once more confirms that the bytes
    // are erased.
    let record = guest
        .get(vec![head.id])
        .await
        .unwrap()
        .records
        .remove(0)
        .unwrap();
    assert!(record.answer.is_none() && !record.head.kept);
    reader.execute_batch("COMMIT").unwrap();
    win(&guest, forgetting(&record.head)).await;
    assert_eq!(files_with_canary(&shop), Vec::<PathBuf>::new());
}
