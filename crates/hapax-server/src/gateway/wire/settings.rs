//! What a connection is allowed.

use std::sync::Arc;
use std::time::Duration;

use crate::config;

/// How much a head may hold, and which fields it may not call a matter of one connection.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    /// Bytes of a head, from its request line to its empty line.
    pub(crate) head_bytes_max: usize,
    /// Fields of a head, and of the trailers of a body.
    pub(crate) fields_max: usize,
    /// Fields, in any case, that `Connection` may not name besides those that no client may have
    /// removed on the way: the name of the key's field where it is not the usual one.
    pub(crate) never_hop_by_hop: Vec<String>,
}

/// How long a client may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// From the first byte of a head to its last.
    pub(crate) header: Duration,
    /// From one request to the next.
    pub(crate) keep_alive: Duration,
    /// Without any progress in a body or an answer, while it is the client that is waited for.
    pub(crate) stall: Duration,
    /// Bytes a second on the average of each `stall` that the client is waited for.
    pub(crate) rate_min: u64,
}

/// What every connection of a listener shares. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// How much.
    pub(crate) limits: Arc<Limits>,
    /// How fast.
    pub(crate) pace: Pace,
}

impl Settings {
    /// What the configuration says. `never_hop_by_hop` are the names it gives to fields that
    /// matter.
    pub(crate) fn new(
        timeouts: &config::Timeouts,
        limits: &config::Limits,
        never_hop_by_hop: Vec<String>,
    ) -> Settings {
        Settings {
            limits: Arc::new(Limits {
                head_bytes_max: limits.header_bytes_max,
                fields_max: limits.header_fields_max,
                never_hop_by_hop,
            }),
            pace: Pace {
                header: timeouts.header,
                keep_alive: timeouts.keep_alive,
                stall: timeouts.stall,
                rate_min: limits.rate_min,
            },
        }
    }
}
