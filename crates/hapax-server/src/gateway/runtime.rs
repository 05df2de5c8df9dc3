//! Everything built from one configuration, and what outlives it.
//!
//! A request belongs to the configuration under which it began: it holds a reference to it, and
//! thereby to the connections to the upstream. State (the store, running attempts, counters) is not
//! part of a configuration and stays.

use std::sync::Arc;

use hapax::Hapax;
use hapax::core::Secret;
use tokio_rustls::TlsAcceptor;

use super::forward::sensitive_fields;
use super::principal::Directory;
use super::stack::Stack;
use super::upstream::{Proxy, Tunnels};
use super::{listen, wire};
use crate::config::Config;
use crate::telemetry::{Metrics, PrincipalChanges, Traces};

/// What outlives a configuration.
pub(super) struct Runtime {
    pub(super) hapax: Hapax,
    pub(super) secret: Secret,
    pub(super) metrics: Metrics,
    pub(super) traces: Option<Traces>,
    pub(super) tunnels: Tunnels,
    /// Shared by all configurations, so that a credential that changes across a reload is noticed
    /// too.
    pub(super) principal_changes: Arc<PrincipalChanges>,
}

/// Everything built from one configuration.
pub(crate) struct Live {
    pub(crate) config: Arc<Config>,
    pub(crate) stack: Stack,
    /// The limits on the bytes of its connections.
    pub(crate) wire: wire::Settings,
    pub(crate) tls: Option<TlsAcceptor>,
    /// The number of this configuration, counted from the start.
    pub(crate) generation: u64,
    proxy: Proxy,
    principals: Directory,
}

impl Live {
    /// Builds everything from a configuration; `before` is the one in use, if any. Nothing takes
    /// effect until the result is published.
    pub(super) async fn new(
        config: Config,
        runtime: &Runtime,
        before: Option<&Live>,
    ) -> Result<Live, String> {
        let config = Arc::new(config);
        let tls = config.tls.as_ref().map(listen::acceptor).transpose()?;
        let proxy = proxy(&config, runtime, before)?;
        let hapax = runtime.hapax.clone().namespace(&config.namespace);
        let earlier = before.map(|before| &before.principals);
        let lists = config.principals();
        let principals = Directory::start(
            &lists,
            &config,
            runtime.secret,
            runtime.metrics.clone(),
            earlier,
        )
        .await?;
        let stack = Stack::new(&config, &hapax, &principals, &proxy, runtime)?;
        let wire = wire::Settings::new(&config.timeouts, &config.limits, sensitive_fields(&config));
        let generation = before.map_or(0, |before| before.generation + 1);
        Ok(Live {
            config,
            stack,
            wire,
            tls,
            generation,
            proxy,
            principals,
        })
    }

    /// Starts closing its idle connections, for as long as it is in use.
    pub(super) fn settle_in(&self, before: Option<&Live>) {
        if before.is_none_or(|before| !before.proxy.is_same(&self.proxy)) {
            tokio::spawn(self.proxy.clone().sweep_idle());
        }
    }
}

/// The connections to the upstream: the existing ones if the upstream is unchanged, or else new
/// ones. The old ones close after the last request that began under the old configuration.
fn proxy(config: &Config, runtime: &Runtime, before: Option<&Live>) -> Result<Proxy, String> {
    let is_same = |before: &&Live| {
        let (timeouts, earlier) = (&config.timeouts, &before.config.timeouts);
        // The content of the file may have changed.
        config.upstream.ca_file.is_none()
            && config.upstream == before.config.upstream
            && (timeouts.connect, timeouts.answer, timeouts.tunnel_idle)
                == (earlier.connect, earlier.answer, earlier.tunnel_idle)
    };
    match before.filter(is_same) {
        Some(before) => Ok(before.proxy.clone()),
        None => Proxy::new(config, runtime.metrics.clone(), runtime.tunnels.clone()),
    }
}
