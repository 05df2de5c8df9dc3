//! Standard output, as lines of JSON.

use std::io::Write;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::{Envelope, Outage, Publisher, Reply, Verdict};

/// Writes each message as one line of JSON to a writer: standard output in the program.
///
/// A payload that is JSON is written as it is, other text as a string, and anything else in base64
/// as `payload_base64`.
pub struct Stdout<W = std::io::Stdout>(std::sync::Mutex<W>);

impl Stdout {
    /// The standard output of this process.
    pub fn new() -> Stdout {
        Stdout::to(std::io::stdout())
    }
}

impl Default for Stdout {
    fn default() -> Stdout {
        Stdout::new()
    }
}

impl<W> Stdout<W> {
    /// Another writer.
    pub fn to(writer: W) -> Stdout<W> {
        Stdout(std::sync::Mutex::new(writer))
    }
}

impl<W> std::fmt::Debug for Stdout<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stdout").finish_non_exhaustive()
    }
}

impl<W: Write + Send + 'static> Publisher for Stdout<W> {
    fn publish<'a>(&'a self, batch: &'a [Envelope]) -> Reply<'a, Result<Vec<Verdict>, Outage>> {
        Box::pin(async move {
            let lines: String = batch.iter().map(line).collect();
            let mut writer = self
                .0
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner);
            let written = writer
                .write_all(lines.as_bytes())
                .and_then(|()| writer.flush());
            match written {
                Ok(()) => Ok(vec![Verdict::ACCEPTED; batch.len()]),
                Err(error) => Err(Outage::new(format!("standard output: {error}"))),
            }
        })
    }
}

/// A message as one line. A payload that is JSON is copied as it is, so that no number loses digits.
fn line(message: &Envelope) -> String {
    let headers: Map<String, Value> = message
        .headers
        .iter()
        .map(|(name, value)| (name.clone(), Value::from(value.as_str())))
        .collect();
    let (name, payload) = payload(message);
    let described = json!({
        "id": message.id.to_string(),
        "time_us": message.at.as_micros(),
        "topic": message.topic,
        "key": message.key,
        "version": message.version,
        "headers": headers,
    })
    .to_string();
    let described = described.strip_suffix('}').expect("an object");
    format!("{described},\"{name}\":{payload}}}\n")
}

/// The name of the member with the payload, and its JSON.
fn payload(message: &Envelope) -> (&'static str, String) {
    let is_json = message.content_type().starts_with("application/json");
    if is_json && let Ok(json) = serde_json::from_slice::<&RawValue>(&message.payload) {
        // Within JSON a line break can only be white space.
        return ("payload", json.get().replace(['\n', '\r'], " "));
    }
    match std::str::from_utf8(&message.payload) {
        Ok(text) => ("payload", Value::from(text).to_string()),
        Err(_) => {
            let encoded = STANDARD.encode(&message.payload);
            ("payload_base64", Value::from(encoded).to_string())
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use hapax_core::flow::MessageId;
    use hapax_core::time::Timestamp;

    use super::*;

    fn message(content_type: &str, payload: &'static [u8]) -> Envelope {
        Envelope {
            sequence: 1,
            id: MessageId::from_bytes([0; 16]),
            at: Timestamp::ZERO,
            topic: "t".into(),
            key: None,
            ordered: true,
            version: None,
            headers: vec![("content-type".into(), content_type.into())],
            payload: Bytes::from_static(payload),
        }
    }

    #[test]
    fn json_keeps_its_digits_and_stays_on_one_line() {
        let line = line(&message(
            "application/json",
            b"{\n \"n\": 9007199254740993.10\n}",
        ));
        assert!(
            line.ends_with("\"payload\":{  \"n\": 9007199254740993.10 }}\n"),
            "{line}"
        );
        assert_eq!(line.matches('\n').count(), 1);
    }

    #[test]
    fn text_and_bytes_are_strings() {
        assert!(line(&message("text/plain", b"a\nb")).ends_with("\"payload\":\"a\\nb\"}\n"));
        assert!(line(&message("x/y", b"\xff")).ends_with("\"payload_base64\":\"/w==\"}\n"));
        assert!(line(&message("application/json", b"{no")).ends_with("\"payload\":\"{no\"}\n"));
    }
}
