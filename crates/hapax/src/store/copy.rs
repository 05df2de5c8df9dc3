//! Copying: brings everything of one store into another, which then serves in its place.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use hapax::store::{copy, memory};
//!
//! let (from, to) = (memory(), memory());
//! let copied = copy::copy(copy::End::new("old", &from), copy::End::new("new", &to), |_| {}).await?;
//! println!("{} records", copied.records);
//! # Ok(()) }
//! ```
//!
//! [`hapax_core::transfer`] explains the order of the steps, and why a copy may be killed at any
//! point.

use hapax_core::record::Record;
use hapax_core::scope::RecordId;
use hapax_core::store::{Reply, StoreError, StoreErrorKind};
use hapax_core::transfer::{
    Account, CopyId, Left, Page, Passage, Position, Shipment, Standing, Survey, Transfer,
};

/// One of the two stores, with the name by which the other will know it.
#[derive(Clone, Copy)]
pub struct End<'a> {
    name: &'a str,
    store: &'a dyn Transfer,
}

impl<'a> End<'a> {
    /// A store and its name. The name is stored and displayed: it must not contain a password.
    pub fn new(name: &'a str, store: &'a dyn Transfer) -> End<'a> {
        End { name, store }
    }

    fn passage(&self, copy: CopyId) -> Passage {
        Passage {
            copy,
            other: self.name.to_owned(),
        }
    }

    /// An error of this store, with its name.
    fn failed(&self, error: StoreError) -> CopyError {
        CopyError::Store {
            name: self.name.to_owned(),
            source: error,
        }
    }

    async fn survey(&self) -> Result<Survey, CopyError> {
        self.expect(self.store.survey()).await
    }

    async fn expect<T>(&self, reply: Reply<'_, T>) -> Result<T, CopyError> {
        reply.await.map_err(|error| self.failed(error))
    }
}

/// The progress of a copy. Each step is durable before it is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Step {
    /// The source is out of use.
    Left,
    /// The target is ready to receive records.
    Arrived {
        /// Whether an earlier run has already brought a part.
        is_resumed: bool,
    },
    /// A page of records has been copied.
    Records {
        /// The number of records copied so far.
        done: u64,
        /// The number of records to copy.
        of: u64,
    },
    /// A page of the audit log has been copied.
    Log {
        /// The number of the last entry copied.
        done: u64,
        /// The number of the last entry to copy.
        of: u64,
    },
    /// The source is marked as moved: from now on the copy can only be completed.
    Moved,
    /// The target is in use.
    Settled,
}

/// A completed copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Copied {
    /// The number of records in the target.
    pub records: u64,
    /// The number of them that were running when the source was left. Nothing runs them any more,
    /// and their outcome is unknown.
    pub running: u64,
    /// The number of the last entry in the audit log.
    pub logged: u64,
    /// Whether an earlier run had begun the copy.
    pub is_resumed: bool,
}

/// Why a copy was not completed. The text says what to do. The source still has everything, unless
/// the text says that it was moved.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CopyError {
    /// The source cannot be copied.
    #[error("{name} {refusal}")]
    Source {
        /// The source.
        name: String,
        /// Its standing, and what to do.
        refusal: String,
    },
    /// The source is in use.
    #[error(
        "{name} is in use: {live} attempts hold a live lease. Stop every node that uses it, wait until leases are over, and try again"
    )]
    Busy {
        /// The source.
        name: String,
        /// The number of attempts with a live lease.
        live: u64,
    },
    /// The target contains data that a copy would destroy.
    #[error(
        "{name} is not empty: {found}. Choose an empty store, or the one that this one was copied from"
    )]
    NotEmpty {
        /// The target.
        name: String,
        /// What it contains.
        found: String,
    },
    /// The number of copied records is wrong.
    #[error(
        "{name} has {found} records after the copy, and {expected} were to come: nothing was moved. Give the copy up with --give-up, and report this"
    )]
    Incomplete {
        /// The target.
        name: String,
        /// The number of records in the target.
        found: u64,
        /// The number of records expected.
        expected: u64,
    },
    /// The copy has gone too far to be given up.
    #[error(
        "{name} is moved already, and the copy is complete but for its last step: run `hapax store copy` again without --give-up"
    )]
    TooLate {
        /// The source.
        name: String,
    },
    /// Neither store takes part in an unfinished copy.
    #[error("there is no unfinished copy from {from} to {to}: nothing was given up")]
    NothingBegun {
        /// The source.
        from: String,
        /// The target.
        to: String,
    },
    /// A store failed. The same copy may be run again, and continues where it stopped.
    #[error("{name}: {source}")]
    Store {
        /// The store.
        name: String,
        /// Its error.
        source: StoreError,
    },
}

