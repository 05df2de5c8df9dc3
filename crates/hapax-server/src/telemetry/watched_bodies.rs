//! How much of request bodies is buffered, asked for when somebody asks us.

use std::fmt;

use hapax::BodyUsage;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;

use super::watched::put;

pub(super) struct WatchedBodies(pub(super) Box<dyn Fn() -> BodyUsage + Send + Sync>);

impl fmt::Debug for WatchedBodies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WatchedBodies")
    }
}

impl Collector for WatchedBodies {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let BodyUsage {
            memory_bytes,
            disk_bytes,
        } = (self.0)();
        let mut gauge = |name, help, value: u64| {
            put(
                &mut encoder,
                name,
                help,
                Some(&Unit::Bytes),
                &ConstGauge::new(value.cast_signed()),
            )
        };
        gauge(
            "buffered_memory",
            "Request bodies that are buffered in memory, or have reserved room there",
            memory_bytes,
        )?;
        gauge(
            "buffered_disk",
            "Request bodies that are buffered in files, or have reserved room there",
            disk_bytes,
        )
    }
}
