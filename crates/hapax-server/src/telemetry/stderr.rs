//! Standard error and the access log: one line for each request, among the other log lines.
//!
//! A request never waits for the reader of the log. Lines of both kinds go into a buffer in memory,
//! and a separate thread writes the buffer out; nothing else writes to standard error while the
//! gateway serves. While the reader takes nothing, up to [`BUFFER_BYTES_MAX`] wait, and as much
//! again for log lines alone. Further lines are lost, and the log says how many.

use std::fmt::{self, Write as _};
use std::io::{self, Write as _};
use std::sync::OnceLock;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};

use crate::escape;

/// Limit on the bytes that wait to be written: some four thousand lines.
const BUFFER_BYTES_MAX: usize = 1 << 20;
/// How often the buffer is written out: one write for many lines.
const GATHERING: Duration = Duration::from_millis(5);
/// After this many rounds without a line, the thread sleeps until there is one. Before that it
/// polls, because waking it on a busy machine takes the processor from the request that adds the
/// line.
const IDLE_ROUNDS_MAX: u32 = 200;
/// The longest path that is shown whole.
const PATH_CHARS_MAX: usize = 200;

/// The target under which a filter names these lines.
pub(super) const TARGET: &str = "hapax::access";

static LOG: OnceLock<StderrWriter> = OnceLock::new();

/// Writes lines to standard error in one format.
pub struct StderrWriter {
    is_json: bool,
    /// Whether lines of requests are written too, and not only log lines.
    has_requests: bool,
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Default)]
struct Waiting {
    lines: Vec<u8>,
    lost: u64,
    is_writing: bool,
    /// Whether the thread sleeps and has to be woken.
    is_asleep: bool,
}

/// The access log line of one request.
pub struct Entry<'a> {
    /// The id that all lines about the request have.
    pub request_id: &'a str,
    /// The method; `None` if the request could not be read.
    pub method: Option<&'a str>,
    /// The path without its query; `None` if the request could not be read.
    pub path: Option<&'a str>,
    /// The status of the answer; `None` if the client disconnected before.
    pub status: Option<u16>,
    /// What Hapax did.
    pub action: &'a str,
    /// The pattern of the route, and its name as in the metrics.
    pub route: Option<(&'a str, &'a str)>,
    /// A short digest of the principal.
    pub principal: Option<&'a str>,
    /// The status of the upstream's answer.
    pub upstream_status: Option<u16>,
    /// How long the upstream took.
    pub upstream_took: Option<Duration>,
    /// The total duration.
    pub took: Duration,
    /// For a replay: the id of the request that the answer was made for.
    pub original: Option<&'a str>,
    /// Why it was rejected, if the type does not say enough.
    pub cause: Option<&'a str>,
    /// What cut the answer off.
    pub error: Option<&'static str>,
}

impl StderrWriter {
    /// Starts writing lines to standard error. Called once per process.
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

    /// The writer for lines of requests; `None` if they are off.
    pub fn get() -> Option<&'static StderrWriter> {
        LOG.get().filter(|log| log.has_requests)
    }

    /// Waits until every line is written, for at most `patience`.
    pub(super) fn finish(patience: Duration) {
        if let Some(log) = LOG.get() {
            log.flush(patience);
        }
    }

    /// Adds the line of a request.
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
            // A closed standard error is no reason to stop serving.
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

/// Writes log lines into the buffer for standard error.
#[derive(Clone, Copy)]
pub(super) struct LogLines;

impl MakeWriter<'_> for LogLines {
    type Writer = LogLines;

    fn make_writer(&self) -> LogLines {
        LogLines
    }
}

/// Each write is one line: that is how the subscriber writes.
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
    /// Uses OpenTelemetry's names for HTTP; other fields begin with `hapax`.
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

    /// For people: short values in columns, then those that may be long.
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

/// Milliseconds with one decimal: a replay takes less than one.
struct Millis(Duration);

impl fmt::Display for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1}", self.0.as_secs_f64() * 1_000.0)
    }
}

/// Appends a JSON string. Almost all values are plain ASCII, and are copied unchanged.
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

/// The path, cut off if it is too long.
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
