//! `outbox`: what a message costs beside its effect, and how fast the relay publishes.

mod backlog;
mod delay;
mod emit;
mod idle;
mod jobs;
mod memory;
mod relay;

use std::time::Duration;

use crate::flags::{Command, Flag, Flags};
use crate::postgres::Cluster;
use crate::{Error, runtime};

pub(crate) const COMMAND: Command = Command {
    name: "outbox",
    help: "emit against the bare row; the relay to nowhere, to each broker, its delay and memory; an idle open transaction; pg-boss and graphile-worker",
    flags: &[
        Flag::new("--seconds", "3", "of each measurement in each round"),
        Flag::new("--rounds", "3", "repetitions, interleaved"),
        Flag::new("--messages", "100000", "that a relay finds"),
        Flag::new("--backlog", "1000000", "messages, for its memory"),
        Flag::new(
            "--only",
            "",
            "of emit, relay, delay, idle, jobs, memory; several with commas between",
        ),
        Flag::switch(
            "--quick",
            "one short round with few messages: shows that it works, and nothing else",
        ),
    ],
    run,
};

const PARTS: [&str; 6] = ["emit", "relay", "delay", "idle", "jobs", "memory"];

/// The size of the measurements.
#[derive(Clone, Copy)]
struct Scale {
    seconds: Duration,
    rounds: usize,
    messages: usize,
    backlog: usize,
}

impl Scale {
    fn of(flags: &Flags) -> Result<Scale, Error> {
        if flags.is_set("--quick") {
            return Ok(Scale {
                seconds: Duration::from_secs(1),
                rounds: 1,
                messages: 10_000,
                backlog: 50_000,
            });
        }
        Ok(Scale {
            seconds: flags.seconds("--seconds")?,
            rounds: flags.count("--rounds")?,
            messages: flags.count("--messages")?,
            backlog: flags.count("--backlog")?,
        })
    }
}

fn run(flags: &Flags) -> Result<(), Error> {
    let (scale, parts) = (Scale::of(flags)?, flags.parts("--only", &PARTS)?);
    let cluster = Cluster::start()?;
    println!("PostgreSQL {}, {}", cluster.version(), cluster.settings());
    let runtime = runtime()?;
    for part in parts {
        match part {
            "emit" => runtime.block_on(emit::run(&cluster, scale))?,
            "relay" => runtime.block_on(relay::run(&cluster, scale))?,
            "delay" => runtime.block_on(delay::run(&cluster, scale))?,
            "idle" => runtime.block_on(idle::run(&cluster, scale))?,
            "jobs" => runtime.block_on(jobs::run(&cluster, scale))?,
            _ => runtime.block_on(memory::run(&cluster, scale))?,
        }
    }
    Ok(())
}
