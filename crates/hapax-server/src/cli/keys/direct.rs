//! Accesses a store directly, without a gateway.

use std::path::Path;
use std::sync::Arc;

use hapax::core::audit::{LogEntry, LogQuery};
use hapax::core::operation::OperationIds;
use hapax::core::record::{Head, Record, State};
use hapax::core::store::{ListQuery, StoreError, StoreErrorKind};
use hapax::core::time::Timestamp;
use hapax::store::sqlite::{OpenError, View};
use hapax::{Hapax, OperatorError, RecordId, Sqlite, Store};

use crate::admin::keys::operate::{Operate, OperateError, Records};
use crate::cli::Exit;
use crate::config::{PostgresUrl, RedisUrl};
use crate::store;

/// A store. Reading a file changes nothing and works while another process owns it; changing it
/// requires owning it. A database or a Redis can be shared.
pub(super) struct Direct {
    inside: Inside,
    operation_ids: OperationIds,
    /// What is left of forgotten answers, if that is more than tombstones.
    leaves: Option<&'static str>,
}

enum Inside {
    View(Box<View>),
    Open(Hapax, Arc<dyn Store>),
}

const LEFT_IN_POSTGRES: &str = "the answers are deleted, and no node serves them any more. Their \
     bytes are in the files of those tables until a vacuum has freed them and they are written \
     over, and in the write-ahead log, replicas and backups for as long as you keep those";

const LEFT_IN_REDIS: &str = "the answers are deleted, and no node serves them any more. Their bytes \
     are in the append-only file until it is rewritten (BGREWRITEAOF), in a dump until the next \
     one, and in backups for as long as you keep those";

impl Direct {
    pub(super) fn view(path: &Path) -> Result<Direct, Exit> {
        let view = View::open(path).map_err(Exit::unreachable)?;
        let operation_ids = view.operation_ids().map_err(Exit::unreachable)?;
        Ok(Direct {
            inside: Inside::View(Box::new(view)),
            operation_ids,
            leaves: None,
        })
    }

    pub(super) async fn own(path: &Path) -> Result<Direct, Exit> {
        match Sqlite::open(path).await {
            Ok(store) => Direct::open(Arc::new(store), None).await,
            Err(OpenError::Owned { path, owner }) => Err(Exit::unreachable(format!(
                "{} is in use by process {owner}, which alone can change it. Ask that process: --admin http://127.0.0.1:4001, or wherever its admin listener is",
                path.display()
            ))),
            Err(error) => Err(Exit::unreachable(error)),
        }
    }

    pub(super) async fn postgres(url: &PostgresUrl) -> Result<Direct, Exit> {
        Direct::open(
            Arc::new(store::postgres(url).await?),
            Some(LEFT_IN_POSTGRES),
        )
        .await
    }

    pub(super) async fn redis(url: &RedisUrl) -> Result<Direct, Exit> {
        Direct::open(Arc::new(store::redis(url, 0).await?), Some(LEFT_IN_REDIS)).await
    }

    async fn open(store: Arc<dyn Store>, leaves: Option<&'static str>) -> Result<Direct, Exit> {
        let operation_ids = store
            .info()
            .await
            .map_err(Exit::unreachable)?
            .operation_ids();
        // No sweep: records that an operator is looking at should not be removed.
        let hapax = Hapax::builder_shared(store.clone()).sweep(None).build();
        Ok(Direct {
            inside: Inside::Open(hapax, store),
            operation_ids,
            leaves,
        })
    }

    /// What is left of forgotten answers, if that is more than tombstones.
    pub(super) fn leaves(&self) -> Option<&'static str> {
        self.leaves
    }

    pub(super) fn operate(&self) -> Operate<'_, Direct> {
        Operate {
            records: self,
            operation_ids: &self.operation_ids,
            rules: None,
        }
    }
}

impl Records for Direct {
    async fn heads(&self, query: ListQuery) -> Result<Vec<Head>, StoreError> {
        match &self.inside {
            Inside::View(view) => view.list(&query),
            Inside::Open(hapax, _) => hapax.list(query).await,
        }
    }

    async fn look(&self, id: RecordId) -> Result<(Record, State), OperatorError> {
        match &self.inside {
            Inside::View(view) => {
                let reading = view.get(&[id])?;
                let record = reading.records.into_iter().flatten().next();
                let record = record.ok_or(OperatorError::NotFound(id))?;
                let state = record.head.state_at(reading.now);
                Ok((record, state))
            }
            Inside::Open(hapax, _) => hapax.look(id).await,
        }
    }

    async fn log(&self, query: LogQuery) -> Result<Vec<LogEntry>, StoreError> {
        match &self.inside {
            Inside::View(view) => view.log(&query),
            Inside::Open(hapax, _) => hapax.log(query).await,
        }
    }

    /// The store's time.
    async fn now(&self) -> Result<Timestamp, StoreError> {
        match &self.inside {
            Inside::View(view) => view.get(&[]).map(|reading| reading.now),
            Inside::Open(_, store) => store.info().await.map(|info| info.now),
        }
    }

    fn hapax(&self) -> Result<&Hapax, OperateError> {
        match &self.inside {
            Inside::Open(hapax, _) => Ok(hapax),
            Inside::View(_) => Err(OperateError::BadRequest(
                "this file is only looked at".to_owned(),
            )),
        }
    }
}

/// If a database is unavailable it may come back, so `--watch` waits for it.
impl From<OperateError> for Exit {
    fn from(error: OperateError) -> Exit {
        match &error {
            OperateError::BadRequest(_) => Exit::usage(error),
            OperateError::Refused(OperatorError::Store(away))
                if away.kind() == StoreErrorKind::Unavailable =>
            {
                Exit::unreachable(error)
            }
            _ => Exit::failed(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::keys::wire::{Forget, Outcome, Settle};

    #[tokio::test]
    async fn on_a_file_too_only_what_was_shown_is_changed() {
        let directory = tempfile::tempdir().unwrap();
        let file = Direct::own(&directory.path().join("hapax.db"))
            .await
            .unwrap();
        let hapax = file.hapax().unwrap();
        let once = hapax.once("charge");
        let lost = once.run("k", "x", async |_| Err("the bank hung up"));
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
        let settle = async |fence: u64| {
            let settle = Settle {
                outcome: Outcome::DoneWithoutAnswer,
                fence: Some(fence),
                status: None,
                headers: Vec::new(),
                body: None,
                body_base64: None,
                by: "ada".to_owned(),
                reason: "r".to_owned(),
            };
            let (operate, signed) = (file.operate(), settle.signed());
            let settled = operate.settle(head.id, &settle, &signed).await;
            settled.map_err(|error| error.to_string())
        };
        let forget = async |version: u64| {
            let forget = Forget {
                version: Some(version),
                by: "ada".to_owned(),
                reason: "r".to_owned(),
            };
            let (operate, signed) = (file.operate(), forget.signed());
            let forgotten = operate.forget(head.id, &forget, &signed).await;
            forgotten.map_err(|error| error.to_string())
        };
        let fence = head.fence.as_u64();
        let other_fence = settle(fence - 1).await.unwrap_err();
        assert!(other_fence.contains("this is about"), "{other_fence}");
        let unsettled = forget(head.version).await.unwrap_err();
        assert!(unsettled.contains("settle it first"), "{unsettled}");
        let settled = settle(fence).await.unwrap();
        let outdated = forget(head.version).await.unwrap_err();
        assert!(outdated.contains("changed meanwhile"), "{outdated}");
        assert_eq!(forget(settled.version).await.unwrap().state, "expired");
    }
}