impl CopyError {
    /// Whether a store could not be reached or used, so that a later try may succeed.
    pub fn is_unavailable(&self) -> bool {
        matches!(self, CopyError::Store { source, .. } if source.kind() == StoreErrorKind::Unavailable)
    }
}

/// Copies everything, takes the source out of use and puts the target into use. Continues where an
/// earlier run was interrupted.
///
/// Dropping the future interrupts the copy. Each page is read while the previous one is written, so
/// that both stores work at once.
pub async fn copy(
    from: End<'_>,
    to: End<'_>,
    mut report: impl FnMut(Step),
) -> Result<Copied, CopyError> {
    let (mut source, target) = (from.survey().await?, to.survey().await?);
    let (copy, begun) = match begun(&source, &target) {
        Some((copy, position)) => (copy, Some(position)),
        None => {
            let copy = begin(from, to, &source, &target, &mut report).await?;
            // The source may have changed until it was left.
            source = from.survey().await?;
            (copy, None)
        }
    };
    report(Step::Arrived {
        is_resumed: begun.is_some(),
    });
    let done = if begun.is_some() { target.records } else { 0 };
    let run = Run {
        from,
        to,
        copy,
        of: source.records,
    };
    let position = run
        .records(begun.unwrap_or_default(), done, &mut report)
        .await?;
    run.log(position, source.account.logged, &mut report)
        .await?;
    run.end(&mut report).await?;
    let Survey {
        records, account, ..
    } = to.survey().await?;
    Ok(Copied {
        records,
        running: source.running,
        logged: account.logged,
        is_resumed: begun.is_some(),
    })
}

/// Gives up an unfinished copy: empties the target, and puts the source back into use.
pub async fn give_up(from: End<'_>, to: End<'_>) -> Result<(), CopyError> {
    let (source, target) = (from.survey().await?, to.survey().await?);
    let is_common = begun(&source, &target).is_some();
    match source.standing {
        Standing::Moved(_) if is_common => {
            return Err(CopyError::TooLate {
                name: from.name.to_owned(),
            });
        }
        Standing::Leaving(_) => {}
        _ => {
            return Err(CopyError::NothingBegun {
                from: from.name.to_owned(),
                to: to.name.to_owned(),
            });
        }
    }
    // The target first: while it has any part of this copy, the source must not change.
    if is_common {
        to.expect(to.store.give_up()).await?;
    }
    from.expect(from.store.give_up()).await
}

/// The copy in which both stores already take part, and its position.
fn begun(source: &Survey, target: &Survey) -> Option<(CopyId, Position)> {
    match (&source.standing, &target.standing) {
        (
            Standing::Leaving(left) | Standing::Moved(left),
            Standing::Arriving(arrived, position),
        ) if left.copy == arrived.copy => Some((left.copy, *position)),
        _ => None,
    }
}

