//! What all campaigns share: their size, their turn on the machine, and questions to servers.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use hapax::{RecordId, Store};
use hapax_testkit::servers;
use tokio::sync::{Mutex, MutexGuard};

use super::watched::Watched;

/// Long enough for a slow machine. Only a broken test waits this long.
pub(crate) const STUCK: Duration = Duration::from_secs(60);

/// Whether the campaigns run in full.
pub(crate) fn is_full() -> bool {
    std::env::var("HAPAX_CAMPAIGN").is_ok_and(|size| size == "full")
}

/// The number of faults of a campaign.
pub(crate) fn size(sample: usize, full: usize) -> usize {
    if is_full() { full } else { sample }
}

static ALONE: Mutex<()> = Mutex::const_new(());

/// Campaigns keep every core busy and measure time: each has the machine to itself.
pub(crate) async fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().await
}

/// Waits until every node has noticed `count` changes of its master. The load makes them connect.
///
/// # Panics
///
/// If a node does not notice, or notices more.
pub(crate) async fn noticed(nodes: &[Arc<Watched>], count: u64) {
    let counts = || -> Vec<u64> { nodes.iter().map(|node| node.stats().failovers).collect() };
    let waited = tokio::time::timeout(STUCK, async {
        while counts().iter().any(|failovers| *failovers < count) {
            // A call connects a node that has nothing to do.
            for node in nodes {
                drop(node.info().await);
            }
        }
    });
    assert!(
        waited.await.is_ok(),
        "{count} changes of the master were noticed as {:?}",
        counts()
    );
    assert_eq!(counts(), vec![count; nodes.len()], "each is noticed once");
}

/// Which of these records a server has. It is asked directly, and not through Hapax.
pub(crate) fn present(server: &servers::Redis, ids: &[RecordId]) -> HashSet<RecordId> {
    const SCRIPT: &str = "
        local found = {}
        for number, hex in ipairs(ARGV) do
          local id = hex:gsub('..', function(byte) return string.char(tonumber(byte, 16)) end)
          local key = string.format('hapax:{%02d}:h:', math.floor(id:byte(1) / 4)) .. id
          found[number] = tostring(redis.call('EXISTS', key))
        end
        return found";
    let mut present = HashSet::new();
    for some in ids.chunks(500) {
        let hex: Vec<String> = some.iter().map(ToString::to_string).collect();
        let mut command = vec!["EVAL", SCRIPT, "0"];
        command.extend(hex.iter().map(String::as_str));
        let found = server.cli(&command);
        let lines = found.lines().zip(some);
        present.extend(lines.filter(|(found, _)| *found == "1").map(|(_, id)| *id));
    }
    present
}
