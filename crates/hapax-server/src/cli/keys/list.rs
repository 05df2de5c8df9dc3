//! `hapax keys list`

use super::filter::Filter;
use super::source::{Purpose, Source, Where};
use super::table::{self, Style};
use super::targets::Walk;
use super::watch;
use crate::admin::keys::wire::Entry;
use crate::cli::{Exit, text};

/// A table has to be in memory to be drawn.
const TABLE_ROWS_MAX: usize = 10_000;

/// Lists keys, in the order of their ids.
#[derive(clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    filter: Filter,
    /// At most so many; over 10000 only with --json
    #[arg(long, default_value_t = 100)]
    limit: usize,
    /// Go on after this id
    #[arg(long, value_name = "ID")]
    after: Option<String>,
    /// One JSON object a line
    #[arg(long)]
    json: bool,
    /// Look again each second: a table that is drawn anew on a terminal, elsewhere one line for each change
    #[arg(long)]
    watch: bool,
    /// Whole ids instead of as many digits as tell them apart
    #[arg(long)]
    full: bool,
    #[command(flatten)]
    place: Where,
}

pub(super) async fn run(args: &Args) -> Result<(), Exit> {
    if (!args.json || args.watch) && args.limit > TABLE_ROWS_MAX {
        let fix = if args.watch { "a filter for fewer" } else { "--json for more, or --after to go on" };
        return Err(Exit::usage(format!("a table has up to {TABLE_ROWS_MAX} keys: use {fix}")));
    }
    let source = Source::find(&args.place, Purpose::Look).await?;
    let mut query = args.filter.query();
    query.after.clone_from(&args.after);
    if args.watch {
        return watch::keys(&source, &query, &watch::Way { limit: args.limit, is_json: args.json, full: args.full }).await;
    }
    let mut walk = Walk::new(&source, query, args.limit);
    if args.json {
        print_lines(&mut walk).await?;
    } else {
        print_table(&mut walk, args.full).await?;
    }
    if let Some(after) = walk.rest() {
        eprintln!("there may be more: raise --limit, or go on with --after {after}");
    }
    Ok(())
}

async fn print_lines(walk: &mut Walk<'_>) -> Result<(), Exit> {
    while let Some(page) = walk.next().await? {
        let lines: String = page.keys.iter().map(json_line).collect();
        if !text::emit(&lines) {
            break;
        }
    }
    Ok(())
}

fn json_line(entry: &Entry) -> String {
    let line = serde_json::to_string(entry).expect("it has no maps with odd keys");
    format!("{}\n", text::json(&line))
}

async fn print_table(walk: &mut Walk<'_>, full: bool) -> Result<(), Exit> {
    let (mut entries, mut now) = (Vec::new(), None);
    while let Some(page) = walk.next().await? {
        entries.extend(page.keys);
        now = Some(page.now);
    }
    match now {
        Some(now) if !entries.is_empty() => drop(text::emit(&table::draw(&entries, now.0, Style::of_output(full)))),
        _ => eprintln!("no key is like that"),
    }
    Ok(())
}
