//! `hapax keys forget`

use super::change::{self, Sign};
use super::source::{Purpose, Source, Where};
use super::targets::{self, Targets, Wish};
use crate::admin::keys::wire::{Entry, Forget};
use crate::cli::Exit;

/// Erases answers and what their requests looked like. A tombstone stays: the key does not run again, it is answered with 410.
///
/// Nothing that is running can be forgotten, and nothing that is unknown: settle it first. When this returns, no gateway on this store can serve the answer any more.
/// Where it was in a file, its bytes are gone; what a Postgres keeps of deleted rows is in docs/postgres.md.
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
    let wish = Wish { state: None, done: "forgotten", what: "forgotten", refusal, only_one: None };
    let Some(entries) = args.targets.choose(&source, &wish).await? else { return Ok(()) };
    change::each(entries, "forgotten", |entry| {
        // As it was shown, and not what has become of it since.
        let forget = Forget { version: Some(entry.version), by: signed.by.clone(), reason: signed.reason.clone() };
        let (source, id) = (source.clone(), targets::parsed(entry));
        async move { source.forget(id?, &forget).await }
    })
    .await?;
    if let Some(left) = source.leaves() {
        eprintln!("{left}");
    }
    Ok(())
}

/// Why a key cannot be forgotten.
fn refusal(entry: &Entry) -> Option<String> {
    if entry.is_unresolved() {
        return Some("its outcome is unknown: what is forgotten can never be settled, so settle it first".to_owned());
    }
    (entry.state == "running").then(|| "it is running: wait until it has ended".to_owned())
}
