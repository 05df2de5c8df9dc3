//! Buffered bodies have a budget: one client address cannot use up the memory or disk that others
//! need.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use hapax::{BodyUsage, Policy};
use hapax_server::config::{Config, Protocol, Route, StoreUrl};
use hapax_server::gateway::Gateway;
use hapax_testkit::origin::Origin;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::bench::{gateway, soon};
use crate::client::take_answered;
use hapax_testkit::harness::{RawAnswer, send_raw};

const ATTACKER: &str = "10.0.0.66";
const VICTIM: &str = "10.0.0.7";
const MIB: u64 = 1 << 20;

/// Sends half of a guarded body.
async fn half_a_body(gateway: SocketAddr, number: usize, bytes: usize) -> TcpStream {
    let mut socket = TcpStream::connect(gateway).await.unwrap();
    let head = format!(
        "POST /half HTTP/1.1\r\nhost: shop\r\nx-forwarded-for: {ATTACKER}\r\nconnection: close\r\nidempotency-key: half-{number}\r\ncontent-length: {bytes}\r\n\r\n"
    );
    socket.write_all(head.as_bytes()).await.unwrap();
    // A gateway that refuses the request need not read it.
    let _ = socket.write_all(&vec![b'x'; bytes / 2]).await;
    socket
}

async fn victim(gateway: SocketAddr, key: &str, bytes: usize) -> RawAnswer {
    let head = format!(
        "POST /charges HTTP/1.1\r\nhost: shop\r\nx-forwarded-for: {VICTIM}\r\nconnection: close\r\nidempotency-key: {key}\r\ncontent-length: {bytes}\r\n\r\n"
    );
    let request = [head.as_bytes(), &vec![b'v'; bytes]].concat();
    soon("the victim's answer", send_raw(gateway, &request)).await
}

fn usage(gateway: &Gateway) -> BodyUsage {
    gateway.hapax().body_budget().usage()
}

async fn until(what: &str, reached: impl Fn() -> bool) {
    let asking = async {
        while !reached() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    soon(what, asking).await;
}

/// Checks that `count` of them are refused because the buffer is full; the others are not answered.
async fn assert_refused(sockets: &mut Vec<TcpStream>, count: usize) {
    for answer in soon("the rest is refused", take_answered(sockets, count)).await {
        // Bytes that are still arriving when the gateway closes may cut the answer off.
        assert!(
            matches!(answer.told().as_str(), "503 buffer-full" | "nothing cut"),
            "{}",
            answer.told()
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_half_sent_bodies_of_one_peer_stay_within_its_share_of_memory() {
    let origin = Origin::start().await;
    let settle = |config: &mut Config| {
        config.trusted_proxies = vec!["127.0.0.1".parse().unwrap()];
        config.limits.buffered_memory_bytes_max = 32 * MIB;
    };
    let gateway = gateway(origin.address(), Protocol::Http1, settle).await;
    let mut held = Vec::new();
    let mut most = 0;
    for number in 0..40 {
        held.push(half_a_body(gateway.address(), number, 1 << 20).await);
        most = most.max(usage(&gateway).memory_bytes);
    }
    until("the share is full", || {
        usage(&gateway).memory_bytes == 8 * MIB
    })
    .await;
    assert!(most <= 8 * MIB, "{most}");
    assert_refused(&mut held, 32).await;
    for round in 0..4 {
        assert_eq!(
            victim(gateway.address(), &format!("victim-{round}"), 1 << 20)
                .await
                .told(),
            "200"
        );
    }
    // No refused or unfinished request reached the service.
    assert_eq!(origin.ledger().all().len(), 4);
    drop(held);
    until("the room has come back", || {
        usage(&gateway) == BodyUsage::default()
    })
    .await;
}

#[tokio::test]
async fn spilled_bodies_fill_neither_the_disk_of_the_store_nor_the_share_of_others() {
    let (store, spill) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let origin = Origin::start().await;
    let settle = |config: &mut Config| {
        config.trusted_proxies = vec!["127.0.0.1".parse().unwrap()];
        config.store = StoreUrl::Sqlite(store.path().join("hapax.db"));
        config.spill_directory = Some(spill.path().to_owned());
        config.limits.buffered_disk_bytes_max = 16 * MIB;
        let policy = Policy {
            body_memory_bytes_max: 64 << 10,
            body_bytes_max: 4 * MIB,
            ..Policy::default()
        };
        config.routes = vec![Route {
            name: "all".into(),
            ..Route::everywhere(policy)
        }];
    };
    let gateway = gateway(origin.address(), Protocol::Http1, settle).await;
    assert_eq!(victim(gateway.address(), "before", 10).await.told(), "200");
    let before = bytes_in(store.path());
    let mut held = Vec::new();
    for number in 0..8 {
        held.push(half_a_body(gateway.address(), number, 2 << 20).await);
    }
    until("the share is full", || {
        usage(&gateway).disk_bytes == 4 * MIB
    })
    .await;
    assert_refused(&mut held, 6).await;
    until("what was sent is in files", || {
        spilled_bytes(spill.path()) >= 2 * MIB - (256 << 10)
    })
    .await;
    assert_eq!(victim(gateway.address(), "small", 10).await.told(), "200");
    assert_eq!(
        victim(gateway.address(), "large", 3 << 20).await.told(),
        "200"
    );
    let grown = bytes_in(store.path()).saturating_sub(before);
    assert!(
        grown < MIB,
        "the directory of the store has grown by {grown} bytes"
    );
    assert_eq!(
        spilled_bytes(store.path()),
        0,
        "and no file without a name is in it"
    );
    drop(held);
    until("the room has come back", || {
        usage(&gateway) == BodyUsage::default()
    })
    .await;
    assert_eq!(spilled_bytes(spill.path()), 0);
}

fn bytes_in(directory: &Path) -> u64 {
    fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().metadata().unwrap().len())
        .sum()
}

/// The bytes of unlinked files in a directory that this process has open.
fn spilled_bytes(directory: &Path) -> u64 {
    let files = fs::read_dir("/proc/self/fd")
        .unwrap()
        .filter_map(|entry| Some(entry.ok()?.path()));
    let is_spilled = |file: &std::path::PathBuf| {
        fs::read_link(file).is_ok_and(|link| {
            link.starts_with(directory) && link.to_string_lossy().ends_with("(deleted)")
        })
    };
    files
        .filter(is_spilled)
        .filter_map(|file| Some(fs::metadata(file).ok()?.len()))
        .sum()
}
