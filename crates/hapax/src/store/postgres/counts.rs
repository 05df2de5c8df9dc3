//! The number of records, and the known principals.

use hapax_core::scope::PrincipalId;
use hapax_core::store::{Counts, KnownPrincipal, StoreError};
use tokio_postgres::types::Type;

use super::Postgres;
use super::row;
use crate::store::codec::bigint;

/// Principals in one statement.
const PRINCIPALS_MAX: usize = 1024;

impl Postgres {
    /// Continues counting. If it has to wait, that is not a failure: the next sweep continues.
    pub(super) async fn count_records(&self) {
        if let Err(failure) = self.aside.ask("SELECT hapax.count_records()", &[]).await {
            tracing::debug!(error = %failure.error, "records could not be counted yet");
        }
    }

    pub(super) async fn read_counts(&self) -> Result<Counts, StoreError> {
        let rows = self
            .aside("SELECT records, refused FROM hapax.read_counts()", &[])
            .await?;
        let row = rows
            .first()
            .ok_or_else(|| StoreError::corrupt("the database has lost its counts of records"))?;
        Ok(Counts {
            records: row::number(row, 0)?,
            refused: row::number(row, 1)?,
        })
    }

    pub(super) async fn remember_principals(
        &self,
        mut principals: Vec<KnownPrincipal>,
    ) -> Result<(), StoreError> {
        // Sorted, because everything is locked in the order of ids. Of each principal the latest
        // time is kept.
        principals.sort_unstable_by_key(|known| (known.id, std::cmp::Reverse(known.until)));
        principals.dedup_by_key(|known| known.id);
        for page in principals.chunks(PRINCIPALS_MAX) {
            let ids: Vec<&[u8]> = page.iter().map(|known| &known.id.as_bytes()[..]).collect();
            let untils: Vec<i64> = page
                .iter()
                .map(|known| bigint(known.until.as_micros()))
                .collect();
            self.aside(
                "SELECT hapax.remember($1, $2)",
                &[(&ids, Type::BYTEA_ARRAY), (&untils, Type::INT8_ARRAY)],
            )
            .await?;
        }
        Ok(())
    }

    pub(super) async fn knows_principal(&self, principal: PrincipalId) -> Result<bool, StoreError> {
        let id = &principal.as_bytes()[..];
        let rows = self
            .aside("SELECT hapax.knows($1)", &[(&id, Type::BYTEA)])
            .await?;
        rows.first().map_or(Ok(false), |row| row::get(row, 0))
    }
}
