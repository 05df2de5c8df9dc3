//! Finds keys by their properties, in a bounded scan of the store.

use std::time::Duration;

use hapax::core::operation::OperationIds;
use hapax::core::record::{Head, State, StateFilter};
use hapax::core::store::{ListQuery, StoreError};
use hapax::core::time::Timestamp;
use hapax::{RecordId, Scope};

use super::operate::Records;
use super::principal;
use super::wire::Query;
use crate::admin::operation;
use crate::config::{Pattern, Route, route_of};

/// Limit on the heads that one call reads. A filter that matches nothing must not scan millions of
/// records in one call; the caller gets the position to continue from.
const SCAN_MAX: usize = 10_000;
/// Heads read from the store at once.
const BATCH: usize = 1_000;

/// A filter on keys. All given conditions must hold.
#[derive(Clone, Debug, Default)]
pub(crate) struct Filter {
    state: Option<Wanted>,
    route: Option<Which>,
    path: Option<Pattern>,
    method: Option<String>,
    principal: Option<String>,
    namespace: Option<String>,
    key: Option<String>,
    operation: Option<(String, OperationIds)>,
    older_than: Option<Duration>,
    newer_than: Option<Duration>,
    /// Selects the newest of the matching keys, rather than those with the lowest ids.
    newest: bool,
}

/// A state as people ask for it: for them, an unknown that was not settled within its retention is
/// still unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    Unknown,
    Word(&'static str),
}

impl Wanted {
    fn parse(word: &str) -> Result<Wanted, String> {
        const WORDS: [&str; 5] = ["running", "completed", "failed", "retryable", "expired"];
        match WORDS.into_iter().find(|known| *known == word) {
            Some(word) => Ok(Wanted::Word(word)),
            None if word == "unknown" => Ok(Wanted::Unknown),
            None => Err(format!(
                "`{word}` is no state: use {} or unknown",
                WORDS.join(", ")
            )),
        }
    }

    fn matches(self, head: &Head, state: State) -> bool {
        match self {
            Wanted::Unknown => head.is_unresolved(state),
            Wanted::Word(word) => state.word() == word,
        }
    }

    /// The state to ask the store for. The store has an index of unfinished records only; for other
    /// states the scan reads all records.
    fn question(self) -> Option<StateFilter> {
        match self {
            Wanted::Unknown | Wanted::Word("running") => Some(StateFilter::Open),
            Wanted::Word(_) => None,
        }
    }
}

/// The context in which a filter is parsed.
pub(crate) struct Known<'a> {
    /// The routes that a filter can name.
    pub(crate) routes: &'a [Route],
    /// Computes operation ids.
    pub(crate) operation_ids: OperationIds,
}

/// The route that a filter selects.
#[derive(Clone, Debug)]
enum Which {
    /// The route at this index of the configuration: it matches requests that go to it and to no
    /// other.
    Configured { routes: Vec<Route>, at: usize },
    /// A route given by methods and pattern.
    Written(Box<Route>),
}

impl Which {
    /// Parses the name of a configured route, or methods and a pattern.
    fn parse(text: &str, routes: &[Route]) -> Result<Which, String> {
        if let Some(at) = routes.iter().position(|route| *route.name == *text) {
            return Ok(Which::Configured {
                routes: routes.to_vec(),
                at,
            });
        }
        match text.parse() {
            Ok(route) => Ok(Which::Written(Box::new(route))),
            Err(_) if routes.is_empty() => Err(format!(
                "`{text}` is no route: here no route has a name, so write methods and a pattern, as in 'POST /v1/charges/*'"
            )),
            Err(_) => {
                let names: Vec<_> = routes
                    .iter()
                    .map(|route| format!("`{}`", route.name))
                    .collect();
                Err(format!(
                    "`{text}` is no route: there are {}; or write methods and a pattern, as in 'POST /v1/charges/*'",
                    names.join(", ")
                ))
            }
        }
    }

    fn matches(&self, scope: &Scope) -> bool {
        match self {
            Which::Configured { routes, at } => {
                route_of(routes, scope).is_some_and(|route| std::ptr::eq(route, &routes[*at]))
            }
            Which::Written(route) => route.is_of(scope),
        }
    }
}

/// Checks the syntax of an operation id.
fn operation_id(text: &str) -> Result<String, String> {
    let is_one = operation::is_spelled_well(text);
    is_one.then(|| text.to_owned()).ok_or_else(|| {
        format!("`{text}` is no operation id: it is 64 lower-case hexadecimal digits")
    })
}

