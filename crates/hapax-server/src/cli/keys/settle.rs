//! `hapax keys settle`

use std::io::Read;

use base64::prelude::{BASE64_STANDARD, Engine as _};

use super::change::{self, Sign};
use super::source::{Purpose, Source, Where};
use super::table;
use super::targets::{self, Targets, Wish};
use crate::admin::keys::settlement;
use crate::admin::keys::wire::{Entry, Outcome, Settle};
use crate::cli::{Exit, text};

/// The largest body that is read: slightly above the limit of an answer, so that the check of that
/// limit refuses it.
const BODY_BYTES_MAX: u64 = (1 << 20) + 1;

/// State what became of operations whose outcome is unknown, once you have found out.
///
/// `--outcome done`: it happened. A repeat is answered with --status, --header and --body, or told
/// that there is no answer (--without-answer).
///
/// `--outcome not-done`: it did not happen and will not any more. The next repeat RUNS it.
///
/// The attempt that was lost can no longer complete after this.
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub(super) struct Args {
    #[command(flatten)]
    targets: Targets,
    /// What was found out
    #[arg(long, value_enum)]
    outcome: Said,
    /// With done: the status that a repeat is answered with
    #[arg(long, conflicts_with = "without_answer")]
    status: Option<u16>,
    /// With done: a header of that answer; may be repeated
    #[arg(long = "header", value_name = "NAME: VALUE", value_parser = header)]
    headers: Vec<(String, String)>,
    /// With done: a file with the body of that answer; - for standard input
    #[arg(long, value_name = "FILE")]
    body: Option<String>,
    /// With done: there is no answer to give; a repeat is told that it was done
    #[arg(long)]
    without_answer: bool,
    #[command(flatten)]
    sign: Sign,
    #[command(flatten)]
    place: Where,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Said {
    Done,
    NotDone,
}

pub(super) async fn run(args: &Args) -> Result<(), Exit> {
    if args.targets.state().is_some_and(|state| state != "unknown") {
        return Err(Exit::usage(
            "only an unknown outcome can be settled: leave --state out",
        ));
    }
    let settle = args.settle()?;
    let what = match settle.outcome {
        Outcome::Done => "settled as done, with an answer",
        Outcome::DoneWithoutAnswer => "settled as done, without an answer",
        Outcome::NotDone => "settled as not done: the next repeat of each RUNS it",
    };
    let source = Source::find(&args.place, Purpose::Change).await?;
    // With another caller's answer, a caller would believe that its own operation was done, and
    // would see foreign data.
    let has_content =
        settle.body.is_some() || settle.body_base64.is_some() || !settle.headers.is_empty();
    let only_one = has_content.then_some(
        "an answer belongs to one: give its id, or settle them all with --without-answer",
    );
    let wish = Wish {
        state: Some("unknown"),
        done: "settled",
        what,
        refusal,
        is_done: |_| false,
        only_one,
    };
    let Some(entries) = args.targets.choose(&source, &wish).await? else {
        return Ok(());
    };
    change::each(entries, "settled", |entry| {
        // Only the attempt that was shown.
        let settle = Settle {
            fence: Some(entry.fence),
            ..settle.clone()
        };
        let (source, id) = (source.clone(), targets::parsed(entry));
        async move { source.settle(id?, &settle).await }
    })
    .await
    .end("settled")
}

/// Why a key cannot be settled, if so.
fn refusal(entry: &Entry) -> Option<String> {
    (!entry.is_unresolved()).then(|| {
        format!(
            "it is {}: only an unknown outcome can be settled",
            table::state(entry)
        )
    })
}

impl Args {
    fn settle(&self) -> Result<Settle, Exit> {
        let outcome = match (self.outcome, self.without_answer) {
            (Said::Done, false) if self.status.is_none() => {
                return Err(Exit::usage(
                    "say what a repeat is answered with: --status 201 --body FILE, or --without-answer",
                ));
            }
            (Said::Done, false) => Outcome::Done,
            (Said::Done, true) => Outcome::DoneWithoutAnswer,
            (Said::NotDone, true) => {
                return Err(Exit::usage("--without-answer goes with --outcome done"));
            }
            (Said::NotDone, false) => Outcome::NotDone,
        };
        let (body, body_base64) = match self
            .body
            .as_deref()
            .map(read)
            .transpose()?
            .map(String::from_utf8)
        {
            None => (None, None),
            Some(Ok(body)) => (Some(body), None),
            Some(Err(error)) => (None, Some(BASE64_STANDARD.encode(error.as_bytes()))),
        };
        let signed = self.sign.signed()?;
        let settle = Settle {
            outcome,
            fence: None,
            status: self.status,
            headers: self.headers.clone(),
            body,
            body_base64,
            by: signed.by,
            reason: signed.reason,
        };
        settlement::parse(&settle).map_err(Exit::usage)?;
        Ok(settle)
    }
}

fn read(path: &str) -> Result<Vec<u8>, Exit> {
    let wrong = |error| {
        Exit::usage(format!(
            "the body could not be read from {}: {error}",
            text::line(path)
        ))
    };
    let mut body = Vec::new();
    match path {
        "-" => std::io::stdin()
            .lock()
            .take(BODY_BYTES_MAX)
            .read_to_end(&mut body)
            .map_err(wrong)?,
        path => std::fs::File::open(path)
            .and_then(|file| file.take(BODY_BYTES_MAX).read_to_end(&mut body))
            .map_err(wrong)?,
    };
    Ok(body)
}

fn header(text: &str) -> Result<(String, String), String> {
    match text.split_once(':') {
        Some((name, value)) => Ok((name.to_owned(), value.trim().to_owned())),
        None => Err("write a header as 'Name: value'".to_owned()),
    }
}
