//! `inbox`: effects with receipts against the same effects alone.

mod effects;
mod source;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use hapax::store::postgres::ConnectOptions;
use hapax_flow::consume::{Consumer, Guarantee, PostgresDatabase, PostgresTransaction, Received};
use tokio_util::sync::CancellationToken;

use self::effects::{Effects, Form};
use self::source::Endless;
use crate::flags::{Command, Flag, Flags};
use crate::postgres::{Cluster, connect};
use crate::report::{Table, at_least, number};
use crate::stats::Rounds;
use crate::{Error, runtime};

pub(crate) const COMMAND: Command = Command {
    name: "inbox",
    help: "batches of messages with receipts, against their effects alone; from a source in this process",
    flags: &[
        Flag::new("--seconds", "2", "of each measurement in each round"),
        Flag::new("--rounds", "3", "repetitions, interleaved"),
        Flag::switch(
            "--quick",
            "one short round: shows that it works, and nothing else",
        ),
    ],
    run,
};

/// Messages in a transaction, and in which forms their effects are written.
const BATCHES: [(usize, &[Form]); 3] =
    [(1, &[Form::OneByOne]), (50, &Form::ALL), (500, &Form::ALL)];
/// What is judged: an insert for each message, sent together.
const JUDGED: (usize, Form) = (500, Form::Together);
const RATIO_MIN: f64 = 0.3;
const RATIO_GOAL: f64 = 0.4;

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Who {
    /// A transaction with the effects and nothing else.
    Bare,
    /// A consumer that writes no receipts.
    AtLeastOnce,
    Once,
}

impl Who {
    const ALL: [Who; 3] = [Who::Bare, Who::AtLeastOnce, Who::Once];

    fn name(self) -> &'static str {
        match self {
            Who::Bare => "bare effects",
            Who::AtLeastOnce => "consumer, at least once",
            Who::Once => "consumer, with receipts",
        }
    }
}

type Results = BTreeMap<(usize, Form, Who), Rounds>;

fn run(flags: &Flags) -> Result<(), Error> {
    let (seconds, rounds) = match flags.is_set("--quick") {
        true => (Duration::from_secs(1), 1),
        false => (flags.seconds("--seconds")?, flags.count("--rounds")?),
    };
    let cluster = Cluster::start()?;
    println!("PostgreSQL {}, {}", cluster.version(), cluster.settings());
    let title = format!(
        "inbox: an insert for each message, every commit on the disk; medians of {rounds} interleaved rounds of {seconds:?}"
    );
    let results = runtime()?.block_on(measure(&cluster, seconds, rounds))?;
    print(&results, &title);
    Ok(())
}

async fn measure(cluster: &Cluster, seconds: Duration, rounds: usize) -> Result<Results, Error> {
    let url = cluster.migrated().await?;
    effects::make_table(&url).await?;
    let mut results = Results::new();
    let mut applied = 0;
    for round in 1..=rounds {
        eprintln!("  inbox: round {round} of {rounds}");
        for (batch, forms) in BATCHES {
            for form in forms {
                for who in Who::ALL {
                    let (count, took) = match who {
                        Who::Bare => bare(&url, batch, *form, seconds).await?,
                        Who::AtLeastOnce => {
                            let guarantee = Guarantee::AtLeastOnce;
                            consume(&url, guarantee, batch, *form, seconds).await?
                        }
                        Who::Once => consume(&url, Guarantee::Once, batch, *form, seconds).await?,
                    };
                    applied += count;
                    let of = results.entry((batch, *form, who)).or_default();
                    of.rates.push(count as f64 / took.as_secs_f64());
                }
            }
        }
        effects::check(&url, applied).await?;
    }
    Ok(results)
}

/// Writes the effects of batches until the time is up. Returns how many, and how long that took.
async fn bare(
    url: &str,
    batch: usize,
    form: Form,
    duration: Duration,
) -> Result<(usize, Duration), Error> {
    let client = connect(url).await?;
    let (effects, mut source) = (Effects::new(form), Endless::new());
    let (began, mut count) = (Instant::now(), 0);
    while began.elapsed() < duration {
        let messages = source.next(batch);
        client.batch_execute("BEGIN").await?;
        let ids = messages
            .iter()
            .filter_map(|delivery| delivery.message.id.as_deref());
        effects.write(&client, ids).await?;
        client.batch_execute("COMMIT").await?;
        count += batch;
    }
    Ok((count, began.elapsed()))
}

/// The same by a consumer.
async fn consume(
    url: &str,
    guarantee: Guarantee,
    batch: usize,
    form: Form,
    duration: Duration,
) -> Result<(usize, Duration), Error> {
    let database = PostgresDatabase::new(ConnectOptions::parse(url)?);
    let effects = Effects::new(form);
    let consumer = Consumer::new("bench")
        .guarantee(guarantee)
        .batch_max(batch)
        .source(Endless::new())
        .database(database)
        .handle(
            async |messages: &[Received], tx: &mut PostgresTransaction| {
                effects.write(tx, messages.iter().map(Received::id)).await?;
                Ok(())
            },
        );
    let (progress, stop) = (consumer.progress(), CancellationToken::new());
    let stopping = async {
        tokio::time::sleep(duration).await;
        stop.cancel();
    };
    let began = Instant::now();
    let (ran, ()) = tokio::join!(consumer.run(stop.clone()), stopping);
    ran?;
    Ok((usize::try_from(progress.counts().applied)?, began.elapsed()))
}

fn print(results: &Results, title: &str) {
    let mut table = Table::new(title, &["", "batch", "inserts", "per second", "of bare"]);
    for ((batch, form, who), rounds) in results {
        let cells = [
            batch.to_string(),
            form.name().to_owned(),
            number(rounds.rate()),
            number(against(results, *batch, *form, *who)),
        ];
        table.row(who.name(), cells);
    }
    table.print();
    let (batch, form) = JUDGED;
    let ratio = against(results, batch, form, Who::Once);
    let what = format!("batches of {batch} with receipts, inserts {}", form.name());
    at_least(&what, ratio, RATIO_MIN, "");
    at_least(&format!("{what} (goal)"), ratio, RATIO_GOAL, "");
}

fn against(results: &Results, batch: usize, form: Form, who: Who) -> f64 {
    results[&(batch, form, who)].against(&results[&(batch, form, Who::Bare)])
}
