//! Logs on standard error, as text for people or as JSON for machines.
//!
//! From a request, only its id, its method and its path without the query are logged; records and
//! operations appear by their ids. Only the error of a panic during guarded work, which is a bug, has
//! the key. Libraries are less careful with details, so below `info` only Hapax's own crates are
//! logged, whatever `HAPAX_LOG` says.

use std::fmt;
use std::io::{self, IsTerminal};
use std::str::FromStr;
use std::time::Duration;

use serde_json::Value;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::filter::{EnvFilter, FilterExt, Targets, filter_fn};
use tracing_subscriber::fmt::format::{JsonFields, Writer};
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormattedFields, MakeWriter};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

use super::StderrWriter;
use super::stderr::LogLines;
use crate::escape;

/// How long the end of the program waits for the reader of the log to take the last lines.
const LAST_LINES: Duration = Duration::from_secs(1);

/// The variable with the filter: `info`, which is the default, or directives as in
/// `info,hapax=debug`.
pub const FILTER: &str = "HAPAX_LOG";

/// The format of a log line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// Text on a terminal, otherwise JSON.
    #[default]
    Auto,
    /// For people.
    Text,
    /// For machines: one object per line.
    Json,
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Format::Auto),
            "text" => Ok(Format::Text),
            "json" => Ok(Format::Json),
            _ => Err(format!("`{text}` is no log format: use auto, text or json")),
        }
    }
}

/// Starts logging on standard error, in the format that it returns: text or JSON. An error says
/// which variable is wrong.
pub fn init(format: Format) -> Result<Format, String> {
    let filter = match std::env::var(FILTER) {
        Ok(directives) if !directives.trim().is_empty() => directives,
        _ => "info".to_owned(),
    };
    let is_terminal = io::stderr().is_terminal();
    let colour = is_terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let format = match format {
        Format::Auto if is_terminal => Format::Text,
        Format::Auto => Format::Json,
        chosen => chosen,
    };
    let subscriber = subscriber(format, &filter, colour, LogLines)?;
    subscriber
        .try_init()
        .map_err(|_| "logging has begun already: call this once".to_owned())?;
    let started = StderrWriter::start(format == Format::Json, has_access_log(&filter));
    started.map_err(|error| format!("the system gave no thread to write the log: {error}"))?;
    Ok(format)
}

/// Whether the filter passes the lines of the access log, which have the level `info`. A filter on
/// spans is assumed to pass them.
fn has_access_log(filter: &str) -> bool {
    filter
        .parse::<Targets>()
        .is_ok_and(|targets| targets.would_enable(super::stderr::TARGET, &Level::INFO))
        || filter.contains('[')
}

/// Writes out the remaining lines, before the program ends.
pub fn finish() {
    StderrWriter::finish(LAST_LINES);
}

fn subscriber<W>(
    format: Format,
    filter: &str,
    colour: bool,
    to: W,
) -> Result<impl Subscriber + Send + Sync + use<W>, String>
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let unreadable = |error: &dyn std::fmt::Display| {
        format!(
            "{FILTER}={filter} cannot be read: {error}. Write a level, as in {FILTER}=info, or info,hapax=debug"
        )
    };
    if let Some(word) = filter
        .split(',')
        .map(str::trim)
        .find(|directive| !is_said_whole(directive))
    {
        return Err(unreadable(&format!(
            "`{word}` is no level, which are off, error, warn, info, debug and trace"
        )));
    }
    let filter = EnvFilter::try_new(filter).map_err(|error| unreadable(&error))?;
    let lines = tracing_subscriber::fmt::layer().with_ansi(colour);
    let lines = match format {
        Format::Json => lines
            .fmt_fields(JsonFields::new())
            .event_format(Json)
            .with_writer(Harmless(to))
            .boxed(),
        // This format escapes special characters itself.
        Format::Auto | Format::Text => lines.with_writer(to).boxed(),
    };
    Ok(tracing_subscriber::registry().with(lines.with_filter(filter.and(filter_fn(may_be_heard)))))
}

