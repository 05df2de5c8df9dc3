//! Claims: those of many callers in one statement.

use std::sync::Arc;

use hapax_core::record::Fence;
use hapax_core::scope::RecordId;
use hapax_core::store::Claim;
use tokio_postgres::Row;
use tokio_postgres::types::Type;
use uuid::Uuid;

use super::batch::Verb;
use super::columns::Columns;
use super::error::Failure;
use super::pipeline::Pipeline;
use super::row::micros;
use crate::store::codec::{bigint, principal};

/// The size of a claim without its texts.
const CLAIM_BYTES: usize = 512;

const SQL: &str =
    "SELECT * FROM hapax.claim($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)";

/// Marks the batches of claims.
pub(super) struct Claims;

/// A claim to send.
pub(super) struct ClaimRow {
    pub(super) id: RecordId,
    /// The fence of the attempt it follows; `None` for the first attempt.
    pub(super) after: Option<Fence>,
    pub(super) claim: Claim,
    pub(super) policy: i64,
    pub(super) terms: Option<i64>,
}

impl Verb for Claims {
    type Part = ClaimRow;

    const CHANGES: bool = true;

    fn ids(part: &ClaimRow) -> &[RecordId] {
        std::slice::from_ref(&part.id)
    }

    fn bytes(part: &ClaimRow) -> usize {
        CLAIM_BYTES
            + part.claim.scope.namespace.len()
            + part.claim.scope.path.len()
            + part.claim.key.as_str().len()
    }

    /// Each parameter is a column of the batch.
    async fn send(pipeline: &Arc<Pipeline>, parts: &[&ClaimRow]) -> Result<Vec<Row>, Failure> {
        let mut columns = Columns::new(parts);
        columns.add_bytes(|it| Some(it.id.as_bytes()));
        columns.add_number(|it| it.after.map(|fence| bigint(fence.as_u64())));
        columns.add(Type::UUID_ARRAY, |it| {
            Uuid::from_bytes(*it.claim.token.as_bytes())
        });
        columns.add_number(|it| Some(lease(it)));
        columns.add_number(|it| Some(it.policy));
        columns.add_bytes(|it| Some(&it.claim.fingerprint.digest));
        columns.add_text(|it| Some(&it.claim.scope.namespace));
        columns.add_text(|it| principal(&it.claim.scope));
        columns.add_text(|it| Some(&it.claim.scope.method));
        columns.add_text(|it| Some(&it.claim.scope.path));
        columns.add_text(|it| Some(it.claim.key.as_str()));
        columns.add_number(|it| it.terms);
        columns.add_text(|it| Some(it.claim.request_id.as_ref()?.as_str()));
        pipeline.ask(SQL, &columns.parameters()).await
    }
}

/// The length of the lease. The database adds it to its own time.
fn lease(part: &ClaimRow) -> i64 {
    micros(part.claim.lease)
}
