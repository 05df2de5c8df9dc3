//! A gateway in front of an origin.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use hapax_server::config::{Config, PrincipalSource, Protocol, StoreUrl};
use hapax_server::gateway::Gateway;

/// A gateway before this origin, with whatever is changed of its defaults.
pub(crate) async fn gateway(
    origin: SocketAddr,
    protocol: Protocol,
    change: impl FnOnce(&mut Config),
) -> Gateway {
    let mut config = Config::new(
        format!("http://{origin}")
            .parse()
            .expect("an address makes a URL"),
    );
    config.listen = (Ipv4Addr::LOCALHOST, 0).into();
    config.admin = None;
    config.store = StoreUrl::Memory;
    config.principal = PrincipalSource::None.into();
    config.upstream.protocol = protocol;
    config.drain.notice = Duration::ZERO;
    change(&mut config);
    Gateway::start(config).await.expect("the gateway starts")
}

/// A bound on waiting for what should come at once: a test that hangs says nothing.
pub(crate) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), future)
        .await
        .unwrap_or_else(|_| panic!("{what}: nothing after 20 s"))
}