/// Whether a directive is a level, or has a target and a level. A single word would be taken for
/// the name of a crate, so a misspelled level would silence everything else.
fn is_said_whole(directive: &str) -> bool {
    directive.is_empty() || directive.contains('=') || LevelFilter::from_str(directive).is_ok()
}

/// One object per line: the fields of the event, then those of the enclosing spans, innermost
/// first. A field that occurs several times is written once.
struct Json;

#[derive(Default)]
struct Fields(Vec<(String, Value)>);

impl Fields {
    fn add(&mut self, name: &str, value: impl Into<Value>) {
        if self.0.iter().all(|(known, _)| known != name) {
            self.0.push((name.to_owned(), value.into()));
        }
    }
}

impl Visit for Fields {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.add(field.name(), value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field.name(), value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field.name(), value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field.name(), value);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field.name(), value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add(field.name(), format!("{value:?}"));
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> FormatEvent<S, JsonFields> for Json {
    fn format_event(
        &self,
        context: &FmtContext<'_, S, JsonFields>,
        mut to: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut fields = Fields::default();
        event.record(&mut fields);
        for span in context.event_scope().into_iter().flatten() {
            let extensions = span.extensions();
            let around = extensions
                .get::<FormattedFields<JsonFields>>()
                .and_then(|text| serde_json::from_str(&text.fields).ok());
            if let Some(Value::Object(around)) = around {
                around
                    .into_iter()
                    .for_each(|(name, value)| fields.add(&name, value));
            }
        }
        // `level` and `target` come from the metadata; fields with these names are left out.
        let metadata = event.metadata();
        to.write_str("{\"timestamp\":\"")?;
        SystemTime.format_time(&mut to)?;
        write!(to, "\",\"level\":\"{}\"", metadata.level())?;
        for (name, value) in fields
            .0
            .iter()
            .filter(|(name, _)| !["timestamp", "level", "target"].contains(&&**name))
        {
            write!(to, ",{}:{value}", Value::from(&**name))?;
        }
        writeln!(to, ",\"target\":{}}}", Value::from(metadata.target()))
    }
}

/// Escapes characters that JSON permits but a terminal may interpret: names and reasons in the log
/// contain whatever a user chose.
struct Harmless<W>(W);

impl<'a, W: MakeWriter<'a>> MakeWriter<'a> for Harmless<W> {
    type Writer = Harmless<W::Writer>;

    fn make_writer(&'a self) -> Self::Writer {
        Harmless(self.0.make_writer())
    }
}

