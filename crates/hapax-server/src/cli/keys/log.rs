//! `hapax keys log`

use super::source::{Purpose, Source, Where};
use super::targets;
use crate::admin::keys::logged::{ChangedRecord, Logged};
use crate::admin::log::Which;
use crate::cli::watch::{PAUSE, Patience};
use crate::cli::{Exit, text};

/// Entries per request.
const PAGE: usize = 1_000;
/// Digits of an id, unless all were requested.
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
        Some(text) => Some(resolve_record(&source, text).await?),
        None => None,
    };
    let which = Which {
        record,
        after: args.after,
        before: args.before,
        limit: None,
    };
    let mut shown = entries(&source, which.clone(), args.limit).await?;
    if args.after.is_none() {
        shown.reverse();
    }
    if shown.is_empty() && !args.watch {
        eprintln!("nothing like that was done by hand");
    }
    let mut last = shown
        .last()
        .map_or(args.after.unwrap_or(0), |entry| entry.sequence);
    if !text::emit(&args.lines(&shown)) || !args.watch {
        return Ok(());
    }
    let mut patience = Patience::default();
    loop {
        let from_here = Which {
            after: Some(last),
            before: None,
            ..which.clone()
        };
        let found = patience
            .accept(entries(&source, from_here, usize::MAX).await)?
            .unwrap_or_default();
        last = found.last().map_or(last, |entry| entry.sequence);
        if !text::emit(&args.lines(&found)) {
            return Ok(());
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// The record that is meant. A removed record still has log entries, so a whole id need not belong
/// to an existing key.
async fn resolve_record(source: &Source, text: &str) -> Result<String, Exit> {
    targets::resolve(source, text)
        .await
        .map(|id| id.to_string())
}

/// Up to `limit` entries from where `which` starts, page after page: oldest first if it starts
/// after an entry, otherwise newest first.
async fn entries(source: &Source, mut which: Which, limit: usize) -> Result<Vec<Logged>, Exit> {
    let mut found: Vec<Logged> = Vec::new();
    while found.len() < limit {
        which.limit = Some(PAGE.min(limit - found.len()));
        let page = source.log(&which).await?;
        found.extend(page.entries);
        match (page.next, &mut which) {
            (
                Some(next),
                Which {
                    after: Some(after), ..
                },
            ) => *after = next,
            (Some(next), which) => which.before = Some(next),
            (None, _) => break,
        }
    }
    Ok(found)
}

impl Args {
    fn lines(&self, entries: &[Logged]) -> String {
        entries
            .iter()
            .map(|entry| {
                if self.json {
                    text::json_line(entry)
                } else {
                    line(entry, self.full)
                }
            })
            .collect()
    }
}

/// Number, time, action, name, the record before and after, and reason: separated by tabs, on a
/// terminal by spaces.
fn line(entry: &Logged, full: bool) -> String {
    let mut cells = vec![
        entry.sequence.to_string(),
        entry.at.to_string(),
        entry.action.clone(),
        entry.by.clone(),
    ];
    cells.extend(
        entry
            .record
            .iter()
            .flat_map(|record| record_cells(record, full)),
    );
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

fn record_cells(record: &ChangedRecord, full: bool) -> [String; 4] {
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
