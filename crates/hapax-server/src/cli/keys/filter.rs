//! The flags that select keys.

use std::time::Duration;

use crate::admin::keys::wire::Query;
use crate::cli::text;
use crate::config::text::{duration, spelled};

/// Everything that is said must hold.
#[derive(clap::Args, Default)]
pub(super) struct Filter {
    /// Only in this state: running, completed, failed, retryable, unknown or expired. `unknown`
    /// includes those past their retention
    #[arg(long, value_name = "STATE")]
    state: Option<String>,
    /// Only what this route of the gateway's configuration applies to, by its name; or methods and
    /// a pattern, as in 'POST /v1/charges/*'
    #[arg(long)]
    route: Option<String>,
    /// Only of these paths: `*` stands for a segment, a last `**` for any rest, as in
    /// /v1/charges/**
    #[arg(long, value_name = "PATTERN")]
    pub(super) path: Option<String>,
    /// Only of this method
    #[arg(long)]
    pub(super) method: Option<String>,
    /// Only of this principal: the name that people know (bob), or the whole one as `show` prints
    /// it (header:x-user bob)
    #[arg(long)]
    pub(super) principal: Option<String>,
    /// Only of this namespace
    #[arg(long)]
    namespace: Option<String>,
    /// Only those first seen longer ago than this: 90s, 15m, 1h, 2d
    #[arg(long, alias = "older", value_name = "SPAN", value_parser = duration)]
    older_than: Option<Duration>,
    /// Only those first seen more recently than this: 90s, 15m, 1h, 2d
    #[arg(long, alias = "younger", value_name = "SPAN", value_parser = duration)]
    newer_than: Option<Duration>,
}

impl Filter {
    pub(super) fn is_empty(&self) -> bool {
        self.flags().is_empty()
    }

    /// The flags as given, for the message that nothing matched; empty if there were none.
    pub(super) fn flags(&self) -> String {
        let (older_than, newer_than) = (self.older_than.map(spelled), self.newer_than.map(spelled));
        let said = [
            ("state", &self.state),
            ("route", &self.route),
            ("path", &self.path),
            ("method", &self.method),
            ("principal", &self.principal),
            ("namespace", &self.namespace),
            ("older-than", &older_than),
            ("newer-than", &newer_than),
        ];
        let said = said.iter().filter_map(|(flag, value)| {
            Some(format!("--{flag} {}", text::line(value.as_deref()?)))
        });
        said.collect::<Vec<_>>().join(" ")
    }

    pub(super) fn state(&self) -> Option<&str> {
        self.state.as_deref()
    }

    pub(super) fn query(&self) -> Query {
        Query {
            state: self.state.clone(),
            route: self.route.clone(),
            path: self.path.clone(),
            method: self.method.clone(),
            principal: self.principal.clone(),
            namespace: self.namespace.clone(),
            older_than_seconds: self.older_than.map(|span| span.as_secs()),
            newer_than_seconds: self.newer_than.map(|span| span.as_secs()),
            ..Query::default()
        }
    }
}
