//! Ends of attempts: those of many callers in one statement.

use std::sync::Arc;

use hapax_core::record::{Fence, State};
use hapax_core::scope::RecordId;
use hapax_core::store::{Finish, Lifetime};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::batch::Verb;
use super::columns::Columns;
use super::error::Failure;
use super::pipeline::Pipeline;
use super::row::micros;
use crate::store::codec::{bigint, state_code};

/// The size of an end without its answer.
const FINISH_BYTES: usize = 256;

const SQL: &str = "SELECT * FROM hapax.finish($1, $2, $3, $4, $5, $6, $7)";

/// Marks the batches of ends.
pub(super) struct Finishes;

/// The end of an attempt to send.
pub(super) struct FinishRow {
    pub(super) id: RecordId,
    pub(super) fence: Fence,
    pub(super) state: State,
    pub(super) status: Option<i32>,
    pub(super) lifetime: Lifetime,
    /// Encoded on the caller's task, because there is only one pipeline.
    pub(super) answer: Option<Vec<u8>>,
}

impl FinishRow {
    pub(super) fn new(id: RecordId, fence: Fence, finish: &Finish) -> FinishRow {
        FinishRow {
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
    type Part = FinishRow;

    const CHANGES: bool = true;

    fn ids(part: &FinishRow) -> &[RecordId] {
        std::slice::from_ref(&part.id)
    }

    fn bytes(part: &FinishRow) -> usize {
        FINISH_BYTES + part.answer.as_ref().map_or(0, Vec::len)
    }

    /// Each parameter is a column of the batch.
    async fn send(pipeline: &Arc<Pipeline>, parts: &[&FinishRow]) -> Result<Vec<Row>, Failure> {
        let mut columns = Columns::new(parts);
        columns.add_bytes(|it| Some(it.id.as_bytes()));
        columns.add_number(|it| Some(bigint(it.fence.as_u64())));
        columns.add(Type::INT2_ARRAY, |it| state_code(it.state));
        columns.add(Type::INT4_ARRAY, |it| it.status);
        columns.add_number(|it| Some(micros(it.lifetime.retention)));
        columns.add_number(|it| Some(micros(it.lifetime.tombstone)));
        columns.add_bytes(|it| it.answer.as_deref());
        pipeline.ask(SQL, &columns.parameters()).await
    }
}
