//! A gateway in front of an origin.

use std::net::SocketAddr;

use hapax_server::config::{Config, PrincipalSource, Protocol};
use hapax_server::gateway::Gateway;

use crate::harness;
pub use crate::harness::in_time as soon;

/// A gateway in front of this origin, with changed defaults.
pub async fn gateway(
    origin: SocketAddr,
    protocol: Protocol,
    change: impl FnOnce(&mut Config),
) -> Gateway {
    let mut config = harness::config(origin);
    config.principal = PrincipalSource::None.into();
    config.upstream.protocol = protocol;
    change(&mut config);
    Gateway::start(config).await.expect("the gateway starts")
}
