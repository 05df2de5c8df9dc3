//! A node's background work: renews leases, sweeps, drops answers in bulk, and asks for the store
//! info.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use hapax_core::scope::RecordId;
use hapax_core::store::{Renewal, StoreError, Swept};
use hapax_core::time::Timestamp;
use tokio_postgres::types::Type;

use super::Postgres;
use super::pipeline::Parameters;
use super::row::{self, micros};
use super::server_history::ServerInfo;
use crate::hash::Ids;
use crate::store::codec::bigint;

/// Renewals in one statement.
const RENEWALS_MAX: usize = 1024;

impl Postgres {
    pub(super) async fn extend(&self, renewals: Vec<Renewal>) -> Result<Vec<bool>, StoreError> {
        let mut renewed = Vec::with_capacity(renewals.len());
        for page in renewals.chunks(RENEWALS_MAX) {
            renewed.extend(self.extend_page(page).await?);
        }
        Ok(renewed)
    }

    /// Renews leases in the order of their ids, because everything is locked in that order.
    async fn extend_page(&self, renewals: &[Renewal]) -> Result<Vec<bool>, StoreError> {
        let mut sorted: Vec<&Renewal> = renewals.iter().collect();
        sorted.sort_unstable_by_key(|renewal| renewal.id);
        let ids: Vec<&[u8]> = sorted
            .iter()
            .map(|renewal| &renewal.id.as_bytes()[..])
            .collect();
        let fences: Vec<i64> = sorted
            .iter()
            .map(|renewal| bigint(renewal.fence.as_u64()))
            .collect();
        let leases: Vec<i64> = sorted.iter().map(|renewal| micros(renewal.lease)).collect();
        let parameters: Parameters<'_> = &[
            (&ids, Type::BYTEA_ARRAY),
            (&fences, Type::INT8_ARRAY),
            (&leases, Type::INT8_ARRAY),
        ];
        let rows = self
            .aside(
                "SELECT id, verdict FROM hapax.renew($1, $2, $3)",
                parameters,
            )
            .await?;
        // A locked record has no row, and is not lost: most likely the attempt itself has locked
        // it, in its own transaction.
        let mut told = HashMap::with_hasher(Ids::default());
        for row in &rows {
            told.insert(
                RecordId::from_bytes(row::array(row::get(row, 0)?)?),
                row::get::<i16>(row, 1)? != 0,
            );
        }
        Ok(renewals
            .iter()
            .map(|renewal| told.get(&renewal.id).copied().unwrap_or(true))
            .collect())
    }

    /// Sweeps, and then drops expired answers in bulk. If dropping has to wait, that is not a
    /// failure: a later sweep does it.
    pub(super) async fn clear(&self, limit: usize) -> Result<Swept, StoreError> {
        if limit == 0 {
            return Ok(Swept::default());
        }
        let limit = i32::try_from(limit).unwrap_or(i32::MAX);
        // Compare the clocks first, so that nothing is removed by a wrong clock.
        self.keep_time().await?;
        let sql = "SELECT lost, buried, removed, unlogged FROM hapax.sweep($1)";
        let rows = self.aside(sql, &[(&limit, Type::INT4)]).await?;
        let row = rows
            .first()
            .ok_or_else(|| StoreError::corrupt("a sweep says nothing of what it did"))?;
        let count =
            |column| row::get::<i32>(row, column).map(|count| count.unsigned_abs() as usize);
        let swept = Swept {
            lost: count(0)?,
            buried: count(1)?,
            removed: count(2)?,
            unlogged: count(3)?,
        };
        match self.aside.ask("SELECT hapax.turn()", &[]).await {
            Ok(rows) => {
                let turned = rows
                    .first()
                    .map(|row| row::get::<i32>(row, 0))
                    .transpose()?
                    .unwrap_or(0);
                self.shared
                    .counters
                    .turns
                    .fetch_add(u64::from(turned.unsigned_abs()), Ordering::Relaxed);
            }
            Err(failure) => {
                tracing::debug!(error = %failure.error, "answers that are over could not be dropped yet");
            }
        }
        self.count_records().await;
        Ok(swept)
    }

    /// Lets the database compare its clock with this node's (see `hapax.keep_time`). Raises an
    /// alarm if the database's clock is ahead.
    pub(super) async fn keep_time(&self) -> Result<(), StoreError> {
        let wall = || Timestamp::from_system_time(SystemTime::now());
        let node_clock = bigint(
            self.shared
                .options
                .clock
                .as_ref()
                .map_or_else(wall, |clock| clock.now())
                .as_micros(),
        );
        let rows = self
            .aside("SELECT hapax.keep_time($1)", &[(&node_clock, Type::INT8)])
            .await?;
        let row = rows
            .first()
            .ok_or_else(|| StoreError::corrupt("the database says nothing of its clock"))?;
        if let Some(ahead) = row::get::<Option<i64>>(row, 0)? {
            self.shared
                .counters
                .clock_is_ahead(Duration::from_micros(ahead.unsigned_abs()));
        }
        Ok(())
    }

    /// Reads the database's information about itself, and checks whether the database has changed.
    pub(super) async fn server_info(&self) -> Result<ServerInfo, StoreError> {
        let link = self.aside.link().await?;
        let asked = self.aside(ServerInfo::SQL, &[]).await;
        if asked.is_err() && self.shared.is_out_of_use() {
            // Some functions might still answer reads: reconnect, so that none does.
            self.pipelines
                .iter()
                .for_each(super::pipeline::Pipeline::begin_anew);
        }
        let rows = asked?;
        let info = ServerInfo::read(&rows)?;
        let secret = self.shared.secret.get_or_init(|| info.store.secret);
        if let Err(error) = info.check(&self.shared.options.connection, secret) {
            tracing::error!(%error, "the database can no longer be used by this program");
            // All pipelines reconnect and make the same check, so that nothing is written into a
            // store that this program does not understand.
            self.pipelines
                .iter()
                .for_each(super::pipeline::Pipeline::begin_anew);
            return Err(error.into());
        }
        self.shared
            .server_history
            .watch(&info, &link, &self.shared)
            .await
            .map_err(|failure| failure.error)?;
        Ok(info)
    }
}
