//! `hapax keys list`

use hapax::core::time::Timestamp;

use super::filter::Filter;
use super::source::{Purpose, Source, Where};
use super::table::{self, Style};
use super::targets::Walk;
use super::{format, newest, watch};
use crate::admin::keys::wire::{Entry, Query};
use crate::cli::{Exit, text};

/// Limit on the rows of a table, which is built in memory.
const TABLE_ROWS_MAX: usize = 10_000;

/// List keys, the newest first.
///
/// Exit code 1 if nothing matches. A store has no order of time: to find the newest, every key is
/// looked at, up to a million of them.
#[derive(clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    filter: Filter,
    /// At most so many; over 10000 only with --json and --by-id
    #[arg(long, default_value_t = 100)]
    limit: usize,
    /// In the order of ids, page after page: to go through all keys of a large store
    #[arg(long, conflicts_with = "watch")]
    by_id: bool,
    /// With --by-id: go on after this id
    #[arg(long, value_name = "ID", requires = "by_id")]
    after: Option<String>,
    /// One JSON object a line
    #[arg(long)]
    json: bool,
    /// Look again each second: a table that is drawn anew on a terminal, elsewhere one line for
    /// each change
    #[arg(long)]
    watch: bool,
    /// Whole ids instead of as many digits as tell them apart
    #[arg(long)]
    full: bool,
    #[command(flatten)]
    place: Where,
}

pub(super) async fn run(args: &Args) -> Result<(), Exit> {
    if !(args.json && args.by_id) && args.limit > TABLE_ROWS_MAX {
        let fix = if args.watch {
            "a filter for fewer"
        } else {
            "--json --by-id for more"
        };
        return Err(Exit::usage(format!(
            "up to {TABLE_ROWS_MAX} keys are sorted: use {fix}"
        )));
    }
    let source = Source::find(&args.place, Purpose::Look).await?;
    let mut query = args.filter.query();
    query.after.clone_from(&args.after);
    if args.watch {
        return watch::keys(
            &source,
            &query,
            &watch::Way {
                limit: args.limit,
                is_json: args.json,
                full: args.full,
            },
        )
        .await;
    }
    if args.by_id {
        return by_id(&source, query, args).await;
    }
    let mut found = newest::find(&source, &query, args.limit).await?;
    newest::keep_exact(&mut found.entries, args.filter.principal.as_deref());
    if found.entries.is_empty() {
        return Err(Exit::failed(format::nothing_matched(
            &args.filter.flags(),
            found.looked_at,
        )));
    }
    print(&found.entries, found.now, args);
    found.tell_of_rest();
    newest::tell_of_principals(&found.entries, args.filter.principal.as_deref());
    Ok(())
}

/// Prints page after page, each as soon as it arrives.
async fn by_id(source: &Source, query: Query, args: &Args) -> Result<(), Exit> {
    let mut walk = Walk::new(source, query, args.limit);
    let (mut found, mut looked_at) = (0, 0);
    while let Some(page) = walk.next().await? {
        found += page.keys.len();
        looked_at += page.looked_at;
        if !print(&page.keys, page.now.0, args) {
            return Ok(());
        }
    }
    if found == 0 {
        return Err(Exit::failed(format::nothing_matched(
            &args.filter.flags(),
            looked_at,
        )));
    }
    if let Some(after) = walk.rest() {
        eprintln!("there may be more: raise --limit, or go on with --by-id --after {after}");
    }
    Ok(())
}

/// Returns `false` when the output has been closed.
fn print(entries: &[Entry], now: Timestamp, args: &Args) -> bool {
    if args.json {
        return text::emit(&entries.iter().map(text::json_line).collect::<String>());
    }
    entries.is_empty() || text::emit(&table::draw(entries, now, Style::of_output(args.full)))
}
