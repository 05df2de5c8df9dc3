//! An unavailable store: its disk is full before a claim, or between the effect and its record.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use hapax::Policy;
use hapax_server::config::{Route, StoreUrl};
use hapax_testkit::disk::{Tmpfs, run_unshared};

use super::bench::Bench;
use super::harness::charges::{Charge, Version, send};
use super::harness::in_time;

const STORE_TIMEOUT: Duration = Duration::from_millis(100);
/// A request calls the store for a claim and for a completion, and each may take the store timeout.
/// The rest allows for a busy machine.
const ANSWERED_WITHIN: Duration = Duration::from_secs(5);
const DISK_BYTES: u64 = 16 << 20;
/// More than fits into the store's file and log without growing them.
const ANSWER_BYTES: usize = 256 << 10;
/// The largest number of claims that fit into the last page of the log.
const CLAIMS_THAT_MAY_FIT: usize = 100;

/// The same charge with a large answer.
fn large(mut charge: Charge) -> Charge {
    charge.answer_bytes = ANSWER_BYTES;
    charge
}

/// Mounts a disk and runs the test on it, in this process or in one that may mount. Prints why if
/// neither is possible.
fn on_a_small_disk<F: Future<Output = ()>>(test: &str, work: impl FnOnce(Tmpfs) -> F) {
    let mount_point = tempfile::tempdir().unwrap();
    match Tmpfs::mount(
        &std::fs::canonicalize(mount_point.path()).unwrap(),
        DISK_BYTES,
    ) {
        Ok(disk) => {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(work(disk));
        }
        Err(why) => {
            if let Err(why_not) = run_unshared(test) {
                hapax_testkit::skipped(format_args!("cannot mount a disk ({why}; {why_not})"));
            }
        }
    }
}

/// A gateway whose store is on the disk. The upstream's ledger is not, so that it always has room.
async fn bench_on(disk: &Tmpfs) -> Bench {
    let store: PathBuf = disk.path().join("hapax.db");
    Bench::start_with(|config| {
        config.store = StoreUrl::Sqlite(store);
        let policy = Policy {
            store_timeout: STORE_TIMEOUT,
            ..Policy::default()
        };
        config.routes = vec![Route {
            name: "all".into(),
            ..Route::everywhere(policy)
        }];
    })
    .await
}

#[test]
fn a_store_lost_before_the_claim_is_a_503_in_time_and_costs_no_effect() {
    const TEST: &str = "store::a_store_lost_before_the_claim_is_a_503_in_time_and_costs_no_effect";
    on_a_small_disk(TEST, |disk| async move {
        let bench = bench_on(&disk).await;
        let before = Charge::new("before");
        bench.retry(Version::Http1, &before).await;
        let filler = disk.leave_free(0);
        let mut keys = Vec::new();
        let refused = loop {
            let charge = large(Charge::new(format!("full-{}", keys.len())));
            let dispatched_before = bench.upstream.ledger().dispatches.len();
            let asked_at = Instant::now();
            let answer = send(bench.address, Version::Http1, &charge)
                .await
                .expect("an answer, whatever it is");
            assert!(
                asked_at.elapsed() < ANSWERED_WITHIN,
                "answered after {:?}",
                asked_at.elapsed()
            );
            keys.push(charge.key.clone());
            if answer.is_problem("store-unavailable")
                && bench.upstream.ledger().dispatches.len() == dispatched_before
            {
                assert_eq!(answer.status, 503);
                break charge;
            }
            assert!(
                keys.len() < CLAIMS_THAT_MAY_FIT,
                "the disk is full, and claims go on"
            );
        };
        drop(filler);
        let retried = bench.retry(Version::Http1, &refused).await;
        assert!(!retried.is_replay(), "it had never been dispatched");
        for key in &keys {
            bench.retry(Version::Http1, &large(Charge::new(key))).await;
        }
        hapax_testkit::report!(
            "store lost before the claim: {} requests until one got 503 undispatched; run on retry",
            keys.len()
        );
        bench.judge(&keys);
        bench.stop().await;
    });
}

#[test]
fn a_store_lost_after_dispatch_is_a_503_and_a_later_retry_replays() {
    const TEST: &str = "store::a_store_lost_after_dispatch_is_a_503_and_a_later_retry_replays";
    on_a_small_disk(TEST, |disk| async move {
        let bench = bench_on(&disk).await;
        let gate = bench.upstream.gate("lost");
        let charge = large(Charge::new("lost").held_at("lost"));
        let (address, first) = (bench.address, charge.clone());
        let first = tokio::spawn(async move { send(address, Version::Http1, &first).await });
        gate.wait_held(1).await;
        let filler = disk.leave_free(0);
        let let_at = Instant::now();
        gate.open(1);
        let first = in_time("the first caller", first).await.unwrap().unwrap();
        assert!(
            let_at.elapsed() < ANSWERED_WITHIN,
            "answered after {:?}",
            let_at.elapsed()
        );
        assert!(
            first.status == 503 && first.is_problem("store-unavailable"),
            "{first:?}"
        );

        let while_full = send(address, Version::Http1, &charge.again().waiting(0))
            .await
            .unwrap();
        assert!(
            while_full.status >= 400,
            "an answer that is not durable was told: {while_full:?}"
        );
        drop(filler);
        let retried = bench.retry(Version::Http1, &charge).await;
        assert!(retried.is_replay(), "{retried:?}");
        assert_eq!(retried.body.len(), ANSWER_BYTES);
        hapax_testkit::report!(
            "store lost after dispatch: the caller got 503, a repeat meanwhile {}, a later one the replay",
            while_full.status
        );
        bench.judge(&[charge.key]);
        bench.stop().await;
    });
}
