//! Flags whose values may contain a secret.

use std::convert::Infallible;
use std::path::Path;

use super::Exit;
use crate::config::{Environment, PrincipalSource, PrincipalSources, StoreUrl, file};

/// The given value, valid or not. clap would repeat an invalid value in its message, including a
/// password. So this type accepts every value, and reports mistakes later.
#[derive(Clone)]
pub(super) struct StoreFlag(Result<StoreUrl, String>);

impl StoreFlag {
    /// The value parser for clap.
    pub(super) fn parse(text: &str) -> Result<StoreFlag, Infallible> {
        Ok(StoreFlag(text.parse()))
    }

    /// The store in a form that may be shown: without its password.
    pub(super) fn shown(&self) -> Result<String, Exit> {
        self.0
            .as_ref()
            .map(ToString::to_string)
            .map_err(|why| Exit::usage(format!("store: {why}")))
    }

    /// The store, if the value is valid. If it contains a password, a warning on standard error
    /// says who else can read it.
    pub(super) fn store(&self) -> Result<StoreUrl, Exit> {
        let store = self
            .0
            .clone()
            .map_err(|why| Exit::usage(format!("store: {why}")))?;
        if store.has_password() {
            let instead = match store {
                StoreUrl::Redis(_) => {
                    "give the store in the configuration, or as HAPAX__STORE; to look at keys, ask a gateway with --admin"
                }
                _ => {
                    "leave it out, and give it as PGPASSWORD, in ~/.pgpass, or in the configuration"
                }
            };
            eprintln!(
                "hapax: warning: everybody on this machine can read the password on this command line: {instead}"
            );
        }
        Ok(store)
    }

    /// The store that a command is about: of this flag, else of the configuration or the
    /// environment.
    pub(super) fn chosen(
        typed: Option<&StoreFlag>,
        config: Option<&Path>,
    ) -> Result<StoreUrl, Exit> {
        let store = match typed {
            Some(typed) => Some(typed.store()?),
            None => file::store(config, &Environment::of_process()).map_err(Exit::usage)?,
        };
        store.ok_or_else(|| {
            Exit::usage(
                "which database? Give --store postgres://USER@HOST/DATABASE, --config FILE, or HAPAX__STORE; --store postgres:// takes everything from the PG* variables",
            )
        })
    }
}

/// One principal source as given, valid or not: its URL may contain a secret, which clap would
/// repeat.
#[derive(Clone)]
pub(super) struct PrincipalFlag(Result<PrincipalSource, String>);

impl PrincipalFlag {
    /// The value parser for clap.
    pub(super) fn parse(text: &str) -> Result<PrincipalFlag, Infallible> {
        Ok(PrincipalFlag(text.parse()))
    }

    /// The given list; `None` if there is none.
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
