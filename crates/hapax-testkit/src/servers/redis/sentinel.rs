//! A master with replicas, which sentinels watch.

use std::net::SocketAddr;
use std::path::Path;

use super::protocol::Reply;
use super::server::{Redis, RedisProgram, configuration};
use super::{SETTINGS_FOR_REPLICAS, wait_for_group};
use crate::servers::port::Port;

/// The name of the master among the sentinels.
const NAME: &str = "hapax";
const REPLICAS: usize = 2;
const SENTINELS: usize = 3;

/// How many sentinels must agree that the master is down.
const QUORUM: usize = 2;

/// Longer than a sentinel takes to connect to a new master, otherwise it would call it down too.
/// That is the `ping-period` below and a step of its timer, a tenth of a second.
const DOWN_AFTER_MS: u32 = 800;

/// A sentinel that promotes a replica looks once a second whether that has happened. With a timeout
/// of one second it would sometimes give up too early.
const FAILOVER_TIMEOUT_MS: u32 = 2000;

/// What no configuration file can set, in milliseconds.
const HURRY: &[&str] = &[
    // How often a sentinel asks whether a server is up, and at most tries to connect to it; by
    // default every second. A replica is promoted only if it has told its role within five such
    // periods, and while the master is down, it is asked for it once a second.
    "ping-period",
    "300",
    // How often it asks a server for its role; by default every ten seconds.
    "info-period",
    "500",
    // How often it tells the others what it knows; by default every two seconds. For four times as
    // long it tolerates a master that should be a replica. That must be longer than a promotion
    // takes, otherwise one sentinel would undo the promotion by another.
    "publish-period",
    "500",
];

/// A master, two replicas and three sentinels, of which two must agree to a failover. The servers
/// run with the same settings. Ended when dropped.
///
/// Replication is asynchronous: a failover loses writes that the master has confirmed and not yet
/// sent to the replica that is promoted.
pub struct RedisSentinel {
    // In this order: the sentinels end before the servers, and so fail nothing over.
    sentinels: Vec<Redis>,
    servers: Vec<Redis>,
}

impl RedisSentinel {
    /// Starts them, with further settings for the servers. Prints `SKIPPED` and returns `None` if
    /// Redis is not installed. Returns when the replicas are in sync, and the sentinels know them
    /// and each other.
    ///
    /// # Panics
    ///
    /// If they do not start.
    pub fn start(settings: &[(&str, &str)]) -> Option<RedisSentinel> {
        RedisSentinel::start_with(RedisProgram::Redis, settings)
    }

    /// Starts them with a certain program.
    pub fn start_with(program: RedisProgram, settings: &[(&str, &str)]) -> Option<RedisSentinel> {
        let program = program.find()?;
        let servers = start_servers(&program, &[SETTINGS_FOR_REPLICAS, settings].concat());
        let group = RedisSentinel {
            sentinels: start_sentinels(&program, servers[0].address()),
            servers,
        };
        group.wait_until_whole();
        Some(group)
    }

    /// The URL: the addresses of the sentinels, and the name of the master.
    pub fn url(&self) -> String {
        let sentinels = self.sentinels.iter().map(|one| one.address().to_string());
        format!(
            "redis+sentinel://{}/{NAME}",
            sentinels.collect::<Vec<_>>().join(",")
        )
    }

    /// The master's address, according to a sentinel. The master may be down.
    pub fn master(&self) -> SocketAddr {
        master_according_to(&self.sentinels[0])
    }

    /// The server at an address.
    ///
    /// # Panics
    ///
    /// If no server of this group has it.
    pub fn redis(&self, address: SocketAddr) -> &Redis {
        let mut servers = self.servers.iter();
        servers
            .find(|server| server.address() == address)
            .unwrap_or_else(|| panic!("{address} is none of the servers"))
    }

    /// Kills the master.
    ///
    /// # Returns
    ///
    /// Its address.
    pub fn kill_master(&mut self) -> SocketAddr {
        let master = self.master();
        self.servers
            .iter_mut()
            .filter(|server| server.address() == master)
            .for_each(Redis::kill);
        master
    }

    /// Returns when all sentinels name a master that answers as one. To be called when the old
    /// master does not answer, because it was killed or paused.
    ///
    /// # Returns
    ///
    /// The new master's address.
    pub fn wait_for_failover(&self) -> SocketAddr {
        self.wait_for_master(|_| true)
    }

    /// Makes a replica the master while the old master runs. Returns when all sentinels name the
    /// new one. For about two seconds from then on, the old master still accepts writes, all of
    /// which are lost.
    ///
    /// # Returns
    ///
    /// The new master's address.
    pub fn failover(&self) -> SocketAddr {
        let old = self.master();
        self.wait_for_master(|master| {
            // Refused while an earlier failover has not ended, and sometimes given up.
            if self.master() == old {
                drop(self.sentinels[0].try_cli(&["SENTINEL", "FAILOVER", NAME]));
            }
            master != old
        })
    }

