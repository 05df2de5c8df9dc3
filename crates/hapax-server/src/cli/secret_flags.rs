//! Settings that may hold a secret, as somebody typed them.

use std::convert::Infallible;

use super::Exit;
use crate::config::{PrincipalSource, PrincipalSources, StoreUrl};

/// What was typed, good or not. The parser of flags would repeat what it does not understand, a
/// password too; this one takes everything, and what is wrong is said later.
#[derive(Clone)]
pub(super) struct StoreFlag(Result<StoreUrl, String>);

impl StoreFlag {
    /// For clap.
    pub(super) fn parse(text: &str) -> Result<StoreFlag, Infallible> {
        Ok(StoreFlag(text.parse()))
    }

    /// The store as it may be shown: without its password.
    pub(super) fn shown(&self) -> Result<String, Exit> {
        self.0
            .as_ref()
            .map(ToString::to_string)
            .map_err(|why| Exit::usage(format!("store: {why}")))
    }

    /// The store, if that is what was typed. Says on standard error who else can read a password
    /// that was.
    pub(super) fn store(&self) -> Result<StoreUrl, Exit> {
        let store = self
            .0
            .clone()
            .map_err(|why| Exit::usage(format!("store: {why}")))?;
        if store.has_password() {
            eprintln!(
                "hapax: warning: everybody on this machine can read the password on this command line: leave it out, and give it as PGPASSWORD, in ~/.pgpass, or in the configuration"
            );
        }
        Ok(store)
    }
}

/// One source of principals as somebody typed it, good or not: its URL may hold a secret, which the
/// parser of flags would repeat.
#[derive(Clone)]
pub(super) struct PrincipalFlag(Result<PrincipalSource, String>);

impl PrincipalFlag {
    /// For clap.
    pub(super) fn parse(text: &str) -> Result<PrincipalFlag, Infallible> {
        Ok(PrincipalFlag(text.parse()))
    }

    /// The list that was typed; `None` if there is none.
    pub(super) fn list(typed: &[PrincipalFlag]) -> Result<Option<PrincipalSources>, Exit> {
        if typed.is_empty() {
            return Ok(None);
        }
        let sources = typed
            .iter()
            .map(|PrincipalFlag(source)| source.clone())
            .collect::<Result<Vec<_>, _>>();
        let sources = sources
            .and_then(PrincipalSources::new)
            .map_err(|why| Exit::usage(format!("principal: {why}")))?;
        Ok(Some(sources))
    }
}
