//! Claims: many callers' in one statement.

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

/// What a claim takes besides its texts.
const CLAIM_BYTES: usize = 512;

const SQL: &str =
    "SELECT * FROM hapax.claim($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)";

/// The verb.
pub(super) struct Claims;

/// A claim as it is sent.
pub(super) struct Wanted {
    pub(super) id: RecordId,
    /// The attempt it follows, if it is not the first.
    pub(super) after: Option<Fence>,
    pub(super) claim: Claim,
    pub(super) policy: i64,
    pub(super) terms: Option<i64>,
}

impl Verb for Claims {
    type Part = Wanted;

    const CHANGES: bool = true;

    fn ids(part: &Wanted) -> &[RecordId] {
        std::slice::from_ref(&part.id)
    }

    fn bytes(part: &Wanted) -> usize {
        CLAIM_BYTES
            + part.claim.scope.namespace.len()
            + part.claim.scope.path.len()
            + part.claim.key.as_str().len()
    }

    /// Each parameter is a column of the batch.
    async fn send(pipeline: &Arc<Pipeline>, parts: &[&Wanted]) -> Result<Vec<Row>, Failure> {
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

/// A duration: only the database says from when on.
fn lease(part: &Wanted) -> i64 {
    micros(part.claim.lease)
}
