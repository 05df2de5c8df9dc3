//! Standard error, and the access log: one line for each request, beside the lines of the log.
//!
//! A request never waits for whoever reads the log. Its lines, of both kinds, go into a buffer in
//! memory, and a thread of its own writes the buffer out: nobody else writes to standard error
//! while the gateway serves. While the reader takes nothing, up to [`BUFFER_BYTES_MAX`] wait, and
//! as much again for lines of the log alone; further lines are lost, and the log says how many.

use std::fmt::{self, Write as _};
use std::io::{self, Write as _};
use std::sync::OnceLock;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};

use crate::escape;

/// What may wait to be written: some four thousand lines.
const BUFFER_BYTES_MAX: usize = 1 << 20;
/// How often what has gathered is written out: one write for many lines.
const GATHERING: Duration = Duration::from_millis(5);
/// After so many times without a line the thread sleeps until there is one. Before that nobody
/// wakes it: on a busy machine whoever is woken takes the processor from the request that woke it.
const IDLE_ROUNDS_MAX: u32 = 200;
/// The longest path that is shown whole.
const PATH_CHARS_MAX: usize = 200;

/// By what a filter names these lines.
pub(super) const TARGET: &str = "hapax::access";

static LOG: OnceLock<StderrWriter> = OnceLock::new();

/// Where lines go, and how they look.
pub struct StderrWriter {
    is_json: bool,
    /// Whether lines of requests are wanted, and not only those of the log.
    has_requests: bool,
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Default)]
struct Waiting {
    lines: Vec<u8>,
    lost: u64,
    is_writing: bool,
    /// The thread sleeps, and has to be woken.
    is_asleep: bool,
}

/// What is told of one request.
pub struct Entry<'a> {
    /// By what every other line about the request calls it.
    pub request_id: &'a str,
    /// The method; `None` of a request that could not be read.
    pub method: Option<&'a str>,
    /// The path without its query, likewise.
    pub path: Option<&'a str>,
    /// The status that was answered; `None` if the client went away before.
    pub status: Option<u16>,
    /// What Hapax did.
    pub action: &'a str,
    /// The pattern of the route, and its name as in the metrics.
    pub route: Option<(&'a str, &'a str)>,
    /// Who asked, as a short digest.
    pub principal: Option<&'a str>,
    /// What the upstream answered.
    pub upstream_status: Option<u16>,
    /// How long the upstream took.
    pub upstream_took: Option<Duration>,
    /// How long it took in all.
    pub took: Duration,
    /// Of a replay: the request that the answer was made for.
    pub original: Option<&'a str>,
    /// Why it was rejected, where the type does not say it all.
    pub cause: Option<&'a str>,
    /// What cut the answer off.
    pub error: Option<&'static str>,
}

impl StderrWriter {
    /// Begins to write lines to standard error. Once in a process.
    pub(super) fn start(is_json: bool, has_requests: bool) -> io::Result<()> {
        let log = StderrWriter {
            is_json,
            has_requests,
            waiting: Mutex::default(),
            changed: Condvar::new(),
        };
        if LOG.set(log).is_ok()
            && let Some(log) = LOG.get()
        {
            std::thread::Builder::new()
                .name("log".to_owned())
                .spawn(|| log.write_out())?;
        }
        Ok(())
    }

