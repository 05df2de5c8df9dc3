//! A log that a test can read: each line with its level and the spans around it.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt::{Debug, Write as _};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Once};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Event, Metadata, Subscriber};
use tracing_core::span::Current;

/// What was logged on one thread. The parent of a span is the span that was entered when it was
/// made, as in `tracing-subscriber`.
#[derive(Clone)]
pub struct Lines {
    is_heard: fn(&Metadata<'_>) -> bool,
    inside: Arc<Mutex<Inside>>,
}

#[derive(Default)]
struct Inside {
    spans: HashMap<u64, Span>,
    lines: Vec<String>,
}

struct Span {
    text: String,
    parent: Option<u64>,
    metadata: &'static Metadata<'static>,
}

thread_local! {
    static LISTENING: RefCell<Option<Lines>> = const { RefCell::new(None) };
    static ENTERED: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

fn listening() -> Option<Lines> {
    LISTENING.with_borrow(Clone::clone)
}

fn entered_last() -> Option<u64> {
    ENTERED.with_borrow(|entered| entered.last().copied())
}

struct Text<'a>(&'a mut String);

impl Visit for Text<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, " {field}={value:?}").unwrap();
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        write!(self.0, " {field}={value}").unwrap();
    }
}

/// The subscriber of the process: it passes everything to the [`Lines`] of the thread. A subscriber
/// for each thread would not do: `tracing` remembers for the whole process that a thread without
/// one did not want a line.
struct PerThread;

impl Subscriber for PerThread {
    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        Interest::sometimes()
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        listening().is_some_and(|lines| (lines.is_heard)(metadata))
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        if let Some(lines) = listening() {
            lines.add_span(id, span);
        }
        Id::from_u64(id)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        if let Some(lines) = listening() {
            lines.add_line(event);
        }
    }

    fn enter(&self, span: &Id) {
        ENTERED.with_borrow_mut(|entered| entered.push(span.into_u64()));
    }

    fn exit(&self, span: &Id) {
        ENTERED.with_borrow_mut(|entered| {
            let is_this = |id: &u64| *id == span.into_u64();
            let at = entered.iter().rposition(is_this).unwrap();
            entered.remove(at)
        });
    }

    fn current_span(&self) -> Current {
        let current = listening().zip(entered_last());
        match current.and_then(|(lines, id)| Some((id, lines.metadata(id)?))) {
            Some((id, metadata)) => Current::new(Id::from_u64(id), metadata),
            None => Current::none(),
        }
    }
}

/// Stops listening when dropped.
#[must_use]
pub struct Listening;

impl Drop for Listening {
    fn drop(&mut self) {
        LISTENING.set(None);
    }
}

impl Lines {
    /// Hears what the filter lets through, on this thread, while the guard lives. A test on tokio's
    /// current thread runs all its tasks there.
    pub fn listen(is_heard: fn(&Metadata<'_>) -> bool) -> (Lines, Listening) {
        static INSTALL: Once = Once::new();
        INSTALL.call_once(|| tracing::subscriber::set_global_default(PerThread).unwrap());
        let lines = Lines {
            is_heard,
            inside: Arc::default(),
        };
        LISTENING.set(Some(lines.clone()));
        (lines, Listening)
    }

    fn add_span(&self, id: u64, span: &Attributes<'_>) {
        let metadata = span.metadata();
        let mut text = format!(" {}", metadata.name());
        span.record(&mut Text(&mut text));
        let parent = match span.parent() {
            Some(parent) => Some(parent.into_u64()),
            None => entered_last().filter(|_| span.is_contextual()),
        };
        let span = Span {
            text,
            parent,
            metadata,
        };
        self.inside.lock().unwrap().spans.insert(id, span);
    }

    fn add_line(&self, event: &Event<'_>) {
        let mut inside = self.inside.lock().unwrap();
        let mut line = event.metadata().level().to_string();
        let mut around = entered_last();
        while let Some(span) = around.and_then(|id| inside.spans.get(&id)) {
            line.push_str(&span.text);
            around = span.parent;
        }
        event.record(&mut Text(&mut line));
        inside.lines.push(line);
    }

    fn metadata(&self, id: u64) -> Option<&'static Metadata<'static>> {
        Some(self.inside.lock().unwrap().spans.get(&id)?.metadata)
    }

    pub fn all(&self) -> Vec<String> {
        self.inside.lock().unwrap().lines.clone()
    }

    /// How many lines have all of these words.
    pub fn count(&self, words: &[&str]) -> usize {
        let lines = self.all();
        let has_all = |line: &&String| words.iter().all(|word| line.contains(word));
        lines.iter().filter(has_all).count()
    }

    /// Asserts that exactly one line has all of these words.
    #[track_caller]
    pub fn assert_one(&self, words: &[&str]) {
        assert_eq!(self.count(words), 1, "{words:?} in {:#?}", self.all());
    }
}
