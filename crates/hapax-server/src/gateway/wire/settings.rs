//! Limits and timeouts of a connection.

use std::sync::Arc;
use std::time::Duration;

use crate::config;

/// How large a head may be, and which fields `Connection` may not name.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    /// Limit on the bytes of a head, from its request line to its empty line.
    pub(crate) head_bytes_max: usize,
    /// Limit on the fields of a head, and on the trailers of a body.
    pub(crate) fields_max: usize,
    /// Names of fields, in any case, that `Connection` may not name, in addition to the protected
    /// fields: the key's header where the configuration renames it.
    pub(crate) never_hop_by_hop: Vec<String>,
}

/// How long a client may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// From the first byte of a head to its last.
    pub(crate) header: Duration,
    /// From one request to the next.
    pub(crate) keep_alive: Duration,
    /// Without any progress in a body or an answer, while the gateway waits for the client.
    pub(crate) stall: Duration,
    /// The minimal average rate, in bytes per second, over each `stall` of waiting for the client.
    pub(crate) rate_min: u64,
}

/// What every connection of a listener shares. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// Limits on size.
    pub(crate) limits: Arc<Limits>,
    /// Limits on time.
    pub(crate) pace: Pace,
}

impl Settings {
    /// Takes the limits from the configuration. `never_hop_by_hop` is the field of [`Limits`].
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
