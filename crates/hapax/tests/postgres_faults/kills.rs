//! Servers and connections that end under load.

use std::sync::Arc;
use std::time::Duration;

use super::shop::{Books, Load, Shop};
use super::watched::{Sight, Watched};
use super::world::{Server, name, open, prepared, session};

/// How often the whole server is killed at least, and how often all connections to a database are
/// ended.
const KILLS: usize = 8;
const TERMINATIONS: usize = 40;
/// Kills are repeated until this many statements were hit in flight. Mostly the first few suffice,
/// but a kill may fall between two statements.
const STRUCK_MIN: u64 = 8;
const KILLS_MAX: usize = 10 * KILLS;
/// Callers at each node.
const CALLERS: usize = 8;
/// Charges between two faults: enough that every node has reconnected.
const BETWEEN: usize = 40;
/// A request gives up after two seconds at each of its two calls to the store: for the store info
/// and for the record. The rest allows for a slow machine.
const ANSWERED_WITHIN: Duration = Duration::from_secs(8);

/// Ends all connections to a database. Returns how many there were, and how many had a statement in
/// flight.
const TERMINATE: &str = "
    SELECT count(*), count(*) FILTER (WHERE state = 'active')
    FROM (SELECT state, pg_terminate_backend(pid) AS is_ended FROM pg_stat_activity WHERE datname = $1::text OFFSET 0) AS ended WHERE is_ended";

/// Two nodes on one database.
struct Nodes {
    shops: Vec<Shop>,
    sights: Vec<Arc<Sight>>,
    stores: Vec<Arc<Watched>>,
    books: Arc<Books>,
}

impl Nodes {
    async fn open(url: &str) -> Nodes {
        let books = Arc::new(Books::default());
        let mut nodes = Nodes {
            shops: Vec::new(),
            sights: Vec::new(),
            stores: Vec::new(),
            books,
        };
        for _ in 0..2 {
            let (store, sight) = Watched::new(open(url).await);
            nodes.shops.push(Shop::on(store.clone(), &nodes.books));
            nodes.sights.push(sight);
            nodes.stores.push(store);
        }
        nodes
    }

    fn fault(&self) {
        self.sights.iter().for_each(|sight| sight.fault());
    }

    fn sum(&self, of: fn(&Sight) -> u64) -> u64 {
        self.sights.iter().map(|sight| of(sight)).sum()
    }

    /// Checks that no effect happened twice, no answer was lost, every failure came in time, and
    /// the faults hit `landed` statements.
    async fn judge(&self, what: &str, faults: usize, landed: u64, url: &str) {
        let charges = self.books.judge();
        self.books.replay_all(Arc::new(open(url).await)).await;
        let (failed, adopted, before) = (
            self.sum(Sight::failed),
            self.sum(Sight::adopted),
            self.sum(Sight::written_before),
        );
        hapax_testkit::report!(
            "{what}: {faults} faults, which landed on {landed} statements in flight; {failed} writes failed; {charges} charges, {} answers of 503 or 409, \
             {adopted} claims adopted, {before} ends found written; the longest request took {:?}, the longest write {:?}",
            self.books.unavailable(),
            self.books.longest(),
            self.sights
                .iter()
                .map(|sight| sight.slowest())
                .max()
                .unwrap(),
        );
        assert!(
            landed > 0 && failed > 0,
            "void: no fault landed while a statement was in flight"
        );
        assert!(
            self.books.longest() < ANSWERED_WITHIN,
            "a request took {:?}",
            self.books.longest()
        );
        for store in &self.stores {
            assert_eq!(
                (store.stats().failovers, store.stats().commits_lost),
                (0, 0),
                "the database is the one it was"
            );
            assert!(store.stats().connections_lost > 0);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_killed_again_and_again_costs_no_second_effect_and_no_restart() {
    let Some(mut server) = Server::start() else {
        return;
    };
    let url = prepared(&server).await;
    let nodes = Nodes::open(&url).await;
    let load = Load::start("key", &nodes.shops, CALLERS);
    let mut kills = 0;
    while kills < KILLS || (nodes.sum(Sight::struck) < STRUCK_MIN && kills < KILLS_MAX) {
        nodes.books.more(BETWEEN).await;
        nodes.fault();
        tokio::task::block_in_place(|| {
            server.kill();
            server.start_again();
        });
        kills += 1;
    }
    nodes.books.more(BETWEEN).await;
    load.end().await;
    nodes
        .judge("server killed", kills, nodes.sum(Sight::struck), &url)
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_are_terminated_at_random_cost_no_second_effect_and_no_restart() {
    let Some(server) = Server::shared() else {
        return;
    };
    let url = prepared(server).await;
    let nodes = Nodes::open(&url).await;
    let load = Load::start("key", &nodes.shops, CALLERS);
    let user = session(&server.url("postgres")).await;
    let (mut terminated, mut landed) = (0, 0);
    for _ in 0..TERMINATIONS {
        nodes.books.more(BETWEEN / 2).await;
        nodes.fault();
        let row = user.query_one(TERMINATE, &[&name(&url)]).await.unwrap();
        let (all, active): (i64, i64) = (row.get(0), row.get(1));
        terminated += all;
        landed += active;
    }
    nodes.books.more(BETWEEN).await;
    load.end().await;
    nodes
        .judge(
            "backends terminated",
            terminated.try_into().unwrap(),
            landed.try_into().unwrap(),
            &url,
        )
        .await;
}
