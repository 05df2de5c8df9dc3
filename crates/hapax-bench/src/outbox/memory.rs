//! The memory of `hapax relay` with a large backlog.

use std::time::{Duration, Instant};

use crate::Error;
use crate::directory::Directory;
use crate::gateway::{Process, Program, command};
use crate::postgres::{Cluster, connect};
use crate::report::{Table, at_most, mebibytes};

use super::Scale;
use super::backlog::fill;

/// The largest ratio of the memory at its peak to that after a tenth of the backlog.
const GROWTH_MAX: f64 = 1.1;
const SAMPLE_EVERY: Duration = Duration::from_millis(20);
const ENDED_WITHIN: Duration = Duration::from_secs(600);

pub(super) async fn run(cluster: &Cluster, scale: Scale) -> Result<(), Error> {
    let program = Program::build()?;
    let backlog = scale.backlog;
    let title =
        format!("outbox: resident memory of hapax relay --to null: with {backlog} messages");
    let url = cluster.migrated().await?;
    fill(&url, backlog).await?;
    let (directory, session) = (Directory::temporary()?, connect(&url).await?);
    let mut relay = command(program.path())?;
    relay.args([
        "relay", "--store", &url, "--to", "null:", "--reader", "memory",
    ]);
    let relay = Process::start("relay", relay, directory.path())?;
    let deadline = Instant::now() + ENDED_WITHIN;
    let (mut early, mut peak, mut published) = (0, 0, 0);
    while published < backlog {
        if Instant::now() > deadline {
            let said = relay.last_words();
            return Err(format!("the relay has published {published}, and said:\n{said}").into());
        }
        tokio::time::sleep(SAMPLE_EVERY).await;
        let sql = "SELECT coalesce(max(published), 0) FROM hapax.readers";
        let row = session.query_one(sql, &[]).await?;
        published = usize::try_from(row.get::<_, i64>(0))?;
        let bytes = relay.resident_bytes()?;
        if published <= backlog / 10 {
            early = bytes.max(early);
        }
        peak = bytes.max(peak);
    }
    let mut table = Table::new(&title, &["", "MiB"]);
    table.row("up to a tenth of them", [mebibytes(early)]);
    table.row("at its peak", [mebibytes(peak)]);
    table.print();
    let growth = peak as f64 / early as f64;
    at_most("memory, of that up to a tenth", growth, GROWTH_MAX, " ×");
    Ok(())
}
