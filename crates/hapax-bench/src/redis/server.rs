//! The Redis servers of a run: each private, and ended with this process.

use hapax::Redis;
use hapax::store::redis::Options;
use hapax_testkit::servers;

use crate::Error;

/// For the first line of a report.
pub(super) const SETTINGS: &str = "appendonly = yes, no snapshots, no rewrite of the append-only \
                                   file, the rest as it comes";

/// When the append-only file is on the disk: the setting `appendfsync`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fsync {
    /// Within about a second.
    Everysec,
    /// Before a write is confirmed.
    Always,
}

impl Fsync {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Fsync::Everysec => "everysec",
            Fsync::Always => "always",
        }
    }
}

/// A server for records.
pub(crate) fn start(fsync: Fsync) -> Result<servers::Redis, Error> {
    started(&[
        ("appendonly", "yes"),
        ("appendfsync", fsync.name()),
        // A rewrite would fall into one measurement and not into the next.
        ("auto-aof-rewrite-percentage", "0"),
    ])
}

/// A server for copies of what is in Postgres: it keeps nothing on the disk.
pub(crate) fn start_cache() -> Result<servers::Redis, Error> {
    started(&[])
}

fn started(settings: &[(&str, &str)]) -> Result<servers::Redis, Error> {
    let server = servers::Redis::start(settings);
    Ok(server.ok_or("there is no redis-server here (Debian: apt-get install redis-server)")?)
}

/// A store on this server.
pub(super) async fn open(server: &servers::Redis) -> Result<Redis, Error> {
    let options = Options::best_effort(&server.url())?;
    Ok(Redis::open(options).await?)
}

/// A number that `INFO` tells.
pub(super) fn info(server: &servers::Redis, name: &str) -> Result<u64, Error> {
    Ok(info_text(server, name)?.parse()?)
}

pub(super) fn version() -> Result<String, Error> {
    info_text(&start_cache()?, "redis_version")
}

fn info_text(server: &servers::Redis, name: &str) -> Result<String, Error> {
    let info = server.try_cli(&["INFO"])?;
    let value = info
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    Ok(value
        .ok_or_else(|| format!("INFO says nothing of {name}"))?
        .trim()
        .to_owned())
}
