//! Parameters for many rows in one statement, column by column.

use tokio_postgres::types::{ToSql, Type};

/// The columns of a statement: the values of all rows, with the column's type.
pub(super) struct Columns<'a, R> {
    rows: &'a [R],
    columns: Vec<(Box<dyn ToSql + Send + Sync + 'a>, Type)>,
}

impl<'a, R> Columns<'a, R> {
    pub(super) fn new(rows: &'a [R]) -> Columns<'a, R> {
        Columns {
            rows,
            columns: Vec::new(),
        }
    }

    pub(super) fn add<T: ToSql + Send + Sync + 'a>(
        &mut self,
        kind: Type,
        value: impl FnMut(&'a R) -> T,
    ) {
        let values: Vec<T> = self.rows.iter().map(value).collect();
        self.columns.push((Box::new(values), kind));
    }

    pub(super) fn add_bytes(&mut self, value: impl FnMut(&'a R) -> Option<&'a [u8]>) {
        self.add(Type::BYTEA_ARRAY, value);
    }

    pub(super) fn add_text(&mut self, mut value: impl FnMut(&'a R) -> Option<&'a str>) {
        self.add_bytes(|row| value(row).map(str::as_bytes));
    }

    pub(super) fn add_number(&mut self, value: impl FnMut(&'a R) -> Option<i64>) {
        self.add(Type::INT8_ARRAY, value);
    }

    /// The SQL that calls a function whose parameters are a copy, a position, and these columns.
    pub(super) fn call(&self, function: &str) -> String {
        let places: Vec<_> = (1..=self.columns.len() + 3)
            .map(|place| format!("${place}"))
            .collect();
        format!("SELECT hapax.{function}({})", places.join(", "))
    }

    pub(super) fn parameters(&self) -> Vec<(&(dyn ToSql + Sync), Type)> {
        self.columns
            .iter()
            .map(|(values, kind)| (&**values as &(dyn ToSql + Sync), kind.clone()))
            .collect()
    }
}
