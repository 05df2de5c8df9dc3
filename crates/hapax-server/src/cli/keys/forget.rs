//! `hapax keys forget`

use super::change::{self, Sign};
use super::format::count;
use super::source::{Purpose, Source, Where};
use super::targets::{self, Targets, Wish};
use crate::admin::keys::wire::{Entry, Forget};
use crate::cli::{Exit, text};

/// Erase answers and what their requests looked like. A tombstone stays: the key does not run
/// again, it is answered with 410.
///
/// Nothing that is running can be forgotten, and nothing that is unknown: settle it first. When
/// this returns, no gateway on this store can serve the answer any more. Where it was in a file,
/// its bytes are gone; what a Postgres keeps of deleted rows is in docs/postgres.md, what a Redis
/// keeps of deleted keys in docs/redis.md. With --principal the keys are listed again afterwards:
/// exit code 1 if one of them still has an answer or a fingerprint.
#[derive(clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    targets: Targets,
    #[command(flatten)]
    sign: Sign,
    #[command(flatten)]
    place: Where,
}

pub(super) async fn run(args: &Args) -> Result<(), Exit> {
    let signed = args.sign.signed()?;
    let source = Source::find(&args.place, Purpose::Change).await?;
    let wish = Wish {
        state: None,
        done: "forgotten",
        what: "forgotten",
        refusal,
        is_done: is_erased,
        only_one: None,
    };
    let Some(entries) = args.targets.choose(&source, &wish).await? else {
        return Ok(());
    };
    let changed = change::each(entries, "forgotten", |entry| {
        // Only the version that was shown, not what it may have become since.
        let forget = Forget {
            version: Some(entry.version),
            by: signed.by.clone(),
            reason: signed.reason.clone(),
        };
        let (source, id) = (source.clone(), targets::parsed(entry));
        async move { source.forget(id?, &forget).await }
    })
    .await;
    let answers = changed
        .before
        .iter()
        .filter(|entry| entry.answer_kept)
        .count();
    eprintln!(
        "forgotten: {}, {} of them with an answer",
        count(changed.before.len(), "record"),
        answers
    );
    if let Some(left) = source.leaves() {
        eprintln!("{left}");
    }
    let proven = match args.targets.principal() {
        Some(principal) => prove(&args.targets.look_again(&source).await?, principal),
        None => Ok(()),
    };
    changed.end("forgotten").and(proven)
}

/// Prints what is left of a principal's keys. Returns an error if an answer or a fingerprint is
/// left.
fn prove(found: &[Entry], principal: &str) -> Result<(), Exit> {
    let principal = text::line(principal);
    let (left, erased): (Vec<&Entry>, Vec<&Entry>) =
        found.iter().partition(|entry| !is_erased(entry));
    eprintln!(
        "looked again: {} of {principal}, of which {} neither an answer nor a fingerprint. What stays of those until their tombstones are over is the key, \
         the path and the name of the principal",
        count(found.len(), "record"),
        if erased.len() == 1 {
            "1 has".to_owned()
        } else {
            format!("{} have", erased.len())
        },
    );
    if left.is_empty() {
        return Ok(());
    }
    let unknown = left.iter().filter(|entry| entry.is_unresolved()).count();
    let running = left.iter().filter(|entry| entry.state == "running").count();
    let other = left.len() - unknown - running;
    let reasons = [
        (unknown, "of unknown outcome: settle these first"),
        (running, "running: wait until these have ended"),
        (other, "over --limit, or changed meanwhile: run this again"),
    ];
    let reasons: Vec<String> = reasons
        .iter()
        .filter(|(number, _)| *number > 0)
        .map(|(number, why)| format!("{number} {why}"))
        .collect();
    Err(Exit::failed(format!(
        "{} of {principal} left: {}",
        count(left.len(), "record"),
        reasons.join("; ")
    )))
}

/// Whether neither its answer nor its fingerprint is left.
fn is_erased(entry: &Entry) -> bool {
    !entry.answer_kept && entry.fingerprint.is_none()
}

/// Why a key cannot be forgotten, if so.
fn refusal(entry: &Entry) -> Option<String> {
    if entry.is_unresolved() {
        return Some(
            "its outcome is unknown: what is forgotten can never be settled, so settle it first"
                .to_owned(),
        );
    }
    (entry.state == "running").then(|| "it is running: wait until it has ended".to_owned())
}
