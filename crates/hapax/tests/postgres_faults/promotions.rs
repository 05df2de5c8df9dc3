//! A synchronous standby takes over, repeatedly, under load.

use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::shop::{Books, Load, Shop};
use super::watched::Watched;
use super::world::{Server, both, open, prepared};

/// Promotions that must land while a claim is in flight; fewer prove nothing.
const IN_CLAIMS_MIN: usize = 20;
/// The largest number of promotions. If too few of them landed by then, the machine is too slow for
/// this test.
const PROMOTIONS_MAX: usize = 30;
const CALLERS: usize = 4;
/// Charges before the next fault: enough that both nodes have reconnected.
const BETWEEN: usize = 30;

/// The process that receives the primary's log on a standby, stopped until this is dropped.
struct Receiver(String);

impl Receiver {
    fn stop(standby: &Server) -> Receiver {
        let id = tokio::task::block_in_place(|| {
            standby.psql("postgres", "SELECT pid FROM pg_stat_wal_receiver")
        });
        let receiver = Receiver(id);
        receiver.signal("STOP");
        receiver
    }

    fn signal(&self, name: &str) {
        let signalled = Command::new("kill")
            .args(["-s", name, &self.0])
            .status()
            .expect("a command of every system");
        assert!(signalled.success(), "{name} {}", self.0);
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.signal("CONT");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_synchronous_standby_that_takes_over_costs_no_second_effect_and_loses_nothing() {
    let Some(mut primary) = Server::in_memory(&[]) else {
        return;
    };
    let url = prepared(&primary).await;
    let mut standby = tokio::task::block_in_place(|| primary.synchronous_standby());
    let url = both(&url, &primary, &standby);
    let books = Arc::new(Books::default());
    let (first, sight) = Watched::new(open(&url).await);
    let stores = [first, Watched::by(open(&url).await, &sight)];
    let shops: Vec<_> = stores
        .iter()
        .map(|store| Shop::on(store.clone(), &books))
        .collect();
    let load = Load::start("key", &shops, CALLERS);

    let (mut promotions, mut away) = (0, Duration::ZERO);
    while sight.faults_in_claims() < IN_CLAIMS_MIN && promotions < PROMOTIONS_MAX {
        books.more(BETWEEN).await;
        // Three of four times while claims wait for the standby: it may have them, they may be on
        // their way, or not sent yet. Otherwise at any moment.
        let receiver = if promotions % 4 == 3 {
            None
        } else {
            Some(Receiver::stop(&standby))
        };
        let (shop, key) = (
            shops[promotions % 2].clone(),
            format!("promotion-{promotions}"),
        );
        let caught = tokio::spawn(async move { shop.charge(&key).await });
        while sight.claims_in_flight() == 0 {
            tokio::task::yield_now().await;
        }
        sight.fault();
        let begun = Instant::now();
        tokio::task::block_in_place(|| {
            primary.kill();
            drop(receiver);
            standby.promote();
        });
        std::mem::swap(&mut primary, &mut standby);
        promotions += 1;
        caught.await.unwrap();
        away = away.max(begun.elapsed());
        tokio::task::block_in_place(|| standby.follow(&primary));
    }
    books.more(BETWEEN).await;
    load.end().await;

    let charges = books.judge();
    books.replay_all(Arc::new(open(&url).await)).await;
    let (adopted, in_claims) = (sight.adopted(), sight.faults_in_claims());
    hapax_testkit::report!(
        "promotions: {promotions}, of which {in_claims} landed inside a claim; {charges} charges, {} answers of 503 or 409, {adopted} claims adopted; \
         away for {away:?} at the longest, the longest request took {:?}",
        books.unavailable(),
        books.longest(),
    );
    assert!(
        in_claims >= IN_CLAIMS_MIN,
        "void: only {in_claims} of {promotions} promotions landed inside a claim"
    );
    for store in &stores {
        let stats = store.stats();
        assert_eq!(
            stats.commits_lost, 0,
            "a synchronous standby has everything: a false alarm"
        );
        assert_eq!(
            stats.failovers, promotions as u64,
            "every promotion is noticed, once"
        );
    }
}
