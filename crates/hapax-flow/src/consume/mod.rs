//! Consuming messages: each changes the database once, however often it is delivered.
//!
//! ```no_run
//! # async fn example<S: hapax_flow::consume::Source>(source: S) -> Result<(), Box<dyn std::error::Error>> {
//! use hapax::store::postgres::ConnectOptions;
//! use hapax_flow::consume::{Consumer, PostgresDatabase, PostgresTransaction, Received};
//! use tokio_util::sync::CancellationToken;
//!
//! let database = PostgresDatabase::new(ConnectOptions::parse("postgres://app@db.internal/shop")?);
//! let consumer = Consumer::new("inventory").source(source).database(database).handle(
//!     async |batch: &[Received], tx: &mut PostgresTransaction| {
//!         for message in batch {
//!             let item = message.key.as_deref();
//!             tx.execute("UPDATE stock SET reserved = reserved + 1 WHERE item = $1", &[&item]).await?;
//!         }
//!         Ok(())
//!     },
//! );
//! consumer.run(CancellationToken::new()).await?;
//! # Ok(()) }
//! ```
//!
//! A [`Source`] delivers messages at least once. The [`Consumer`] writes a receipt for each in the
//! transaction of its effect, and acknowledges last. So a message that is delivered again is known,
//! and changes nothing; a consumer that ends before the commit leaves neither effect nor receipt.
//!
//! A batch that fails is rolled back and tried in halves, until the message that fails is alone. It
//! is tried again a few times, while later messages of its key wait and others go on; then it is
//! parked for an operator: `hapax inbox parked`.
//!
//! | The effect is | The handler gets | Promise |
//! |---|---|---|
//! | in the database | messages and a transaction: [`database`](Sourced::database) | once: receipt and effect commit together |
//! | elsewhere, such as a mail or a charge | a message and an [`Operation`](hapax::Operation): [`once`](Sourced::once) | that of the mode of the operation |
//!
//! `run` is the life of a consumer, `attempt` one transaction, `backlog` what is tried again;
//! `outside` is the other kind of consumer. `pipe` is from Kafka to Kafka, without a database.

mod attempt;
mod backlog;
mod consumer;
mod metrics;
mod outside;
mod pipe;
mod postgres;
mod progress;
mod received;
mod rules;
mod run;
mod source;
mod sources;

pub use hapax::inbox::Window;

pub use consumer::{ByOnce, Consumer, Handled, HandledOnce, InDatabase, Sourced, StartError};
pub use metrics::metrics;
pub use pipe::{KafkaPipe, KafkaPipeOptions};
pub use postgres::{PostgresDatabase, PostgresTransaction};
pub use progress::{Counts, Progress};
pub use received::Received;
pub use rules::{Guarantee, Versions, WindowError};
pub use source::{Delivery, Incoming, Retention, Source};
pub use sources::*;
