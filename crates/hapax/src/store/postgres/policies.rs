//! Fingerprint policies, each text stored once, because it is the same for every record of a route.
//! A policy's number is computed from its text, so that all nodes use the same number without
//! asking.

use std::collections::HashMap;
use std::sync::Arc;

use hapax_core::fingerprint::FingerprintPolicy;
use hapax_core::store::StoreError;
use parking_lot::RwLock;
use sha2::{Digest, Sha256};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::pipeline::Pipeline;
use super::row;
use crate::store::codec;

/// Reads policies by their numbers.
pub(super) const SQL: &str = "SELECT id, content FROM hapax.policies($1)";

/// The policies that this process knows.
#[derive(Default)]
pub(super) struct Policies {
    known: RwLock<Known>,
}

#[derive(Default)]
struct Known {
    /// Those that were sent to the database.
    sent: HashMap<Arc<FingerprintPolicy>, i64>,
    by_number: HashMap<i64, Arc<FingerprintPolicy>>,
}

impl Policies {
    /// The number of a policy, after making sure that the database has it.
    pub(super) async fn number(
        &self,
        policy: &Arc<FingerprintPolicy>,
        pipeline: &Arc<Pipeline>,
    ) -> Result<i64, StoreError> {
        if let Some(number) = self.known.read().sent.get(policy) {
            return Ok(*number);
        }
        let text = policy.to_string();
        let number = number(&text);
        pipeline
            .ask(
                "SELECT hapax.policy($1, $2)",
                &[(&number, Type::INT8), (&text.as_bytes(), Type::BYTEA)],
            )
            .await
            .map_err(|failure| failure.error)?;
        let mut known = self.known.write();
        known.sent.insert(policy.clone(), number);
        known.by_number.insert(number, policy.clone());
        Ok(number)
    }

    /// Makes sure that every policy named in these rows is known.
    pub(super) async fn learn<'a>(
        &self,
        rows: impl IntoIterator<Item = &'a Row>,
        pipeline: &Arc<Pipeline>,
    ) -> Result<(), StoreError> {
        let missing = self.missing(rows)?;
        if missing.is_empty() {
            return Ok(());
        }
        let rows = pipeline
            .ask(SQL, &[(&missing, Type::INT8_ARRAY)])
            .await
            .map_err(|failure| failure.error)?;
        self.take_in(&rows)
    }

    /// Adds policies read from the database.
    pub(super) fn take_in(&self, rows: &[Row]) -> Result<(), StoreError> {
        for row in rows {
            let (number, text): (i64, _) = (row::get(row, 0)?, row::text(row, 1)?);
            let policy = codec::policy(text)?;
            self.known.write().by_number.insert(number, policy);
        }
        Ok(())
    }

    /// The policy with this number, if it was [learned](Policies::learn).
    pub(super) fn get(&self, number: i64) -> Result<Arc<FingerprintPolicy>, StoreError> {
        let policy = self.known.read().by_number.get(&number).cloned();
        policy.ok_or_else(codec::missing_policy)
    }

    /// Forgets what was sent, because the database may be another one now.
    pub(super) fn forget_sent(&self) {
        self.known.write().sent.clear();
    }

    /// The policies that these rows name and that are not known.
    pub(super) fn missing<'a>(
        &self,
        rows: impl IntoIterator<Item = &'a Row>,
    ) -> Result<Vec<i64>, StoreError> {
        let known = self.known.read();
        let mut missing = Vec::new();
        for row in rows {
            if let Some(number) = row::policy(row)?
                && !known.by_number.contains_key(&number)
                && !missing.contains(&number)
            {
                missing.push(number);
            }
        }
        Ok(missing)
    }
}

/// The first eight bytes of the text's digest. Records contain this number: never change it.
pub(super) fn number(text: &str) -> i64 {
    let digest = Sha256::digest(text.as_bytes());
    i64::from_be_bytes(std::array::from_fn(|at| digest[at]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_has_the_same_number_for_ever() {
        assert_eq!(number("abc"), 0xba78_16bf_8f01_cfea_u64 as i64);
    }
}
