//! The outbox or inbox that a command is about.

use std::path::PathBuf;
use std::sync::Arc;

use hapax_flow::inbox;
use hapax_flow::outbox::OutboxError;
use hapax_flow::outbox::operate::Operators;

use crate::cli::Exit;
use crate::cli::secret_flags::StoreFlag;
use crate::relay::Source;

/// Where to look, as flags.
#[derive(clap::Args)]
pub(in crate::cli) struct Place {
    /// Where messages are: postgres://USER@HOST/DATABASE, or sqlite:FILE for the file of a service
    /// that has opened it as a Guest [default: what the configuration or HAPAX__STORE says]
    #[arg(long, global = true, value_name = "URL", value_parser = StoreFlag::parse)]
    store: Option<StoreFlag>,
    /// The configuration that names the store
    #[arg(long, global = true, value_name = "FILE", conflicts_with = "store")]
    config: Option<PathBuf>,
}

impl Place {
    /// The outbox. Prints to standard error which one it is.
    pub(super) fn open(&self) -> Result<Arc<dyn Operators>, Exit> {
        Ok(self.source("outbox")?.operators())
    }

    /// The inbox. Prints to standard error which one it is.
    pub(in crate::cli) fn open_inbox(&self) -> Result<Arc<dyn inbox::Operators>, Exit> {
        Ok(self.source("inbox")?.inbox())
    }

    fn source(&self, what: &str) -> Result<Source, Exit> {
        let store = StoreFlag::chosen(self.store.as_ref(), self.config.as_deref())?;
        let source = Source::of(&store).map_err(|why| Exit::usage(format!("store: {why}")))?;
        eprintln!("looking into the {what} of {store}");
        Ok(source)
    }
}

/// Why an outbox did not do what it was asked, with the exit code.
pub(super) fn exit(error: OutboxError) -> Exit {
    match error {
        OutboxError::Unavailable(_) => Exit::unreachable(error),
        OutboxError::Refused(_) => Exit::usage(error),
        _ => Exit::failed(error),
    }
}
