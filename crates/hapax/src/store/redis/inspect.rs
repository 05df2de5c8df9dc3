//! What a server says about itself: whether it keeps what it is given, and whether it is the server
//! that it was.

use std::collections::{HashMap, HashSet};

use redis::aio::MultiplexedConnection;
use redis::{RedisResult, Value};

use super::address::Host;

/// What a connection found at its server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Findings {
    /// The first number of the version of Redis that the server is, or is compatible with.
    pub(super) version: u32,
    pub(super) run_id: String,
    pub(super) replication_id: String,
    /// The history that a promoted replica continues.
    pub(super) earlier_replication_id: String,
    pub(super) is_replica: bool,
    pub(super) replicas: u32,
    pub(super) eviction: String,
    /// `None` where the server does not tell.
    pub(super) saves: Option<Saves>,
}

/// How a server saves its writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Saves {
    Never,
    /// With `appendfsync no`.
    WhenTheSystemLikes,
    EverySecond,
    Always,
}

/// Asks a server. Services that run Redis for others often refuse CONFIG; INFO has the most
/// important answers.
pub(super) async fn ask(connection: &mut MultiplexedConnection) -> RedisResult<Findings> {
    let info: String = redis::cmd("INFO").query_async(connection).await?;
    let fsync: RedisResult<Value> = redis::cmd("CONFIG")
        .arg("GET")
        .arg("appendfsync")
        .query_async(connection)
        .await;
    let fsync = fsync
        .ok()
        .and_then(|value| redis::from_redis_value::<Vec<String>>(value).ok())
        .and_then(|pair| pair.into_iter().nth(1));
    Ok(parse(&info, fsync.as_deref()))
}

fn parse(info: &str, fsync: Option<&str>) -> Findings {
    let fields: HashMap<&str, &str> = info
        .lines()
        .filter_map(|line| line.trim_end().split_once(':'))
        .collect();
    let text = |name: &str| fields.get(name).copied().unwrap_or_default().to_owned();
    let saves = match (text("aof_enabled").as_str(), fsync) {
        ("0", _) => Some(Saves::Never),
        ("1", Some("always")) => Some(Saves::Always),
        ("1", Some("everysec")) => Some(Saves::EverySecond),
        ("1", Some("no")) => Some(Saves::WhenTheSystemLikes),
        _ => None,
    };
    let version = text("redis_version");
    Findings {
        version: version
            .split('.')
            .next()
            .and_then(|first| first.parse().ok())
            .unwrap_or(0),
        run_id: text("run_id"),
        replication_id: text("master_replid"),
        earlier_replication_id: text("master_replid2"),
        is_replica: text("role") == "slave",
        replicas: text("connected_slaves").parse().unwrap_or(0),
        eviction: text("maxmemory_policy"),
        saves,
    }
}

impl Findings {
    /// Why this server may not be used at all.
    pub(super) fn refusal(&self) -> Option<String> {
        (!matches!(self.eviction.as_str(), "noeviction" | "")).then(|| {
            format!(
                "its maxmemory-policy is {}, which removes records to make room, and a removed record runs again: set maxmemory-policy noeviction",
                self.eviction
            )
        })
    }

    /// What can be lost with these settings.
    pub(super) fn warnings(&self, replicas_wanted: u32) -> Vec<String> {
        let mut warnings = Vec::new();
        match self.saves {
            Some(Saves::Never) => warnings.push(
                "it has no append-only file: when it stops, every record is lost. Set appendonly yes"
                    .to_owned(),
            ),
            Some(Saves::WhenTheSystemLikes) => warnings.push(
                "appendfsync is no: when its machine stops, about the last 30 seconds are lost. Set appendfsync always, or everysec"
                    .to_owned(),
            ),
            Some(Saves::EverySecond) => warnings.push(
                "appendfsync is everysec: when it is killed or its machine stops, up to the last 2 seconds are lost. appendfsync always loses nothing"
                    .to_owned(),
            ),
            Some(Saves::Always) => {}
            None => warnings.push(
                "it does not tell how it saves writes (CONFIG GET appendfsync): what a stop loses is not known"
                    .to_owned(),
            ),
        }
        if self.is_replica {
            warnings.push(
                "it is a replica: it takes no writes. Name its master, or use redis+sentinel://"
                    .to_owned(),
            );
        } else if self.replicas == 0 {
            warnings
                .push("it has no replica: when its disk is lost, every record is lost".to_owned());
        } else if replicas_wanted == 0 {
            warnings.push(
                "its replicas are not waited for: a failover loses what they have not received. Set replicas = 1"
                    .to_owned(),
            );
        }
        warnings
    }
}

