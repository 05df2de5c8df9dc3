//! Stores: where records are kept.

#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod codec;
pub mod copy;
#[cfg(feature = "sqlite")]
pub mod guest;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "sqlite")]
pub mod sqlite;
#[cfg(feature = "sqlite")]
mod sqlite_kit;

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
