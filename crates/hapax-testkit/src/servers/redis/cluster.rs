//! A cluster of masters that share the slots.

use std::path::Path;

use super::protocol::Reply;
use super::server::{Redis, RedisProgram, configuration};
use super::{SETTINGS_FOR_REPLICAS, slots, wait_for_group};
use crate::servers::port::Port;
use crate::servers::process::GUARD;

const MASTERS: usize = 3;

/// Settings of every node, unless a test overrides them. A node is called down after a second; by
/// default it is fifteen.
const SETTINGS: &[(&str, &str)] = &[("cluster-enabled", "yes"), ("cluster-node-timeout", "1000")];

/// How many keys move at once.
const KEYS_MAX: &str = "100";

/// Long enough for a slow machine.
const MIGRATE_TIMEOUT_MS: &str = "60000";

/// Three masters, each with a third of the slots, and perhaps a replica of each. All run with the
/// same settings. Ended when dropped.
///
/// If a master without a replica is down, the whole cluster is, unless the setting
/// `cluster-require-full-coverage` is `no`. A node that has just started says that the cluster is
/// down for two seconds.
pub struct RedisCluster {
    /// The masters, then their replicas in the same order.
    nodes: Vec<Redis>,
    identifiers: Vec<String>,
    /// On which the nodes speak to each other.
    _buses: Vec<Port>,
}

impl RedisCluster {
    /// Starts one, with further settings. Prints `SKIPPED` and returns `None` if Redis is not
    /// installed. Returns when every node says that the cluster is up, and the replicas are in
    /// sync.
    ///
    /// # Panics
    ///
    /// If it does not start.
    pub fn start(replicas: bool, settings: &[(&str, &str)]) -> Option<RedisCluster> {
        RedisCluster::start_with(RedisProgram::Redis, replicas, settings)
    }

    /// Starts one with a certain program.
    pub fn start_with(
        program: RedisProgram,
        replicas: bool,
        settings: &[(&str, &str)],
    ) -> Option<RedisCluster> {
        let program = program.find()?;
        let settings = [SETTINGS_FOR_REPLICAS, SETTINGS, settings].concat();
        let count = if replicas { 2 * MASTERS } else { MASTERS };
        let (nodes, buses): (Vec<Redis>, Vec<Port>) =
            (0..count).map(|_| start_node(&program, &settings)).unzip();
        introduce(&nodes, &buses);
        let cluster = RedisCluster {
            identifiers: nodes
                .iter()
                .map(|node| node.cli(&["CLUSTER", "MYID"]))
                .collect(),
            nodes,
            _buses: buses,
        };
        cluster.share_slots();
        cluster.wait_until_known();
        cluster.attach_replicas();
        cluster.wait_until_ok();
        Some(cluster)
    }

    /// The URL: the addresses of the first three nodes.
    pub fn url(&self) -> String {
        let masters = self.nodes.iter().take(MASTERS);
        let addresses: Vec<String> = masters.map(|node| node.address().to_string()).collect();
        format!("redis+cluster://{}", addresses.join(","))
    }

    /// The nodes: the three that were masters at first, then their replicas in the same order.
    pub fn nodes(&self) -> &[Redis] {
        &self.nodes
    }

    /// The slot of a key.
    pub fn slot_of(&self, key: &str) -> u16 {
        slots::slot_of(key.as_bytes())
    }

    /// The number of the node that serves a slot.
    ///
    /// # Panics
    ///
    /// If no node that is up does.
    pub fn owner_of(&self, slot: u16) -> usize {
        let serves = |number: &usize| {
            let owner = self.view(*number).and_then(|view| view.owner_of(slot));
            owner.as_ref() == Some(&self.identifiers[*number])
        };
        let found = (0..self.nodes.len()).find(serves);
        found.unwrap_or_else(|| panic!("no node serves slot {slot}"))
    }

