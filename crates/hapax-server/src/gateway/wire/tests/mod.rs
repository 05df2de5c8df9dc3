//! Tests the scanner against a table and against the HTTP library it protects, and the wire under a
//! real server connection.

mod differential;
mod http2;
mod table;
mod wire;

use std::sync::Arc;
use std::time::Duration;

use super::{Limits, Pace, Settings};

pub(super) fn limits() -> Arc<Limits> {
    Arc::new(Limits {
        head_bytes_max: 1_024,
        fields_max: 12,
        never_hop_by_hop: vec!["PayPal-Request-Id".to_owned()],
    })
}

pub(super) fn settings() -> Settings {
    let pace = Pace {
        header: Duration::from_secs(10),
        keep_alive: Duration::from_secs(75),
        stall: Duration::from_secs(20),
        rate_min: 128,
    };
    Settings {
        limits: limits(),
        pace,
    }
}
