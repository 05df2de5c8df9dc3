//! Claims: many callers' in one statement.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use hapax_core::planted::{self, Bug};
use hapax_core::record::Fence;
use hapax_core::scope::{Principal, RecordId};
use hapax_core::store::Claim;
use tokio_postgres::Row;
use tokio_postgres::types::Type;
use uuid::Uuid;

use super::batch::Verb;
use super::error::Failure;
use super::pipeline::{Parameters, Pipeline};
use super::row::micros;
use crate::store::codec::bigint;

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
        let column =
            |of: fn(&Wanted) -> i64| -> Vec<i64> { parts.iter().map(|part| of(part)).collect() };
        let texts = |of: fn(&Wanted) -> &str| -> Vec<&[u8]> {
            parts.iter().map(|part| of(part).as_bytes()).collect()
        };
        let ids: Vec<&[u8]> = parts.iter().map(|part| &part.id.as_bytes()[..]).collect();
        let fences: Vec<Option<i64>> = parts
            .iter()
            .map(|part| part.after.map(|fence| bigint(fence.as_u64())))
            .collect();
        let tokens: Vec<Uuid> = parts
            .iter()
            .map(|part| Uuid::from_bytes(*part.claim.token.as_bytes()))
            .collect();
        let fingerprints: Vec<&[u8]> = parts
            .iter()
            .map(|part| &part.claim.fingerprint.digest[..])
            .collect();
        let terms: Vec<Option<i64>> = parts.iter().map(|part| part.terms).collect();
        let request_ids: Vec<Option<&[u8]>> = parts
            .iter()
            .map(|part| {
                part.claim
                    .request_id
                    .as_ref()
                    .map(|id| id.as_str().as_bytes())
            })
            .collect();
        let principals: Vec<Option<&[u8]>> = parts
            .iter()
            .map(|part| principal(&part.claim.scope.principal))
            .collect();
        let parameters: Parameters<'_> = &[
            (&ids, Type::BYTEA_ARRAY),
            (&fences, Type::INT8_ARRAY),
            (&tokens, Type::UUID_ARRAY),
            (&column(lease), Type::INT8_ARRAY),
            (&column(|part| part.policy), Type::INT8_ARRAY),
            (&fingerprints, Type::BYTEA_ARRAY),
            (
                &texts(|part| &part.claim.scope.namespace),
                Type::BYTEA_ARRAY,
            ),
            (&principals, Type::BYTEA_ARRAY),
            (&texts(|part| &part.claim.scope.method), Type::BYTEA_ARRAY),
            (&texts(|part| &part.claim.scope.path), Type::BYTEA_ARRAY),
            (&texts(|part| part.claim.key.as_str()), Type::BYTEA_ARRAY),
            (&terms, Type::INT8_ARRAY),
            (&request_ids, Type::BYTEA_ARRAY),
        ];
        pipeline.ask(SQL, parameters).await
    }
}

/// A duration: only the database says from when on.
fn lease(part: &Wanted) -> i64 {
    let lease = micros(part.claim.lease);
    if planted::is(Bug::PgLeaseByNodeClock) {
        return micros(
            SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap_or_default(),
        ) + lease;
    }
    lease
}

/// Names are bytes: they may hold anything, NUL included.
fn principal(principal: &Principal) -> Option<&[u8]> {
    match principal {
        Principal::Anonymous => None,
        Principal::Named(name) => Some(name.as_bytes()),
    }
}
