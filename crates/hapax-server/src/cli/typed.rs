//! A store as somebody typed it.

use std::convert::Infallible;

use super::Exit;
use crate::config::StoreUrl;

/// What was typed, good or not. The parser of flags would repeat what it does not understand, a password too; this one takes everything,
/// and what is wrong is said later.
#[derive(Clone)]
pub(super) struct TypedStore(Result<StoreUrl, String>);

impl TypedStore {
    /// For clap.
    pub(super) fn parse(text: &str) -> Result<TypedStore, Infallible> {
        Ok(TypedStore(text.parse()))
    }

    /// The store, if that is what was typed. Says on standard error who else can read a password that was.
    pub(super) fn store(&self) -> Result<StoreUrl, Exit> {
        let store = self.0.clone().map_err(|why| Exit::usage(format!("store: {why}")))?;
        if store.has_password() {
            eprintln!(
                "hapax: warning: everybody on this machine can read the password on this command line: leave it out, and give it as PGPASSWORD, in ~/.pgpass, or in the configuration"
            );
        }
        Ok(store)
    }
}
