//! Commits whose reply is lost: the driver's result must match what the database did.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use hapax_testkit::servers::FaultProxy;

use crate::drivers::{DieselAsync, SeaOrm, SqlxPostgres, TokioPostgres, TokioPostgresEffect};
use crate::place;
use crate::script::{Driver, End, Failed, Point, Script};
use crate::world::World;

/// More than any driver needs for the answers to two statements.
const BYTES_MAX: u64 = 600;
const STEP: usize = 9;

/// Results of commits whose connection broke.
#[derive(Default)]
struct Found {
    committed: usize,
    not_committed: usize,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_whose_answer_is_lost_is_told_as_it_was() {
    if place::server().is_none() {
        return;
    }
    tokio::join!(
        by_every_byte::<TokioPostgres>(),
        by_every_byte::<TokioPostgresEffect>(),
        by_every_byte::<SqlxPostgres>(),
        by_every_byte::<DieselAsync>(),
        by_every_byte::<SeaOrm>()
    );
}

async fn by_every_byte<D: Driver>() {
    let world = World::<D>::new().await.expect("asked before");
    let mut found = Found::default();
    for end in [End::Finish, End::JoinAndCommit] {
        // First before the request arrives, then after ever more bytes of the reply.
        cut(&world, end, None, &mut found).await;
        for bytes in (0..BYTES_MAX).step_by(STEP) {
            if !cut(&world, end, Some(bytes), &mut found).await {
                break;
            }
        }
    }
    let Found {
        committed,
        not_committed,
    } = found;
    hapax_testkit::report!(
        "{:>15}: {committed} had committed and {not_committed} had not",
        D::NAME
    );
    assert!(
        committed > 0 && not_committed > 0,
        "void: a run without both shows nothing"
    );
}

/// Breaks the connection of one transaction while it commits. False if the commit finished first.
async fn cut<D: Driver>(world: &World<D>, end: End, bytes: Option<u64>, found: &mut Found) -> bool {
    let case = format!("{}, {end:?}, {bytes:?}", D::NAME);
    let proxy =
        Arc::new(FaultProxy::in_front_of(place::server().expect("asked before").address()).await);
    let driver = D::new(&through(proxy.address(), world.place.at()));
    let cutting = proxy.clone();
    let script = Script::new(end).passing(move |point| {
        match (point, bytes) {
            (Point::Committing, Some(bytes)) => cutting.cut_next_statement_after(bytes),
            (Point::Committing, None) => cutting.lose_next_statement(),
            _ => {}
        }
        async {}
    });
    let told = Arc::new(Mutex::new(None));
    let telling = told.clone();
    let work = async move |_, operation| {
        let performed = driver.perform(&operation, &script).await;
        *telling.lock().unwrap() = Some(performed.clone().map(|_| ()));
        performed
    };
    let first = world.work(&world.once, &case, work).await;
    let (landed, effects) = (proxy.faults() > 0, world.effects().await);
    let told = told.lock().unwrap().clone().expect("it has run");
    match (&told, end) {
        (Ok(()), _) => assert_eq!(effects, 1, "{case}: told that it is there"),
        (Err(Failed::RolledBack(_)), _) => {
            assert_eq!(effects, 0, "{case}: told that it is not there");
        }
        // Where the driver commits itself, its error does not show the outcome, and the layer reads
        // the record.
        (Err(Failed::Otherwise(_)), End::JoinAndCommit) => {}
        _ => panic!("{case}: told {told:?}"),
    }
    assert_eq!(first.is_ok(), effects == 1, "{case}: {first:?}");
    if landed {
        *(if effects == 1 {
            &mut found.committed
        } else {
            &mut found.not_committed
        }) += 1;
    }
    // A repeat connects directly to the server and is not blocked.
    let again = world
        .drive(&world.once, &case, &Script::new(End::Finish))
        .await;
    assert_eq!(again.replayed, effects == 1, "{case}");
    assert_eq!(world.effects().await, 1, "{case}");
    landed
}

/// The same database at another address.
fn through(address: SocketAddr, url: &str) -> String {
    format!(
        "postgres://postgres@{address}/{}",
        url.rsplit('/').next().expect("a URL has a path")
    )
}
