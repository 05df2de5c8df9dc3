//! Replaces the configuration of a running gateway.
//!
//! All or nothing: a configuration with a mistake, one that needs a restart, or one that would
//! break a promise changes nothing. Requests that began under the old configuration end under it;
//! connections stay open. `promises.rs` finds the promises that would be broken, and `changes.rs`
//! lists what changes.

mod changes;
mod promises;

use std::sync::Arc;
use std::time::SystemTime;

use arc_swap::ArcSwap;
use hapax::Quotas;
use hapax::core::time::Timestamp;
use tokio::sync::Mutex;

pub use self::changes::Change;
use super::runtime::{Live, Runtime};
use crate::admin::{Readiness, Rules};
use crate::config::settings::needs_restart;
use crate::config::{Config, ConfigError};

/// Reads the configuration again: the current file, with the flags and the environment that the
/// program was started with.
pub type Reread = Arc<dyn Fn() -> Result<Config, ConfigError> + Send + Sync>;

/// Replaces the configuration of a running gateway. Cheap to clone.
#[derive(Clone)]
pub struct Reloader(Arc<Inner>);

struct Inner {
    live: Arc<ArcSwap<Live>>,
    runtime: Arc<Runtime>,
    ready: Arc<Readiness>,
    /// The rules and tokens of the admin listener.
    rules: Arc<ArcSwap<Rules>>,
    reread: Option<Reread>,
    /// Whether the program was started such that every reload may change scopes.
    allows_scope_change: bool,
    /// Makes reloads run one at a time.
    turn: Mutex<()>,
}

/// Why the configuration was not replaced. The text is for people, and says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReloadError {
    /// There is no file to read again.
    #[error("there is nothing to reload: this gateway was started without --config")]
    Nothing,
    /// The new configuration has mistakes.
    #[error("{0}")]
    Bad(String),
    /// The new configuration changes settings that only a restart can change.
    #[error(
        "needs a restart: {}. The next start takes the file with all that is in it, whatever that breaks: put it back unless that is meant",
        .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
    )]
    Restart(Vec<Change>),
    /// The new configuration would break promises to callers.
    #[error(
        "this would break promises to callers:\n{}\nPut the file back: the next start would take it as it is, unasked. If it is meant, allow it once with `hapax reload --allow-scope-change --reason TEXT`, or start with `hapax serve --reload-scopes`",
        .0.iter().map(|broken| format!("  {broken}")).collect::<Vec<_>>().join("\n")
    )]
    Promises(Vec<String>),
}

impl Reloader {
    pub(super) fn new(
        live: Arc<ArcSwap<Live>>,
        runtime: Arc<Runtime>,
        (ready, rules): (Arc<Readiness>, Arc<ArcSwap<Rules>>),
        reread: Option<Reread>,
        allows_scope_change: bool,
    ) -> Reloader {
        Reloader(Arc::new(Inner {
            live,
            runtime,
            ready,
            rules,
            reread,
            allows_scope_change,
            turn: Mutex::new(()),
        }))
    }

    /// Reads the configuration again, puts it in use, and returns what changed. The result also
    /// goes to the log and the metrics.
    ///
    /// `allows_scope_change` applies to this reload only. The reload completes even if the caller
    /// drops the future.
    pub async fn reload(&self, allows_scope_change: bool) -> Result<Vec<Change>, ReloadError> {
        let reloader = self.clone();
        let reloading = tokio::spawn(async move {
            let _turn = reloader.0.turn.lock().await;
            let ended = match reloader.reread().await {
                Ok(config) => reloader.take(config, allows_scope_change).await,
                Err(error) => Err(error),
            };
            reloader.tell(&ended);
            ended
        });
        reloading
            .await
            .unwrap_or_else(|error| Err(ReloadError::Bad(format!("the reload broke off: {error}"))))
    }

    async fn reread(&self) -> Result<Config, ReloadError> {
        let reread = self.0.reread.clone().ok_or(ReloadError::Nothing)?;
        // Reading files may block.
        let read = tokio::task::spawn_blocking(move || reread()).await;
        match read {
            Ok(Ok(config)) => Ok(config),
            Ok(Err(error)) => Err(ReloadError::Bad(error.to_string())),
            Err(error) => Err(ReloadError::Bad(format!("reading it broke off: {error}"))),
        }
    }

    async fn take(
        &self,
        config: Config,
        allows_scope_change: bool,
    ) -> Result<Vec<Change>, ReloadError> {
        let Inner {
            live,
            runtime,
            ready,
            rules,
            ..
        } = &*self.0;
        let before = live.load_full();
        let changes = changes::between(&before.config, &config);
        let fixed: Vec<Change> = changes
            .iter()
            .filter(|change| needs_restart(&change.setting))
            .cloned()
            .collect();
        if !fixed.is_empty() {
            return Err(ReloadError::Restart(fixed));
        }
        if !allows_scope_change && !self.0.allows_scope_change {
            self.keep_promises(&before.config, &config).await?;
        }
        let next = Live::new(config, runtime, Some(&before))
            .await
            .map_err(ReloadError::Bad)?;
        next.settle_in(Some(&before));
        let limits = &next.config.limits;
        runtime.hapax.set_quotas(Quotas {
            records_per_principal_max: limits.records_per_principal_max,
            bytes_per_principal_max: limits.bytes_per_principal_max,
            records_max: Some(limits.records_max),
            refused_records_max: Some(limits.refused_records_max),
        });
        ready.fails_open(next.config.fails_open());
        rules.store(Arc::new(Rules::new(&next.config)));
        live.store(Arc::new(next));
        Ok(changes)
    }

    async fn keep_promises(&self, old: &Config, new: &Config) -> Result<(), ReloadError> {
        let mut broken = promises::find_broken(old, new);
        if broken.is_empty() {
            return Ok(());
        }
        let now = Timestamp::from_system_time(SystemTime::now());
        let counted = promises::count(&mut broken, &self.0.runtime.hapax, old, new, now).await;
        let describe = |broken: promises::Broken| match counted {
            Ok(()) => broken.describe_counted(),
            Err(_) => broken.what,
        };
        Err(ReloadError::Promises(
            broken.into_iter().map(describe).collect(),
        ))
    }

    fn tell(&self, ended: &Result<Vec<Change>, ReloadError>) {
        let reloads = self.0.runtime.metrics.reloads();
        match ended {
            Ok(changes) => {
                reloads.ok();
                for Change { setting, from, to } in changes {
                    let (from, to) = (
                        from.as_deref().unwrap_or("nothing"),
                        to.as_deref().unwrap_or("nothing"),
                    );
                    tracing::info!(setting, from, to, "a setting changed");
                }
                tracing::info!(changes = changes.len(), "the configuration was reloaded");
            }
            Err(error @ ReloadError::Bad(_)) => {
                reloads.bad();
                tracing::error!(
                    "the configuration was not reloaded, and the one in use stays: it has mistakes\n{error}"
                );
            }
            // Nothing is out of date in this case, so it does not count as a refused reload.
            Err(error @ ReloadError::Nothing) => tracing::warn!("{error}"),
            Err(error) => {
                reloads.refused();
                tracing::error!(
                    "the configuration was not reloaded, and the one in use stays: {error}"
                );
            }
        }
    }
}
