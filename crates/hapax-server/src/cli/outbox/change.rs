//! `hapax outbox retry` and `hapax outbox skip`

use hapax::core::flow::MessageId;
use hapax_flow::outbox::operate::Operators;

use super::place::{Place, exit};
use crate::admin::outbox::readers_of;
use crate::admin::outbox::wire::MessageChanged;
use crate::cli::keys::change::Sign;
use crate::cli::{Exit, text};

/// Send a message that is set aside again, at once and with all its attempts: one that is held or
/// dead, or that waits for its next attempt.
#[derive(clap::Args)]
pub(super) struct RetryArgs {
    #[command(flatten)]
    which: Which,
}

/// Take out a message that is set aside, for good: this reader never gets it, and the later ones of
/// its key go on.
#[derive(clap::Args)]
pub(super) struct SkipArgs {
    #[command(flatten)]
    which: Which,
}

#[derive(clap::Args)]
struct Which {
    /// The id of the message
    id: MessageId,
    /// The reader for which it is set aside; needed if there are several
    #[arg(long, value_name = "NAME")]
    reader: Option<String>,
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
    let outbox = which.place.open()?;
    let reader = which.reader(&*outbox).await?;
    let is_done = outbox.retry(&reader, which.id, &signed).await;
    which.told("sent again", &reader, is_done.map_err(exit)?)
}

pub(super) async fn skip(args: &SkipArgs) -> Result<(), Exit> {
    let which = &args.which;
    let signed = which.sign.kept()?;
    let outbox = which.place.open()?;
    let reader = which.reader(&*outbox).await?;
    let is_done = outbox.skip(&reader, which.id, &signed).await;
    which.told("skipped", &reader, is_done.map_err(exit)?)
}

impl Which {
    /// The reader that is meant: the only one for which the message is set aside, if none is named.
    async fn reader(&self, outbox: &dyn Operators) -> Result<String, Exit> {
        if let Some(reader) = &self.reader {
            return Ok(reader.clone());
        }
        let mut readers = readers_of(outbox, self.id).await.map_err(exit)?;
        match readers.len() {
            1 => Ok(readers.remove(0)),
            0 => Err(Exit::failed(format!(
                "the message {} is not set aside for any reader",
                self.id
            ))),
            _ => Err(Exit::usage(format!(
                "the message {} is set aside for {}: say for which, with --reader",
                self.id,
                text::line(&readers.join(", "))
            ))),
        }
    }

    fn told(&self, done: &'static str, reader: &str, is_done: bool) -> Result<(), Exit> {
        let id = self.id;
        if !is_done {
            return Err(Exit::failed(format!(
                "not {done}: the message {id} is not set aside for {}, or it waits behind an earlier one of its key",
                text::line(reader)
            )));
        }
        text::emit(&match self.json {
            true => text::json_line(&MessageChanged {
                done,
                id: id.to_string(),
                reader: reader.to_owned(),
            }),
            false => format!("{done}\t{id}\t{}\n", text::line(reader)),
        });
        Ok(())
    }
}
