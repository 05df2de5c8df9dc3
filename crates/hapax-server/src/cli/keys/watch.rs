//! `hapax keys list --watch`

use std::collections::BTreeMap;

use serde::Serialize;

use super::format::count;
use super::newest;
use super::source::Source;
use super::table::{self, Style};
use crate::admin::keys::time::Time;
use crate::admin::keys::wire::{Entry, Query};
use crate::cli::{Exit, text, watch};

/// Rows of a terminal that do not show keys: two lines above, the names of the columns, and the
/// line of the cursor.
const ROWS_AROUND: usize = 4;

/// How to show the keys.
pub(super) struct Way {
    pub(super) limit: usize,
    pub(super) is_json: bool,
    pub(super) full: bool,
}

/// The result of one look.
struct Seen {
    entries: Vec<Entry>,
    now: Time,
    is_all: bool,
}

/// Watches the keys that a query finds.
pub(super) async fn keys(source: &Source, query: &Query, way: &Way) -> Result<(), Exit> {
    let mut before = BTreeMap::new();
    let is_screen = !way.is_json && text::terminal_size().is_some();
    let look = async || look(source, query, way.limit).await;
    watch::each_second(is_screen, look, |seen| match text::terminal_size() {
        Some((_, rows)) if is_screen => screen(&seen, rows, way.full),
        _ => changes(&mut before, seen, way.is_json),
    })
    .await
}

async fn look(source: &Source, query: &Query, limit: usize) -> Result<Seen, Exit> {
    let found = newest::find(source, query, limit).await?;
    let is_all = !found.has_older && !found.is_cut_off;
    Ok(Seen {
        entries: found.entries,
        now: Time(found.now),
        is_all,
    })
}

/// A screen for a terminal, with as many keys as fit.
fn screen(seen: &Seen, rows: usize, full: bool) -> String {
    let room = rows.saturating_sub(ROWS_AROUND).max(1);
    let shown = &seen.entries[..seen.entries.len().min(room)];
    let or_more = if seen.is_all { "" } else { " or more" };
    let hidden = match seen.entries.len() - shown.len() {
        0 => String::new(),
        hidden => format!(", {hidden} of them below"),
    };
    let table = if shown.is_empty() {
        String::new()
    } else {
        table::draw(shown, seen.now.0, Style::of_output(full))
    };
    format!(
        "{}  {}{or_more}{hidden}\n\n{table}",
        seen.now,
        count(seen.entries.len(), "key")
    )
}

/// A key that appeared, changed, or no longer matches.
#[derive(Serialize)]
struct Changed<'a> {
    change: &'static str,
    #[serde(flatten)]
    entry: &'a Entry,
}

/// A line for each key that has changed.
fn changes(before: &mut BTreeMap<String, Entry>, seen: Seen, is_json: bool) -> String {
    let now = seen.now;
    let after: BTreeMap<String, Entry> = seen
        .entries
        .into_iter()
        .map(|entry| (entry.id.clone(), entry))
        .collect();
    // A key beyond the limit is not gone.
    let gone = before
        .values()
        .filter(|entry| seen.is_all && !after.contains_key(&entry.id))
        .map(|entry| ("gone", entry));
    let come = after
        .values()
        .filter_map(|entry| match before.get(&entry.id) {
            None => Some(("new", entry)),
            // The end of a lease changes the state without a write, so the version alone does not
            // show it.
            Some(old) => ((old.version, &old.state) != (entry.version, &entry.state))
                .then_some(("changed", entry)),
        });
    let lines = gone
        .chain(come)
        .map(|(change, entry)| {
            if is_json {
                text::json_line(&Changed { change, entry })
            } else {
                line(change, entry, now)
            }
        })
        .collect();
    *before = after;
    lines
}

fn line(change: &str, entry: &Entry, now: Time) -> String {
    let style = Style {
        width: None,
        is_coloured: false,
        full: true,
    };
    format!(
        "{change}\t{}",
        table::draw(std::slice::from_ref(entry), now.0, style)
    )
}
