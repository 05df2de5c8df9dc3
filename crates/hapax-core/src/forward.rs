//! For stores that wrap another store and change only some of its verbs.

/// Forwards the named verbs of [`Store`](crate::store::Store) to another store.
///
/// The verbs are listed one by one, so that a verb that is added to the trait does not compile
/// until each wrapper has decided what to do with it.
///
/// ```
/// use hapax_core::store::{Put, Reply, Store, Written};
///
/// struct CountWrites<S> {
///     store: S,
///     count: std::sync::atomic::AtomicU64,
/// }
///
/// impl<S: Store> Store for CountWrites<S> {
///     fn put_if(&self, put: Put) -> Reply<'_, Written> {
///         self.count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
///         self.store.put_if(put)
///     }
///
///     hapax_core::forward_store!(
///         self => self.store;
///         get, renew, list, sweep, info, remember, knows, log, note, joins, wakes
///     );
/// }
/// ```
#[macro_export]
macro_rules! forward_store {
    ($self:ident => $store:expr; $($verb:ident),+) => {
        $($crate::forward_store!(@ $verb, $self, $store);)+
    };
    (@ get, $self:ident, $store:expr) => {
        fn get(
            &$self,
            ids: ::std::vec::Vec<$crate::scope::RecordId>,
        ) -> $crate::store::Reply<'_, $crate::store::Reading> {
            $store.get(ids)
        }
    };
    (@ put_if, $self:ident, $store:expr) => {
        fn put_if(
            &$self,
            put: $crate::store::Put,
        ) -> $crate::store::Reply<'_, $crate::store::Written> {
            $store.put_if(put)
        }
    };
    (@ renew, $self:ident, $store:expr) => {
        fn renew(
            &$self,
            renewals: ::std::vec::Vec<$crate::store::Renewal>,
        ) -> $crate::store::Reply<'_, ::std::vec::Vec<bool>> {
            $store.renew(renewals)
        }
    };
    (@ list, $self:ident, $store:expr) => {
        fn list(
            &$self,
            query: $crate::store::ListQuery,
        ) -> $crate::store::Reply<'_, ::std::vec::Vec<$crate::record::Head>> {
            $store.list(query)
        }
    };
    (@ sweep, $self:ident, $store:expr) => {
        fn sweep(&$self, limit: usize) -> $crate::store::Reply<'_, $crate::store::Swept> {
            $store.sweep(limit)
        }
    };
    (@ info, $self:ident, $store:expr) => {
        fn info(&$self) -> $crate::store::Reply<'_, $crate::store::StoreInfo> {
            $store.info()
        }
    };
    (@ remember, $self:ident, $store:expr) => {
        fn remember(
            &$self,
            principals: ::std::vec::Vec<$crate::store::KnownPrincipal>,
        ) -> $crate::store::Reply<'_, ()> {
            $store.remember(principals)
        }
    };
    (@ knows, $self:ident, $store:expr) => {
        fn knows(
            &$self,
            principal: $crate::scope::PrincipalId,
        ) -> $crate::store::Reply<'_, bool> {
            $store.knows(principal)
        }
    };
    (@ log, $self:ident, $store:expr) => {
        fn log(
            &$self,
            query: $crate::audit::LogQuery,
        ) -> $crate::store::Reply<'_, ::std::vec::Vec<$crate::audit::LogEntry>> {
            $store.log(query)
        }
    };
    (@ note, $self:ident, $store:expr) => {
        fn note(
            &$self,
            note: $crate::audit::Note,
        ) -> $crate::store::Reply<'_, $crate::audit::LogEntry> {
            $store.note(note)
        }
    };
    (@ joins, $self:ident, $store:expr) => {
        fn joins(&$self) -> ::std::option::Option<&dyn $crate::store::Joins> {
            $store.joins()
        }
    };
    (@ wakes, $self:ident, $store:expr) => {
        fn wakes(&$self) -> ::std::option::Option<&dyn $crate::store::Wakes> {
            $store.wakes()
        }
    };
}
