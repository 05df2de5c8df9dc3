//! Ends of attempts: many callers' in one statement.

use std::sync::Arc;

use hapax_core::record::{Fence, State};
use hapax_core::scope::RecordId;
use hapax_core::store::{Finish, Lifetime};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::batch::Verb;
use super::error::Failure;
use super::pipeline::{Parameters, Pipeline};
use super::row::micros;
use crate::store::codec::{bigint, state_code};

/// What the end of an attempt takes besides its answer.
const FINISH_BYTES: usize = 256;

const SQL: &str = "SELECT * FROM hapax.finish($1, $2, $3, $4, $5, $6, $7)";

/// The verb.
pub(super) struct Finishes;

/// The end of an attempt as it is sent.
pub(super) struct Ending {
    pub(super) id: RecordId,
    pub(super) fence: Fence,
    pub(super) state: State,
    pub(super) status: Option<i32>,
    pub(super) lifetime: Lifetime,
    /// Encoded by whoever asks: they are many, and the pipeline is one.
    pub(super) answer: Option<Vec<u8>>,
}

impl Ending {
    pub(super) fn new(id: RecordId, fence: Fence, finish: &Finish) -> Ending {
        Ending {
            id,
            fence,
            state: finish.state,
            status: finish.status.map(i32::from),
            lifetime: finish.lifetime,
            answer: finish.answer.as_ref().map(|answer| answer.encode(&id)),
        }
    }
}

impl Verb for Finishes {
    type Part = Ending;

    const CHANGES: bool = true;

    fn ids(part: &Ending) -> &[RecordId] {
        std::slice::from_ref(&part.id)
    }

    fn bytes(part: &Ending) -> usize {
        FINISH_BYTES + part.answer.as_ref().map_or(0, Vec::len)
    }

    /// Each parameter is a column of the batch.
    async fn send(pipeline: &Arc<Pipeline>, parts: &[&Ending]) -> Result<Vec<Row>, Failure> {
        let column =
            |of: fn(&Ending) -> i64| -> Vec<i64> { parts.iter().map(|part| of(part)).collect() };
        let ids: Vec<&[u8]> = parts.iter().map(|part| &part.id.as_bytes()[..]).collect();
        let states: Vec<i16> = parts.iter().map(|part| state_code(part.state)).collect();
        let statuses: Vec<Option<i32>> = parts.iter().map(|part| part.status).collect();
        let answers: Vec<Option<&[u8]>> = parts.iter().map(|part| part.answer.as_deref()).collect();
        let parameters: Parameters<'_> = &[
            (&ids, Type::BYTEA_ARRAY),
            (
                &column(|part| bigint(part.fence.as_u64())),
                Type::INT8_ARRAY,
            ),
            (&states, Type::INT2_ARRAY),
            (&statuses, Type::INT4_ARRAY),
            (
                &column(|part| micros(part.lifetime.retention)),
                Type::INT8_ARRAY,
            ),
            (
                &column(|part| micros(part.lifetime.tombstone)),
                Type::INT8_ARRAY,
            ),
            (&answers, Type::BYTEA_ARRAY),
        ];
        pipeline.ask(SQL, parameters).await
    }
}