    /// Restarts the servers that were killed. Returns when they are replicas in sync, and all
    /// sentinels know that. To be called after the failover: a master that restarts before it stays
    /// the master, and the replicas lose what it has lost.
    pub fn restart_dead(&mut self) {
        self.servers
            .iter_mut()
            .filter(|server| !server.is_running())
            .for_each(Redis::restart);
        self.wait_until_whole();
    }

    fn wait_for_master(&self, mut is_wanted: impl FnMut(SocketAddr) -> bool) -> SocketAddr {
        let mut found = None;
        wait_for_group("the sentinels name a master that is up", || {
            found = self
                .agreed_master()
                .filter(|master| is_wanted(*master) && is_master(self.redis(*master)));
            found.is_some()
        });
        found.expect("waited for")
    }

    /// The master that all sentinels name.
    fn agreed_master(&self) -> Option<SocketAddr> {
        let mut masters = self.sentinels.iter().map(master_according_to);
        let first = masters.next()?;
        masters.all(|master| master == first).then_some(first)
    }

    fn wait_until_whole(&self) {
        let master = self.wait_for_master(|master| {
            let mut replicas = self.servers.iter();
            replicas.all(|server| server.address() == master || is_replica(server, master))
                && self.sentinels.iter().all(sees_everything_up)
        });
        self.redis(master).wait_for_replicas(REPLICAS);
    }
}

/// Starts the master, then its replicas. Returns when they are in sync, so that a sentinel finds
/// them all at its first look.
fn start_servers(program: &Path, settings: &[(&str, &str)]) -> Vec<Redis> {
    let start = |settings: &[(&str, &str)]| {
        Redis::in_group(program, &[], |port| configuration(port, settings))
    };
    let mut servers = vec![start(settings)];
    let master = servers[0].address();
    let source = format!("{} {}", master.ip(), master.port());
    let settings = [settings, &[("replicaof", &source)]].concat();
    servers.extend((0..REPLICAS).map(|_| start(&settings)));
    wait_for_group("the replicas are in sync", || {
        let mut replicas = servers.iter().skip(1);
        replicas.all(|replica| is_replica(replica, master))
    });
    servers
}

fn start_sentinels(program: &Path, master: SocketAddr) -> Vec<Redis> {
    let start = |_| {
        let sentinel = Redis::in_group(program, &["--sentinel"], |port| {
            configuration_of_sentinel(port, master)
        });
        sentinel.cli(&[&["SENTINEL", "DEBUG"], HURRY].concat());
        sentinel
    };
    (0..SENTINELS).map(start).collect()
}

fn configuration_of_sentinel(port: &Port, master: SocketAddr) -> String {
    format!(
        "port {}\n\
         bind 127.0.0.1\n\
         sentinel monitor {NAME} {} {} {QUORUM}\n\
         sentinel down-after-milliseconds {NAME} {DOWN_AFTER_MS}\n\
         sentinel failover-timeout {NAME} {FAILOVER_TIMEOUT_MS}\n\
         sentinel parallel-syncs {NAME} {REPLICAS}\n",
        port.number(),
        master.ip(),
        master.port(),
    )
}

fn master_according_to(sentinel: &Redis) -> SocketAddr {
    let said = sentinel.cli(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME]);
    said.replace('\n', ":").parse().expect("an address")
}

fn is_master(server: &Redis) -> bool {
    role(server).first().is_some_and(|role| role == "master")
}

/// Whether it is a replica of this master and in sync.
fn is_replica(server: &Redis, master: SocketAddr) -> bool {
    let (host, port) = (master.ip().to_string(), master.port().to_string());
    role(server)
        .iter()
        .take(4)
        .eq(["slave", &host, &port, "connected"])
}

/// The answer to ROLE. Of a replica it has its master, and whether it is in sync. Empty if the
/// server does not answer.
fn role(server: &Redis) -> Vec<String> {
    let said = server.ask(&["ROLE"]).unwrap_or(Reply::Null);
    said.list().iter().map(Reply::text).collect()
}

/// Whether it sees two replicas and two other sentinels, all up, and no failover in progress.
fn sees_everything_up(sentinel: &Redis) -> bool {
    let ask = |question: &str| {
        sentinel
            .ask(&["SENTINEL", question, NAME])
            .unwrap_or(Reply::Null)
    };
    let are_up = |question: &str, count: usize| {
        let entries = ask(question);
        entries.list().len() == count && entries.list().iter().all(is_up)
    };
    is_up(&ask("MASTER")) && are_up("REPLICAS", REPLICAS) && are_up("SENTINELS", SENTINELS - 1)
}

/// Whether nothing is wrong with a server, according to a sentinel.
fn is_up(entry: &Reply) -> bool {
    const WRONG: &[&str] = &["s_down", "o_down", "disconnected", "failover_in_progress"];
    entry
        .field("flags")
        .is_some_and(|flags| !flags.split(',').any(|flag| WRONG.contains(&flag)))
}
