//! `--watch`: a table that is drawn anew each second, or with --json an object for each look.

use std::time::SystemTime;

use hapax::core::time::Timestamp;
use serde_json::Value;

use crate::admin::keys::time::Time;
use crate::cli::{Exit, text, watch};

/// Rows of a terminal that show something else: two lines above, the names of the columns, and the
/// line of the cursor.
const ROWS_AROUND: usize = 4;

/// What can be watched.
pub(super) trait Seen {
    /// How many rows its table has.
    fn count(&self) -> usize;
    /// What it is in a few words, such as `3 readers`.
    fn title(&self) -> String;
    /// What `--json` prints.
    fn object(&self, at: Time) -> Value;
    /// A table of its first rows.
    fn table(&self, rows: usize) -> String;
}

/// Watches what `look` finds.
pub(super) async fn run<T: Seen>(
    is_json: bool,
    look: impl AsyncFn() -> Result<T, Exit>,
) -> Result<(), Exit> {
    if !is_json && text::terminal_size().is_none() {
        return Err(Exit::usage(
            "--watch draws on a terminal, and standard output is none: add --json for an object each second",
        ));
    }
    watch::each_second(!is_json, look, |seen| {
        let at = Time(Timestamp::from_system_time(SystemTime::now()));
        match text::terminal_size() {
            Some((_, rows)) if !is_json => screen(&seen, at, rows),
            _ => text::json_line(&seen.object(at)),
        }
    })
    .await
}

fn screen(seen: &impl Seen, at: Time, rows: usize) -> String {
    let shown = rows.saturating_sub(ROWS_AROUND).max(1).min(seen.count());
    let below = match seen.count() - shown {
        0 => String::new(),
        below => format!(", {below} of them below"),
    };
    let table = match shown {
        0 => String::new(),
        _ => seen.table(shown),
    };
    format!("{at}  {}{below}\n\n{table}", seen.title())
}
