//! The flag that says how to log.

use clap::ValueEnum;

use crate::telemetry::logs::Format;

#[derive(Clone, Copy, ValueEnum)]
pub(super) enum Log {
    Text,
    Json,
}

impl Log {
    /// The format that was asked for, if one was.
    pub(super) fn format(asked: Option<Log>) -> Format {
        match asked {
            None => Format::Auto,
            Some(Log::Text) => Format::Text,
            Some(Log::Json) => Format::Json,
        }
    }
}