    /// Where lines of requests go; `None` where they are not wanted.
    pub fn get() -> Option<&'static StderrWriter> {
        LOG.get().filter(|log| log.has_requests)
    }

    /// Waits until every line is written, but not for longer than this.
    pub(super) fn finish(patience: Duration) {
        if let Some(log) = LOG.get() {
            log.flush(patience);
        }
    }

    /// Adds a line.
    pub fn add(&self, entry: &Entry<'_>) {
        let mut line = String::with_capacity(512);
        let write = if self.is_json {
            Entry::json
        } else {
            Entry::text
        };
        write(entry, &mut line);
        line.push('\n');
        self.push(line.as_bytes(), BUFFER_BYTES_MAX);
    }

    fn push(&self, line: &[u8], bytes_max: usize) {
        let mut waiting = self.waiting.lock();
        if waiting.lines.len() + line.len() > bytes_max {
            waiting.lost += 1;
            return;
        }
        waiting.lines.extend_from_slice(line);
        let is_asleep = std::mem::take(&mut waiting.is_asleep);
        drop(waiting);
        if is_asleep {
            self.changed.notify_all();
        }
    }

    fn flush(&self, patience: Duration) {
        let is_busy = |waiting: &mut Waiting| !waiting.lines.is_empty() || waiting.is_writing;
        self.changed
            .wait_while_for(&mut self.waiting.lock(), is_busy, patience);
    }

    fn write_out(&self) {
        let (mut lines, mut idle_rounds) = (Vec::new(), 0);
        loop {
            std::thread::sleep(GATHERING);
            let mut waiting = self.waiting.lock();
            if waiting.lines.is_empty() {
                idle_rounds += 1;
                if idle_rounds > IDLE_ROUNDS_MAX {
                    waiting.is_asleep = true;
                    self.changed
                        .wait_while(&mut waiting, |waiting| waiting.is_asleep);
                }
                continue;
            }
            idle_rounds = 0;
            std::mem::swap(&mut waiting.lines, &mut lines);
            let lost = std::mem::take(&mut waiting.lost);
            waiting.is_writing = true;
            drop(waiting);
            // Nobody reading it any more is no reason to stop serving.
            let _ = io::stderr().lock().write_all(&lines);
            if lost > 0 {
                tracing::warn!(
                    lost,
                    "lines of the log were lost: whoever reads standard error is too slow"
                );
            }
            lines.clear();
            self.waiting.lock().is_writing = false;
            self.changed.notify_all();
        }
    }
}

/// Standard error for lines of the log: each goes into the buffer.
#[derive(Clone, Copy)]
pub(super) struct LogLines;

impl MakeWriter<'_> for LogLines {
    type Writer = LogLines;

    fn make_writer(&self) -> LogLines {
        LogLines
    }
}

/// One write is one line: that is how the subscriber writes.
impl io::Write for LogLines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        match LOG.get() {
            Some(log) => log.push(line, 2 * BUFFER_BYTES_MAX),
            None => io::stderr().lock().write_all(line)?,
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Entry<'_> {
    /// In the names that OpenTelemetry has for HTTP; what it has no name for begins with `hapax`.
    fn json(&self, line: &mut String) {
        line.push_str("{\"timestamp\":\"");
        let _ = SystemTime.format_time(&mut Writer::new(line));
        line.push_str("\",\"level\":\"INFO\",\"message\":\"request\"");
        let mut text = |name: &str, value: Option<&str>| {
            if let Some(value) = value {
                let _ = write!(line, ",\"{name}\":");
                push_quoted(line, value);
            }
        };
        text("request_id", Some(self.request_id));
        text("http.request.method", self.method);
        text("url.path", self.path.map(short).as_deref());
        text("http.route", self.route.map(|(pattern, _)| pattern));
        text("hapax.route", self.route.map(|(_, name)| name));
        text("hapax.action", Some(self.action));
        text("hapax.principal", self.principal);
        text("hapax.original_request_id", self.original);
        text("hapax.cause", self.cause);
        text("error.type", self.error);
        if let Some(status) = self.status {
            let _ = write!(line, ",\"http.response.status_code\":{status}");
        }
        if let Some(status) = self.upstream_status {
            let _ = write!(line, ",\"hapax.upstream.status_code\":{status}");
        }
        if let Some(took) = self.upstream_took {
            let _ = write!(line, ",\"hapax.upstream.duration_ms\":{}", Millis(took));
        }
        let _ = write!(
            line,
            ",\"hapax.duration_ms\":{},\"target\":\"{TARGET}\"}}",
            Millis(self.took)
        );
    }

    /// For a person: what is short in columns, then what may be long.
    fn text(&self, line: &mut String) {
        let _ = SystemTime.format_time(&mut Writer::new(line));
        let number =
            |number: Option<u16>| number.map_or("-".to_owned(), |number| number.to_string());
        let took = |took: Option<Duration>| {
            took.map_or("-".to_owned(), |took| format!("{}ms", Millis(took)))
        };
        let _ = write!(
            line,
            "  INFO {:<6} {:>3} {:<24} {:>10}  upstream {:>3} {:>10}  {:<9} {}",
            self.method.unwrap_or("-"),
            number(self.status),
            self.action,
            took(Some(self.took)),
            number(self.upstream_status),
            took(self.upstream_took),
            self.principal.unwrap_or("-"),
            escape::escaped(
                &self.path.map_or("-".into(), short),
                escape::is_harmful,
                |safe, c| {
                    let _ = write!(safe, "{}", c.escape_unicode());
                }
            ),
        );
        if let Some((_, name)) = self.route {
            let _ = write!(line, " route=\"{name}\"");
        }
        let _ = write!(line, " request_id={}", self.request_id);
        if let Some(original) = self.original {
            let _ = write!(line, " original_request_id={original}");
        }
        if let Some(cause) = self.cause {
            let _ = write!(line, " cause={cause:?}");
        }
        if let Some(error) = self.error {
            let _ = write!(line, " {error}");
        }
    }
}

