//! A store file, asked without a gateway.

use std::path::Path;
use std::time::SystemTime;

use hapax::core::time::Timestamp;
use hapax::store::sqlite::{OpenError, View};
use hapax::{Hapax, RecordId, Sqlite};

use crate::admin::keys::scan;
use crate::admin::keys::settlement;
use crate::admin::keys::time::Time;
use crate::admin::keys::wire::{Entry, Page, Query, Settle, Shown, Signed};

/// Keys read at once.
const PAGE: usize = 1_000;

/// A store file. To look at it changes nothing and is possible whoever owns it; to change it is to own it.
pub(super) enum File {
    View(Box<View>),
    Owned(Hapax),
}

impl File {
    pub(super) fn view(path: &Path) -> Result<File, String> {
        View::open(path).map(|view| File::View(Box::new(view))).map_err(|error| error.to_string())
    }

    pub(super) async fn own(path: &Path) -> Result<File, String> {
        match Sqlite::open(path).await {
            // Nothing is swept: what somebody came to look at should not go from under them.
            Ok(store) => Ok(File::Owned(Hapax::builder(store).sweep(None).build())),
            Err(OpenError::Owned { path, owner }) => Err(format!(
                "{} is in use by process {owner}, which alone can change it. Ask that process: --admin http://127.0.0.1:4001, or wherever its admin listener is",
                path.display()
            )),
            Err(error) => Err(error.to_string()),
        }
    }

    pub(super) async fn list(&self, query: &Query, filter: &scan::Filter) -> Result<Page, String> {
        let after = query.after.as_deref().map(str::parse::<RecordId>).transpose().map_err(|error| error.to_string())?;
        let limit = query.limit.unwrap_or(PAGE).min(PAGE);
        let now = self.now()?;
        let found = match self {
            File::View(view) => scan::page(&**view, filter, after, limit, now).await,
            File::Owned(hapax) => scan::page(hapax, filter, after, limit, now).await,
        };
        let found = found.map_err(|error| error.to_string())?;
        let keys = found.heads.iter().map(|head| Entry::of(head, now)).collect();
        Ok(Page { keys, next: found.next.map(|id| id.to_string()), now: Time(now) })
    }

    pub(super) async fn show(&self, id: RecordId, with_answer: bool) -> Result<Shown, String> {
        let now = self.now()?;
        let record = match self {
            File::View(view) => {
                let mut reading = view.get(&[id]).map_err(|error| error.to_string())?;
                reading.records.pop().flatten().ok_or_else(|| format!("there is no record {id}"))?
            }
            File::Owned(hapax) => hapax.look(id).await.map_err(|error| error.to_string())?.0,
        };
        Ok(Shown::of(&record, now, with_answer))
    }

    pub(super) async fn settle(&self, id: RecordId, settle: &Settle) -> Result<Entry, String> {
        let (hapax, signed) = (self.owned()?, settle.signed());
        let head = hapax.settle(id, settlement::of(settle)?, signed.audit()?).await.map_err(|error| error.to_string())?;
        Ok(Entry::of(&head, self.now()?))
    }

    pub(super) async fn forget(&self, id: RecordId, signed: &Signed) -> Result<Entry, String> {
        let hapax = self.owned()?;
        hapax.forget(id, signed.audit()?).await.map_err(|error| error.to_string())?;
        let (record, _) = hapax.look(id).await.map_err(|error| error.to_string())?;
        Ok(Entry::of(&record.head, self.now()?))
    }

    fn owned(&self) -> Result<&Hapax, String> {
        match self {
            File::Owned(hapax) => Ok(hapax),
            File::View(_) => Err("this file is only looked at".to_owned()),
        }
    }

    /// The store's time where it can be asked for; else the wall's, where it began.
    fn now(&self) -> Result<Timestamp, String> {
        match self {
            File::View(view) => view.get(&[]).map(|reading| reading.now).map_err(|error| error.to_string()),
            File::Owned(_) => Ok(Timestamp::from_system_time(SystemTime::now())),
        }
    }
}
