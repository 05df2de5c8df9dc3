//! Copying: everything of one store into another, which then goes on in its place.
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
//! What is done in which order, and why it may be killed anywhere, is told in
//! [`hapax_core::transfer`].

use hapax_core::record::Record;
use hapax_core::scope::RecordId;
use hapax_core::store::{Reply, StoreError, StoreErrorKind};
use hapax_core::transfer::{
    Account, CopyId, Left, Page, Passage, Position, Shipment, Standing, Survey, Transfer,
};

/// One of the two stores, with the name that the other will know it by.
#[derive(Clone, Copy)]
pub struct End<'a> {
    name: &'a str,
    store: &'a dyn Transfer,
}

impl<'a> End<'a> {
    /// A store and its name, which is written down and shown: no password may be in it.
    pub fn new(name: &'a str, store: &'a dyn Transfer) -> End<'a> {
        End { name, store }
    }

    fn passage(&self, copy: CopyId) -> Passage {
        Passage {
            copy,
            other: self.name.to_owned(),
        }
    }

    /// Whatever went wrong, in which store.
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

/// What a copy has come to. Everything named has become durable before it is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Step {
    /// The source is out of use.
    Left,
    /// The target is ready for what comes.
    Arrived {
        /// Whether an earlier run has brought something already.
        is_resumed: bool,
    },
    /// A page of records is there.
    Records {
        /// How many are there now.
        done: u64,
        /// Of how many.
        of: u64,
    },
    /// A page of the audit log is there.
    Log {
        /// The number of its last entry.
        done: u64,
        /// The number of the last one there is.
        of: u64,
    },
    /// The source says that it was moved: from now on there is no way but forward.
    Moved,
    /// The target is in use.
    Settled,
}

/// A copy that is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Copied {
    /// How many records the target has.
    pub records: u64,
    /// How many of them were running when the source was left: nobody runs them any more, and their
    /// end is unknown.
    pub running: u64,
    /// The number of the last entry in the audit log.
    pub logged: u64,
    /// Whether an earlier run had begun it.
    pub is_resumed: bool,
}

/// Why a copy was not completed. The text says what to do; the source has everything, unless it
/// says that it was moved.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CopyError {
    /// The source is no store to copy.
    #[error("{name} {refusal}")]
    Source {
        /// The source.
        name: String,
        /// Where it stands, and what to do.
        refusal: String,
    },
    /// Somebody uses the source.
    #[error(
        "{name} is in use: {live} attempts hold a live lease. Stop every node that uses it, wait until leases are over, and try again"
    )]
    Busy {
        /// The source.
        name: String,
        /// How many attempts are under way.
        live: u64,
    },
    /// There is something in the target that a copy would destroy.
    #[error(
        "{name} is not empty: {found}. Choose an empty store, or the one that this one was copied from"
    )]
    NotEmpty {
        /// The target.
        name: String,
        /// What is there.
        found: String,
    },
    /// Fewer or more records have come than there are.
    #[error(
        "{name} has {found} records after the copy, and {expected} were to come: nothing was moved. Give the copy up with --give-up, and report this"
    )]
    Incomplete {
        /// The target.
        name: String,
        /// How many it has.
        found: u64,
        /// How many it should have.
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
    /// Neither store takes part in a copy.
    #[error("there is no unfinished copy from {from} to {to}: nothing was given up")]
    NothingBegun {
        /// The source.
        from: String,
        /// The target.
        to: String,
    },
    /// A store could not do its part. The same copy may be run again and goes on where it was.
    #[error("{name}: {source}")]
    Store {
        /// Which one.
        name: String,
        /// What it said.
        source: StoreError,
    },
}

impl CopyError {
    /// Whether a store could not be reached or used, so that trying again later may help.
    pub fn is_unavailable(&self) -> bool {
        matches!(self, CopyError::Store { source, .. } if source.kind() == StoreErrorKind::Unavailable)
    }
}

/// Copies everything, takes the source out of use and puts the target into use. Goes on where an
/// earlier run was interrupted.
///
/// Dropping the future interrupts it. Every page is read while the one before is written, so that
/// both stores work at once.
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
            // Until it was left, something may have changed in it.
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

/// Gives an unfinished copy up: the target is empty again, and the source in use.
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
    // The target first: as long as it has something of this copy, the source must not change.
    if is_common {
        to.expect(to.store.give_up()).await?;
    }
    from.expect(from.store.give_up()).await
}

/// The copy that both stores take part in already, and how far it is.
fn begun(source: &Survey, target: &Survey) -> Option<(CopyId, Position)> {
    match (&source.standing, &target.standing) {
        (
            Standing::Leaving(left) | Standing::Moved(left),
            Standing::Arriving(arrived, position),
        ) if left.copy == arrived.copy => Some((left.copy, *position)),
        _ => None,
    }
}

/// Begins a copy under a new name, also where one was begun to or from another store: that one can
/// no longer be finished.
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
    // Before anything is changed.
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
        // Nothing was begun, and nobody shall have to say so. Should this fail too, the copy can
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

/// A copy under way.
struct Run<'a> {
    from: End<'a>,
    to: End<'a>,
    copy: CopyId,
    /// Records that there are.
    of: u64,
}

impl Run<'_> {
    /// Brings all records over, from a position on.
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
        // Once more: its clock has gone on.
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
