//! Where a consumer of messages begins its transactions.

use super::Transaction;
use crate::BoxError;

/// A pool, or a connection, on which transactions are begun one after the other: a `sqlx::PgPool`, a
/// `sqlx::SqlitePool` or a `sea_orm::DatabaseConnection`, with the feature of the driver.
///
/// The futures need not be `Send`: whether they are depends on the driver.
#[diagnostic::on_unimplemented(
    message = "hapax cannot begin transactions on `{Self}`",
    label = "this is no pool that hapax knows",
    note = "turn on the feature of hapax for your driver: sqlx-0_9-postgres, sqlx-0_9-sqlite or sea-orm-2",
    note = "without a pool, use `hapax_flow::consume::PostgresDatabase`"
)]
#[expect(async_fn_in_trait, reason = "as in `Session`")]
pub trait Database: Send + 'static {
    /// The driver's transaction.
    type Transaction: Transaction + Send + 'static;

    /// Begins a transaction. In SQLite, with the write lock: SQLite refuses a transaction that reads
    /// before it writes if another connection wrote in between.
    async fn begin(&mut self) -> Result<Self::Transaction, BoxError>;

    /// Returns when the database has rolled back: until then it holds the locks of the transaction.
    async fn roll_back(transaction: Self::Transaction) -> Result<(), BoxError>;
}
