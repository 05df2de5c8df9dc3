//! Ten thousand requests wait for one key, on three nodes.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use hapax_server::config::Protocol;
use hapax_testkit::crash::{self, Child};
use hapax_testkit::servers::Postgres;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::harness::charges::{BODY, Charge, Charged, Upstream, answer};
use super::harness::node::{self, NodeSettings, waited};
use super::harness::{self, Answer, body, in_time};

const WAITERS: usize = 10_000;
const NODES: usize = 3;
/// Requests on one connection, as browsers and proxies multiplex them.
const STREAMS: usize = 100;
/// How long the polls are counted while all requests wait.
const WATCHED: Duration = Duration::from_secs(3);
/// Polls of one node per second: one every 50 ms, for any number of waiting requests.
const POLLS_PER_SECOND: f64 = 20.0;
/// Requests with other keys, sent while all wait.
const OTHERS: usize = 60;

const TEST: &str = "waiters::ten_thousand_waiters_over_three_nodes_get_the_answer_of_one_execution";

#[test]
fn ten_thousand_waiters_over_three_nodes_get_the_answer_of_one_execution() {
    if crash::role().is_some() {
        return node::serve();
    }
    let Some(postgres) = Postgres::shared() else {
        return;
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(wait(postgres));
}

async fn wait(postgres: &Postgres) {
    let (store, upstream) = (
        harness::migrated(postgres),
        Upstream::start(&[Protocol::Http1; NODES]),
    );
    let database = harness::database_name(&store);
    postgres.psql(
        "postgres",
        &format!("ALTER DATABASE {database} SET track_functions = 'pl'"),
    );
    let mut nodes: Vec<(Child, SocketAddr)> = (0..NODES)
        .map(|number| start(number, &store, &upstream))
        .collect();
    let gate = upstream.gate("one");
    let charge = Charge::new("one").held_at("one");
    let first = tokio::spawn(answer(nodes[0].1, &charge));
    gate.wait_held(1).await;

    let begun = Instant::now();
    let mut waiters = JoinSet::new();
    for connection in 0..WAITERS / STREAMS {
        join(nodes[connection % NODES].1, &mut waiters).await;
    }
    for node in 0..NODES {
        let connections = (WAITERS / STREAMS + NODES - 1 - node) / NODES;
        while waited(&mut nodes[node].0) < connections * STREAMS {
            assert!(
                begun.elapsed() < Duration::from_secs(25),
                "not all wait yet: {:?}",
                nodes
                    .iter_mut()
                    .map(|node| waited(&mut node.0))
                    .collect::<Vec<_>>()
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    let all_wait_after = begun.elapsed();

    let (polls_before, watched_from) = (polls(postgres, database), Instant::now());
    let mut others = JoinSet::new();
    for number in 0..OTHERS {
        others.spawn(answer(
            nodes[number % NODES].1,
            &Charge::new(format!("other-{number}")),
        ));
    }
    for other in in_time("those who wait for nobody", others.join_all()).await {
        assert!(other.is_charged() && !other.is_replay(), "{other:?}");
    }
    let others_took = watched_from.elapsed();
    tokio::time::sleep(WATCHED.saturating_sub(others_took)).await;
    let (polls, watched) = (
        polls(postgres, database) - polls_before,
        watched_from.elapsed(),
    );

    let let_at = Instant::now();
    gate.open(1);
    let mut late: Vec<Duration> = Vec::new();
    let (mut answers, mut replays) = (Vec::new(), 0);
    while let Some(told) = in_time("all are answered", waiters.join_next()).await {
        let (told, at) = told.unwrap();
        late.push(at.duration_since(let_at));
        replays += usize::from(told.is_replay());
        answers.push(told);
    }
    let first = first.await.unwrap();
    assert!(first.is_charged() && !first.is_replay(), "{first:?}");
    for told in &answers {
        told.assert_replays(&first);
    }
    late.sort();
    let ledger = upstream.ledger();
    ledger.assert_none_twice();
    assert_eq!(
        (answers.len(), replays, ledger.dispatches_of("one")),
        (WAITERS, WAITERS, 1)
    );
    hapax_testkit::report!(
        "waiters: {WAITERS} over {NODES} nodes within {all_wait_after:.1?}; {OTHERS} other keys were run meanwhile in {others_took:.1?}; \
         {:.1} polls a second from each of the two nodes without the attempt; after the answer the median waiter had it in {:.0?}, the first in {:.0?}, the last in {:.0?}",
        polls as f64 / watched.as_secs_f64() / (NODES - 1) as f64,
        late[WAITERS / 2],
        late[0],
        late[WAITERS - 1],
    );
    // The database's counts may be a second late. One poll for each waiting request would be a
    // thousand times as many.
    let polls_max =
        POLLS_PER_SECOND * (watched.as_secs_f64() + 1.0) * (NODES - 1) as f64 + OTHERS as f64;
    assert!((polls as f64) < polls_max, "{polls} polls in {watched:?}");
    assert!(
        polls > 0,
        "nobody polled, so nobody waited for another node"
    );
}

fn start(number: usize, store: &str, upstream: &Upstream) -> (Child, SocketAddr) {
    let birth = NodeSettings {
        test: TEST,
        store: store.to_owned(),
        upstream: upstream.address(number),
        protocol: Protocol::Http1,
        listen: (Ipv4Addr::LOCALHOST, 0).into(),
        lease: Duration::from_secs(10),
    };
    birth.complete()
}

/// Opens a connection on which many requests wait.
async fn join(node: SocketAddr, waiters: &mut JoinSet<(Answer, Instant)>) {
    let socket = TcpStream::connect(node).await.unwrap();
    socket.set_nodelay(true).unwrap();
    let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(socket))
        .await
        .unwrap();
    tokio::spawn(connection);
    for _ in 0..STREAMS {
        let mut sender = sender.clone();
        waiters.spawn(async move {
            sender.ready().await.unwrap();
            let response = sender
                .send_request(Charge::new("one").waiting(30).request_http2(body(BODY)))
                .await
                .unwrap();
            (Answer::read(response).await.unwrap(), Instant::now())
        });
    }
}

/// How often records were read, as counted by the database.
fn polls(postgres: &Postgres, database: &str) -> u64 {
    let sql = "SELECT coalesce(sum(calls), 0) FROM pg_stat_user_functions WHERE schemaname = 'hapax' AND funcname = 'get'";
    postgres.psql(database, sql).parse().unwrap()
}
