//! `hapax keys show`

use std::fmt::Write as _;

use hapax::core::time::Timestamp;
use hapax::{Key, Principal, RecordId, Scope};

use super::source::{Purpose, Source, Where};
use super::table::{self, Style};
use super::{format, newest, targets};
use crate::admin::keys::time::Time;
use crate::admin::keys::wire::{Entry, Query, Replay, Shown};
use crate::cli::{Exit, text};

/// How many matching keys are listed at most.
const CANDIDATES_MAX: usize = 20;

/// Show everything that is known of a key. If --key matches several, list them, the newest first.
///
/// Exit code 1 if there is none.
#[derive(clap::Args)]
pub(super) struct Args {
    /// The record's id, or its first digits; or the operation id that the upstream and the log know
    /// it by
    #[arg(
        value_name = "ID",
        required_unless_present = "key",
        conflicts_with = "key"
    )]
    id: Option<String>,
    /// The key, as the caller sent it
    #[arg(long)]
    key: Option<String>,
    /// With --key: the path, or a pattern
    #[arg(long)]
    path: Option<String>,
    /// With --key: the method
    #[arg(long)]
    method: Option<String>,
    /// With --key: the principal, by the name that people know or the whole one. With a whole one
    /// and a plain path the key is found at once; else all keys are searched
    #[arg(long)]
    principal: Option<String>,
    /// With --key: the namespace
    #[arg(long)]
    namespace: Option<String>,
    /// The answer too: status, headers and body
    #[arg(long)]
    answer: bool,
    /// As one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    place: Where,
}

pub(super) async fn run(args: &Args) -> Result<(), Exit> {
    let source = Source::find(&args.place, Purpose::Look).await?;
    let id = match (&args.id, &args.key) {
        (Some(id), _) => targets::resolve(&source, id).await?,
        (None, Some(key)) => match search(&source, args, key).await? {
            Some(id) => id,
            // Several keys matched and were listed.
            None => return Ok(()),
        },
        (None, None) => return Err(Exit::usage("say which key: its id, or --key")),
    };
    let shown = source.show(id, args.answer).await?;
    let output = if args.json {
        text::json_line(&shown)
    } else {
        page(&shown, args.answer, &args.place.flags()?)
    };
    text::emit(&output);
    Ok(())
}

/// The only record of a key; `None` if there are several, which are listed.
async fn search(source: &Source, args: &Args, key: &str) -> Result<Option<RecordId>, Exit> {
    if let Some(id) = computed(args, key)?
        && source.show(id, false).await.is_ok()
    {
        return Ok(Some(id));
    }
    let query = Query {
        key: Some(key.to_owned()),
        path: args.path.clone(),
        method: args.method.clone(),
        principal: args.principal.clone(),
        namespace: args.namespace.clone(),
        ..Query::default()
    };
    let found = newest::find(source, &query, CANDIDATES_MAX).await?;
    match &found.entries[..] {
        [] => Err(Exit::failed(format::nothing_matched(
            &args.flags(key),
            found.looked_at,
        ))),
        [only] if !found.is_cut_off => only.id.parse().map(Some).map_err(Exit::failed),
        several => {
            let listed = if args.json {
                several.iter().map(text::json_line).collect()
            } else {
                table::draw(several, found.now, Style::of_output(false))
            };
            text::emit(&listed);
            found.tell_of_rest();
            eprintln!(
                "{} have this key: show one of them with `hapax keys show ID`",
                format::count(several.len(), "record")
            );
            Ok(None)
        }
    }
}

impl Args {
    /// The flags that select the key, for the message that there is none.
    fn flags(&self, key: &str) -> String {
        let others = [
            ("path", &self.path),
            ("method", &self.method),
            ("principal", &self.principal),
            ("namespace", &self.namespace),
        ];
        let others = others.iter().filter_map(|(flag, value)| {
            Some(format!(" --{flag} {}", text::line(value.as_deref()?)))
        });
        format!("--key {}{}", text::line(key), others.collect::<String>())
    }
}

/// The id, if all its parts were given.
fn computed(args: &Args, key: &str) -> Result<Option<RecordId>, Exit> {
    let key = Key::new(key).map_err(Exit::usage)?;
    let (Some(path), Some(principal)) = (&args.path, &args.principal) else {
        return Ok(None);
    };
    let scope = Scope {
        namespace: args.namespace.as_deref().unwrap_or("default").into(),
        principal: principal_of(principal),
        method: args
            .method
            .as_deref()
            .unwrap_or("POST")
            .to_ascii_uppercase()
            .into(),
        path: path.as_str().into(),
    };
    Ok(Some(RecordId::of(&scope, &key)))
}

/// A principal from its displayed form.
fn principal_of(text: &str) -> Principal {
    if text == Principal::Anonymous.to_string() {
        Principal::Anonymous
    } else {
        Principal::named(text)
    }
}

