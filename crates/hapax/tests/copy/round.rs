//! Copies there and back: the records are equal one by one.

use std::time::Duration;

use hapax::core::record::{State, StateFilter};
use hapax::core::store::{ListQuery, Put, Written};
use hapax::core::time::Timestamp;
use hapax::core::transfer::{Account, CopyId, Passage, Standing};

use super::ends::{Kind, Place, World, copy, copy_told};
use super::filled::{Content, claim, fill, fill_pages, standing, won};

async fn there_and_back(first: Kind, second: Kind) {
    let world = World::new();
    let (Some(here), Some(there)) = (
        world.place(first, "here.db").await,
        world.place(second, "there.db").await,
    ) else {
        return;
    };
    fill(&*here.open().await.unwrap()).await;
    let (before, floor) = content(&here).await;
    assert!(
        before.stored.len() >= 14 && before.log.len() == 3 && before.epoch == 1,
        "one of everything"
    );

    let copied = copy(&here, &there).await.unwrap();
    assert_eq!(
        (copied.records, copied.running, copied.logged),
        (before.stored.len() as u64, 1, 3)
    );
    let (between, floor_there) = content(&there).await;
    before.assert_same(&between);
    assert!(floor_there >= floor && floor_there >= before.fence());

    // The old store has been replaced, and is now the target.
    copy(&there, &here).await.unwrap();
    let (after, floor_here) = content(&here).await;
    before.assert_same(&after);
    assert!(floor_here >= floor_there);
    assert!(matches!(
        standing(&*there.open_to_copy().await).await,
        Standing::Moved(_)
    ));

    // The store serves, and the fences it mints are above all earlier ones.
    let store = here.open().await.unwrap();
    let head = won(&*store, claim("fresh", Duration::from_secs(10))).await;
    assert!(
        head.fence > before.fence() && head.fence > floor_here,
        "{} {}",
        head.fence,
        before.fence()
    );
    let lost: Put = claim("completed", Duration::from_secs(10));
    let Written::Lost(seen) = store.put_if(lost).await.unwrap() else {
        panic!("a completed key was claimed again")
    };
    assert_eq!(
        &seen.record.unwrap().answer.unwrap().body[..],
        b"{\"id\":1}"
    );
}

async fn content(place: &Place) -> (Content, hapax::core::Fence) {
    (
        Content::of(place).await,
        place
            .open_to_copy()
            .await
            .survey()
            .await
            .unwrap()
            .account
            .floor,
    )
}

/// A copied record keeps its operation id, whichever rule it was made by.
#[tokio::test(flavor = "multi_thread")]
async fn the_rule_of_operation_ids_goes_along() {
    let world = World::new();
    for kind in [Kind::Memory, Kind::Sqlite, Kind::Postgres] {
        let Some(place) = world.place(kind, "rule.db").await else {
            return;
        };
        let store = place.open_to_copy().await;
        let passage = Passage {
            copy: CopyId::from_bytes([5; 16]),
            other: "elsewhere".to_owned(),
        };
        let here = store.survey().await.unwrap().account;
        assert_eq!(
            here.lives_since,
            Timestamp::ZERO,
            "{kind:?}: a new store has the second rule from the beginning"
        );
        let lives_since = here.now.after(Duration::from_secs(60));
        assert!(
            store
                .arrive(
                    passage.clone(),
                    Account {
                        lives_since,
                        ..here
                    }
                )
                .await
                .unwrap()
        );
        store.settle_in(passage.copy, here).await.unwrap();
        assert_eq!(
            store.survey().await.unwrap().account.lives_since,
            lives_since,
            "{kind:?}"
        );
        drop(store);
        assert_eq!(
            place
                .open()
                .await
                .unwrap()
                .info()
                .await
                .unwrap()
                .lives_since,
            lives_since,
            "{kind:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn from_memory_to_memory_and_back_nothing_changes() {
    there_and_back(Kind::Memory, Kind::Memory).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn from_sqlite_to_sqlite_and_back_nothing_changes() {
    there_and_back(Kind::Sqlite, Kind::Sqlite).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn from_memory_to_sqlite_and_back_nothing_changes() {
    there_and_back(Kind::Memory, Kind::Sqlite).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn from_sqlite_to_postgres_and_back_nothing_changes() {
    there_and_back(Kind::Sqlite, Kind::Postgres).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn from_postgres_to_sqlite_and_back_nothing_changes() {
    there_and_back(Kind::Postgres, Kind::Sqlite).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn from_postgres_to_postgres_and_back_nothing_changes() {
    there_and_back(Kind::Postgres, Kind::Postgres).await;
}

/// A running record lapses, whatever its lease was: its owner is gone.
#[tokio::test(flavor = "multi_thread")]
async fn what_ran_in_the_old_store_is_unknown_in_the_new_one() {
    let world = World::new();
    for kind in Kind::ALL {
        let here = world
            .place(Kind::Sqlite, &format!("{kind:?}-here.db"))
            .await
            .unwrap();
        let Some(there) = world.place(kind, &format!("{kind:?}-there.db")).await else {
            continue;
        };
        let id = won(
            &*here.open().await.unwrap(),
            claim("held", Duration::from_secs(3600)),
        )
        .await
        .id;
        assert_eq!(copy(&here, &there).await.unwrap().running, 1);
        let store = there.open().await.unwrap();
        let reading = store.get(vec![id]).await.unwrap();
        let head = &reading.records[0].as_ref().unwrap().head;
        assert_eq!(
            (head.state, head.state_at(reading.now)),
            (State::Running, State::Unknown)
        );
        let listed = store
            .list(ListQuery {
                state: Some(StateFilter::Open),
                after: None,
                limit: 10,
            })
            .await
            .unwrap();
        assert_eq!(
            listed.iter().map(|head| head.id).collect::<Vec<_>>(),
            [id],
            "{kind:?}"
        );
        assert_eq!(store.sweep(10).await.unwrap().lost, 1, "{kind:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_are_told_as_they_come() {
    let world = World::new();
    let (here, there) = (
        world.place(Kind::Sqlite, "here.db").await.unwrap(),
        world.place(Kind::Sqlite, "there.db").await.unwrap(),
    );
    fill_pages(&here.open().await.unwrap(), 2_500).await;
    let before = Content::of(&here).await;
    let mut told = Vec::new();
    copy_told(&here, &there, |step| told.push(format!("{step:?}")))
        .await
        .unwrap();
    let expected = [
        "Left",
        "Arrived { is_resumed: false }",
        "Records { done: 1000, of: 2500 }",
        "Records { done: 2000, of: 2500 }",
        "Records { done: 2500, of: 2500 }",
        "Moved",
        "Settled",
    ];
    assert_eq!(told, expected);
    before.assert_same(&Content::of(&there).await);
}
