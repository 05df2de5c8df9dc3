//! What the configuration says about operators and records.

use std::sync::Arc;

use hapax::core::outcome::Loss;
use hapax::core::record::{Head, State};
use hapax::core::store::Lifetime;
use hapax::{Mode, Policy, Scope, Settlement};

use super::caller::Tokens;
use crate::config::{Config, Route, route_of};

/// What the configuration says about operators, and about the records they change.
#[derive(Clone, Debug)]
pub struct Rules {
    pub(super) tokens: Tokens,
    pub(super) namespace: Arc<str>,
    pub(super) routes: Vec<Route>,
}

impl Rules {
    /// Takes the rules from a configuration.
    pub fn new(config: &Config) -> Rules {
        Rules {
            tokens: Tokens {
                admin: config.admin_token.clone(),
                settle: config.settle_token.clone(),
            },
            namespace: config.namespace.as_str().into(),
            routes: config.all_routes(),
        }
    }

    /// How long the route of a record keeps it.
    pub(super) fn lifetime(&self, scope: &Scope) -> Lifetime {
        self.policy(scope)
            .map_or_else(Lifetime::default, Lifetime::from)
    }

    /// The settlement of a record, with its answer under the version that the route replays.
    pub(super) fn current(&self, settlement: Settlement, scope: &Scope) -> Settlement {
        let version = self
            .policy(scope)
            .and_then(|policy| policy.answer_version.as_deref());
        match settlement {
            Settlement::Done(answer) => Settlement::Done(answer.under(version)),
            other => other,
        }
    }

    /// Whether a lost attempt waits for a person. In most modes the next repeat resolves it.
    pub(super) fn waits_for_a_person(&self, head: &Head) -> bool {
        // The rules for records of other gateways in the store are not known here.
        let Some(policy) = self
            .policy(&head.scope)
            .filter(|_| head.scope.namespace == self.namespace)
        else {
            return true;
        };
        match policy.mode {
            Mode::Rerun | Mode::Fenced => false,
            Mode::Transaction => head
                .loss(State::Unknown)
                .is_some_and(Loss::may_be_done_outside),
            // A repeat has probed the service, and the service did not know.
            Mode::Probe => head.loss(State::Unknown) == Some(Loss::ProbeUnknown),
            _ => true,
        }
    }

    /// Whether a lost attempt is of this gateway, and waits for a person.
    pub(crate) fn is_ours_to_settle(&self, head: &Head) -> bool {
        head.scope.namespace == self.namespace && self.waits_for_a_person(head)
    }

    /// The policy of the current route: routes may have changed since the record was made.
    fn policy(&self, scope: &Scope) -> Option<&Policy> {
        route_of(&self.routes, scope).map(|route| &route.policy)
    }
}
