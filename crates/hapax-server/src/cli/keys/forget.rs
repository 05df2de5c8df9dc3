//! `hapax keys forget`

use super::change::{self, Sign};
use super::source::{Purpose, Source, Where};
use super::targets::Targets;
use crate::cli::Exit;

/// Erases answers and what their requests looked like. A tombstone stays: the key does not run again, it is answered with 410.
///
/// Nothing that is running can be forgotten. When this returns, no gateway on this store can serve the answer any more.
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
    let Some(ids) = args.targets.choose(&source, None, "forgotten").await? else { return Ok(()) };
    change::each(ids, "forgotten", |id| {
        let (source, signed) = (source.clone(), signed.clone());
        async move { source.forget(id, &signed).await }
    })
    .await
}
