//! Keys as a table: aligned and cut to width on a terminal, tab-separated elsewhere.

use hapax::Principal;
use hapax::core::time::Timestamp;

use super::format;
use crate::admin::keys::principal::short;
use crate::admin::keys::wire::Entry;
use crate::cli::text;

const NAMES: [&str; 8] = [
    "ID",
    "STATE",
    "ROUTE",
    "KEY",
    "PRINCIPAL",
    "AGE",
    "ATTEMPTS",
    "STATUS",
];
/// The index of the column with the state.
const STATE: usize = 1;
/// Columns that may be cut to make the table fit, down to `ELASTIC_MIN` characters.
const ELASTIC: [usize; 3] = [2, 3, 4];
const ELASTIC_MIN: usize = 8;
const GAP: usize = 2;
/// The shortest id that is shown.
const ID_DIGITS_MIN: usize = 8;

type Row = [String; NAMES.len()];

/// How to draw the table.
#[derive(Clone, Copy)]
pub(super) struct Style {
    /// The width of the terminal; `None` if there is none.
    pub(super) width: Option<usize>,
    pub(super) is_coloured: bool,
    /// Shows whole ids instead of the digits needed to distinguish them.
    pub(super) full: bool,
}

impl Style {
    pub(super) fn of_output(full: bool) -> Style {
        Style {
            width: text::terminal_width(),
            is_coloured: text::is_coloured(),
            full,
        }
    }

    /// For standard error, whose terminal may have another width.
    pub(super) fn plain() -> Style {
        Style {
            width: Some(120),
            is_coloured: false,
            full: false,
        }
    }
}

/// Keys, one per line. On a terminal, a principal is shown by the name that people know; elsewhere
/// as stored in the record.
pub(super) fn draw(entries: &[Entry], now: Timestamp, style: Style) -> String {
    let digits = if style.full {
        usize::MAX
    } else {
        digits(entries)
    };
    let rows: Vec<Row> = entries
        .iter()
        .map(|entry| row(entry, now, digits, style.width.is_some()))
        .collect();
    match style.width {
        None => rows.iter().map(|row| row.join("\t") + "\n").collect(),
        Some(width) => aligned(&rows, width, style.is_coloured),
    }
}

/// The state; for a tombstone, also the last state before it.
pub(super) fn state(entry: &Entry) -> String {
    match &entry.last_state {
        Some(last) => format!("{} ({last})", entry.state),
        None => entry.state.clone(),
    }
}

/// The number of digits needed to distinguish the ids. After sorting, only neighbours need
/// comparing.
fn digits(entries: &[Entry]) -> usize {
    let mut ids: Vec<&str> = entries.iter().map(|entry| &*entry.id).collect();
    ids.sort_unstable();
    let alike = |[a, b]: &[&str; 2]| a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count();
    ids.array_windows()
        .map(alike)
        .max()
        .map_or(ID_DIGITS_MIN, |alike| ID_DIGITS_MIN.max(alike + 1))
}

/// The principal as stored in the record.
pub(super) fn principal(entry: &Entry) -> String {
    entry
        .principal
        .clone()
        .unwrap_or_else(|| Principal::Anonymous.to_string())
}

fn row(entry: &Entry, now: Timestamp, digits: usize, is_short: bool) -> Row {
    let principal = principal(entry);
    [
        text::line(entry.id.get(..digits).unwrap_or(&entry.id)).into_owned(),
        text::line(&state(entry)).into_owned(),
        text::line(&format!("{} {}", entry.method, entry.path)).into_owned(),
        text::line(&entry.key).into_owned(),
        text::line(&if is_short {
            short(&principal)
        } else {
            principal
        })
        .into_owned(),
        format::age(now.since(entry.created_at.0)),
        entry.attempts.to_string(),
        entry
            .status
            .map_or_else(|| "-".to_owned(), |status| status.to_string()),
    ]
}

fn aligned(rows: &[Row], width: usize, is_coloured: bool) -> String {
    let widths = widths(rows, width);
    let names = NAMES.map(str::to_owned);
    let (bold, plain) = if is_coloured {
        ("\u{1b}[1m", "\u{1b}[0m")
    } else {
        ("", "")
    };
    let mut table = format!("{bold}{}{plain}\n", line(&names, &widths));
    for row in rows {
        let colour = if is_coloured { colour(&row[STATE]) } else { "" };
        let end = if colour.is_empty() { "" } else { plain };
        table.push_str(&format!("{colour}{}{end}\n", line(row, &widths)));
    }
    table
}

