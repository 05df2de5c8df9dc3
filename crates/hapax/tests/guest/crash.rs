//! The file as a crash leaves it: copied together with its log at every step between the claim and
//! the answer.

use std::path::{Path, PathBuf};

use hapax::Guest;
use hapax_core::Store;
use hapax_core::record::State;
use rusqlite::Connection;

use super::shop::{LEASE, Shop, claim, complete, joining, ordering, orders, run, takeover, win};

/// The files that a process killed now would leave. Another process reads them: closing a file that
/// this process has open would drop its locks.
fn image(shop: &Shop, name: &str) -> PathBuf {
    let to = shop.directory.path().join(name);
    std::fs::create_dir(&to).unwrap();
    for suffix in ["", "-wal"] {
        let from = format!("{}{suffix}", shop.path.display());
        let copied = std::process::Command::new("cp")
            .arg(&from)
            .arg(&to)
            .status()
            .unwrap();
        assert!(copied.success(), "{from} could not be copied");
    }
    to.join("shop.db")
}

/// The state of the record in an image, and how many effects there are.
async fn found(shop: &Shop, image: &Path) -> (Option<State>, i64) {
    let guest = Guest::open_with(image, shop.options()).await.unwrap();
    let record = guest
        .get(vec![claim("k").id])
        .await
        .unwrap()
        .records
        .remove(0);
    (
        record.map(|record| record.head.state),
        orders(&Connection::open(image).unwrap()),
    )
}

#[tokio::test]
async fn effect_and_record_never_disagree_in_any_crash_image() {
    let shop = Shop::new();
    let guest = shop.guest().await;
    let mut images = vec![(image(&shop, "before"), (None, 0))];
    let head = win(&guest, claim("k")).await;
    images.push((image(&shop, "claimed"), (Some(State::Running), 0)));
    let mut connection = shop.connect();
    // A cache so small that uncommitted pages spill into the log.
    connection
        .execute_batch("PRAGMA cache_size = 1; PRAGMA cache_spill = 1")
        .unwrap();
    let transaction = ordering(&mut connection, "tea");
    images.push((image(&shop, "effect"), (Some(State::Running), 0)));
    run(
        &transaction,
        &joining(&guest, &complete(&head, &"large ".repeat(20_000))),
    )
    .unwrap();
    images.push((image(&shop, "joined"), (Some(State::Running), 0)));
    transaction.commit().unwrap();
    images.push((image(&shop, "committed"), (Some(State::Completed), 1)));
    assert!(guest.put_if(complete(&head, "late")).await.is_ok());
    images.push((image(&shop, "answered"), (Some(State::Completed), 1)));

    for (image, expected) in &images {
        assert_eq!(found(&shop, image).await, *expected, "{}", image.display());
    }
    hapax_testkit::report!("{} crash images", images.len());

    // After a crash before the commit, the next attempt has the only effect.
    shop.clock.advance(LEASE);
    for (image, _) in images
        .iter()
        .filter(|(_, expected)| *expected == (Some(State::Running), 0))
    {
        let guest = Guest::open_with(image, shop.options()).await.unwrap();
        let next = win(&guest, takeover("k", &head)).await;
        let mut connection = Connection::open(image).unwrap();
        for (attempt, is_refused) in [(&head, true), (&next, false)] {
            let transaction = ordering(&mut connection, "tea");
            let end = run(&transaction, &joining(&guest, &complete(attempt, "done")));
            assert_eq!(end.is_err(), is_refused);
            if end.is_ok() {
                transaction.commit().unwrap();
            }
        }
        drop(guest);
        assert_eq!(found(&shop, image).await, (Some(State::Completed), 1));
    }
}
