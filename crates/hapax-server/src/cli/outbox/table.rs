//! Rows as a table: aligned under a heading on a terminal, tab-separated elsewhere.

use crate::cli::text;

const GAP: usize = 2;

/// A table of these rows. Harmful characters are escaped. On a terminal that is too narrow, the
/// last column is cut.
pub(in crate::cli) fn draw<const N: usize>(names: [&str; N], rows: &[[String; N]]) -> String {
    let rows: Vec<[String; N]> = rows
        .iter()
        .map(|row| row.each_ref().map(|cell| text::line(cell).into_owned()))
        .collect();
    match text::terminal_width() {
        None => rows.iter().map(|row| row.join("\t") + "\n").collect(),
        Some(width) => aligned(names, &rows, width, text::is_coloured()),
    }
}

fn aligned<const N: usize>(
    names: [&str; N],
    rows: &[[String; N]],
    width: usize,
    is_coloured: bool,
) -> String {
    let mut widths = names.map(str::len);
    for row in rows {
        for (widest, cell) in widths.iter_mut().zip(row) {
            *widest = (*widest).max(cell.chars().count());
        }
    }
    let line = |cells: &[String; N]| {
        let cells: Vec<String> = cells
            .iter()
            .zip(widths)
            .map(|(cell, width)| format!("{cell:width$}"))
            .collect();
        let line = cells.join(&" ".repeat(GAP));
        text::cut(line.trim_end(), width).into_owned()
    };
    let (bold, plain) = if is_coloured {
        ("\u{1b}[1m", "\u{1b}[0m")
    } else {
        ("", "")
    };
    let mut table = format!("{bold}{}{plain}\n", line(&names.map(str::to_owned)));
    for row in rows {
        table += &format!("{}\n", line(row));
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_the_last_one_is_cut() {
        let rows = [
            ["a".to_owned(), "a long reason".to_owned()],
            ["bcd".to_owned(), "b".to_owned()],
        ];
        assert_eq!(
            aligned(["ID", "REASONS"], &rows, 10, false),
            "ID   REAS…\na    a lo…\nbcd  b\n"
        );
    }
}
