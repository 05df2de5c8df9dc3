//! A store, asked without a gateway.

use std::path::Path;
use std::sync::Arc;

use hapax::core::operation::OperationIds;
use hapax::core::record::Fence;
use hapax::core::store::{Lifetime, StoreError, StoreErrorKind};
use hapax::core::time::Timestamp;
use hapax::store::sqlite::{OpenError, View};
use hapax::{Hapax, OperatorError, RecordId, Sqlite, Store};

use crate::admin::keys::logged::{Logged, LoggedPage};
use crate::admin::keys::scan::{self, Filter, Known};
use crate::admin::keys::settlement;
use crate::admin::keys::time::Time;
use crate::admin::keys::wire::{Entry, Forget, Page, Query, Settle, Shown};
use crate::admin::log::Which;
use crate::cli::Exit;
use crate::config::PostgresUrl;
use crate::store;

/// Keys read at once.
const PAGE: usize = 1_000;

/// A store. To look at a file changes nothing and is possible whoever owns it, to change it is to
/// own it; a database is everybody's.
pub(super) struct Direct {
    inside: Inside,
    operation_ids: OperationIds,
}

enum Inside {
    View(Box<View>),
    Open(Hapax, Arc<dyn Store>),
}

impl Direct {
    pub(super) fn view(path: &Path) -> Result<Direct, Exit> {
        let view = View::open(path).map_err(Exit::unreachable)?;
        let operation_ids = view.operation_ids().map_err(Exit::unreachable)?;
        Ok(Direct {
            inside: Inside::View(Box::new(view)),
            operation_ids,
        })
    }

    pub(super) async fn own(path: &Path) -> Result<Direct, Exit> {
        match Sqlite::open(path).await {
            Ok(store) => Direct::open(Arc::new(store)).await,
            Err(OpenError::Owned { path, owner }) => Err(Exit::unreachable(format!(
                "{} is in use by process {owner}, which alone can change it. Ask that process: --admin http://127.0.0.1:4001, or wherever its admin listener is",
                path.display()
            ))),
            Err(error) => Err(Exit::unreachable(error)),
        }
    }

    pub(super) async fn postgres(url: &PostgresUrl) -> Result<Direct, Exit> {
        Direct::open(Arc::new(store::postgres(url).await?)).await
    }

    async fn open(store: Arc<dyn Store>) -> Result<Direct, Exit> {
        let operation_ids = store
            .pulse()
            .await
            .map_err(Exit::unreachable)?
            .operation_ids();
        // Nothing is swept: what somebody came to look at should not go from under them.
        let hapax = Hapax::builder_shared(store.clone()).sweep(None).build();
        Ok(Direct {
            inside: Inside::Open(hapax, store),
            operation_ids,
        })
    }

    /// What a query means here: a store knows no routes by name.
    pub(super) fn filter(&self, query: &Query) -> Result<Filter, String> {
        Filter::of(
            query,
            &Known {
                routes: &[],
                operation_ids: self.operation_ids,
            },
        )
    }

    pub(super) async fn list(&self, query: &Query) -> Result<Page, Exit> {
        let filter = self.filter(query).map_err(Exit::usage)?;
        let after = query
            .after
            .as_deref()
            .map(str::parse::<RecordId>)
            .transpose()
            .map_err(Exit::failed)?;
        let limit = query.limit.unwrap_or(PAGE).min(PAGE);
        let now = self.now().await.map_err(exit)?;
        let found = match &self.inside {
            Inside::View(view) => scan::page(&**view, &filter, after, limit, now).await,
            Inside::Open(hapax, _) => scan::page(hapax, &filter, after, limit, now).await,
        };
        let found = found.map_err(exit)?;
        let keys = found
            .heads
            .iter()
            .map(|head| Entry::of(head, now, &self.operation_ids))
            .collect();
        Ok(Page {
            keys,
            looked_at: found.looked_at,
            next: found.next.map(|id| id.to_string()),
            now: Time(now),
        })
    }

    pub(super) async fn show(&self, id: RecordId, with_answer: bool) -> Result<Shown, Exit> {
        let now = self.now().await.map_err(exit)?;
        let record = match &self.inside {
            Inside::View(view) => {
                let mut reading = view.get(&[id]).map_err(exit)?;
                reading
                    .records
                    .pop()
                    .flatten()
                    .ok_or_else(|| Exit::failed(format!("there is no record {id}")))?
            }
            Inside::Open(hapax, _) => hapax.look(id).await.map_err(Exit::failed)?.0,
        };
        let answer = record.answer.as_deref().filter(|_| with_answer);
        Ok(Shown::of(
            Entry::of(&record.head, now, &self.operation_ids),
            answer,
            now,
        ))
    }

