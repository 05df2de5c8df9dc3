//! Reads and changes records: one implementation for the admin listener and for `hapax keys` on a
//! store that it opens itself.

use std::sync::Arc;

use hapax::core::audit::{LogEntry, LogQuery};
use hapax::core::operation::OperationIds;
use hapax::core::record::{Fence, Head, Record, State};
use hapax::core::store::{Lifetime, ListQuery, StoreError};
use hapax::core::time::Timestamp;
use hapax::{Hapax, OperatorError, RecordId, Settlement};

use super::logged::{Logged, LoggedPage};
use super::scan::{self, Filter, Known};
use super::settlement;
use super::time::Time;
use super::wire::{Entry, Forget, Page, Query, Settle, Shown, Signed};
use crate::admin::Rules;
use crate::admin::log::Which;

/// The default and the largest number of keys in a page.
const PAGE_DEFAULT: usize = 100;
const PAGE_MAX: usize = 1_000;

/// Access to records.
pub(crate) trait Records {
    async fn heads(&self, query: ListQuery) -> Result<Vec<Head>, StoreError>;
    async fn look(&self, id: RecordId) -> Result<(Record, State), OperatorError>;
    async fn log(&self, query: LogQuery) -> Result<Vec<LogEntry>, StoreError>;
    /// The time at which states are evaluated.
    async fn now(&self) -> Result<Timestamp, StoreError>;
    /// The engine that changes records, if they can be changed here.
    fn hapax(&self) -> Result<&Hapax, OperateError>;
}

impl Records for Hapax {
    async fn heads(&self, query: ListQuery) -> Result<Vec<Head>, StoreError> {
        self.list(query).await
    }

    async fn look(&self, id: RecordId) -> Result<(Record, State), OperatorError> {
        self.look(id).await
    }

    async fn log(&self, query: LogQuery) -> Result<Vec<LogEntry>, StoreError> {
        self.log(query).await
    }

    async fn now(&self) -> Result<Timestamp, StoreError> {
        Ok(super::now())
    }

    fn hapax(&self) -> Result<&Hapax, OperateError> {
        Ok(self)
    }
}

/// Why an operation was not done.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OperateError {
    /// The request is not valid.
    #[error("{0}")]
    BadRequest(String),
    /// The request is about another attempt than the lost one.
    #[error("{0}")]
    OtherFence(String),
    #[error(transparent)]
    Refused(#[from] OperatorError),
}

impl From<StoreError> for OperateError {
    fn from(error: StoreError) -> OperateError {
        OperateError::Refused(OperatorError::Store(error))
    }
}

/// Records, and the context needed to show and change them.
pub(crate) struct Operate<'a, R> {
    pub(crate) records: &'a R,
    pub(crate) operation_ids: &'a OperationIds,
    /// The rules of the configuration; `None` for a store alone, which knows no routes.
    pub(crate) rules: Option<Arc<Rules>>,
}

impl<R: Records> Operate<'_, R> {
    pub(crate) async fn list(&self, query: &Query) -> Result<Page, OperateError> {
        let known = Known {
            routes: self.rules.as_ref().map_or(&[], |rules| &rules.routes),
            operation_ids: *self.operation_ids,
        };
        let filter = Filter::parse(query, &known).map_err(OperateError::BadRequest)?;
        let after = query.after.as_deref().map(record_id).transpose()?;
        let limit = query.limit.unwrap_or(PAGE_DEFAULT).clamp(1, PAGE_MAX);
        let now = self.records.now().await?;
        let found = scan::page(self.records, &filter, after, limit, now).await?;
        let keys = found
            .heads
            .iter()
            .map(|head| Entry::new(head, now, self.operation_ids))
            .collect();
        Ok(Page {
            keys,
            looked_at: found.looked_at,
            next: found.next.map(|id| id.to_string()),
            now: Time(now),
        })
    }

    pub(crate) async fn show(&self, id: RecordId, answer: bool) -> Result<Shown, OperateError> {
        let (record, _) = self.records.look(id).await?;
        let now = self.records.now().await?;
        let answer = record.answer.as_deref().filter(|_| answer);
        let entry = Entry::new(&record.head, now, self.operation_ids);
        Ok(Shown::new(entry, answer, now))
    }

    pub(crate) async fn log(&self, which: &Which) -> Result<LoggedPage, OperateError> {
        let query = which.query()?;
        let entries = self.records.log(query).await?;
        let entries = entries
            .iter()
            .map(|entry| Logged::new(entry, self.operation_ids))
            .collect();
        Ok(LoggedPage::new(entries, query.limit))
    }

    pub(crate) async fn settle(
        &self,
        id: RecordId,
        settle: &Settle,
        signed: &Signed,
    ) -> Result<Entry, OperateError> {
        let settlement = settlement::parse(settle).map_err(OperateError::BadRequest)?;
        let (record, state) = self.records.look(id).await?;
        if let Some(fence) = settle.fence.filter(|_| record.head.is_unresolved(state)) {
            settlement::is_about(&record.head, fence).map_err(OperateError::OtherFence)?;
        }
        let settlement = self.versioned(settlement, &record.head);
        // Uses the fence that the caller gave, not the one found: that attempt may have been lost
        // only just now.
        let attempt = settle.fence.map_or(record.head.fence, Fence::from_u64);
        let head = self
            .settle_attempt(&record.head, attempt, settlement, signed)
            .await?;
        self.entry(&head).await
    }

    /// Settles an attempt of a record that was read before.
    pub(crate) async fn settle_attempt(
        &self,
        head: &Head,
        attempt: Fence,
        settlement: Settlement,
        signed: &Signed,
    ) -> Result<Head, OperateError> {
        let lifetime = self.lifetime(head);
        Ok(self
            .records
            .hapax()?
            .settle_attempt(head.id, attempt, settlement, signed.audit(), lifetime)
            .await?)
    }

    pub(crate) async fn forget(
        &self,
        id: RecordId,
        forget: &Forget,
        signed: &Signed,
    ) -> Result<Entry, OperateError> {
        let (record, _) = self.records.look(id).await?;
        let version = forget.version.unwrap_or(record.head.version);
        let lifetime = self.lifetime(&record.head);
        self.records
            .hapax()?
            .forget_version(id, version, signed.audit(), lifetime)
            .await?;
        let (record, _) = self.records.look(id).await?;
        self.entry(&record.head).await
    }

    /// The settlement of a record, with its answer under the version that its route replays.
    pub(crate) fn versioned(&self, settlement: Settlement, head: &Head) -> Settlement {
        match &self.rules {
            Some(rules) => rules.current(settlement, &head.scope),
            None => settlement,
        }
    }

    fn lifetime(&self, head: &Head) -> Lifetime {
        self.rules
            .as_ref()
            .map_or_else(Lifetime::default, |rules| rules.lifetime(&head.scope))
    }

    async fn entry(&self, head: &Head) -> Result<Entry, OperateError> {
        let now = self.records.now().await?;
        Ok(Entry::new(head, now, self.operation_ids))
    }
}

/// Parses a record id from user input.
pub(crate) fn record_id(text: &str) -> Result<RecordId, OperateError> {
    text.parse()
        .map_err(|error| OperateError::BadRequest(format!("{error}: list the keys to find it")))
}
