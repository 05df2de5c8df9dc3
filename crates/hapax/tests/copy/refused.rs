//! Copies that are refused, and that refusing changes nothing.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use hapax::core::transfer::Standing;
use hapax::store::copy::{CopyError, Step};

use super::ends::{Kind, Place, World, copy, copy_told, give_up};
use super::filled::{Content, claim, fill, standing, won};

async fn pair(world: &World, kind: Kind) -> Option<(Place, Place)> {
    let (here, there) = (
        world.place(kind, "here.db").await?,
        world.place(kind, "there.db").await?,
    );
    fill(&*here.open().await.unwrap()).await;
    Some((here, there))
}

/// Stops at this point as a killed process would: nothing more is done, not even cleanup.
async fn interrupted(from: &Place, to: &Place, at: fn(Step) -> bool) {
    let told = |step| {
        if at(step) {
            std::panic::resume_unwind(Box::new("killed"));
        }
    };
    let mut copying = pin!(copy_told(from, to, told));
    poll_fn(
        |context| match catch_unwind(AssertUnwindSafe(|| copying.as_mut().poll(context))) {
            Ok(Poll::Ready(ended)) => panic!("it was not stopped: {ended:?}"),
            Ok(Poll::Pending) => Poll::Pending,
            Err(_) => Poll::Ready(()),
        },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_target_that_has_something_of_its_own_is_left_alone() {
    for kind in Kind::ALL {
        let world = World::new();
        let Some((here, there)) = pair(&world, kind).await else {
            continue;
        };
        won(
            &*there.open().await.unwrap(),
            claim("mine", Duration::from_micros(1)),
        )
        .await;
        let error = copy(&here, &there).await.unwrap_err();
        assert!(matches!(error, CopyError::NotEmpty { .. }), "{error}");
        assert!(error.to_string().contains("it has 1 records"), "{error}");
        // The source stays live.
        assert_eq!(standing(&*here.open_to_copy().await).await, Standing::Live);
        assert!(here.open().await.is_ok() && there.open().await.is_ok());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_moved_store_serves_no_more_and_is_copied_no_more() {
    for kind in Kind::ALL {
        let world = World::new();
        let Some((here, there)) = pair(&world, kind).await else {
            continue;
        };
        copy(&here, &there).await.unwrap();
        let third = world.place(kind, "third.db").await.unwrap();
        let error = copy(&here, &third).await.unwrap_err();
        assert!(error.to_string().contains("was moved to"), "{error}");
        if kind != Kind::Memory {
            let error = here.open().await.map(drop).unwrap_err();
            assert!(
                error.contains("was moved to") && error.contains("to go back, copy back"),
                "{error}"
            );
        }
        assert!(third.open().await.is_ok(), "nothing was begun there");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn neither_end_of_an_unfinished_copy_serves_and_it_can_be_finished() {
    for kind in Kind::ALL {
        let world = World::new();
        let Some((here, there)) = pair(&world, kind).await else {
            continue;
        };
        let before = Content::of(&here).await;
        interrupted(&here, &there, |step| matches!(step, Step::Records { .. })).await;
        if kind != Kind::Memory {
            let error = there.open().await.map(drop).unwrap_err();
            assert!(
                error.contains("is an unfinished copy of")
                    && error.contains("run `hapax store copy` again"),
                "{error}"
            );
            let error = here.open().await.map(drop).unwrap_err();
            assert!(error.contains("is being copied to"), "{error}");
        }
        assert!(copy(&here, &there).await.unwrap().is_resumed);
        before.assert_same(&Content::of(&there).await);
        assert!(there.open().await.is_ok());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_that_is_given_up_leaves_the_source_in_use_and_the_target_empty() {
    for kind in Kind::ALL {
        let world = World::new();
        let Some((here, there)) = pair(&world, kind).await else {
            continue;
        };
        let before = Content::of(&here).await;
        interrupted(&here, &there, |step| matches!(step, Step::Records { .. })).await;
        give_up(&here, &there).await.unwrap();
        let survey = there.open_to_copy().await.survey().await.unwrap();
        assert!(survey.is_empty() && survey.standing == Standing::Live);
        // The source is in use again and changes. A later copy starts from the beginning and
        // includes the change.
        won(
            &*here.open().await.unwrap(),
            claim("later", Duration::from_micros(1)),
        )
        .await;
        assert!(matches!(
            give_up(&here, &there).await,
            Err(CopyError::NothingBegun { .. })
        ));
        let copied = copy(&here, &there).await.unwrap();
        assert_eq!(
            (copied.records, copied.is_resumed),
            (before.stored.len() as u64 + 1, false)
        );
    }
}

/// Between its last two steps neither store serves, and the copy can only be completed.
#[tokio::test(flavor = "multi_thread")]
async fn a_copy_that_is_all_but_complete_is_completed_and_not_given_up() {
    for kind in Kind::ALL {
        let world = World::new();
        let Some((here, there)) = pair(&world, kind).await else {
            continue;
        };
        interrupted(&here, &there, |step| matches!(step, Step::Moved)).await;
        assert!(matches!(
            standing(&*here.open_to_copy().await).await,
            Standing::Moved(_)
        ));
        assert!(matches!(
            give_up(&here, &there).await,
            Err(CopyError::TooLate { .. })
        ));
        copy(&here, &there).await.unwrap();
        assert!(there.open().await.is_ok());
    }
}

/// Two copies of one store must never both be finished.
#[tokio::test(flavor = "multi_thread")]
async fn a_copy_that_another_has_overtaken_is_not_finished_any_more() {
    for kind in Kind::ALL {
        let world = World::new();
        let Some((here, first)) = pair(&world, kind).await else {
            continue;
        };
        let second = world.place(kind, "second.db").await.unwrap();
        interrupted(&here, &first, |step| matches!(step, Step::Records { .. })).await;
        copy(&here, &second).await.unwrap();
        assert!(matches!(
            copy(&here, &first).await,
            Err(CopyError::Source { .. })
        ));
        assert!(matches!(
            standing(&*first.open_to_copy().await).await,
            Standing::Arriving(..)
        ));
        assert!(
            matches!(copy(&first, &second).await, Err(CopyError::Source { .. })),
            "half a copy is no store to copy"
        );
        // An unfinished copy can be overwritten by another copy.
        copy(&second, &first).await.unwrap();
        assert!(first.open().await.is_ok());
    }
}

/// An attempt is running in a store that several nodes may use.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_in_use_is_not_copied() {
    for kind in Kind::ALL.into_iter().filter(|kind| *kind != Kind::Sqlite) {
        let world = World::new();
        let Some((here, there)) = pair(&world, kind).await else {
            continue;
        };
        won(
            &*here.open().await.unwrap(),
            claim("under-way", Duration::from_secs(60)),
        )
        .await;
        let error = copy(&here, &there).await.unwrap_err();
        assert!(matches!(error, CopyError::Busy { live: 1, .. }), "{error}");
        assert!(here.open().await.is_ok() && there.open().await.is_ok());
    }
}

/// The answer's bytes in the file have changed: the copy stops and names the record.
#[tokio::test(flavor = "multi_thread")]
async fn a_corrupt_answer_stops_the_copy_and_names_its_record() {
    let world = World::new();
    let (here, there) = pair(&world, Kind::Sqlite).await.unwrap();
    let Place::Sqlite(path) = &here else {
        unreachable!()
    };
    let damage = "UPDATE answers SET content = CAST(substr(content, 1, length(content) - 1) || x'00' AS BLOB) WHERE length(content) > 1000";
    assert_eq!(
        rusqlite::Connection::open(path)
            .unwrap()
            .execute(damage, [])
            .unwrap(),
        1
    );
    let error = copy(&here, &there).await.unwrap_err();
    let id = claim("large", Duration::ZERO).id;
    assert!(
        error
            .to_string()
            .contains(&format!("record {id} cannot be copied")),
        "{error}"
    );
    assert!(!error.is_unavailable());
    give_up(&here, &there).await.unwrap();
    assert!(here.open().await.is_ok());
}
