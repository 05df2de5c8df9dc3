//! Values of statements and of their rows, in both dialects.

use std::fmt::Write;

use hapax_core::store::{Column, Dialect, Statement, Value};
use hapax_core::time::Timestamp;

use super::ReceiveError;
use crate::join::Session;

/// Runs a statement, and returns its row.
pub(super) async fn run<S: Session>(
    session: &mut S,
    dialect: Dialect,
    sql: &'static str,
    columns: &'static [Column],
    values: Vec<Value>,
) -> Result<Option<Vec<Value>>, ReceiveError<S::Error>> {
    let statement = Statement {
        dialect,
        sql,
        values,
        columns,
        now: None,
    };
    session.run(&statement).await.map_err(ReceiveError::of::<S>)
}

pub(super) fn text(text: &str) -> Value {
    bytes(text.as_bytes())
}

pub(super) fn bytes(bytes: &[u8]) -> Value {
    Value::Bytes(Some(bytes.to_vec()))
}

pub(super) fn int(number: i64) -> Value {
    Value::Int(Some(number))
}

pub(super) fn time(at: Timestamp) -> Value {
    int(micros(at))
}

pub(super) fn micros(at: Timestamp) -> i64 {
    i64::try_from(at.as_micros()).unwrap_or(i64::MAX)
}

/// A text without zero bytes, which Postgres cannot keep.
pub(super) fn clean(given: &str) -> Value {
    text(&given.replace('\0', "\u{fffd}"))
}

pub(super) fn maybe(given: Option<&str>) -> Value {
    given.map_or(Value::Bytes(None), clean)
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The columns of a row, taken from its front.
pub(super) struct Row(std::vec::IntoIter<Value>);

impl Row {
    pub(super) fn new(row: Vec<Value>) -> Row {
        Row(row.into_iter())
    }

    pub(super) fn int(&mut self) -> Option<i64> {
        match self.0.next()? {
            Value::Int(int) => int,
            Value::Bytes(_) => None,
        }
    }

    pub(super) fn bytes(&mut self) -> Option<Vec<u8>> {
        match self.0.next()? {
            Value::Bytes(bytes) => bytes,
            Value::Int(_) => None,
        }
    }

    pub(super) fn text(&mut self) -> Option<String> {
        Some(String::from_utf8_lossy(&self.bytes()?).into_owned())
    }

    pub(super) fn time(&mut self) -> Option<Timestamp> {
        Some(Timestamp::from_micros(
            u64::try_from(self.int()?).unwrap_or(0),
        ))
    }
}