/// The colour of a state on a terminal: states that need attention stand out.
pub(super) fn colour(state: &str) -> &'static str {
    match state {
        "unknown" | "expired (unknown)" => "\u{1b}[1;31m",
        "running" => "\u{1b}[36m",
        "failed" | "retryable" => "\u{1b}[33m",
        state if state.starts_with("expired") => "\u{1b}[2m",
        _ => "",
    }
}

fn line(row: &Row, widths: &[usize; NAMES.len()]) -> String {
    let cells = row
        .iter()
        .zip(widths)
        .map(|(cell, &width)| format!("{:width$}", text::cut(cell, width)));
    cells
        .collect::<Vec<_>>()
        .join(&" ".repeat(GAP))
        .trim_end()
        .to_owned()
}

/// Columns as wide as their content; if that is too wide, the widest elastic column is cut first.
fn widths(rows: &[Row], width: usize) -> [usize; NAMES.len()] {
    let mut widths = NAMES.map(str::len);
    for row in rows {
        for (widest, cell) in widths.iter_mut().zip(row) {
            *widest = (*widest).max(cell.chars().count());
        }
    }
    let total = |widths: &[usize]| widths.iter().sum::<usize>() + GAP * (NAMES.len() - 1);
    while total(&widths) > width {
        let widest = ELASTIC
            .into_iter()
            .max_by_key(|&column| widths[column])
            .expect("there are some");
        if widths[widest] <= ELASTIC_MIN {
            break;
        }
        widths[widest] -= 1;
    }
    widths
}

#[cfg(test)]
mod tests {
    use hapax::core::record::{Fence, Head, State};
    use hapax::{Key, Principal, RecordId, Scope};
    use std::sync::Arc;

    use super::*;

    fn entry(id: [u8; 4], path: &str, key: &str) -> Entry {
        let mut bytes = [0; 32];
        bytes[..4].copy_from_slice(&id);
        let scope = Scope {
            namespace: "n".into(),
            principal: Principal::Anonymous,
            method: "POST".into(),
            path: path.into(),
        };
        let head = Head {
            id: RecordId::from_bytes(bytes),
            scope: Arc::new(scope),
            key: Key::new(key).unwrap(),
            state: State::Completed,
            fence: Fence::ZERO,
            token: Default::default(),
            version: 1,
            attempts: 1,
            lease_until: Timestamp::ZERO,
            fingerprint: None,
            created_at: Timestamp::from_micros(1_000_000),
            claimed_at: Timestamp::ZERO,
            finished_at: Timestamp::ZERO,
            expires_at: Timestamp::from_micros(u64::MAX),
            tombstone_until: Timestamp::from_micros(u64::MAX),
            status: Some(201),
            kept: true,
            request_id: None,
        };
        let ids = hapax::core::OperationIds::new(
            hapax::core::Secret::from_bytes([1; 32]),
            Timestamp::ZERO,
        );
        Entry::new(&head, Timestamp::from_micros(66_000_000), &ids)
    }

    fn drawn(entries: &[Entry], width: Option<usize>) -> String {
        draw(
            entries,
            Timestamp::from_micros(66_000_000),
            Style {
                width,
                is_coloured: false,
                full: false,
            },
        )
    }

    #[test]
    fn a_table_is_cut_to_the_terminal_and_never_acts_on_it() {
        let entries = [
            entry(
                [1, 2, 3, 4],
                "/v1/charges/with/a/long/path/that/goes/on",
                "order-17-with-a-long-key",
            ),
            entry([1, 2, 3, 5], "/\u{1b}[2J\u{202e}", "k"),
        ];
        let table = drawn(&entries[..1], Some(76));
        assert!(
            table.lines().all(|line| line.chars().count() <= 76),
            "{table}"
        );
        assert!(table.contains('…'), "{table}");
        let table = drawn(&entries, None);
        assert_eq!(
            table.lines().nth(1),
            Some("01020305\tcompleted\tPOST /\\u{1b}[2J\\u{202e}\tk\t(anonymous)\t1m 5s\t1\t201")
        );
    }

    #[test]
    fn ids_have_as_many_digits_as_tell_them_apart() {
        let one = entry([9; 4], "/", "k");
        let mut other = one.clone();
        other.id.replace_range(11..12, "1");
        assert!(drawn(std::slice::from_ref(&one), None).starts_with("09090909\t"));
        assert!(drawn(&[one, other], None).starts_with("090909090000\t"));
    }
}