/// The servers that this process has met. A master that was restarted, or a replica that took its
/// place, may have lost writes.
#[derive(Debug, Default)]
pub(super) struct History {
    run_ids: HashMap<Host, String>,
    replication_ids: HashSet<String>,
}

/// More servers than a cluster has.
const SERVERS_MAX: usize = 10_000;

impl History {
    /// Remembers a master. Returns what happened to it, if it is not as it was.
    pub(super) fn meet(&mut self, host: &Host, found: &Findings) -> Option<String> {
        if found.is_replica || found.run_id.is_empty() {
            return None;
        }
        if self.run_ids.len() > SERVERS_MAX || self.replication_ids.len() > SERVERS_MAX {
            *self = History::default();
        }
        let before = self.run_ids.insert(host.clone(), found.run_id.clone());
        let continues = self.replication_ids.contains(&found.earlier_replication_id);
        let is_known = !self.replication_ids.insert(found.replication_id.clone());
        match before {
            Some(run_id) if run_id != found.run_id => {
                Some(format!("the Redis at {host} was restarted"))
            }
            _ if continues && !is_known => Some(format!(
                "the Redis at {host} has taken the place of its master"
            )),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INFO: &str = "# Server\r\nrun_id:aa\r\n# Memory\r\nmaxmemory_policy:noeviction\r\n# Persistence\r\naof_enabled:1\r\n# Replication\r\nrole:master\r\nconnected_slaves:1\r\nmaster_replid:r1\r\nmaster_replid2:0000\r\n";

    #[test]
    fn a_server_that_saves_and_replicates_is_only_warned_about_its_replicas() {
        let found = parse(INFO, Some("always"));
        assert_eq!(found.refusal(), None);
        assert_eq!(found.warnings(1), [""; 0]);
        assert_eq!(found.warnings(0).len(), 1);
    }

    #[test]
    fn every_way_of_losing_records_is_told() {
        let warned = |from: &str, to: &str, fsync: Option<&str>, part: &str| {
            let found = parse(&INFO.replace(from, to), fsync);
            let warnings = found.warnings(1);
            assert!(
                warnings.iter().any(|warning| warning.contains(part)),
                "{part}: {warnings:?}"
            );
        };
        warned(
            "aof_enabled:1",
            "aof_enabled:0",
            Some("always"),
            "append-only",
        );
        warned("", "", Some("no"), "appendfsync is no");
        warned("", "", Some("everysec"), "everysec");
        warned("", "", None, "does not tell");
        warned("role:master", "role:slave", Some("always"), "replica");
        warned("slaves:1", "slaves:0", Some("always"), "no replica");
    }

    #[test]
    fn a_server_that_evicts_is_refused() {
        for policy in [
            "allkeys-lru",
            "volatile-ttl",
            "volatile-lru",
            "allkeys-random",
        ] {
            let found = parse(&INFO.replace("noeviction", policy), Some("always"));
            assert!(found.refusal().is_some_and(|text| text.contains(policy)));
        }
    }

    #[test]
    fn restarts_and_promotions_are_noticed_and_slot_moves_are_not() {
        let (a, b, c) = (host("a"), host("b"), host("c"));
        let mut history = History::default();
        let found = |run: &str, id: &str, earlier: &str| Findings {
            run_id: run.to_owned(),
            replication_id: id.to_owned(),
            earlier_replication_id: earlier.to_owned(),
            ..Findings::default()
        };
        assert_eq!(history.meet(&a, &found("1", "r1", "0")), None);
        assert_eq!(
            history.meet(&a, &found("1", "r1", "0")),
            None,
            "a new connection"
        );
        assert_eq!(
            history.meet(&c, &found("3", "r3", "0")),
            None,
            "another master"
        );
        assert!(
            history.meet(&b, &found("2", "r2", "r1")).is_some(),
            "a promotion"
        );
        assert_eq!(history.meet(&b, &found("2", "r2", "r1")), None, "told once");
        assert!(
            history.meet(&a, &found("1", "r4", "r2")).is_some(),
            "a promotion back to a known server"
        );
        assert!(
            history.meet(&b, &found("4", "r5", "0")).is_some(),
            "a restart"
        );
    }

    fn host(name: &str) -> Host {
        Host {
            name: name.to_owned(),
            port: 6379,
        }
    }
}