impl Filter {
    pub(crate) fn parse(query: &Query, known: &Known<'_>) -> Result<Filter, String> {
        Ok(Filter {
            state: query.state.as_deref().map(Wanted::parse).transpose()?,
            route: query
                .route
                .as_deref()
                .map(|text| Which::parse(text, known.routes))
                .transpose()?,
            path: query.path.as_deref().map(str::parse).transpose()?,
            method: query
                .method
                .as_ref()
                .map(|method| method.to_ascii_uppercase()),
            principal: query.principal.clone(),
            namespace: query.namespace.clone(),
            key: query.key.clone(),
            operation: query
                .operation_id
                .as_deref()
                .map(operation_id)
                .transpose()?
                .map(|id| (id, known.operation_ids)),
            older_than: query.older_than_seconds.map(Duration::from_secs),
            newer_than: query.newer_than_seconds.map(Duration::from_secs),
            newest: query.newest,
        })
    }

    /// Whether every key matches, and the first ones in order are wanted.
    fn is_empty(&self) -> bool {
        let Filter {
            state,
            route,
            path,
            method,
            principal,
            namespace,
            key,
            operation,
            older_than,
            newer_than,
            newest,
        } = self;
        !newest
            && (state.is_none() && route.is_none() && path.is_none() && operation.is_none())
            && [method, principal, namespace, key]
                .iter()
                .all(|said| said.is_none())
            && [older_than, newer_than].iter().all(|said| said.is_none())
    }

    fn matches(&self, head: &Head, now: Timestamp) -> bool {
        let age = now.since(head.created_at);
        self.state.is_none_or(|wanted| wanted.matches(head, head.state_at(now)))
            && self.route.as_ref().is_none_or(|route| route.matches(&head.scope))
            && self.path.as_ref().is_none_or(|pattern| pattern.matches(&head.scope.path))
            && self.method.as_ref().is_none_or(|method| **method == *head.scope.method)
            && self.principal.as_ref().is_none_or(|typed| principal::is_meant(&head.scope.principal.to_string(), typed))
            && self.namespace.as_ref().is_none_or(|namespace| **namespace == *head.scope.namespace)
            && self.key.as_ref().is_none_or(|key| head.key.as_str() == key)
            && self.older_than.is_none_or(|than| age > than)
            && self.newer_than.is_none_or(|than| age < than)
            // Last, because it is the only expensive condition.
            && self.operation.as_ref().is_none_or(|(operation, ids)| ids.make(&head.id, head.created_at).as_str() == operation)
    }
}

/// The result of one call.
pub(crate) struct Found {
    pub(crate) heads: Vec<Head>,
    /// The number of heads that were read.
    pub(crate) looked_at: usize,
    /// Where to continue; `None` at the end. There may be more even if fewer keys were found than
    /// the limit.
    pub(crate) next: Option<RecordId>,
}

/// Up to `limit` matching keys: the first in the order of their ids, or the newest of all that one
/// call reads, newest first.
pub(crate) async fn page(
    records: &impl Records,
    filter: &Filter,
    mut after: Option<RecordId>,
    limit: usize,
    now: Timestamp,
) -> Result<Found, StoreError> {
    let (mut heads, mut seen) = (Vec::new(), 0);
    // One more than asked for, to know whether there are more.
    let batch_max = if filter.is_empty() {
        BATCH.min(limit + 1)
    } else {
        BATCH
    };
    loop {
        let batch = records
            .heads(ListQuery {
                state: filter.state.and_then(Wanted::question),
                after,
                limit: batch_max,
            })
            .await?;
        let is_last = batch.len() < batch_max;
        seen += batch.len();
        for head in batch {
            if heads.len() == limit && !filter.newest {
                return Ok(Found {
                    heads,
                    looked_at: seen,
                    next: after,
                });
            }
            after = Some(head.id);
            if filter.matches(&head, now) {
                heads.push(head);
            }
        }
        if filter.newest {
            heads.sort_by_key(|head| std::cmp::Reverse(head.created_at));
            heads.truncate(limit);
        }
        if is_last || seen >= SCAN_MAX {
            return Ok(Found {
                heads,
                looked_at: seen,
                next: after.filter(|_| !is_last),
            });
        }
    }
}
