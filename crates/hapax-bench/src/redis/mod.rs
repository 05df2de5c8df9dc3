//! `redis`: compares the Redis store with bare commands on the same server, the gateway on Redis
//! and on Redis over Postgres with nginx, and how soon waiting requests of other nodes are told.

mod floor;
mod memory;
mod pairs;
mod replays;
mod server;
mod waiters;

use std::time::Duration;

use crate::flags::{Command, Flag, Flags};
use crate::{Error, gateway, runtime};

pub(crate) use self::server::{Fsync, start, start_cache};

pub(crate) const COMMAND: Command = Command {
    name: "redis",
    help: "claim + complete, replays and memory on Redis, against bare SET and GET on the same server; waiting requests; the gateway's rows",
    flags: &[
        Flag::new("--seconds", "4", "of each measurement in each round"),
        Flag::new("--rounds", "5", "repetitions, interleaved"),
        Flag::new("--keys", "100000", "stored, for replays and memory"),
        Flag::new("--samples", "500", "requests that wait, on each store"),
        Flag::new(
            "--only",
            "",
            "of pairs, replays, memory, waiters, gateway; several with commas between",
        ),
        Flag::switch(
            "--quick",
            "one short round with few keys: shows that it works, and nothing else",
        ),
    ],
    run,
};

const PARTS: [&str; 5] = ["pairs", "replays", "memory", "waiters", "gateway"];

/// The number of callers that write and read.
const CALLERS: usize = 64;

/// The size of the measurements.
#[derive(Clone, Copy)]
struct Scale {
    seconds: Duration,
    rounds: usize,
    keys: usize,
    samples: usize,
}

impl Scale {
    fn of(flags: &Flags) -> Result<Scale, Error> {
        if flags.is_set("--quick") {
            return Ok(Scale {
                seconds: Duration::from_secs(2),
                rounds: 1,
                keys: 20_000,
                samples: 30,
            });
        }
        Ok(Scale {
            seconds: flags.seconds("--seconds")?,
            rounds: flags.count("--rounds")?,
            keys: flags.count("--keys")?,
            samples: flags.count("--samples")?,
        })
    }
}

fn run(flags: &Flags) -> Result<(), Error> {
    let scale = Scale::of(flags)?;
    let parts = flags.parts("--only", &PARTS)?;
    println!("Redis {}, {}", server::version()?, server::SETTINGS);
    let runtime = runtime()?;
    if parts.contains(&"pairs") {
        runtime.block_on(pairs::run(scale))?;
    }
    if parts.contains(&"replays") {
        runtime.block_on(replays::run(scale))?;
    }
    if parts.contains(&"memory") {
        runtime.block_on(memory::run(scale))?;
    }
    if parts.contains(&"waiters") {
        runtime.block_on(waiters::run(scale))?;
    }
    // The next measurement needs the processors.
    drop(runtime);
    if parts.contains(&"gateway") {
        gateway::on_redis(scale.seconds, scale.rounds)?;
    }
    Ok(())
}
