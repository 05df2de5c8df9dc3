//! Reads: those of many callers in one statement, and pages of heads.

use std::sync::Arc;

use hapax_core::record::{Head, StateFilter};
use hapax_core::scope::RecordId;
use hapax_core::store::{ListQuery, Reading, StoreError};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::batch::Verb;
use super::error::Failure;
use super::pipeline::{Parameters, Pipeline};
use super::{Postgres, row};

pub(super) const GET: &str = "SELECT * FROM hapax.get($1)";
const LIST: &str = "SELECT * FROM hapax.list($1, $2, $3)";

/// Records that one caller reads in one statement; more are read in several.
const READ_MAX: usize = 256;
/// Heads in one statement. Bounds how long it delays others on its pipeline.
const PAGE_MAX: usize = 256;

/// Marks the batches of reads.
pub(super) struct Reads;

impl Verb for Reads {
    type Part = Vec<RecordId>;

    const CHANGES: bool = false;

    fn ids(part: &Vec<RecordId>) -> &[RecordId] {
        part
    }

    fn bytes(part: &Vec<RecordId>) -> usize {
        size_of_val(&**part)
    }

    async fn send(pipeline: &Arc<Pipeline>, parts: &[&Vec<RecordId>]) -> Result<Vec<Row>, Failure> {
        let mut ids: Vec<&[u8]> = parts
            .iter()
            .copied()
            .flatten()
            .map(|id| &id.as_bytes()[..])
            .collect();
        ids.sort_unstable();
        ids.dedup();
        pipeline.ask(GET, &[(&ids, Type::BYTEA_ARRAY)]).await
    }
}

impl Postgres {
    pub(super) async fn read(&self, ids: Vec<RecordId>) -> Result<Reading, StoreError> {
        if ids.len() <= READ_MAX {
            return self.read_page(ids).await;
        }
        let mut whole = Reading {
            records: Vec::with_capacity(ids.len()),
            now: hapax_core::Timestamp::ZERO,
        };
        for page in ids.chunks(READ_MAX) {
            let Reading { records, now } = self.read_page(page.to_vec()).await?;
            // The time of the first page: every record is as it was then, or later.
            whole.now = if whole.records.is_empty() {
                now
            } else {
                whole.now
            };
            whole.records.extend(records);
        }
        Ok(whole)
    }

    async fn read_page(&self, ids: Vec<RecordId>) -> Result<Reading, StoreError> {
        if ids.is_empty() {
            return Ok(Reading {
                records: Vec::new(),
                now: self.server_info().await?.store.now,
            });
        }
        let rows = self.through(&self.reads, Arc::new(ids)).await?;
        self.shared
            .policies
            .learn(rows.iter().map(|row| &**row), &self.aside)
            .await?;
        let now = rows
            .first()
            .map(|row| row::now(row))
            .transpose()?
            .unwrap_or_default();
        let records = rows
            .iter()
            .map(|row| row::record(row, &self.shared.policies, None));
        Ok(Reading {
            records: records.collect::<Result<_, _>>()?,
            now,
        })
    }

    pub(super) async fn page(&self, query: ListQuery) -> Result<Vec<Head>, StoreError> {
        let (mut heads, mut after) = (Vec::new(), query.after);
        while heads.len() < query.limit {
            let asked = PAGE_MAX.min(query.limit - heads.len());
            let page = self.part_of_page(query.state, after, asked).await?;
            let is_last = page.len() < asked;
            after = page.last().map(|head| head.id);
            heads.extend(page);
            if is_last {
                break;
            }
        }
        Ok(heads)
    }

    async fn part_of_page(
        &self,
        state: Option<StateFilter>,
        after: Option<RecordId>,
        rows: usize,
    ) -> Result<Vec<Head>, StoreError> {
        let state = state.map(StateFilter::word);
        let after = after.as_ref().map(|id| &id.as_bytes()[..]);
        let rows = i32::try_from(rows).unwrap_or(i32::MAX);
        let parameters: Parameters<'_> = &[
            (&state, Type::TEXT),
            (&after, Type::BYTEA),
            (&rows, Type::INT4),
        ];
        let rows = self.aside(LIST, parameters).await?;
        self.shared.policies.learn(&rows, &self.aside).await?;
        let mut heads = Vec::with_capacity(rows.len());
        for row in &rows {
            let now = row::now(row)?;
            heads.extend(row::head(row, &self.shared.policies, None)?.map(|head| head.at(now)));
        }
        Ok(heads)
    }
}
