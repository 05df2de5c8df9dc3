//! The faulty store: wraps a store and fails as scripted.
//!
//! An error of a store is ambiguous: the operation may or may not have happened. Each [`Fault`] is
//! one of the cases.
//!
//! ```
//! # async fn example(store: std::sync::Arc<dyn hapax_core::Store>) {
//! use hapax_testkit::{Fault, Faulty, Verb};
//!
//! let faulty = Faulty::new(store);
//! faulty.let_through(Verb::PutIf, 1);
//! faulty.fail_next(Verb::PutIf, Fault::ErrorAfter, 1);
//! // The claim goes through; the completion is applied, and the caller told that it failed.
//! # }
//! ```

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hapax_core::audit::{LogEntry, LogQuery, Note};
use hapax_core::scope::PrincipalId;
use hapax_core::store::{
    Joins, KnownPrincipal, ListQuery, Put, Reading, Renewal, Reply, StoreErrorKind, StoreInfo,
    Swept, Written,
};
use hapax_core::{Head, RecordId, Store, StoreError};
use tokio::sync::watch;

/// How a call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// An error; the operation did not happen.
    ErrorBefore,
    /// Another transaction has locked the record; the operation did not happen.
    Locked,
    /// An error, but the operation happened: the reply was lost.
    ErrorAfter,
    /// No reply until [`Faulty::release`], then an error; the operation did not happen.
    Hang,
    /// The operation happens at once, but the reply comes only after [`Faulty::release`].
    HangAfter,
    /// The operation happens only after [`Faulty::release`], even if the caller has given up. Needs
    /// a tokio runtime that lives until then.
    Late,
}

/// A method of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verb {
    /// [`Store::get`].
    Get,
    /// [`Store::put_if`].
    PutIf,
    /// [`Store::renew`].
    Renew,
    /// [`Store::list`].
    List,
    /// [`Store::sweep`].
    Sweep,
    /// [`Store::info`].
    Info,
    /// [`Store::remember`].
    Remember,
    /// [`Store::knows`].
    Knows,
    /// [`Store::log`].
    Log,
    /// [`Store::note`].
    Note,
}

/// A store that fails as scripted, and otherwise forwards to the wrapped store.
///
/// For a `put_if`, [`down`](Faulty::down) comes first, then [`fail_when`](Faulty::fail_when), then
/// the script of [`fail_next`](Faulty::fail_next) and [`let_through`](Faulty::let_through). A call
/// is counted, and its fault is chosen, when its future is first polled.
pub struct Faulty {
    inner: Arc<dyn Store>,
    script: Mutex<Script>,
    counts: Arc<watch::Sender<Counts>>,
    /// How often the gates were opened. A call at a gate waits for the next opening.
    openings: watch::Sender<u64>,
}

type Chooser = Box<dyn Fn(&Put) -> Option<Fault> + Send>;

#[derive(Default)]
struct Script {
    is_down: bool,
    chooser: Option<Chooser>,
    /// The faults of the next calls, by verb. Later calls succeed.
    next: BTreeMap<Verb, VecDeque<(Option<Fault>, usize)>>,
}

#[derive(Default)]
struct Counts {
    calls: BTreeMap<Verb, usize>,
    faults: usize,
    /// The faulty calls whose operation happened nevertheless.
    applied: usize,
}

impl Faulty {
    /// A wrapper without faults.
    pub fn new(inner: Arc<dyn Store>) -> Self {
        Faulty {
            inner,
            script: Mutex::default(),
            counts: Arc::new(watch::Sender::new(Counts::default())),
            openings: watch::Sender::new(0),
        }
    }

    /// Lets the next `calls` calls of this verb fail, after those scripted before.
    pub fn fail_next(&self, verb: Verb, fault: Fault, calls: usize) {
        self.script()
            .next
            .entry(verb)
            .or_default()
            .push_back((Some(fault), calls));
    }

    /// Lets the next `calls` calls of this verb succeed, after those scripted before.
    pub fn let_through(&self, verb: Verb, calls: usize) {
        self.script()
            .next
            .entry(verb)
            .or_default()
            .push_back((None, calls));
    }

