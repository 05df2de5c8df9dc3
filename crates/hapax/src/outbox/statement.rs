//! The statement that emits a message.

use std::time::SystemTime;

use hapax_core::flow::{MessageId, headers};
use hapax_core::store::{Column, Dialect, Statement, Value};
use hapax_core::time::Timestamp;

use super::Message;

const POSTGRES: &str = "SELECT hapax.emit_message($1, $2, $3, $4, $5, $6, $7)";
/// SQLite has one writer, so the numbers are in the order of commits without a lock.
const SQLITE: &str = "INSERT INTO hapax_outbox (topic, key, payload, headers, id, ordered, version, at) \
                      VALUES (CAST(?1 AS TEXT), CAST(?2 AS TEXT), ?3, CAST(?4 AS TEXT), ?5, ?6, ?7, ?8)";

pub(super) fn insert(dialect: Dialect, message: &Message, id: MessageId) -> Statement {
    let bytes = |bytes: &[u8]| Value::Bytes(Some(bytes.to_vec()));
    let mut values = vec![
        bytes(message.topic.as_bytes()),
        Value::Bytes(message.key.as_ref().map(|key| key.as_bytes().to_vec())),
        bytes(&message.payload),
        bytes(headers_json(message).as_bytes()),
        bytes(id.as_bytes()),
        Value::Int(Some(message.ordered.into())),
        Value::Int(message.version),
    ];
    let (sql, columns): (_, &[Column]) = match dialect {
        Dialect::Postgres => (POSTGRES, &[Column::Int]),
        Dialect::Sqlite => {
            let now = Timestamp::from_system_time(SystemTime::now()).as_micros();
            values.push(Value::Int(i64::try_from(now).ok()));
            (SQLITE, &[])
        }
    };
    Statement {
        dialect,
        sql,
        values,
        columns,
        now: None,
    }
}

/// The headers as a JSON object. They were checked: no control character is in them.
fn headers_json(message: &Message) -> String {
    let quoted = |text: &str| format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""));
    let default = [(headers::CONTENT_TYPE, "application/octet-stream")];
    let has_type = message
        .headers
        .iter()
        .any(|(name, _)| name == headers::CONTENT_TYPE);
    let given = message
        .headers
        .iter()
        .map(|(name, value)| (&**name, &**value));
    let default = default.into_iter().filter(|_| !has_type);
    let fields: Vec<String> = given
        .chain(default)
        .map(|(name, value)| format!("{}:{}", quoted(name), quoted(value)))
        .collect();
    format!("{{{}}}", fields.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_json() {
        let message = Message::without_key("t", "").header("x-name", r#"a "b" \c"#);
        let json = r#"{"x-name":"a \"b\" \\c","content-type":"application/octet-stream"}"#;
        assert_eq!(headers_json(&message), json);
    }
}
