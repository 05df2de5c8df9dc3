//! The faulty store: a store around a store, which goes wrong as scripted.
//!
//! A store that fails is ambiguous, and the ways to be ambiguous differ in what has happened behind
//! the error. Each is a [`Fault`].
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

/// How a call goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// An error; nothing was applied.
    ErrorBefore,
    /// The record is locked by somebody's transaction; nothing was applied.
    Locked,
    /// An error, though it was applied: the reply was lost.
    ErrorAfter,
    /// No reply until [`Faulty::release`], then an error; nothing was applied.
    Hang,
    /// Applied at once, but the reply comes only after [`Faulty::release`].
    HangAfter,
    /// Applied only after [`Faulty::release`], even if the caller has long given up: needs a tokio
    /// runtime that lives until then.
    Late,
}

/// What a store is asked.
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

/// A store that goes wrong as scripted; otherwise the store it was made from.
///
/// For a `put_if`, [`down`](Faulty::down) comes first, then [`fail_when`](Faulty::fail_when), then
/// the script of [`fail_next`](Faulty::fail_next) and [`let_through`](Faulty::let_through). A call
/// counts, and its fault is chosen, when its future is first polled.
pub struct Faulty {
    inner: Arc<dyn Store>,
    script: Mutex<Script>,
    counts: Arc<watch::Sender<Counts>>,
    /// How often the gates were opened. What waits at a gate waits for the next opening.
    openings: watch::Sender<u64>,
}

type Chooser = Box<dyn Fn(&Put) -> Option<Fault> + Send>;

#[derive(Default)]
struct Script {
    is_down: bool,
    chooser: Option<Chooser>,
    /// What becomes of the next calls, by verb; afterwards all is well.
    next: BTreeMap<Verb, VecDeque<(Option<Fault>, usize)>>,
}

#[derive(Default)]
struct Counts {
    calls: BTreeMap<Verb, usize>,
    faults: usize,
    /// Those of the faults that did what they were asked all the same.
    applied: usize,
}

impl Faulty {
    /// A wrapper that does nothing yet.
    pub fn new(inner: Arc<dyn Store>) -> Self {
        Faulty {
            inner,
            script: Mutex::default(),
            counts: Arc::new(watch::Sender::new(Counts::default())),
            openings: watch::Sender::new(0),
        }
    }

    /// After what was scripted for this verb before, its next `calls` calls go wrong like this.
    pub fn fail_next(&self, verb: Verb, fault: Fault, calls: usize) {
        self.script()
            .next
            .entry(verb)
            .or_default()
            .push_back((Some(fault), calls));
    }

    /// After what was scripted for this verb before, its next `calls` calls go well.
    pub fn let_through(&self, verb: Verb, calls: usize) {
        self.script()
            .next
            .entry(verb)
            .or_default()
            .push_back((None, calls));
    }

    /// From now on this function is asked about every write; where it names no fault, the script is
    /// followed.
    pub fn fail_when(&self, chooser: impl Fn(&Put) -> Option<Fault> + Send + 'static) {
        self.script().chooser = Some(Box::new(chooser));
    }

    /// Up again, with no script and no [`Faulty::fail_when`]. What hangs keeps hanging.
    pub fn heal(&self) {
        *self.script() = Script::default();
    }

    /// While down, every verb fails and nothing is applied.
    pub fn down(&self, is_down: bool) {
        self.script().is_down = is_down;
    }

    /// Opens the gates for everything that waits at one now.
    pub fn release(&self) {
        self.openings.send_modify(|openings| *openings += 1);
    }

    /// How often the verb was called, faults included.
    pub fn calls(&self, verb: Verb) -> usize {
        self.counts.borrow().calls(verb)
    }

    /// How many calls went wrong, whatever happened later to those that hang: to see that a test
    /// tested something.
    pub fn faults_landed(&self) -> usize {
        self.counts.borrow().faults
    }

    /// Returns once the verb was called `calls` times, counting from the beginning. Waits for ever
    /// if it never is.
    pub async fn wait_for_calls(&self, verb: Verb, calls: usize) {
        self.wait_for(|counts| counts.calls(verb) >= calls).await;
    }

    /// Returns once so many calls were applied behind the caller's back ([`Fault::ErrorAfter`],
    /// [`Fault::HangAfter`], [`Fault::Late`]), counting from the beginning.
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

    /// Counts a call and chooses what becomes of it. A gate is chosen with it, so that a release
    /// that comes after the count is seen by whoever waits for the count to release.
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

/// On a task of its own, so that it lands whether or not anybody still waits for it.
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

/// A wait for the next opening.
struct Gate {
    openings: watch::Receiver<u64>,
}

impl Gate {
    fn new(openings: &watch::Sender<u64>) -> Self {
        Gate {
            openings: openings.subscribe(),
        }
    }

    /// Never, if the faulty store goes first: nobody is left to open.
    async fn opened(mut self) {
        if self.openings.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

fn error(verb: Verb, when: &str) -> StoreError {
    StoreError::unavailable(format!("scripted fault: {verb:?} failed {when}"))
}