    /// Asks this function about every write from now on. If it returns no fault, the script
    /// applies.
    pub fn fail_when(&self, chooser: impl Fn(&Put) -> Option<Fault> + Send + 'static) {
        self.script().chooser = Some(Box::new(chooser));
    }

    /// Ends [`Faulty::down`], and removes the script and [`Faulty::fail_when`]. Calls that hang
    /// keep hanging.
    pub fn heal(&self) {
        *self.script() = Script::default();
    }

    /// While the store is down, every method fails and nothing happens.
    pub fn down(&self, is_down: bool) {
        self.script().is_down = is_down;
    }

    /// Opens the gates for every call that waits at one now.
    pub fn release(&self) {
        self.openings.send_modify(|openings| *openings += 1);
    }

    /// How often the method was called, including faults.
    pub fn calls(&self, verb: Verb) -> usize {
        self.counts.borrow().calls(verb)
    }

    /// How many calls failed, including those that hang. A test uses it to check that its faults
    /// occurred.
    pub fn faults_landed(&self) -> usize {
        self.counts.borrow().faults
    }

    /// Returns once the method was called `calls` times in total. Waits forever if that never
    /// happens.
    pub async fn wait_for_calls(&self, verb: Verb, calls: usize) {
        self.wait_for(|counts| counts.calls(verb) >= calls).await;
    }

    /// Returns once `calls` operations happened without the caller's knowledge in total
    /// ([`Fault::ErrorAfter`], [`Fault::HangAfter`], [`Fault::Late`]).
    pub async fn wait_for_applied(&self, calls: usize) {
        self.wait_for(|counts| counts.applied >= calls).await;
    }

    async fn wait_for(&self, is_enough: impl FnMut(&Counts) -> bool) {
        self.counts
            .subscribe()
            .wait_for(is_enough)
            .await
            .expect("this store holds the sender");
    }

    fn script(&self) -> MutexGuard<'_, Script> {
        self.script.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Chooses the fault of a call and counts the call. Its gate is created before the count, so
    /// that a test which waits for the count and then releases always opens the gate.
    fn begin(&self, verb: Verb, put: Option<&Put>) -> (Option<Fault>, Gate) {
        let fault = self.script().choose(verb, put);
        let gate = Gate::new(&self.openings);
        self.counts.send_modify(|counts| counts.count(verb, fault));
        (fault, gate)
    }

    fn call<'a, T: Send + 'static>(
        &'a self,
        verb: Verb,
        put: Option<Put>,
        ask: impl FnOnce(Arc<dyn Store>) -> Reply<'static, T> + Send + 'static,
    ) -> Reply<'a, T> {
        Box::pin(async move {
            let (fault, gate) = self.begin(verb, put.as_ref());
            let asked = ask(self.inner.clone());
            match fault {
                None => asked.await,
                Some(Fault::ErrorBefore) => Err(error(verb, "before it was applied")),
                Some(Fault::Locked) => Err(StoreError::new(
                    StoreErrorKind::Locked,
                    "somebody's transaction has the record",
                )),
                Some(Fault::ErrorAfter) => {
                    drop(applied(asked, &self.counts).await);
                    Err(error(verb, "after it was applied"))
                }
                Some(Fault::Hang) => {
                    gate.opened().await;
                    Err(error(verb, "after a while, not applied"))
                }
                Some(Fault::HangAfter) => {
                    let reply = applied(asked, &self.counts).await;
                    gate.opened().await;
                    reply
                }
                Some(Fault::Late) => land_late(asked, gate, self.counts.clone(), verb).await,
            }
        })
    }
}

