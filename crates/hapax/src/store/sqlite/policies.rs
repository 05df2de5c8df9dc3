//! Fingerprint policies, each text stored once, because it is the same for every record of a route.

use std::collections::HashMap;
use std::sync::Arc;

use hapax_core::fingerprint::FingerprintPolicy;
use hapax_core::store::StoreError;
use parking_lot::Mutex;
use rusqlite::{Connection, OptionalExtension};

use crate::store::codec;
use crate::store::sqlite_kit::error::store_error;

/// The policies that this process knows, by their number in the file.
#[derive(Default)]
pub(super) struct Policies {
    known: Mutex<Known>,
}

/// The number of a policy, and whether it is durable.
pub(super) struct Number {
    pub(super) number: i64,
    pub(super) is_known: bool,
}

#[derive(Default)]
struct Known {
    by_number: HashMap<i64, Arc<FingerprintPolicy>>,
    by_policy: HashMap<Arc<FingerprintPolicy>, i64>,
}

impl Policies {
    pub(super) fn get(
        &self,
        connection: &Connection,
        number: i64,
    ) -> Result<Arc<FingerprintPolicy>, StoreError> {
        let mut known = self.known.lock();
        if let Some(policy) = known.by_number.get(&number) {
            return Ok(policy.clone());
        }
        let mut statement = connection
            .prepare_cached("SELECT text FROM policies WHERE policy = ?1")
            .map_err(store_error)?;
        let text: Option<String> = statement
            .query_row([number], |row| row.get(0))
            .optional()
            .map_err(store_error)?;
        let policy = codec::policy(&text.ok_or_else(codec::missing_policy)?)?;
        known.by_number.insert(number, policy.clone());
        Ok(policy)
    }

    /// The number of a policy, which is written into the file with the first record that needs it.
    pub(super) fn number(
        &self,
        connection: &Connection,
        policy: &Arc<FingerprintPolicy>,
    ) -> rusqlite::Result<Number> {
        let known = self.known.lock().by_policy.get(policy).copied();
        if let Some(number) = known {
            return Ok(Number {
                number,
                is_known: true,
            });
        }
        let text = policy.to_string();
        connection
            .prepare_cached("INSERT OR IGNORE INTO policies (text) VALUES (?1)")?
            .execute([&text])?;
        let mut statement =
            connection.prepare_cached("SELECT policy FROM policies WHERE text = ?1")?;
        Ok(Number {
            number: statement.query_row([&text], |row| row.get(0))?,
            is_known: false,
        })
    }

    /// Remembers a policy once the write that used it is durable.
    pub(super) fn remember(&self, policy: &Arc<FingerprintPolicy>, number: i64) {
        let mut known = self.known.lock();
        if !known.by_policy.contains_key(policy) {
            known.by_policy.insert(policy.clone(), number);
            known.by_number.insert(number, policy.clone());
        }
    }
}
