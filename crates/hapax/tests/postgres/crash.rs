//! Acknowledged writes survive a crash of the server.

use hapax_core::{State, Store};
use hapax_testkit::servers;

use crate::lanes::{claim, finish, won};
use crate::place;

/// A database may be configured not to wait for its disk, because of its other users. If a claim is
/// lost after its effect, there is a second effect.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_waits_for_no_disk_loses_nothing_of_ours() {
    let settings = [("synchronous_commit", "off"), ("wal_writer_delay", "10s")];
    let Some(mut server) = servers::Postgres::in_memory(&settings) else {
        return;
    };
    let url = server.database();
    place::migrate(&url).await;
    server.psql("postgres", "CHECKPOINT");
    let store = place::open(&url).await;
    let mut heads = Vec::new();
    for number in 0..3 {
        let head = won(store.put_if(claim(&format!("key {number}"))).await);
        if number > 0 {
            won(store.put_if(finish(&head, "paid")).await);
        }
        heads.push(head);
    }
    server.kill();
    drop(store);
    server.start_again();

    let store = place::open(&url).await;
    let found = store
        .get(heads.iter().map(|head| head.id).collect())
        .await
        .expect("read")
        .records;
    let found: Vec<_> = found
        .into_iter()
        .map(|record| record.map(|record| (record.head.state, record.head.fence)))
        .collect();
    let states = [State::Running, State::Completed, State::Completed];
    let expected: Vec<_> = heads
        .iter()
        .zip(states)
        .map(|(head, state)| Some((state, head.fence)))
        .collect();
    assert_eq!(found, expected);
}
