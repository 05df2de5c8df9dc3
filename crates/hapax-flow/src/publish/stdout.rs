//! Standard output, as lines of JSON.

use std::io::Write;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
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

fn line(message: &Envelope) -> String {
    let headers: Map<String, Value> = message
        .headers
        .iter()
        .map(|(name, value)| (name.clone(), Value::from(value.as_str())))
        .collect();
    let mut line = json!({
        "id": message.id.to_string(),
        "time_us": message.at.as_micros(),
        "topic": message.topic,
        "key": message.key,
        "version": message.version,
        "headers": headers,
    });
    let (name, payload) = payload(message);
    line[name] = payload;
    format!("{line}\n")
}

fn payload(message: &Envelope) -> (&'static str, Value) {
    let is_json = message.content_type().starts_with("application/json");
    if let Some(json) = is_json
        .then(|| serde_json::from_slice(&message.payload).ok())
        .flatten()
    {
        return ("payload", json);
    }
    match std::str::from_utf8(&message.payload) {
        Ok(text) => ("payload", text.into()),
        Err(_) => ("payload_base64", STANDARD.encode(&message.payload).into()),
    }
}
