//! `hapax inbox retry` and `hapax inbox skip`

use super::exit;
use crate::admin::inbox::wire::InboxChanged;
use crate::cli::keys::change::Sign;
use crate::cli::outbox::place::Place;
use crate::cli::{Exit, text};

/// Have the consumer try a parked message again: it applies it once.
#[derive(clap::Args)]
pub(super) struct RetryArgs {
    #[command(flatten)]
    which: Which,
    /// Say that you have looked, and that the message was not applied: needed for one that is older
    /// than the consumer's receipts. If it was applied, it is applied a second time
    #[arg(long)]
    was_not_applied: bool,
}

/// Take out a message for good: it is never applied, also if it is delivered again.
#[derive(clap::Args)]
pub(super) struct SkipArgs {
    #[command(flatten)]
    which: Which,
}

#[derive(clap::Args)]
struct Which {
    /// The consumer
    consumer: String,
    /// The id that the producer gave the message
    id: String,
    #[command(flatten)]
    sign: Sign,
    /// Say what was done as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    place: Place,
}

pub(super) async fn retry(args: &RetryArgs) -> Result<(), Exit> {
    let which = &args.which;
    let signed = which.sign.kept()?;
    let inbox = which.place.open_inbox()?;
    let retried = inbox.retry(&which.consumer, &which.id, args.was_not_applied, &signed);
    which.told("to be tried again", retried.await.map_err(exit)?)
}

pub(super) async fn skip(args: &SkipArgs) -> Result<(), Exit> {
    let which = &args.which;
    let signed = which.sign.kept()?;
    let inbox = which.place.open_inbox()?;
    let skipped = inbox.skip(&which.consumer, &which.id, &signed);
    which.told("skipped", skipped.await.map_err(exit)?)
}

impl Which {
    fn told(&self, done: &'static str, is_done: bool) -> Result<(), Exit> {
        let (consumer, id) = (text::line(&self.consumer), text::line(&self.id));
        if !is_done {
            return Err(Exit::failed(format!(
                "not {done}: {consumer} has parked no message {id}"
            )));
        }
        text::emit(&match self.json {
            true => text::json_line(&InboxChanged {
                done,
                consumer: self.consumer.clone(),
                id: self.id.clone(),
            }),
            false => format!("{done}\t{consumer}\t{id}\n"),
        });
        Ok(())
    }
}
