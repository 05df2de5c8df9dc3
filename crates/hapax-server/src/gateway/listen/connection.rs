//! A connection across reloads: it keeps the limits it began with, and each of its requests follows
//! the configuration that is live when the request comes.

use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;

use super::Shared;
use crate::config::Config;
use crate::gateway::forward::Client;
use crate::gateway::runtime::Live;
use crate::gateway::wire;

pub(super) struct Connection {
    pub(super) shared: Arc<Shared>,
    /// The configuration at the start of the connection. The connection does not hold all of
    /// `Live`: a client that stays for days would keep that in memory.
    pub(super) config: Arc<Config>,
    pub(super) wire: wire::Settings,
    address: IpAddr,
    is_tls: bool,
    /// The client as seen under the configuration of this generation: a reload may change which
    /// proxies are trusted.
    known: Mutex<(u64, Arc<Client>)>,
}

impl Connection {
    pub(super) fn new(shared: Arc<Shared>, address: IpAddr, is_tls: bool) -> Connection {
        let live = shared.live.load_full();
        let client = Arc::new(Client::new(address, is_tls, &live.config.trusted_proxies));
        let (config, wire) = (live.config.clone(), live.wire.clone());
        Connection {
            shared,
            config,
            wire,
            address,
            is_tls,
            known: Mutex::new((live.generation, client)),
        }
    }

    /// The live configuration for a request that begins now, and the client that sends it.
    pub(super) fn now(&self) -> (Arc<Live>, Arc<Client>) {
        let live = self.shared.live.load_full();
        let mut known = self.known.lock();
        if known.0 != live.generation {
            *known = (
                live.generation,
                Arc::new(Client::new(
                    self.address,
                    self.is_tls,
                    &live.config.trusted_proxies,
                )),
            );
        }
        let client = known.1.clone();
        drop(known);
        (live, client)
    }
}
