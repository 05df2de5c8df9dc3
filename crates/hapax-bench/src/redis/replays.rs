//! Replays by the store and bare `GET`, alternating.

use std::sync::Arc;

use crate::Error;
use crate::load::{ANSWER_BYTES, LONG, Load, Until};
use crate::report::{Table, number};
use crate::stats::Rounds;

use super::floor::Floor;
use super::server::{self, Fsync};
use super::{CALLERS, Scale};

pub(super) async fn run(scale: Scale) -> Result<(), Error> {
    let Scale {
        seconds,
        rounds,
        keys,
        ..
    } = scale;
    let server = server::start(Fsync::Everysec)?;
    let load = Load::new(Arc::new(server::open(&server).await?), LONG);
    let floor = Floor::connect(&server).await?;
    let written = floor.write(CALLERS, Until::Pairs(keys)).await?.keys;
    let stored = load.run(CALLERS, Until::Pairs(keys)).await?.ids;
    let (mut of_floor, mut of_store) = (Rounds::default(), Rounds::default());
    for round in 1..=rounds {
        eprintln!("  replays: round {round} of {rounds}");
        let rate = floor.read(CALLERS, &written, seconds).await?;
        of_floor.rates.push(rate);
        let rate = load.read(CALLERS, &stored, seconds).await?;
        of_store.rates.push(rate);
    }
    let title = format!(
        "redis: replays of {keys} keys by {CALLERS} callers, {ANSWER_BYTES}-byte answers; medians \
         of {rounds} interleaved rounds of {seconds:?}"
    );
    let mut table = Table::new(&title, &["", "per second", "of GET"]);
    for (name, rounds) in [("GET", &of_floor), ("hapax", &of_store)] {
        table.row(name, [rounds.rate(), rounds.against(&of_floor)].map(number));
    }
    table.print();
    Ok(())
}
