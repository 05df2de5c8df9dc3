//! A gateway in this process between an upstream and the test, for tests that need no kill.

use std::net::SocketAddr;

use hapax_server::config::{Config, PrincipalSource, Protocol, StoreUrl};
use hapax_server::gateway::Gateway;
use tempfile::TempDir;

use super::harness::charges::{Charge, Charged, Upstream, Version, send};
use super::harness::{self, Answer, in_time};

pub struct Bench {
    pub upstream: Upstream,
    pub address: SocketAddr,
    gateway: Gateway,
    directory: TempDir,
}

impl Bench {
    pub async fn start() -> Bench {
        Bench::start_with(|_| {}).await
    }

    /// With settings changed by `adjust`.
    pub async fn start_with(adjust: impl FnOnce(&mut Config)) -> Bench {
        let directory = tempfile::tempdir().unwrap();
        let upstream = Upstream::start(&[Protocol::Http1]);
        let mut config = harness::config(upstream.address(0));
        config.principal = PrincipalSource::None.into();
        config.store = StoreUrl::Sqlite(directory.path().join("hapax.db"));
        adjust(&mut config);
        let gateway = Gateway::start(config).await.unwrap();
        Bench {
            upstream,
            address: gateway.address(),
            gateway,
            directory,
        }
    }

    /// Shuts down cleanly: running attempts end first.
    pub async fn stop(self) {
        let drained = self.gateway.drain().await;
        assert_eq!(drained.left_unknown, 0);
        self.upstream.ledger().assert_none_twice();
        drop(self.directory);
    }

    /// Repeats a request twice: the second answer must be the replay of the first, and there must
    /// be one effect. Returns the first answer.
    pub async fn retry(&self, version: Version, charge: &Charge) -> Answer {
        let [first, second] = [
            self.repeat(version, charge).await,
            self.repeat(version, charge).await,
        ];
        assert!(first.is_charged(), "{} got {first:?}", charge.key);
        second.assert_replays(&first);
        first
    }

    /// Retries as long as the gateway asks for it.
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

    /// Checks that each of these keys had one effect, and no key had two.
    pub fn judge(&self, keys: &[String]) {
        let ledger = self.upstream.ledger();
        ledger.assert_none_twice();
        for key in keys {
            assert_eq!(ledger.effects_of(key), 1, "{key}");
        }
    }
}
