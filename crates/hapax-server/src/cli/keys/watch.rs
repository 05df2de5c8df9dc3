//! `--watch`: looking again each second, until somebody interrupts it or nobody reads any more.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::format::count;
use super::newest;
use super::source::Source;
use super::table::{self, Style};
use crate::admin::keys::time::Time;
use crate::admin::keys::wire::{Entry, Query};
use crate::cli::{Exit, text};

/// From one look to the next.
pub(super) const PAUSE: Duration = Duration::from_secs(1);
/// Rows of a terminal that are not keys: two lines above them, the names of the columns, the one
/// where the next would begin.
const ROWS_AROUND: usize = 4;

/// How to show what is found.
pub(super) struct Way {
    pub(super) limit: usize,
    pub(super) is_json: bool,
    pub(super) full: bool,
}

/// What was found in one look.
struct Seen {
    entries: Vec<Entry>,
    now: Time,
    is_all: bool,
}

/// Watches the keys that a query finds.
pub(super) async fn keys(source: &Source, query: &Query, way: &Way) -> Result<(), Exit> {
    let (mut before, mut patience) = (BTreeMap::new(), Patience::default());
    loop {
        if let Some(seen) = patience.accept(look(source, query, way.limit).await)? {
            let output = match text::terminal_size() {
                Some((_, rows)) if !way.is_json => screen(&seen, rows, way.full),
                _ => changes(&mut before, seen, way.is_json),
            };
            if !text::emit(&output) {
                return Ok(());
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Bears with a gateway that is restarted meanwhile, and says so once.
#[derive(Default)]
pub(super) struct Patience {
    is_tried: bool,
    was_there: bool,
}

impl Patience {
    /// What was found; `None` if there is nobody to ask at the moment. Whoever never was there is
    /// an error at once.
    pub(super) fn accept<T>(&mut self, found: Result<T, Exit>) -> Result<Option<T>, Exit> {
        match found {
            Ok(found) => {
                if self.is_tried {
                    eprintln!("it answers again");
                }
                (self.is_tried, self.was_there) = (false, true);
                Ok(Some(found))
            }
            Err(exit) if exit.is_unreachable() && self.was_there => {
                if !self.is_tried {
                    eprintln!("{}; asking again until it does", exit.message());
                }
                self.is_tried = true;
                Ok(None)
            }
            Err(exit) => Err(exit),
        }
    }
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

/// A terminal's page: cleared, with as many keys as it has room for.
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
        "\u{1b}[H\u{1b}[2J{}  {}{or_more}{hidden}\n\n{table}",
        seen.now,
        count(seen.entries.len(), "key")
    )
}

/// A key that came, changed, or is no longer like what is asked for.
#[derive(Serialize)]
struct Changed<'a> {
    change: &'static str,
    #[serde(flatten)]
    entry: &'a Entry,
}

/// A line for each key that is not as it was.
fn changes(before: &mut BTreeMap<String, Entry>, seen: Seen, is_json: bool) -> String {
    let now = seen.now;
    let after: BTreeMap<String, Entry> = seen
        .entries
        .into_iter()
        .map(|entry| (entry.id.clone(), entry))
        .collect();
    // What is beyond the limit is not gone.
    let gone = before
        .values()
        .filter(|entry| seen.is_all && !after.contains_key(&entry.id))
        .map(|entry| ("gone", entry));
    let come = after
        .values()
        .filter_map(|entry| match before.get(&entry.id) {
            None => Some(("new", entry)),
            // A lease that is over changes the state, and nobody has written that down.
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
