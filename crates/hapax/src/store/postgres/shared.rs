//! The state that all pipelines of a store share.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use hapax_core::operation::Secret;
use parking_lot::Mutex;

use super::Options;
use super::connect::connect;
use super::error::{Failure, OpenError, is_missing, out_of_use, refused_role, wrong_isolation};
use super::high_water::Mark;
use super::pipeline::Link;
use super::policies::Policies;
use super::server_history::{ServerHistory, ServerInfo};
use super::stats::Counters;
use super::terms::KnownTerms;

pub(super) struct Shared {
    pub(super) options: Options,
    pub(super) counters: Counters,
    pub(super) policies: Policies,
    pub(super) terms: KnownTerms,
    pub(super) server_history: ServerHistory,
    /// The store's secret when it was opened. Other parts of the process have copied it and cannot
    /// change it.
    pub(super) secret: OnceLock<Secret>,
    /// The content of the high-water file at the start, until it is compared with the database.
    recalled: Mutex<Option<Mark>>,
    /// Whether the store was found out of use.
    is_out_of_use: AtomicBool,
}

impl Shared {
    pub(super) fn new(options: Options, recalled: Option<Mark>) -> Shared {
        Shared {
            options,
            counters: Counters::default(),
            policies: Policies::default(),
            terms: KnownTerms::default(),
            server_history: ServerHistory::default(),
            secret: OnceLock::new(),
            recalled: Mutex::new(recalled),
            is_out_of_use: AtomicBool::new(false),
        }
    }

    /// A new connection, after checking the database: its schema fits this version, and its history
    /// is the known one.
    pub(super) async fn connect(&self) -> Result<Arc<Link>, OpenError> {
        let begun = Instant::now();
        let link = Link::new(connect(&self.options.connection).await?);
        let asked = link.connected.client.query_typed(ServerInfo::SQL, &[]);
        let rows = tokio::time::timeout(self.options.statement_timeout, asked).await;
        let unusable = |source| OpenError::Unusable {
            database: self.options.connection.to_string(),
            source,
        };
        let rows = match rows {
            Ok(rows) => rows.map_err(|error| self.explain(error))?,
            Err(_) => {
                return Err(unusable(hapax_core::store::StoreError::unavailable(
                    "it did not answer in time",
                )));
            }
        };
        let info = ServerInfo::read(&rows).map_err(unusable)?;
        info.check(
            &self.options.connection,
            self.secret.get_or_init(|| info.store.secret),
        )?;
        self.recall(&info.store.secret);
        self.server_history
            .meet(begun, &info, &link, self)
            .await
            .map_err(|failure| unusable(failure.error))?;
        self.is_out_of_use.store(false, Ordering::Relaxed);
        Ok(link)
    }

    /// Takes over the high-water file, if it belongs to this store.
    fn recall(&self, secret: &Secret) {
        match self.recalled.lock().take() {
            Some(mark) if mark.is_of(secret) => self.server_history.recall(&mark),
            Some(_) => tracing::warn!(
                database = self.options.connection.to_string(),
                "the high-water file is of another store, and is ignored: that this database was restored cannot be told by it"
            ),
            None => {}
        }
    }

    /// Logs that the store is out of use, once until it is in use again.
    pub(super) fn sound_alarm(&self, refusal: &str) {
        if !self.is_out_of_use.swap(true, Ordering::Relaxed) {
            let database = self.options.connection.to_string();
            tracing::error!(
                database,
                "ALARM: {refusal}. This node must use another store; until then it answers 503"
            );
        }
    }

    pub(super) fn is_out_of_use(&self) -> bool {
        self.is_out_of_use.load(Ordering::Relaxed)
    }

    fn explain(&self, error: tokio_postgres::Error) -> OpenError {
        let database = self.options.connection.to_string();
        if let Some(refusal) = out_of_use(&error) {
            self.sound_alarm(&refusal);
            return OpenError::OutOfUse { database, refusal };
        }
        if let Some(reason) = wrong_isolation(&error) {
            return OpenError::WrongIsolation { database, reason };
        }
        if is_missing(&error) {
            return OpenError::NotMigrated { database };
        }
        match refused_role(&error) {
            Some(reason) => OpenError::NotAllowed { database, reason },
            None => OpenError::Unusable {
                database,
                source: Failure::new(error).error,
            },
        }
    }
}
