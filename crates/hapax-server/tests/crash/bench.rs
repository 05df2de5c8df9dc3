//! A gateway in this process between an upstream and the test, for what needs no kill.

use std::net::SocketAddr;

use hapax_server::config::{Config, Protocol, StoreUrl};
use hapax_server::gateway::Gateway;
use tempfile::TempDir;

use super::client::{Answer, Charge, Version, in_time, send};
use super::gateway;
use super::upstream::Upstream;

pub struct Bench {
    pub upstream: Upstream,
    pub address: SocketAddr,
    gateway: Gateway,
    directory: TempDir,
}

impl Bench {
    pub async fn start() -> Bench {
        Bench::start_with(|_, _| {}).await
    }

    /// The settings changed by `adjust`, which is told the bench's directory.
    pub async fn start_with(adjust: impl FnOnce(&mut Config, &std::path::Path)) -> Bench {
        let directory = tempfile::tempdir().unwrap();
        let upstream = Upstream::start(directory.path());
        let store = StoreUrl::Sqlite(directory.path().join("hapax.db"));
        let mut config = gateway::config(store, upstream.address(Protocol::Http1), Protocol::Http1);
        adjust(&mut config, directory.path());
        let gateway = Gateway::start(config).await.unwrap();
        Bench {
            upstream,
            address: gateway.address(),
            gateway,
            directory,
        }
    }

    /// Ends in an orderly way: whatever the gateway has under way ends first.
    pub async fn stop(self) {
        let drained = self.gateway.drain().await;
        assert_eq!(drained.left_unknown, 0);
        self.upstream.assert_none_twice();
        drop(self.directory);
    }

    /// Repeats a request, and repeats it once more: the second is the replay of the first, and
    /// there was one effect. Returns the first.
    pub async fn retry(&self, version: Version, charge: &Charge) -> Answer {
        let [first, second] = [
            self.repeat(version, charge).await,
            self.repeat(version, charge).await,
        ];
        assert!(first.is_charged(), "{} got {first:?}", charge.key);
        second.assert_replays(&first, &charge.key);
        first
    }

    /// Comes back for as long as it is told to.
    async fn repeat(&self, version: Version, charge: &Charge) -> Answer {
        let charge = charge.again();
        let answered = async {
            loop {
                let answer = send(self.address, version, &charge)
                    .await
                    .expect("nobody hangs up on this one");
                if !answer.is_problem("in-flight") {
                    return answer;
                }
            }
        };
        in_time(&charge.key, answered).await
    }

    /// Every one of these keys had one effect, and no key had two.
    pub fn judge(&self, keys: &[String]) {
        self.upstream.assert_none_twice();
        let effects = self.upstream.effects();
        for key in keys {
            assert_eq!(effects.get(key), Some(&1), "{key}");
        }
    }
}