    /// Moves a slot with its keys to another master, while clients may use it. Returns when every
    /// node that is up knows that. Does nothing if the slot is there already.
    ///
    /// # Panics
    ///
    /// If the other node is not a master.
    pub fn move_slot(&self, slot: u16, to: usize) {
        let from = self.owner_of(slot);
        if from == to {
            return;
        }
        // The new owner first: the old one sends clients there as soon as it is told.
        self.set_slot(to, slot, &["IMPORTING", &self.identifiers[from]]);
        self.set_slot(from, slot, &["MIGRATING", &self.identifiers[to]]);
        self.move_keys(slot, from, to);
        // Again the new owner first. Until it is told, it sends clients back to the old one.
        let others = (0..self.nodes.len()).filter(|number| ![from, to].contains(number));
        let masters = others.filter(|number| self.view(*number).is_some_and(|view| view.is_master));
        for number in [to, from].into_iter().chain(masters) {
            self.set_slot(number, slot, &["NODE", &self.identifiers[to]]);
        }
        wait_for_group("every node knows who serves the slot", || {
            let owner = Some(&self.identifiers[to]);
            let mut views = (0..self.nodes.len()).filter_map(|number| self.view(number));
            views.all(|view| view.owner_of(slot).as_ref() == owner)
        });
    }

    /// Kills a node.
    pub fn kill(&mut self, number: usize) {
        self.nodes[number].kill();
    }

    /// Starts a node again after [`kill`](RedisCluster::kill). Returns when it answers; the cluster
    /// may still be down. It comes back as a replica if its own replica has taken over.
    pub fn restart(&mut self, number: usize) {
        self.nodes[number].restart();
    }

    /// Returns when every node that is not killed says that the cluster is up and that it sees all
    /// the others up, and when all replicas are in sync.
    pub fn wait_until_ok(&self) {
        wait_for_group("the cluster is up", || {
            self.running().all(|number| self.sees_all_up(number))
        });
        for node in self.running().map(|number| &self.nodes[number]) {
            let role = node.call(&["ROLE"], GUARD).expect("it is up");
            // Of a master it is the list of its replicas, of a replica it is a port.
            let replicas = role.list()[2].list().len();
            if replicas > 0 {
                node.wait_for_replicas(replicas);
            }
        }
    }

    /// Returns when the replica of a node that was killed or paused serves its slots, according to
    /// every other node.
    pub fn wait_for_failover(&self, number: usize) {
        wait_for_group("a replica has taken over", || {
            let mut others = self.running().filter(|other| *other != number);
            others.all(|other| {
                self.is_ok(other)
                    && self
                        .view(other)
                        .is_some_and(|view| !view.serves(&self.identifiers[number]))
            })
        });
    }

    fn share_slots(&self) {
        let share = usize::from(slots::COUNT).div_ceil(MASTERS);
        for (number, node) in self.nodes.iter().take(MASTERS).enumerate() {
            let first = number * share;
            let last = (first + share).min(slots::COUNT.into()) - 1;
            let range = [first.to_string(), last.to_string()];
            node.cli(&["CLUSTER", "ADDSLOTSRANGE", &range[0], &range[1]]);
        }
    }

    fn wait_until_known(&self) {
        wait_for_group("every node knows every other", || {
            self.running().all(|number| {
                self.view(number)
                    .is_some_and(|view| self.identifiers.iter().all(|other| view.sees_up(other)))
            })
        });
    }

    fn attach_replicas(&self) {
        for (node, master) in self.nodes.iter().skip(MASTERS).zip(&self.identifiers) {
            node.cli(&["CLUSTER", "REPLICATE", master]);
        }
        let count = self.nodes.len() - MASTERS;
        wait_for_group("every node knows the replicas", || {
            self.running().all(|number| {
                self.view(number)
                    .is_some_and(|view| view.replicas() == count)
            })
        });
    }

    fn set_slot(&self, number: usize, slot: u16, state: &[&str]) {
        let slot = slot.to_string();
        self.nodes[number].cli(&[&["CLUSTER", "SETSLOT", &slot], state].concat());
    }

    fn move_keys(&self, slot: u16, from: usize, to: usize) {
        let (source, port) = (&self.nodes[from], self.nodes[to].port().to_string());
        let slot = slot.to_string();
        // The empty argument is in the place of a single key: here the keys come last.
        let migrate = [
            "MIGRATE",
            "127.0.0.1",
            &port,
            "",
            "0",
            MIGRATE_TIMEOUT_MS,
            "KEYS",
        ];
        loop {
            let list = ["CLUSTER", "GETKEYSINSLOT", &slot, KEYS_MAX];
            let keys = source.call(&list, GUARD).expect("a node lists its keys");
            if keys.list().is_empty() {
                return;
            }
            let keys = keys.list().iter().map(Reply::bytes);
            let command: Vec<&[u8]> = migrate.map(str::as_bytes).into_iter().chain(keys).collect();
            source
                .call(&command, 2 * GUARD)
                .unwrap_or_else(|error| panic!("keys of slot {slot} do not move: {error}"));
        }
    }

