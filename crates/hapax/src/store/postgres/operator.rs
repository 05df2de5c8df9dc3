//! Writes of a single record: losses, settlements, and `forget`.

use hapax_core::audit::Signed;
use hapax_core::record::Fence;
use hapax_core::scope::RecordId;
use hapax_core::store::{Finish, Lifetime, StoreError, Written};
use tokio_postgres::types::Type;

use super::Postgres;
use super::pipeline::Parameters;
use super::retries::{Retries, decided};
use super::row::micros;
use crate::store::codec::{bigint, state_code};

impl Postgres {
    pub(super) async fn lose(
        &self,
        id: RecordId,
        fence: Fence,
        lifetime: Lifetime,
    ) -> Result<Written, StoreError> {
        let parameters: Parameters<'_> = &[
            (&&id.as_bytes()[..], Type::BYTEA),
            (&bigint(fence.as_u64()), Type::INT8),
            (&micros(lifetime.retention), Type::INT8),
            (&micros(lifetime.tombstone), Type::INT8),
        ];
        self.write_one("SELECT * FROM hapax.lose($1, $2, $3, $4)", parameters)
            .await
    }

    pub(super) async fn settle(
        &self,
        id: RecordId,
        version: u64,
        finish: &Finish,
        by: &Signed,
    ) -> Result<Written, StoreError> {
        let parameters: Parameters<'_> = &[
            (&&id.as_bytes()[..], Type::BYTEA),
            (&bigint(version), Type::INT8),
            (&state_code(finish.state), Type::INT2),
            (&finish.status.map(i32::from), Type::INT4),
            (&micros(finish.lifetime.retention), Type::INT8),
            (&micros(finish.lifetime.tombstone), Type::INT8),
            (
                &finish.answer.as_ref().map(|answer| answer.encode(&id)),
                Type::BYTEA,
            ),
            (&by.by().as_bytes(), Type::BYTEA),
            (&by.reason().as_bytes(), Type::BYTEA),
        ];
        self.write_one(
            "SELECT * FROM hapax.settle($1, $2, $3, $4, $5, $6, $7, $8, $9)",
            parameters,
        )
        .await
    }

    pub(super) async fn forget(
        &self,
        id: RecordId,
        version: u64,
        lifetime: Lifetime,
        by: &Signed,
    ) -> Result<Written, StoreError> {
        let parameters: Parameters<'_> = &[
            (&&id.as_bytes()[..], Type::BYTEA),
            (&bigint(version), Type::INT8),
            (&micros(lifetime.retention), Type::INT8),
            (&micros(lifetime.tombstone), Type::INT8),
            (&by.by().as_bytes(), Type::BYTEA),
            (&by.reason().as_bytes(), Type::BYTEA),
        ];
        self.write_one(
            "SELECT * FROM hapax.forget($1, $2, $3, $4, $5, $6)",
            parameters,
        )
        .await
    }

    /// Sends a write, and repeats it until it is decided or the lock timeout is over.
    async fn write_one(
        &self,
        sql: &str,
        parameters: Parameters<'_>,
    ) -> Result<Written, StoreError> {
        let mut retries = Retries::alone(self.shared.options.lock_timeout);
        loop {
            let sent = self.aside.ask(sql, parameters).await.and_then(decided);
            if let Some(rows) = retries.judge(sent).await? {
                return self.written(rows.first(), None).await;
            }
        }
    }
}
