//! Standard output, into a buffer.

use std::io::Write;
use std::sync::{Arc, Mutex};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hapax_flow::publish::Stdout;
use serde_json::Value;

use super::destination::{Arrived, Destination};

suite!(of all: buffer);

async fn buffer() -> Option<Buffer> {
    Some(Buffer::default())
}

/// What was written.
#[derive(Clone, Default)]
struct Buffer(Arc<Mutex<Vec<u8>>>);

impl Write for Buffer {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Destination for Buffer {
    type Publisher = Stdout<Buffer>;

    fn publisher(&self) -> Stdout<Buffer> {
        Stdout::to(self.clone())
    }

    async fn arrived(&self) -> Vec<Arrived> {
        let written = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        written.lines().map(arrived).collect()
    }
}

fn arrived(line: &str) -> Arrived {
    let line: Value = serde_json::from_str(line).unwrap();
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let headers = line["headers"].as_object().unwrap().iter();
    Arrived {
        id: text(&line["id"]).unwrap(),
        key: text(&line["key"]),
        headers: headers
            .map(|(name, value)| (name.clone(), text(value).unwrap()))
            .collect(),
        payload: payload(&line),
    }
}

fn payload(line: &Value) -> Vec<u8> {
    match (&line["payload"], &line["payload_base64"]) {
        (Value::Null, base64) => STANDARD.decode(base64.as_str().unwrap()).unwrap(),
        (Value::String(text), _) => text.clone().into_bytes(),
        (json, _) => json.to_string().into_bytes(),
    }
}