    pub(super) async fn log(&self, which: &Which) -> Result<LoggedPage, Exit> {
        let query = which.query().map_err(Exit::failed)?;
        let entries = match &self.inside {
            Inside::View(view) => view.log(&query),
            Inside::Open(hapax, _) => hapax.log(query).await,
        };
        let entries = entries.map_err(exit)?;
        Ok(LoggedPage::of(
            entries
                .iter()
                .map(|entry| Logged::of(entry, &self.operation_ids))
                .collect(),
            query.limit,
        ))
    }

    pub(super) async fn settle(&self, id: RecordId, settle: &Settle) -> Result<Entry, String> {
        let (hapax, signed) = (self.owned()?, settle.signed());
        let said = |error: OperatorError| error.to_string();
        let (record, state) = hapax.look(id).await.map_err(said)?;
        if let Some(fence) = settle.fence.filter(|_| record.head.is_unresolved(state)) {
            settlement::is_about(&record.head, fence)?;
        }
        let attempt = settle.fence.map_or(record.head.fence, Fence::from_u64);
        let settled = hapax.settle_attempt(
            id,
            attempt,
            settlement::of(settle)?,
            signed.audit(),
            Lifetime::default(),
        );
        let head = settled.await.map_err(said)?;
        self.entry(&head).await
    }

    pub(super) async fn forget(&self, id: RecordId, forget: &Forget) -> Result<Entry, String> {
        let (hapax, signed) = (self.owned()?, forget.signed());
        let said = |error: OperatorError| error.to_string();
        let (record, _) = hapax.look(id).await.map_err(said)?;
        let version = forget.version.unwrap_or(record.head.version);
        hapax
            .forget_version(id, version, signed.audit(), Lifetime::default())
            .await
            .map_err(said)?;
        let (record, _) = hapax.look(id).await.map_err(said)?;
        self.entry(&record.head).await
    }

    async fn entry(&self, head: &hapax::core::record::Head) -> Result<Entry, String> {
        let now = self.now().await.map_err(|error| error.to_string())?;
        Ok(Entry::of(head, now, &self.operation_ids))
    }

    fn owned(&self) -> Result<&Hapax, String> {
        match &self.inside {
            Inside::Open(hapax, _) => Ok(hapax),
            Inside::View(_) => Err("this file is only looked at".to_owned()),
        }
    }

    /// The store's time.
    async fn now(&self) -> Result<Timestamp, StoreError> {
        match &self.inside {
            Inside::View(view) => view.get(&[]).map(|reading| reading.now),
            Inside::Open(_, store) => store.pulse().await.map(|pulse| pulse.now),
        }
    }
}

/// A database that is away may come back, and whoever watches waits for it.
fn exit(error: StoreError) -> Exit {
    match error.kind() {
        StoreErrorKind::Unavailable => Exit::unreachable(error),
        _ => Exit::failed(error),
    }
}

#[cfg(test)]
mod tests {
    use hapax::core::store::ListQuery;
    use hapax::{Failure, Key};

    use super::*;
    use crate::admin::keys::wire::Outcome;

    #[tokio::test]
    async fn on_a_file_too_only_what_was_shown_is_changed() {
        let directory = tempfile::tempdir().unwrap();
        let file = Direct::own(&directory.path().join("hapax.db"))
            .await
            .unwrap();
        let hapax = file.owned().unwrap();
        let once = hapax.once("charge");
        let lost = once.run(Key::new("k").unwrap(), "x", async |_| {
            Err(Failure::Lost("the bank hung up".into()))
        });
        assert!(lost.await.is_err());
        let head = hapax
            .list(ListQuery {
                state: None,
                after: None,
                limit: 1,
            })
            .await
            .unwrap()
            .remove(0);
        let settle = |fence: u64| Settle {
            outcome: Outcome::DoneWithoutAnswer,
            fence: Some(fence),
            status: None,
            headers: Vec::new(),
            body: None,
            body_base64: None,
            by: "ada".to_owned(),
            reason: "r".to_owned(),
        };
        let forget = |version: u64| Forget {
            version: Some(version),
            by: "ada".to_owned(),
            reason: "r".to_owned(),
        };
        let fence = head.fence.as_u64();
        assert!(
            file.settle(head.id, &settle(fence - 1))
                .await
                .unwrap_err()
                .contains("this is about")
        );
        assert!(
            file.forget(head.id, &forget(head.version))
                .await
                .unwrap_err()
                .contains("settle it first")
        );
        let settled = file.settle(head.id, &settle(fence)).await.unwrap();
        assert!(
            file.forget(head.id, &forget(head.version))
                .await
                .unwrap_err()
                .contains("changed meanwhile")
        );
        assert_eq!(
            file.forget(head.id, &forget(settled.version))
                .await
                .unwrap()
                .state,
            "expired"
        );
    }
}
