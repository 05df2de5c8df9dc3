//! A connection across configurations: its own limits are those it began with, its requests go by
//! whatever is live when they come.

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
    /// What it began with. Not the whole of what was live: a client that stays for days would keep
    /// all that from going.
    pub(super) config: Arc<Config>,
    pub(super) wire: wire::Settings,
    address: IpAddr,
    is_tls: bool,
    /// Who the client is, under the configuration of this number: whether a proxy is trusted may
    /// change.
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

    /// What a request that begins now is answered by, and who asks.
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
