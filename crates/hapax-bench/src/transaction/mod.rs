//! `transaction`: compares an effect committed together with its record with the same effect alone.

mod orders;

use std::collections::BTreeMap;
use std::time::Duration;

use self::orders::Ran;
pub(crate) use self::orders::{Orders, placed};
use crate::flags::{Command, Flag, Flags};
use crate::postgres::Cluster;
use crate::report::{Table, at_least, number};
use crate::stats::{Quantiles, median};
use crate::{Error, runtime};

pub(crate) const COMMAND: Command = Command {
    name: "transaction",
    help: "BEGIN, INSERT, COMMIT on Postgres, against the same with its record: by two calls, with a claim before it, and as one statement",
    flags: &[
        Flag::new("--seconds", "4", "of each measurement in each round"),
        Flag::new("--rounds", "5", "repetitions, interleaved"),
        Flag::switch(
            "--quick",
            "one short round: shows that it works, and nothing else",
        ),
    ],
    run,
};

const CLIENTS: [usize; 2] = [16, 64];
/// The least ratio to the rate of the bare transaction.
const RATIO_MIN: f64 = 0.6;
const TWO_CALLS_RATIO_MIN: f64 = 0.5;

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Who {
    Bare,
    /// The bare transaction with a message.
    Emit,
    /// The same in three round trips: the message is sent together with `COMMIT`.
    EmitWithCommit,
    /// `hapax.start` and `hapax.complete` in the transaction, which is the only commit.
    TwoCalls,
    /// The same by the library, in a transaction of the driver.
    InTransaction,
    /// The record joins a transaction of the driver.
    Transaction,
    /// The same with a message of the operation.
    TransactionEmit,
    /// Effect and record in one statement.
    Effect,
}

impl Who {
    /// What this command measures.
    const ALL: [Who; 5] = [
        Who::Bare,
        Who::TwoCalls,
        Who::InTransaction,
        Who::Transaction,
        Who::Effect,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Who::Bare => "bare transaction",
            Who::Emit => "with a message",
            Who::EmitWithCommit => "with a message, sent with COMMIT",
            Who::TwoCalls => "with two calls",
            Who::InTransaction => "with Once::in_transaction",
            Who::Transaction => "with its record",
            Who::TransactionEmit => "with its record and a message",
            Who::Effect => "with its record, as one Effect",
        }
    }
}

/// The results of all rounds.
type Results = BTreeMap<(usize, Who), Vec<(f64, Quantiles)>>;

fn run(flags: &Flags) -> Result<(), Error> {
    let (seconds, rounds) = match flags.is_set("--quick") {
        true => (Duration::from_secs(2), 1),
        false => (flags.seconds("--seconds")?, flags.count("--rounds")?),
    };
    let cluster = Cluster::start()?;
    println!("PostgreSQL {}, {}", cluster.version(), cluster.settings());
    let (results, in_flight) = runtime()?.block_on(measure(&cluster, seconds, rounds))?;
    let title = format!(
        "transaction: BEGIN, INSERT, COMMIT, every commit on the disk; medians of {rounds} interleaved rounds of {seconds:?}"
    );
    print(&results, &title);
    println!(
        "a duplicate is told in flight after {} ms (p50), {} ms (p99), while the first transaction is open",
        number(in_flight.p50),
        number(in_flight.p99)
    );
    Ok(())
}

async fn measure(
    cluster: &Cluster,
    seconds: Duration,
    rounds: usize,
) -> Result<(Results, Quantiles), Error> {
    let orders = Orders::open(&cluster.migrated().await?).await?;
    let mut results = Results::new();
    for round in 1..=rounds {
        eprintln!("  transaction: round {round} of {rounds}");
        for clients in CLIENTS {
            for who in Who::ALL {
                let Ran { rate, latencies } = orders.run(clients, who, seconds).await?;
                results
                    .entry((clients, who))
                    .or_default()
                    .push((rate, latencies.quantiles()));
            }
        }
    }
    let in_flight = orders.told_in_flight().await?;
    Ok((results, in_flight.quantiles()))
}

fn print(results: &Results, title: &str) {
    let mut table = Table::new(
        title,
        &["", "clients", "per second", "of bare", "p50 ms", "p99 ms"],
    );
    let of = |rounds: &[(f64, Quantiles)], part: fn(&(f64, Quantiles)) -> f64| {
        number(median(rounds.iter().map(part)))
    };
    for ((clients, who), rounds) in results {
        let ratio = number(against(results, *clients, *who));
        let cells = [
            clients.to_string(),
            of(rounds, |round| round.0),
            ratio,
            of(rounds, |round| round.1.p50),
            of(rounds, |round| round.1.p99),
        ];
        table.row(who.name(), cells);
    }
    table.print();
    for clients in CLIENTS {
        for (who, ratio_min) in [
            (Who::TwoCalls, TWO_CALLS_RATIO_MIN),
            (Who::Transaction, RATIO_MIN),
            (Who::Effect, RATIO_MIN),
        ] {
            at_least(
                &format!("{clients} clients, {}", who.name()),
                against(results, clients, who),
                ratio_min,
                "",
            );
        }
    }
}

/// The median of the ratios of each round. The measurements of one round are within seconds of each
/// other.
fn against(results: &Results, clients: usize, who: Who) -> f64 {
    let rounds = results[&(clients, who)]
        .iter()
        .zip(&results[&(clients, Who::Bare)]);
    median(rounds.map(|(this, bare)| this.0 / bare.0))
}
