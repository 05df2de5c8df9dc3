//! What is logged.

use std::fmt::{Debug, Write};
use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Metadata, Subscriber};

/// The lines that all tests of this process log. A subscriber of one thread would miss a line that
/// another thread logged first, without a subscriber.
#[derive(Clone, Default)]
pub(crate) struct Lines(Arc<Mutex<Vec<String>>>);

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, " {field}={value:?}").unwrap();
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        write!(self.0, " {field}={value}").unwrap();
    }
}

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event()
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        self.0.lock().unwrap().push(line.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

impl Lines {
    /// Listens from now on. A process can do this once.
    pub(crate) fn listen() -> Lines {
        let lines = Lines::default();
        tracing::subscriber::set_global_default(lines.clone()).unwrap();
        lines
    }

    #[track_caller]
    pub(crate) fn assert_has(&self, words: &[&str]) {
        // Copied before anything can panic, because the other tests log too.
        let lines = self.0.lock().unwrap().clone();
        assert!(
            lines
                .iter()
                .any(|line| words.iter().all(|word| line.contains(word))),
            "no {words:?} in {lines:#?}"
        );
    }
}
