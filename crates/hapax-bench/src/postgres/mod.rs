//! `postgres`: compares the Postgres store with `pgbench` on the same tables and server, and the
//! gateway on it with its peers.

mod cluster;
mod floor;
mod pairs;
mod turns;
mod volume;

use std::time::Duration;

use crate::flags::{Command, Flag, Flags};
use crate::{Error, gateway, runtime};

pub(crate) use self::cluster::{Cluster, connect};

pub(crate) const COMMAND: Command = Command {
    name: "postgres",
    help: "claim + complete and replays on Postgres, against pgbench on the same server; many keys, ring turns; the gateway's rows",
    flags: &[
        Flag::new("--seconds", "4", "of each measurement in each round"),
        Flag::new("--rounds", "5", "repetitions, interleaved"),
        Flag::new("--keys", "1000000", "stored keys, against ten thousand"),
        Flag::new(
            "--only",
            "",
            "of pairs, volume, turns, gateway; several with commas between",
        ),
        Flag::switch("--long", "with ten million stored keys"),
        Flag::switch(
            "--quick",
            "one short round with few keys: shows that it works, and nothing else",
        ),
    ],
    run,
};

const PARTS: [&str; 4] = ["pairs", "volume", "turns", "gateway"];

/// The size of the measurements.
#[derive(Clone, Copy)]
struct Scale {
    seconds: Duration,
    rounds: usize,
    keys: usize,
}

impl Scale {
    fn of(flags: &Flags) -> Result<Scale, Error> {
        if flags.is_set("--quick") {
            return Ok(Scale {
                seconds: Duration::from_secs(2),
                rounds: 1,
                keys: 20_000,
            });
        }
        let keys = if flags.is_set("--long") {
            10_000_000
        } else {
            flags.count("--keys")?
        };
        Ok(Scale {
            seconds: flags.seconds("--seconds")?,
            rounds: flags.count("--rounds")?,
            keys,
        })
    }
}

fn run(flags: &Flags) -> Result<(), Error> {
    let (scale, parts) = (Scale::of(flags)?, flags.parts("--only", &PARTS)?);
    let cluster = Cluster::start()?;
    println!("PostgreSQL {}, {}", cluster.version(), cluster.settings());
    let runtime = runtime()?;
    if parts.contains(&"pairs") {
        runtime.block_on(pairs::run(&cluster, scale))?;
    }
    if parts.contains(&"volume") {
        runtime.block_on(volume::run(&cluster, scale))?;
    }
    if parts.contains(&"turns") {
        runtime.block_on(turns::run(&cluster, scale))?;
    }
    // The next measurement needs the processors.
    drop(runtime);
    if parts.contains(&"gateway") {
        gateway::on_postgres(cluster, scale.seconds, scale.rounds)?;
    }
    Ok(())
}
