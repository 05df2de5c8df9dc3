//! What all connections of a store share.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use hapax_core::record::Fence;
use hapax_core::store::StoreError;
use parking_lot::Mutex;

use super::Options;
use super::address::{Host, Kind};
use super::head::Policies;
use super::inspect::{Findings, History};
use super::stats::Counters;

pub(super) struct Shared {
    pub(super) options: Options,
    pub(super) counters: Counters,
    pub(super) policies: Policies,
    history: Mutex<History>,
    /// The highest fence that this process has seen.
    fence: AtomicU64,
    /// Whether a server may have been replaced or restarted since the store was opened.
    has_lost_a_server: AtomicBool,
    /// The version of the server that was last looked at.
    version: AtomicU32,
    /// Why a server was refused when it was last looked at.
    unfit: Mutex<Option<String>>,
}

impl Shared {
    pub(super) fn new(options: Options) -> Shared {
        Shared {
            options,
            counters: Counters::default(),
            policies: Policies::default(),
            history: Mutex::default(),
            fence: AtomicU64::new(0),
            has_lost_a_server: AtomicBool::new(false),
            version: AtomicU32::new(0),
            unfit: Mutex::default(),
        }
    }

    /// Judges what a connection found at its server.
    pub(super) fn found(&self, host: &Host, found: &Findings) -> Result<(), StoreError> {
        let event = self.history.lock().meet(host, found);
        if event.is_some() {
            self.server_changed();
        }
        if let Some(event) = event.filter(|_| self.options.is_store) {
            Counters::add(&self.counters.failovers);
            tracing::error!(
                see = "docs/redis.md",
                "ALARM: {event}: what it had not saved or replicated is lost, and keys of that time may run again"
            );
        }
        if found.is_replica && self.options.address.kind != Kind::Single {
            return Err(StoreError::unavailable(format!(
                "Redis at {host} is a replica now, and another server is the master"
            )));
        }
        self.version.store(found.version, Ordering::Relaxed);
        let refusal = found.refusal().filter(|_| self.options.is_store);
        (*self.unfit.lock()).clone_from(&refusal);
        if let Some(reason) = refusal {
            return Err(StoreError::unavailable(format!(
                "Redis at {host} is not used: {reason}"
            )));
        }
        if self.options.is_store {
            self.warn(host, found.warnings(self.options.replicas));
        }
        Ok(())
    }

    /// Tells of each warning once.
    fn warn(&self, host: &Host, warnings: Vec<String>) {
        let warnings: Vec<_> = warnings
            .into_iter()
            .map(|warning| format!("{host}: {warning}"))
            .collect();
        let mut known = self.counters.warnings.lock();
        for warning in &warnings {
            if !known.contains(warning) {
                tracing::warn!("Redis at {warning}");
            }
        }
        let prefix = format!("{host}: ");
        known.retain(|warning| !warning.starts_with(&prefix));
        known.extend(warnings);
    }

    /// Why the server may not be used at all, if that is why a call failed.
    pub(super) fn unfit(&self) -> Option<String> {
        self.unfit.lock().clone()
    }

    /// Whether the servers are a cluster, where a script may use the keys of one partition only.
    pub(super) fn is_cluster(&self) -> bool {
        self.options.address.kind == Kind::Cluster
    }

    /// Whether channels belong to slots: in a cluster, from version 7 on.
    pub(super) fn has_sharded_channels(&self) -> bool {
        self.is_cluster() && self.version.load(Ordering::Relaxed) >= 7
    }

    /// The command that tells other nodes of a change.
    pub(super) fn publish(&self) -> &'static str {
        if self.has_sharded_channels() {
            "SPUBLISH"
        } else {
            "PUBLISH"
        }
    }

    pub(super) fn saw(&self, fence: Fence) {
        self.fence.fetch_max(fence.as_u64(), Ordering::Relaxed);
    }

    /// A connection was lost, or another server has the records.
    pub(super) fn server_changed(&self) {
        self.has_lost_a_server.store(true, Ordering::Relaxed);
    }

    /// A fence that new ones must be above. A server that has lost its latest writes does not know
    /// it; one that was always connected has every fence that it has minted.
    pub(super) fn highest_fence(&self) -> u64 {
        match self.has_lost_a_server.load(Ordering::Relaxed) {
            true => self.fence.load(Ordering::Relaxed),
            false => 0,
        }
    }
}
