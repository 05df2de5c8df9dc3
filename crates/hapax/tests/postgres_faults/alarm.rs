//! Collects errors that are logged as alarms, so that tests can check for them.

use std::fmt::{Debug, Write};
use std::sync::{Mutex, Once};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

static ALARMS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Collects from now on, for the whole process: tasks of the store log from other threads.
pub(crate) fn listen() {
    static LISTENING: Once = Once::new();
    LISTENING.call_once(|| {
        tracing::subscriber::set_global_default(Alarms).expect("nobody else listens");
    });
}

/// The alarms so far that contain this text.
pub(crate) fn heard(text: &str) -> Vec<String> {
    ALARMS
        .lock()
        .unwrap()
        .iter()
        .filter(|alarm| alarm.contains(text))
        .cloned()
        .collect()
}

struct Alarms;

impl Subscriber for Alarms {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() == Level::ERROR
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        if line.0.contains("ALARM") {
            ALARMS.lock().unwrap().push(line.0);
        }
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// All fields of an event, concatenated.
struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, "{field}={value:?} ").expect("a string takes any text");
    }
}
