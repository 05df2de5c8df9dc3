//! The printed report: a title with the settings, a table, and the targets with whether they are
//! met.

/// A table whose columns are as wide as their content.
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Prints the title at once, to show what is being measured.
    pub(crate) fn new(title: &str, headings: &[&str]) -> Table {
        println!("\n{title}");
        Table {
            rows: vec![headings.iter().map(ToString::to_string).collect()],
        }
    }

    pub(crate) fn row(&mut self, name: &str, cells: impl IntoIterator<Item = String>) {
        self.rows
            .push(std::iter::once(name.to_owned()).chain(cells).collect());
    }

    pub(crate) fn print(self) {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or_default();
        let width = |column: usize| {
            self.rows
                .iter()
                .filter_map(|row| row.get(column))
                .map(|cell| cell.chars().count())
                .max()
        };
        let widths: Vec<_> = (0..columns)
            .map(|column| width(column).unwrap_or_default())
            .collect();
        for row in self
            .rows
            .iter()
            .filter(|row| row.iter().any(|cell| !cell.is_empty()))
        {
            let cells = row.iter().zip(&widths).enumerate();
            // The first column is aligned left, numbers right.
            let cells = cells.map(|(at, (cell, &width))| {
                if at == 0 {
                    format!("{cell:width$}")
                } else {
                    format!("{cell:>width$}")
                }
            });
            println!("  {}", cells.collect::<Vec<_>>().join("  ").trim_end());
        }
    }
}

/// Prints a result and whether it is at least `target`.
pub(crate) fn at_least(what: &str, value: f64, target: f64, unit: &str) {
    verdict(
        what,
        value,
        &format!("at least {target}{unit}"),
        value >= target,
        unit,
    );
}

/// Prints a result and whether it is at most `target`.
pub(crate) fn at_most(what: &str, value: f64, target: f64, unit: &str) {
    verdict(
        what,
        value,
        &format!("at most {target}{unit}"),
        value <= target,
        unit,
    );
}

fn verdict(what: &str, value: f64, target: &str, is_met: bool, unit: &str) {
    let verdict = if is_met { "met" } else { "MISSED" };
    let value = if value.is_infinite() {
        "never".to_owned()
    } else {
        number(value) + unit
    };
    println!("  target: {what}: {target}; {value}: {verdict}");
}

/// A number with about three significant digits.
pub(crate) fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 || value == 0.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 0.1 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

pub(crate) fn mebibytes(bytes: u64) -> String {
    number(bytes as f64 / f64::from(1 << 20))
}