impl Store for Faulty {
    fn get(&self, ids: Vec<RecordId>) -> Reply<'_, Reading> {
        self.call(Verb::Get, None, |store| {
            Box::pin(async move { store.get(ids).await })
        })
    }

    fn put_if(&self, put: Put) -> Reply<'_, Written> {
        let copy = put.clone();
        self.call(Verb::PutIf, Some(copy), |store| {
            Box::pin(async move { store.put_if(put).await })
        })
    }

    fn renew(&self, renewals: Vec<Renewal>) -> Reply<'_, Vec<bool>> {
        self.call(Verb::Renew, None, |store| {
            Box::pin(async move { store.renew(renewals).await })
        })
    }

    fn list(&self, query: ListQuery) -> Reply<'_, Vec<Head>> {
        self.call(Verb::List, None, |store| {
            Box::pin(async move { store.list(query).await })
        })
    }

    fn sweep(&self, limit: usize) -> Reply<'_, Swept> {
        self.call(Verb::Sweep, None, move |store| {
            Box::pin(async move { store.sweep(limit).await })
        })
    }

    fn info(&self) -> Reply<'_, StoreInfo> {
        self.call(Verb::Info, None, |store| {
            Box::pin(async move { store.info().await })
        })
    }

    fn remember(&self, principals: Vec<KnownPrincipal>) -> Reply<'_, ()> {
        self.call(Verb::Remember, None, |store| {
            Box::pin(async move { store.remember(principals).await })
        })
    }

    fn knows(&self, principal: PrincipalId) -> Reply<'_, bool> {
        self.call(Verb::Knows, None, move |store| {
            Box::pin(async move { store.knows(principal).await })
        })
    }

    fn log(&self, query: LogQuery) -> Reply<'_, Vec<LogEntry>> {
        self.call(Verb::Log, None, move |store| {
            Box::pin(async move { store.log(query).await })
        })
    }

    fn note(&self, note: Note) -> Reply<'_, LogEntry> {
        self.call(Verb::Note, None, |store| {
            Box::pin(async move { store.note(note).await })
        })
    }

    fn joins(&self) -> Option<&dyn Joins> {
        self.inner.joins()
    }
}

async fn applied<T>(
    asked: Reply<'static, T>,
    counts: &watch::Sender<Counts>,
) -> Result<T, StoreError> {
    let reply = asked.await;
    counts.send_modify(|counts| counts.applied += 1);
    reply
}

/// Runs on its own task, so that the operation happens even if the caller no longer waits.
async fn land_late<T: Send + 'static>(
    asked: Reply<'static, T>,
    gate: Gate,
    counts: Arc<watch::Sender<Counts>>,
    verb: Verb,
) -> Result<T, StoreError> {
    let landing = tokio::spawn(async move {
        gate.opened().await;
        applied(asked, &counts).await
    });
    landing
        .await
        .unwrap_or_else(|_| Err(error(verb, "as its runtime ended")))
}

impl Script {
    fn choose(&mut self, verb: Verb, put: Option<&Put>) -> Option<Fault> {
        if self.is_down {
            return Some(Fault::ErrorBefore);
        }
        let chosen = put.and_then(|put| self.chooser.as_ref()?(put));
        chosen.or_else(|| self.follow(verb))
    }

    fn follow(&mut self, verb: Verb) -> Option<Fault> {
        let entries = self.next.get_mut(&verb)?;
        while let Some((fault, calls)) = entries.front_mut() {
            if *calls > 0 {
                *calls -= 1;
                return *fault;
            }
            entries.pop_front();
        }
        None
    }
}

impl Counts {
    fn calls(&self, verb: Verb) -> usize {
        self.calls.get(&verb).copied().unwrap_or_default()
    }

    fn count(&mut self, verb: Verb, fault: Option<Fault>) {
        *self.calls.entry(verb).or_default() += 1;
        self.faults += usize::from(fault.is_some());
    }
}

/// Waits for the next opening.
struct Gate {
    openings: watch::Receiver<u64>,
}

impl Gate {
    fn new(openings: &watch::Sender<u64>) -> Self {
        Gate {
            openings: openings.subscribe(),
        }
    }

    /// Never returns if the faulty store is dropped first, since nothing can open the gate then.
    async fn opened(mut self) {
        if self.openings.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

fn error(verb: Verb, when: &str) -> StoreError {
    StoreError::unavailable(format!("scripted fault: {verb:?} failed {when}"))
}