impl<W: io::Write> io::Write for Harmless<W> {
    /// Each write is one line.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(bytes);
        let line = text.strip_suffix('\n').unwrap_or(&text);
        let end = &text[line.len()..];
        self.0
            .write_all(format!("{}{end}", escape::json(line)).as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Whether an event may be logged: details of other crates may show what a caller sent, such as a
/// header or a path. The client of Kafka tells of each transaction, which are hundreds a second.
fn may_be_heard(metadata: &Metadata<'_>) -> bool {
    let name = metadata.target().split("::").next().unwrap_or_default();
    let level = metadata.level();
    match name {
        "krafka" => LevelFilter::WARN >= *level,
        _ => LevelFilter::INFO >= *level || name == "hapax" || name.starts_with("hapax_"),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn logged(format: Format, filter: &str, tell: impl FnOnce()) -> String {
        let lines = Lines::default();
        let to = lines.clone();
        tracing::subscriber::with_default(
            subscriber(format, filter, false, move || to.clone()).unwrap(),
            tell,
        );
        String::from_utf8(std::mem::take(&mut lines.0.lock().unwrap())).unwrap()
    }

    #[test]
    fn json_is_one_object_on_a_line() {
        let line = logged(Format::Json, "info", || {
            tracing::warn!(record = "r1", "the store failed");
        });
        let line: serde_json::Value = serde_json::from_str(line.trim_end()).unwrap();
        assert_eq!(
            (&line["level"], &line["message"], &line["record"]),
            (&"WARN".into(), &"the store failed".into(), &"r1".into())
        );
    }

    #[test]
    fn json_has_the_fields_of_the_spans_around_and_each_name_once() {
        let line = logged(Format::Json, "info", || {
            let request =
                tracing::error_span!("request", request_id = "r-1", path = "/outer").entered();
            let attempt = tracing::info_span!("attempt", fence = 7, path = "/inner").entered();
            tracing::warn!(fence = 8, "lost");
            drop((attempt, request));
        });
        assert_eq!(line.matches("\"fence\"").count(), 1, "{line}");
        let line: serde_json::Value = serde_json::from_str(line.trim_end()).unwrap();
        let found = ["request_id", "path", "fence", "message"].map(|name| line[name].clone());
        assert_eq!(
            found,
            [Value::from("r-1"), "/inner".into(), 8.into(), "lost".into()]
        );
    }

    #[test]
    fn json_holds_nothing_that_a_terminal_acts_on() {
        let reason = "a\u{9b}2J\u{202e}b\n\u{7f}";
        let line = logged(Format::Json, "info", || tracing::info!(reason, "changed"));
        assert_eq!(
            line.chars()
                .filter(|&c| crate::escape::is_harmful(c))
                .collect::<String>(),
            "\n",
            "{}",
            line.escape_debug()
        );
        let line: serde_json::Value = serde_json::from_str(line.trim_end()).unwrap();
        assert_eq!(line["reason"], reason, "to a reader it is the same");
    }

    #[test]
    fn text_is_not_coloured_unless_asked_for() {
        let line = logged(Format::Text, "info", || tracing::info!("listening"));
        assert!(
            line.contains("INFO") && line.ends_with("listening\n") && !line.contains('\x1b'),
            "{line}"
        );
    }

    #[test]
    fn below_info_only_our_own_crates_are_heard() {
        let text = logged(Format::Text, "trace", || {
            tracing::trace!(target: "hapax_server::gateway", "ours");
            tracing::trace!(target: "hapax", "the library's");
            tracing::debug!(target: "h2::frame", "a header: secret");
            tracing::debug!(target: "hapaxish", "secret");
            tracing::info!(target: "h2", "loud enough");
        });
        assert!(
            text.contains("ours") && text.contains("the library's") && text.contains("loud enough"),
            "{text}"
        );
        assert!(!text.contains("secret"), "{text}");
    }

    #[test]
    fn the_access_log_is_of_level_info() {
        for filter in [
            "info",
            "debug",
            "warn,hapax=info",
            "warn,hapax::access=info",
            "[request]=info",
        ] {
            assert!(has_access_log(filter), "{filter}");
        }
        for filter in ["off", "error", "warn", "info,hapax::access=off"] {
            assert!(!has_access_log(filter), "{filter}");
        }
    }

    #[test]
    fn a_filter_that_cannot_be_read_is_named() {
        let error = subscriber(Format::Text, "hapax=loud", false, io::stderr)
            .err()
            .unwrap();
        assert!(error.contains("HAPAX_LOG=hapax=loud"), "{error}");
        // A misspelled level would be taken for the name of a crate, and nothing would be logged.
        for (filter, word) in [
            ("debgu", "debgu"),
            ("info,hapax", "hapax"),
            ("hapax=debug, inof", "inof"),
        ] {
            let error = subscriber(Format::Text, filter, false, io::stderr)
                .err()
                .unwrap();
            assert!(
                error.contains(&format!("`{word}` is no level"))
                    && error.contains("HAPAX_LOG=info"),
                "{error}"
            );
        }
        for filter in [
            "debug",
            "WARN",
            "off",
            "warn,hapax=debug",
            "hapax::gateway=trace,",
            "[request]=info",
        ] {
            assert!(
                subscriber(Format::Text, filter, false, io::stderr).is_ok(),
                "{filter}"
            );
        }
    }
}
