//! `hapax demo`: runs the demo crate with the gateway of `hapax serve`.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use super::Exit;
use crate::config::{Config, StoreUrl};
use crate::gateway::Gateway;

pub(super) use hapax_demo::{Args, service};

pub(super) fn run(args: &Args) -> Result<(), Exit> {
    Ok(hapax_demo::run(args, start)?)
}

/// Starts a gateway as `hapax serve` does, on free ports and with a store in the demo's temporary
/// directory.
async fn start(service: SocketAddr, store: PathBuf) -> Result<hapax_demo::Gateway, String> {
    let upstream = format!("http://{service}")
        .parse()
        .expect("an address is a URL");
    let mut config = Config::new(upstream);
    config.listen = (Ipv4Addr::LOCALHOST, 0).into();
    config.admin = Some((Ipv4Addr::LOCALHOST, 0).into());
    config.store = StoreUrl::Sqlite(store);
    // No load balancer has to notice the shutdown, and no requests are left.
    config.drain.notice = Duration::ZERO;
    config.drain.deadline = Duration::from_secs(2);
    let gateway = Gateway::start(config)
        .await
        .map_err(|error| error.to_string())?;
    Ok(hapax_demo::Gateway {
        address: gateway.address(),
        admin: gateway.admin(),
        hapax: gateway.hapax().clone(),
        drain: Box::pin(async {
            gateway.drain().await;
        }),
    })
}

impl From<hapax_demo::Failed> for Exit {
    fn from(failed: hapax_demo::Failed) -> Exit {
        Exit {
            code: failed.code,
            message: failed.message,
        }
    }
}
