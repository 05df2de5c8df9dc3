//! Stores: where records are kept.
//!
//! | Store | For | Opened by |
//! |---|---|---|
//! | [`Sqlite`](sqlite::Sqlite) | one process | `Hapax::sqlite(path).await?` |
//! | [`Postgres`](postgres::Postgres) | many nodes, and effects in the same database | `Hapax::postgres(url).await?` |
//! | [`Redis`](redis::Redis) | many nodes that may lose a little | `Hapax::redis_best_effort(url).await?` |
//! | [`Tiered`](tiered::Tiered) | many nodes and cheap repeats: Redis over Postgres | `Hapax::new(Tiered::new(postgres, &options)?)` |
//! | [`Guest`](guest::Guest) | effects in your own SQLite file | `Hapax::new(Guest::open(path).await?)` |
//! | [`memory`] | tests, and services that may forget | `Hapax::memory()` |
//!
//! A store of your own implements [`Store`](hapax_core::Store); the suite of `hapax-contract` says
//! whether it keeps the contract. A wrapper passes most verbs on:
//!
//! ```
//! use std::sync::atomic::{AtomicU64, Ordering};
//!
//! use hapax::core::forward_store;
//! use hapax::core::store::{Put, Reply, Written};
//! use hapax::{Hapax, Store};
//!
//! struct CountWrites<S> {
//!     store: S,
//!     writes: AtomicU64,
//! }
//!
//! impl<S: Store> Store for CountWrites<S> {
//!     fn put_if(&self, put: Put) -> Reply<'_, Written> {
//!         self.writes.fetch_add(1, Ordering::Relaxed);
//!         self.store.put_if(put)
//!     }
//!
//!     forward_store!(
//!         self => self.store;
//!         get, renew, list, sweep, info, remember, knows, log, note, joins, wakes
//!     );
//! }
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() {
//! let store = CountWrites { store: hapax::store::memory(), writes: AtomicU64::new(0) };
//! let hapax = Hapax::new(store).namespace("shop");
//! # drop(hapax); }
//! ```

#[cfg(any(feature = "postgres", feature = "redis", feature = "sqlite"))]
mod codec;
pub mod copy;
#[cfg(feature = "sqlite")]
pub mod guest;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "sqlite")]
pub mod sqlite;
#[cfg(feature = "sqlite")]
mod sqlite_kit;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod start_row;
#[cfg(all(feature = "postgres", feature = "redis"))]
pub mod tiered;

use std::sync::Arc;

use hapax_core::{Memory, Secret};

use crate::clock::BootClock;

/// Records in memory, by this machine's clock: for development, and for services that can bear to
/// forget when they restart.
pub fn memory() -> Memory {
    Memory::new(Arc::new(BootClock::default()), random_secret())
}

pub(crate) fn random_secret() -> Secret {
    let (a, b) = (uuid::Uuid::new_v4(), uuid::Uuid::new_v4());
    let mut bytes = [0; 32];
    bytes[..16].copy_from_slice(a.as_bytes());
    bytes[16..].copy_from_slice(b.as_bytes());
    Secret::from_bytes(bytes)
}
