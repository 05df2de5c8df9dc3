//! `hapax outbox readers`

use hapax_flow::outbox::operate::ReaderState;
use serde_json::{Value, json};

use super::place::{Place, exit};
use super::{table, watch};
use crate::admin::outbox::wire::{OutboxReader, ReaderChanged, Time};
use crate::cli::keys::change::Sign;
use crate::cli::keys::format::{age, count};
use crate::cli::{Exit, text};

/// Show every reader: which relay has it, what it has published, and what holds it up.
///
/// The columns: name; state (active, idle, or stopped and why); the relay that has it; messages
/// published; waiting, held and dead ones; age and key of the oldest that is not published; and in
/// Postgres the backend whose open transaction has held messages back for longest.
#[derive(clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    /// One JSON object a line
    #[arg(long, global = true)]
    json: bool,
    /// Look again each second: a table that is drawn anew on a terminal; with --json one object
    /// with all readers for each look
    #[arg(long)]
    watch: bool,
    #[command(flatten)]
    place: Place,
}

#[derive(clap::Subcommand)]
enum Command {
    Start(StartArgs),
    Remove(RemoveArgs),
}

/// Start a reader that was stopped, once its cause is gone.
#[derive(clap::Args)]
struct StartArgs {
    /// The reader
    name: String,
    #[command(flatten)]
    sign: Sign,
}

/// Remove a reader for good, with what is set aside for it.
///
/// For a destination that is no more: its reader would keep messages in the database. No relay may
/// have it. One that is made again under this name gets only what is emitted from then on.
#[derive(clap::Args)]
struct RemoveArgs {
    /// The reader
    name: String,
    #[command(flatten)]
    sign: Sign,
}

pub(super) async fn run(args: &Args) -> Result<(), Exit> {
    match &args.command {
        None => show(args).await,
        Some(Command::Start(start)) => {
            let signed = start.sign.kept()?;
            let outbox = args.place.open()?;
            let is_done = outbox.start(&start.name, &signed).await.map_err(exit)?;
            told(
                args,
                "started",
                &start.name,
                is_done,
                "is not stopped, or not there",
            )
        }
        Some(Command::Remove(remove)) => {
            let signed = remove.sign.kept()?;
            let outbox = args.place.open()?;
            let is_done = outbox.remove(&remove.name, &signed).await.map_err(exit)?;
            told(
                args,
                "removed",
                &remove.name,
                is_done,
                "is not there, or a relay has it: stop that first",
            )
        }
    }
}

fn told(
    args: &Args,
    done: &'static str,
    name: &str,
    is_done: bool,
    why_not: &str,
) -> Result<(), Exit> {
    if !is_done {
        return Err(Exit::failed(format!(
            "the reader {} {why_not}",
            text::line(name)
        )));
    }
    text::emit(&match args.json {
        true => text::json_line(&ReaderChanged {
            done,
            reader: name.to_owned(),
        }),
        false => format!("{done}\t{}\n", text::line(name)),
    });
    Ok(())
}

async fn show(args: &Args) -> Result<(), Exit> {
    let outbox = args.place.open()?;
    if args.watch {
        let look = async || {
            let readers = outbox.readers().await.map_err(exit)?;
            Ok(Readers(readers))
        };
        return watch::run(args.json, look).await;
    }
    let readers = outbox.readers().await.map_err(exit)?;
    if readers.is_empty() {
        return Err(Exit::failed(
            "there are no readers: a relay makes its own when it first runs",
        ));
    }
    text::emit(&match args.json {
        true => readers
            .iter()
            .map(|reader| text::json_line(&OutboxReader::from(reader)))
            .collect(),
        false => table::draw(NAMES, &readers.iter().map(row).collect::<Vec<_>>()),
    });
    Ok(())
}

/// Readers that are watched.
struct Readers(Vec<ReaderState>);

impl watch::Seen for Readers {
    fn count(&self) -> usize {
        self.0.len()
    }

    fn title(&self) -> String {
        count(self.0.len(), "reader")
    }

    fn object(&self, at: Time) -> Value {
        let readers: Vec<_> = self.0.iter().map(OutboxReader::from).collect();
        json!({ "at": at, "readers": readers })
    }

    fn table(&self, rows: usize) -> String {
        let rows: Vec<_> = self.0.iter().take(rows).map(row).collect();
        table::draw(NAMES, &rows)
    }
}

const NAMES: [&str; 10] = [
    "READER",
    "STATE",
    "PUBLISHED",
    "WAITING",
    "HELD",
    "DEAD",
    "OLDEST",
    "KEY",
    "WRITER",
    "RELAY",
];

fn row(reader: &ReaderState) -> [String; 10] {
    let none = || "-".to_owned();
    let oldest = reader.oldest.as_ref();
    let state = match (&reader.stopped, &reader.active) {
        (Some(reason), _) => format!("stopped: {reason}"),
        (None, Some(_)) => "active".to_owned(),
        (None, None) => "idle".to_owned(),
    };
    let writer = reader
        .writer
        .map(|writer| format!("{} ({})", writer.pid, age(reader.now.since(writer.since))));
    [
        reader.name.clone(),
        state,
        reader.published.to_string(),
        reader.waiting.to_string(),
        reader.held.to_string(),
        reader.dead.to_string(),
        oldest.map_or_else(none, |oldest| age(reader.now.since(oldest.at))),
        oldest.map_or_else(none, |oldest| {
            format!("{} {}", oldest.topic, oldest.key.as_deref().unwrap_or("-"))
        }),
        writer.unwrap_or_else(none),
        reader.active.clone().unwrap_or_else(none),
    ]
}
