//! `hapax keys log`

use super::source::{Purpose, Source, Where};
use super::targets;
use super::watch::{PAUSE, Patience};
use crate::admin::keys::logged::{ChangedRecord, Logged};
use crate::admin::log::Which;
use crate::cli::{Exit, text};

/// Entries in one question.
const PAGE: usize = 1_000;
/// Digits of an id, unless asked for all.
const ID_DIGITS: usize = 8;

/// Show what was done by hand, by whom and why: settled, forgotten, the configuration loaded anew.
///
/// The latest entries, the newest last. Entries are kept for 400 days, whatever becomes of their
/// keys.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Only of this record: its id, its first digits, or its operation id
    #[arg(value_name = "ID")]
    id: Option<String>,
    /// At most so many
    #[arg(long, default_value_t = 100)]
    limit: usize,
    /// The ones before the entry with this number
    #[arg(long, value_name = "NUMBER", conflicts_with_all = ["after", "watch"])]
    before: Option<u64>,
    /// The ones after the entry with this number, from the oldest on; 0 is the beginning
    #[arg(long, value_name = "NUMBER")]
    after: Option<u64>,
    /// Go on with what is done from now on
    #[arg(long)]
    watch: bool,
    /// One JSON object a line
    #[arg(long)]
    json: bool,
    /// Whole ids instead of their first digits
    #[arg(long)]
    full: bool,
    #[command(flatten)]
    place: Where,
}

pub(super) async fn run(args: &Args) -> Result<(), Exit> {
    let source = Source::find(&args.place, Purpose::Look).await?;
    let record = match &args.id {
        Some(text) => Some(of_record(&source, text).await?),
        None => None,
    };
    let entries = match args.after {
        Some(after) => forwards(&source, record.as_deref(), after, args.limit).await?,
        None => latest(&source, record.as_deref(), args.before, args.limit).await?,
    };
    if entries.is_empty() && !args.watch {
        eprintln!("nothing like that was done by hand");
    }
    let mut last = entries
        .last()
        .map_or(args.after.unwrap_or(0), |entry| entry.sequence);
    if !text::emit(&args.lines(&entries)) || !args.watch {
        return Ok(());
    }
    let mut patience = Patience::default();
    loop {
        let found = patience
            .of(forwards(&source, record.as_deref(), last, usize::MAX).await)?
            .unwrap_or_default();
        last = found.last().map_or(last, |entry| entry.sequence);
        if !text::emit(&args.lines(&found)) {
            return Ok(());
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// The record that is meant. One that is gone has an entry all the same, so that a whole id need
/// not be one of a key.
async fn of_record(source: &Source, text: &str) -> Result<String, Exit> {
    targets::resolve(source, text)
        .await
        .map(|id| id.to_string())
}

/// Up to so many after an entry, oldest first.
async fn forwards(
    source: &Source,
    record: Option<&str>,
    mut after: u64,
    limit: usize,
) -> Result<Vec<Logged>, Exit> {
    let mut found: Vec<Logged> = Vec::new();
    while found.len() < limit {
        let which = Which {
            record: record.map(str::to_owned),
            after: Some(after),
            limit: Some(PAGE.min(limit - found.len())),
            ..Which::default()
        };
        let page = source.log(&which).await?;
        found.extend(page.entries);
        match page.next {
            Some(next) => after = next,
            None => break,
        }
    }
    Ok(found)
}

/// The latest before an entry, the newest last.
async fn latest(
    source: &Source,
    record: Option<&str>,
    mut before: Option<u64>,
    limit: usize,
) -> Result<Vec<Logged>, Exit> {
    let mut found: Vec<Logged> = Vec::new();
    while found.len() < limit {
        let which = Which {
            record: record.map(str::to_owned),
            before,
            limit: Some(PAGE.min(limit - found.len())),
            ..Which::default()
        };
        let page = source.log(&which).await?;
        found.extend(page.entries);
        match page.next {
            Some(next) => before = Some(next),
            None => break,
        }
    }
    found.reverse();
    Ok(found)
}

impl Args {
    fn lines(&self, entries: &[Logged]) -> String {
        entries
            .iter()
            .map(|entry| {
                if self.json {
                    json(entry)
                } else {
                    line(entry, self.full)
                }
            })
            .collect()
    }
}

fn json(entry: &Logged) -> String {
    let line = serde_json::to_string(entry).expect("it has no maps with odd keys");
    format!("{}\n", text::json(&line))
}

/// Number, time, what, who, the record as it was and became, why: separated by tabs, on a terminal
/// by spaces.
fn line(entry: &Logged, full: bool) -> String {
    let mut cells = vec![
        entry.sequence.to_string(),
        entry.at.to_string(),
        entry.action.clone(),
        entry.by.clone(),
    ];
    cells.extend(entry.record.iter().flat_map(|record| of(record, full)));
    cells.push(entry.reason.clone());
    let cells: Vec<_> = cells.iter().map(|cell| text::line(cell)).collect();
    format!(
        "{}\n",
        cells.join(if text::terminal_width().is_some() {
            "  "
        } else {
            "\t"
        })
    )
}

fn of(record: &ChangedRecord, full: bool) -> [String; 4] {
    let digits = if full { record.id.len() } else { ID_DIGITS };
    let status = record
        .status
        .map(|status| format!(" {status}"))
        .unwrap_or_default();
    [
        record.id.get(..digits).unwrap_or(&record.id).to_owned(),
        format!("{} {}", record.method, record.path),
        record.key.clone(),
        format!("{} -> {}{status}", record.before, record.after),
    ]
}
