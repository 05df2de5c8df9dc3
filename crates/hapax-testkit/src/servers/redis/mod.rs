//! Private Redis and Valkey servers: one alone, a master with replicas under sentinels, a cluster.

mod cluster;
mod protocol;
#[cfg(feature = "harness")]
mod secured;
mod sentinel;
mod server;
mod slots;

pub use cluster::RedisCluster;
#[cfg(feature = "harness")]
pub use secured::SecuredRedis;
pub use sentinel::RedisSentinel;
pub use server::{Redis, RedisProgram};

use std::thread;
use std::time::Duration;

use super::process::wait_until;

/// Servers in a group learn of each other within tenths of a second. To ask them more often than
/// this would only slow them down.
const POLL_PERIOD: Duration = Duration::from_millis(20);

/// Settings of every server with replicas. By default a master waits five seconds for more replicas
/// before it sends the first one its data.
const SETTINGS_FOR_REPLICAS: &[(&str, &str)] = &[("repl-diskless-sync-delay", "0")];

/// Asks a group of servers again and again.
///
/// # Panics
///
/// If the predicate does not hold within a minute.
fn wait_for_group(what: &str, mut is_so: impl FnMut() -> bool) {
    wait_until(what, || {
        let is_so_now = is_so();
        if !is_so_now {
            thread::sleep(POLL_PERIOD);
        }
        is_so_now
    });
}
