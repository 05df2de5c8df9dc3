//! A store, with a watch beside it.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use hapax::core::audit::{LogEntry, LogQuery, Note};
use hapax::core::record::Head;
use hapax::core::scope::PrincipalId;
use hapax::core::store::{
    Joins, KnownPrincipal, ListQuery, Put, Reading, Renewal, Reply, StoreError, StoreErrorKind,
    StoreInfo, Swept, Wakes, Written,
};
use hapax::{RecordId, Store};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use super::Metrics;
use super::metrics::{Label, registered};
use super::routes::seconds;

/// A store that measures each verb of another.
///
/// The verbs return boxed futures and the watch must be around them, so each costs a second box.
pub struct Timed {
    store: Arc<dyn Store>,
    clocks: Clocks,
}

/// How long each verb took, and how it failed.
#[derive(Clone)]
pub(super) struct Clocks {
    get: Histogram,
    put_if: Histogram,
    renew: Histogram,
    list: Histogram,
    sweep: Histogram,
    info: Histogram,
    remember: Histogram,
    knows: Histogram,
    log: Histogram,
    note: Histogram,
    errors: Errors,
}

#[derive(Clone)]
struct Errors {
    unavailable: Counter,
    /// Somebody's transaction had the record.
    locked: Counter,
    corrupt: Counter,
    unsupported: Counter,
    /// Nobody waited for the reply any more: it took too long, or whoever asked is gone.
    abandoned: Counter,
}

impl Timed {
    /// Measures this store.
    pub fn new(store: Arc<dyn Store>, metrics: &Metrics) -> Timed {
        Timed {
            store,
            clocks: metrics.clocks(),
        }
    }

    fn measure<'a, T: 'a>(
        &'a self,
        verb: &'a Histogram,
        since: Instant,
        reply: Reply<'a, T>,
    ) -> Reply<'a, T> {
        Box::pin(Measured {
            reply,
            verb,
            errors: &self.clocks.errors,
            since,
            is_over: false,
        })
    }
}

impl Store for Timed {
    fn get(&self, ids: Vec<RecordId>) -> Reply<'_, Reading> {
        self.measure(&self.clocks.get, Instant::now(), self.store.get(ids))
    }

    fn put_if(&self, put: Put) -> Reply<'_, Written> {
        self.measure(&self.clocks.put_if, Instant::now(), self.store.put_if(put))
    }

    fn renew(&self, renewals: Vec<Renewal>) -> Reply<'_, Vec<bool>> {
        self.measure(
            &self.clocks.renew,
            Instant::now(),
            self.store.renew(renewals),
        )
    }

    fn list(&self, query: ListQuery) -> Reply<'_, Vec<Head>> {
        self.measure(&self.clocks.list, Instant::now(), self.store.list(query))
    }

    fn sweep(&self, limit: usize) -> Reply<'_, Swept> {
        self.measure(&self.clocks.sweep, Instant::now(), self.store.sweep(limit))
    }

    fn info(&self) -> Reply<'_, StoreInfo> {
        self.measure(&self.clocks.info, Instant::now(), self.store.info())
    }

    fn remember(&self, principals: Vec<KnownPrincipal>) -> Reply<'_, ()> {
        self.measure(
            &self.clocks.remember,
            Instant::now(),
            self.store.remember(principals),
        )
    }

    fn knows(&self, principal: PrincipalId) -> Reply<'_, bool> {
        self.measure(
            &self.clocks.knows,
            Instant::now(),
            self.store.knows(principal),
        )
    }

    fn log(&self, query: LogQuery) -> Reply<'_, Vec<LogEntry>> {
        self.measure(&self.clocks.log, Instant::now(), self.store.log(query))
    }

    fn note(&self, note: Note) -> Reply<'_, LogEntry> {
        self.measure(&self.clocks.note, Instant::now(), self.store.note(note))
    }

    fn joins(&self) -> Option<&dyn Joins> {
        self.store.joins()
    }

    fn wakes(&self) -> Option<&dyn Wakes> {
        self.store.wakes()
    }
}

/// A reply that is being waited for.
struct Measured<'a, T> {
    reply: Reply<'a, T>,
    verb: &'a Histogram,
    errors: &'a Errors,
    since: Instant,
    is_over: bool,
}

impl<T> Future for Measured<'_, T> {
    type Output = Result<T, StoreError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let polled = self.reply.as_mut().poll(cx);
        if let Poll::Ready(reply) = &polled {
            self.is_over = true;
            self.verb.observe(self.since.elapsed().as_secs_f64());
            if let Err(error) = reply {
                self.errors.count(error.kind());
            }
        }
        polled
    }
}

/// A reply that nobody waits for any more took at least so long: left out, a store that hangs would
/// look fast.
impl<T> Drop for Measured<'_, T> {
    fn drop(&mut self) {
        if !self.is_over {
            self.verb.observe(self.since.elapsed().as_secs_f64());
            self.errors.abandoned.inc();
        }
    }
}

impl Clocks {
    pub(super) fn new(registry: &mut Registry) -> Clocks {
        let verbs = Family::<Label, Histogram, fn() -> Histogram>::new_with_constructor(seconds);
        let help =
            "How long the store took, by verb. What nobody waited for any more counts until then";
        registry.register_with_unit("store", help, Unit::Seconds, verbs.clone());
        let verb = |verb| verbs.get_or_create_owned(&[("verb", verb)]);
        Clocks {
            get: verb("get"),
            put_if: verb("put_if"),
            renew: verb("renew"),
            list: verb("list"),
            sweep: verb("sweep"),
            info: verb("info"),
            remember: verb("remember"),
            knows: verb("knows"),
            log: verb("log"),
            note: verb("note"),
            errors: Errors::new(registry),
        }
    }
}

impl Errors {
    fn new(registry: &mut Registry) -> Errors {
        let help = "What the store could not do, by kind: unavailable, locked (by a transaction that has not ended), corrupt, unsupported, or abandoned (not answered in time)";
        let errors: Family<Label, Counter> = registered(registry, "store_errors", help);
        let kind = |kind| errors.get_or_create_owned(&[("kind", kind)]);
        Errors {
            unavailable: kind("unavailable"),
            locked: kind("locked"),
            corrupt: kind("corrupt"),
            unsupported: kind("unsupported"),
            abandoned: kind("abandoned"),
        }
    }

    fn count(&self, kind: StoreErrorKind) {
        match kind {
            StoreErrorKind::Locked => self.locked.inc(),
            StoreErrorKind::Corrupt => self.corrupt.inc(),
            StoreErrorKind::Unsupported => self.unsupported.inc(),
            _ => self.unavailable.inc(),
        };
    }
}