/// With a tenth: a replay takes less than one.
struct Millis(Duration);

impl fmt::Display for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1}", self.0.as_secs_f64() * 1_000.0)
    }
}

/// A string of JSON. Almost all are plain, and copied as they are.
fn push_quoted(line: &mut String, value: &str) {
    if value
        .bytes()
        .all(|byte| (b' '..=b'~').contains(&byte) && !matches!(byte, b'"' | b'\\'))
    {
        line.push('"');
        line.push_str(value);
        line.push('"');
    } else {
        line.push_str(&escape::json(&serde_json::Value::from(value).to_string()));
    }
}

/// A path of bearable length.
fn short(path: &str) -> std::borrow::Cow<'_, str> {
    match path.char_indices().nth(PATH_CHARS_MAX) {
        None => path.into(),
        Some((end, _)) => format!("{}…", &path[..end]).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry() -> Entry<'static> {
        Entry {
            request_id: "req-1",
            method: Some("POST"),
            path: Some("/charges"),
            status: Some(201),
            action: "ran",
            route: Some(("/charges", "POST /charges")),
            principal: Some("9f86d081"),
            upstream_status: Some(201),
            upstream_took: Some(Duration::from_micros(12_340)),
            took: Duration::from_micros(14_060),
            original: None,
            cause: None,
            error: None,
        }
    }

    fn written(entry: &Entry<'_>, is_json: bool) -> String {
        let mut line = String::new();
        let write = if is_json { Entry::json } else { Entry::text };
        write(entry, &mut line);
        line
    }

    #[test]
    fn json_has_the_names_of_opentelemetry() {
        let line: serde_json::Value = serde_json::from_str(&written(&entry(), true)).unwrap();
        for (name, value) in [
            ("http.request.method", serde_json::json!("POST")),
            ("url.path", "/charges".into()),
            ("http.response.status_code", 201.into()),
            ("http.route", "/charges".into()),
            ("hapax.route", "POST /charges".into()),
            ("hapax.action", "ran".into()),
            ("hapax.principal", "9f86d081".into()),
            ("hapax.upstream.status_code", 201.into()),
            ("hapax.upstream.duration_ms", 12.3.into()),
            ("hapax.duration_ms", 14.1.into()),
            ("request_id", "req-1".into()),
        ] {
            assert_eq!(line[name], value, "{name}");
        }
    }

    #[test]
    fn text_is_one_line_in_columns() {
        let columns = |entry: &Entry<'_>| {
            written(entry, false)
                .split_once("INFO ")
                .unwrap()
                .1
                .to_owned()
        };
        assert_eq!(
            columns(&entry()),
            "POST   201 ran                          14.1ms  upstream 201     12.3ms  9f86d081  /charges route=\"POST /charges\" request_id=req-1"
        );
        let refused = Entry {
            method: None,
            path: None,
            status: Some(400),
            action: "refused:version",
            route: None,
            principal: None,
            upstream_status: None,
            upstream_took: None,
            took: Duration::from_micros(40),
            ..entry()
        };
        assert_eq!(
            columns(&refused),
            "-      400 refused:version               0.0ms  upstream   -          -  -         - request_id=req-1"
        );
    }

    #[test]
    fn a_path_that_does_more_than_it_shows_is_spelled_out() {
        let entry = Entry {
            path: Some("/a\u{202e}b\u{9b}"),
            ..entry()
        };
        assert!(
            written(&entry, false).contains("/a\\u{202e}b\\u{9b} "),
            "{}",
            written(&entry, false)
        );
        assert!(!written(&entry, true).contains(escape::is_harmful));
        let long = "/x".repeat(500);
        let entry = Entry {
            path: Some(&long),
            ..entry
        };
        assert!(written(&entry, false).contains("/x… route"));
    }
}