/// Begins a copy with a new id, even if the source or target took part in an unfinished copy with
/// another store. That one can no longer be finished.
async fn begin(
    from: End<'_>,
    to: End<'_>,
    source: &Survey,
    target: &Survey,
    report: &mut impl FnMut(Step),
) -> Result<CopyId, CopyError> {
    if let (Standing::Moved(_) | Standing::Arriving(..), Some(refusal)) =
        (&source.standing, source.standing.refusal())
    {
        return Err(CopyError::Source {
            name: from.name.to_owned(),
            refusal,
        });
    }
    // Checked before anything is changed.
    if !target.is_outlived(&source.account.secret) {
        return Err(not_empty(to, target));
    }
    let copy = CopyId::from_bytes(*uuid::Uuid::new_v4().as_bytes());
    let left = from.expect(from.store.leave(to.passage(copy))).await?;
    if let Left::Busy(live) = left {
        return Err(CopyError::Busy {
            name: from.name.to_owned(),
            live,
        });
    }
    report(Step::Left);
    let arrived = to.store.arrive(from.passage(copy), source.account).await;
    if !matches!(arrived, Ok(true)) && source.standing == Standing::Live {
        // The target refused, so put the source back into use. If this fails too, the copy can
        // still be given up by hand.
        let _ = from.store.give_up().await;
    }
    if arrived.map_err(|error| to.failed(error))? {
        Ok(copy)
    } else {
        Err(not_empty(to, &to.survey().await?))
    }
}

fn not_empty(to: End<'_>, target: &Survey) -> CopyError {
    let found = match &target.standing {
        Standing::Live => format!(
            "it has {} records, and {} entries in its audit log",
            target.records, target.account.logged
        ),
        standing => format!("it {}", standing.refusal().unwrap_or_default()),
    };
    CopyError::NotEmpty {
        name: to.name.to_owned(),
        found,
    }
}

/// A copy in progress.
struct Run<'a> {
    from: End<'a>,
    to: End<'a>,
    copy: CopyId,
    /// The number of records to copy.
    of: u64,
}

impl Run<'_> {
    /// Copies all records from a position on.
    async fn records(
        &self,
        mut position: Position,
        mut done: u64,
        report: &mut impl FnMut(Step),
    ) -> Result<Position, CopyError> {
        let mut page = self.export(position.record).await?;
        while let Some(last) = page.last() {
            position.record = Some(last.head.id);
            done += page.len() as u64;
            let shipment = Shipment {
                records: page,
                log: Vec::new(),
                position,
            };
            let (imported, next) =
                tokio::join!(self.import(shipment), self.export(position.record));
            imported?;
            report(Step::Records { done, of: self.of });
            page = next?;
        }
        Ok(position)
    }

    async fn log(
        &self,
        mut position: Position,
        of: u64,
        report: &mut impl FnMut(Step),
    ) -> Result<(), CopyError> {
        loop {
            let log = self
                .from
                .store
                .entries(position.entry)
                .await
                .map_err(|error| self.from.failed(error))?;
            let Some(last) = log.last() else {
                return Ok(());
            };
            position.entry = last.sequence;
            self.import(Shipment {
                records: Vec::new(),
                log,
                position,
            })
            .await?;
            report(Step::Log {
                done: position.entry,
                of,
            });
        }
    }

    /// The last two steps, in this order: see [`hapax_core::transfer`].
    async fn end(&self, report: &mut impl FnMut(Step)) -> Result<(), CopyError> {
        let target = self.to.survey().await?;
        if target.records != self.of {
            return Err(CopyError::Incomplete {
                name: self.to.name.to_owned(),
                found: target.records,
                expected: self.of,
            });
        }
        self.from.expect(self.from.store.moved(self.copy)).await?;
        report(Step::Moved);
        // Read the account again: the source's clock has advanced.
        let account: Account = self.from.survey().await?.account;
        self.to
            .expect(self.to.store.settle_in(self.copy, account))
            .await?;
        report(Step::Settled);
        Ok(())
    }

    async fn export(&self, after: Option<RecordId>) -> Result<Vec<Record>, CopyError> {
        self.from
            .expect(self.from.store.export(after, Page::default()))
            .await
    }

    async fn import(&self, shipment: Shipment) -> Result<(), CopyError> {
        self.to
            .expect(self.to.store.import(self.copy, shipment))
            .await
    }
}
