//! The memory that a record takes in Redis, and a bare key with the same answer.

use std::sync::Arc;

use hapax_testkit::servers;

use crate::Error;
use crate::load::{ANSWER_BYTES, LONG, Load, Until};
use crate::report::{Table, number};

use super::floor::Floor;
use super::server::{self, Fsync, info};
use super::{CALLERS, Scale};

pub(super) async fn run(scale: Scale) -> Result<(), Error> {
    let keys = scale.keys;
    let server = server::start(Fsync::Everysec)?;
    let floor = Floor::connect(&server).await?;
    let load = Load::new(Arc::new(server::open(&server).await?), LONG);
    // Connections, scripts and the keys of the store as a whole are there before.
    floor.write(CALLERS, Until::Pairs(CALLERS)).await?;
    load.run(CALLERS, Until::Pairs(CALLERS)).await?;
    let empty = used(&server)?;
    floor.write(CALLERS, Until::Pairs(keys)).await?;
    let with_floor = used(&server)?;
    load.run(CALLERS, Until::Pairs(keys)).await?;
    let with_both = used(&server)?;
    let title = format!(
        "redis: memory (used_memory) by {keys} completed records, {ANSWER_BYTES}-byte answers"
    );
    let headings = ["", "bytes each", "of them answer", "of SET"];
    let mut table = Table::new(&title, &headings);
    let each = |before: f64, after: f64| (after - before) / keys as f64;
    let of_floor = each(empty, with_floor);
    let of_store = each(with_floor, with_both);
    for (name, bytes, answer) in [
        ("SET", of_floor, ANSWER_BYTES),
        ("hapax", of_store, load.answer_bytes()),
    ] {
        table.row(name, [bytes, answer as f64, bytes / of_floor].map(number));
    }
    table.print();
    Ok(())
}

/// The memory in use, without what only waits to be written or sent.
fn used(server: &servers::Redis) -> Result<f64, Error> {
    let passing = ["aof_buffer_length", "mem_clients_normal"];
    let mut bytes = info(server, "used_memory")? as f64;
    for name in passing {
        bytes -= info(server, name)? as f64;
    }
    Ok(bytes)
}