    /// The nodes that are not killed.
    fn running(&self) -> impl Iterator<Item = usize> {
        (0..self.nodes.len()).filter(|number| self.nodes[*number].is_running())
    }

    fn is_ok(&self, number: usize) -> bool {
        let said = self.nodes[number].ask(&["CLUSTER", "INFO"]);
        said.is_ok_and(|said| said.text().lines().any(|line| line == "cluster_state:ok"))
    }

    fn sees_all_up(&self, number: usize) -> bool {
        let Some(view) = self.view(number) else {
            return false;
        };
        let is_in_sync = || {
            let said = self.nodes[number].ask(&["INFO", "replication"]);
            said.is_ok_and(|said| said.text().contains("master_link_status:up"))
        };
        let mut running = self.running().map(|other| &self.identifiers[other]);
        self.is_ok(number)
            && running.all(|other| view.sees_up(other))
            && (view.is_master || is_in_sync())
    }

    /// What a node knows of the cluster; `None` if it does not answer.
    fn view(&self, number: usize) -> Option<View> {
        let said = self.nodes[number].ask(&["CLUSTER", "NODES"]).ok()?.text();
        let is_master = said.contains("myself,master");
        Some(View { said, is_master })
    }
}

/// What a node says to CLUSTER NODES: a line per node, with its identifier, address, flags, master,
/// three numbers, the state of the connection, and slots.
struct View {
    said: String,
    is_master: bool,
}

impl View {
    fn owner_of(&self, slot: u16) -> Option<String> {
        let line = self.said.lines().find(|line| {
            let mut slots = line.split(' ').skip(8).filter_map(range);
            slots.any(|(first, last)| (first..=last).contains(&slot))
        })?;
        line.split(' ').next().map(str::to_owned)
    }

    fn serves(&self, identifier: &str) -> bool {
        let mut slots = self.line(identifier).split(' ').skip(8);
        slots.any(|slots| range(slots).is_some())
    }

    /// Whether the node is known and called neither down nor new.
    fn sees_up(&self, identifier: &str) -> bool {
        let flags = self.line(identifier).split(' ').nth(2).unwrap_or_default();
        ["master", "slave"].contains(&flags.trim_start_matches("myself,"))
    }

    fn replicas(&self) -> usize {
        let flags = self.said.lines().filter_map(|line| line.split(' ').nth(2));
        flags.filter(|flags| flags.contains("slave")).count()
    }

    fn line(&self, identifier: &str) -> &str {
        let mut lines = self.said.lines();
        lines
            .find(|line| line.starts_with(identifier))
            .unwrap_or_default()
    }
}

/// The first and last of a range such as `0-5460` or `7`. A slot that moves has another form.
fn range(slots: &str) -> Option<(u16, u16)> {
    let (first, last) = slots.split_once('-').unwrap_or((slots, slots));
    Some((first.parse().ok()?, last.parse().ok()?))
}

/// By default the port of the bus is ten thousand higher than the other, where it may be in use.
fn start_node(program: &Path, settings: &[(&str, &str)]) -> (Redis, Port) {
    let mut bus = None;
    let node = Redis::in_group(program, &[], |port| {
        let number = bus.insert(Port::free()).number().to_string();
        configuration(port, &[settings, &[("cluster-port", &number)]].concat())
    });
    (node, bus.expect("a started node was configured"))
}

fn introduce(nodes: &[Redis], buses: &[Port]) {
    for (number, node) in nodes.iter().enumerate() {
        // Each its own, otherwise they would first have to settle whose is higher.
        node.cli(&["CLUSTER", "SET-CONFIG-EPOCH", &(number + 1).to_string()]);
    }
    for (number, node) in nodes.iter().enumerate() {
        // Every pair. If only one knew all the others, they would learn of each other by gossip,
        // which takes seconds.
        for (other, bus) in nodes.iter().zip(buses).skip(number + 1) {
            let (port, bus) = (other.port().to_string(), bus.number().to_string());
            node.cli(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus]);
        }
    }
}
