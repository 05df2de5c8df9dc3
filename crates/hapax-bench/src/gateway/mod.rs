//! `gateway`: compares the gateway in front of an upstream with nginx as a plain proxy, and with
//! products that promise something similar.

mod axum_idempotent;
mod bench;
mod cells;
mod dbos;
mod hapax;
mod held;
mod idle;
mod install;
mod nginx;
mod peers;
mod process;
mod protocol;
mod restate;
mod results;
mod server;
mod upstream;

use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};

use crate::Error;
use crate::flags::{Command, Flag, Flags};
use crate::postgres::Cluster;

pub(crate) use self::hapax::Program;
pub(crate) use self::install::peers_directory;
pub(crate) use self::process::{Process, TIED, command, tied, tree};
pub(crate) use self::upstream::UPSTREAM;

pub(crate) const COMMAND: Command = Command {
    name: "gateway",
    help: "hapax serve against nginx as a plain proxy, and against axum-idempotent, DBOS and Restate",
    flags: &[
        Flag::new("--seconds", "4", "of each measurement in each repetition"),
        Flag::new("--repetitions", "5", "interleaved"),
        Flag::new(
            "--keys",
            "1000000",
            "stored before the measurements on SQLite begin",
        ),
        Flag::new(
            "--only",
            "",
            "measure only rows whose names begin like this, and nginx; several with commas between",
        ),
    ],
    run,
};

pub(crate) const IDLE: Command = Command {
    name: "gateway idle",
    help: "the gateway's memory with idle connections and stored keys, under load",
    flags: &[
        Flag::new("--seconds", "600", "of load"),
        Flag::new("--keys", "1000000", "stored before"),
        Flag::new("--connections", "10000", "that are idle"),
        Flag::new(
            "--fresh",
            "1000",
            "fresh keys a second; beside them replays as fast as they go",
        ),
        Flag::new("--samples", "20", "of the memory, evenly spread"),
    ],
    run: |flags| on_this_thread(idle::run(flags)),
};

fn run(flags: &Flags) -> Result<(), Error> {
    let (seconds, repetitions, keys) = (
        flags.seconds("--seconds")?,
        flags.count("--repetitions")?,
        flags.count("--keys")?,
    );
    let plan = bench::Plan {
        seconds,
        repetitions,
        keys,
        only: flags.text("--only"),
        cluster: None,
    };
    on_this_thread(bench::run(plan))
}

/// Measures only the rows on Postgres, all of them on this server.
pub(crate) fn on_postgres(
    cluster: Cluster,
    seconds: Duration,
    repetitions: usize,
) -> Result<(), Error> {
    on_this_thread(bench::run(bench::Plan {
        seconds,
        repetitions,
        keys: 0,
        only: cells::ON_POSTGRES,
        cluster: Some(cluster),
    }))
}

/// Measures only the rows on Redis and on Redis over Postgres.
pub(crate) fn on_redis(seconds: Duration, repetitions: usize) -> Result<(), Error> {
    on_this_thread(bench::run(bench::Plan {
        seconds,
        repetitions,
        keys: 0,
        only: cells::ON_REDIS,
        cluster: None,
    }))
}

/// Runs a measurement until it is done or interrupted. Either way, the processes that it started
/// are ended.
///
/// Runs on this thread only: one thread is enough for the client, and child processes are tied to
/// the thread that started them.
fn on_this_thread(work: impl Future<Output = Result<(), Error>>) -> Result<(), Error> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(async {
            let (mut interrupt, mut terminate) = (
                signal(SignalKind::interrupt())?,
                signal(SignalKind::terminate())?,
            );
            tokio::select! {
                done = work => done,
                _ = interrupt.recv() => Err("interrupted".into()),
                _ = terminate.recv() => Err("terminated".into()),
            }
        })
}