/// `place` is the flag that names the same store or gateway on another command line.
fn page(shown: &Shown, with_answer: bool, place: &str) -> String {
    let (entry, now) = (&shown.entry, shown.now.0);
    let mut page = String::new();
    let width = text::terminal_width().unwrap_or(usize::MAX);
    let mut say = |name: &str, value: &str| {
        let _ = writeln!(
            page,
            "{name:<16} {}",
            text::wrapped(&text::line(value), width, 17)
        );
    };
    say("id", &entry.id);
    say("state", &table::state(entry));
    if let Some(cause) = &entry.cause {
        say("why", &cause.detail);
    }
    say("a repeat", repeat(entry));
    say("operation id", &entry.operation_id);
    say("operation", &format!("{} {}", entry.method, entry.path));
    say("key", &entry.key);
    say(
        "principal",
        entry
            .principal
            .as_deref()
            .unwrap_or(&Principal::Anonymous.to_string()),
    );
    say("namespace", &entry.namespace);
    say("attempts", &entry.attempts.to_string());
    say(
        "request id",
        entry.request_id.as_deref().unwrap_or("none known"),
    );
    say("fence", &entry.fence.to_string());
    say("version", &entry.version.to_string());
    for (name, time) in times(entry) {
        say(name, &moment(time, now));
    }
    say(
        "status",
        &entry
            .status
            .map_or_else(|| "none known".to_owned(), |status| status.to_string()),
    );
    say(
        "answer",
        if entry.answer_kept {
            "kept"
        } else {
            "not kept"
        },
    );
    match &entry.fingerprint {
        None => say("fingerprint", "erased"),
        Some(print) => {
            say("fingerprint", &print.digest);
            say("made with", &print.policy.replace('\n', ", "));
        }
    }
    if text::is_coloured() && !table::colour(&table::state(entry)).is_empty() {
        let state = table::state(entry);
        page = page.replacen(
            &format!("{:<16} {state}", "state"),
            &format!("{:<16} {}{state}\u{1b}[0m", "state", table::colour(&state)),
            1,
        );
    }
    match &shown.answer {
        Some(answer) => page + "\n" + &replay(answer),
        None if with_answer => page + "\nThere is no answer to show.\n",
        None if entry.is_unresolved() => page + &settlement(entry, place),
        None => page,
    }
}

/// The commands that settle the key.
fn settlement(entry: &Entry, place: &str) -> String {
    let settle = format!(
        "  hapax keys settle {}{} --outcome",
        entry.id,
        text::line(place)
    );
    format!(
        "\nAsk the service what became of it, and say so:\n\
         {settle} done --without-answer --reason 'it is in the books'\n\
         {settle} done --status 201 --header 'content-type: application/json' --body FILE --reason 'it is in the books'\n\
         {settle} not-done --reason 'it is not in the books'    (the next repeat RUNS it)\n"
    )
}

/// What a repeat of the same request gets.
fn repeat(entry: &Entry) -> &'static str {
    match (entry.state.as_str(), entry.answer_kept) {
        ("running", _) => "waits, or gets 409 in-flight",
        ("completed" | "failed", true) => "gets the kept answer",
        ("completed" | "failed", false) => "gets 409 answer-not-kept",
        ("retryable", _) => "runs it again: the last attempt is known not to count",
        ("expired", _) if entry.is_unresolved() => "gets 409 outcome-unknown until it is settled",
        ("expired", _) => "gets 410 key-expired",
        ("unknown", _) if is_not_joined(entry) => {
            "gets 409 outcome-unknown until it is settled: it was answered as done, and its record was not completed with it"
        }
        ("unknown", _) => {
            "gets 409 outcome-unknown until it is settled; in the mode transaction it runs again, as what did not join was rolled back; in others see docs/modes.md"
        }
        _ => "is not known to this version",
    }
}

/// Whether the service reported success on a route whose record must be completed with the effect.
/// An older gateway gives no cause, and a status only in this case.
fn is_not_joined(entry: &Entry) -> bool {
    entry
        .cause
        .as_ref()
        .map_or(entry.status.is_some(), |cause| cause.code == "not-joined")
}

fn times(entry: &Entry) -> impl Iterator<Item = (&'static str, Time)> {
    let times = [
        ("created", Some(entry.created_at)),
        ("last claimed", Some(entry.claimed_at)),
        ("lease until", entry.lease_until),
        ("finished", entry.finished_at),
        ("replays until", entry.expires_at),
        ("tombstone until", entry.tombstone_until),
    ];
    times
        .into_iter()
        .filter_map(|(name, time)| Some((name, time?)))
}

fn moment(time: Time, now: Timestamp) -> String {
    if time.0 <= now {
        format!("{time} ({} ago)", format::age(now.since(time.0)))
    } else {
        format!("{time} (in {})", format::age(time.0.since(now)))
    }
}

/// The answer in a form that is safe on a terminal.
fn replay(answer: &Replay) -> String {
    let mut page = format!("HTTP {}\n", answer.status);
    for (name, value) in answer.headers.iter().chain(&answer.trailers) {
        let _ = writeln!(page, "{}: {}", text::line(name), text::line(value));
    }
    page.push('\n');
    match &answer.body {
        Some(body) if body.is_empty() => page.push_str("(no body)\n"),
        Some(body) => {
            page.push_str(&text::lines(body));
            if !body.ends_with('\n') {
                page.push('\n');
            }
        }
        None => drop(writeln!(
            page,
            "({} bytes that are no text: --json has them as base64)",
            answer.body_bytes
        )),
    }
    page
}
