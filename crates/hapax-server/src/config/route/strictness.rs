//! Which of two routes is stricter.
//!
//! A partial order: if one route would forward a request unguarded or let it run twice, and the
//! other would not, the other is stricter. Routes that differ in anything else are not comparable.

use std::cmp::Ordering;

use hapax::{KeyRule, KeySource, Mode, Policy};

use super::Route;

/// What a request needs to pass, from the least to the most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Guard {
    /// Nothing: it is not guarded.
    Nothing,
    /// It is guarded if it has the key's field.
    KeyField,
    /// It is guarded unless no key can be taken from it.
    KeyElsewhere,
    /// It needs a key.
    Key,
    /// It needs a key that was issued.
    IssuedKey,
}

impl Guard {
    pub(super) fn new(policy: &Policy, method: &http::Method) -> Guard {
        match policy.key {
            _ if policy.shadow || !policy.guards(method.as_str()) => Guard::Nothing,
            KeyRule::Off => Guard::Nothing,
            KeyRule::Optional if policy.key_source == KeySource::Field => Guard::KeyField,
            KeyRule::Optional => Guard::KeyElsewhere,
            KeyRule::Required => Guard::Key,
            KeyRule::Issued => Guard::IssuedKey,
        }
    }
}

/// Whether the first route is stricter than the second for this method; `None` if neither is and
/// they differ.
pub(super) fn compare(one: &Route, other: &Route, method: &http::Method) -> Option<Ordering> {
    let (ours, theirs) = (
        Guard::new(&one.policy, method),
        Guard::new(&other.policy, method),
    );
    if ours == Guard::Nothing || theirs == Guard::Nothing {
        return Some(ours.cmp(&theirs));
    }
    // With different sources, one route may take two callers for one that the other keeps apart.
    if one.principal != other.principal {
        return None;
    }
    let orders = [
        ours.cmp(&theirs),
        compare_modes(one.policy.mode, other.policy.mode)?,
        other.policy.fail_open.cmp(&one.policy.fail_open),
    ];
    let (is_stricter, is_weaker) = (
        orders.contains(&Ordering::Greater),
        orders.contains(&Ordering::Less),
    );
    let (order, stricter) = match (is_stricter, is_weaker) {
        (false, false) => return has_same_rules(one, other).then_some(Ordering::Equal),
        (true, true) => return None,
        (true, false) => (Ordering::Greater, ours),
        (false, true) => (Ordering::Less, theirs),
    };
    // A key where the stricter route does not look would not count, and the request would pass
    // unguarded.
    (stricter >= Guard::Key || key_place(&one.policy) == key_place(&other.policy)).then_some(order)
}

/// After a lost attempt, `rerun` always runs again. In the other modes it depends on what the
/// service does, and a service that does its part for one mode need not do it for another.
fn compare_modes(one: Mode, other: Mode) -> Option<Ordering> {
    match (one, other) {
        (one, other) if one == other => Some(Ordering::Equal),
        (Mode::Rerun, _) => Some(Ordering::Less),
        (_, Mode::Rerun) => Some(Ordering::Greater),
        _ => None,
    }
}

fn key_place(policy: &Policy) -> (&KeySource, String) {
    (&policy.key_source, policy.key_field.to_ascii_lowercase())
}

fn has_same_rules(one: &Route, other: &Route) -> bool {
    // Both guard the request's method; which other methods they guard does not matter.
    let one_policy = Policy {
        methods: other.policy.methods.clone(),
        ..one.policy.clone()
    };
    one_policy == other.policy && one.probe == other.probe
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn route(policy: Policy) -> Route {
        Route::everywhere(policy)
    }

    fn plain() -> Policy {
        Policy::default()
    }

    fn with(change: impl FnOnce(&mut Policy)) -> Policy {
        let mut policy = plain();
        change(&mut policy);
        policy
    }

    fn key(key: KeyRule) -> Policy {
        with(|policy| policy.key = key)
    }

    fn mode(mode: Mode) -> Policy {
        with(|policy| policy.mode = mode)
    }

    #[test]
    fn neither_of_two_routes_is_stricter_that_know_callers_by_different_sources() {
        let known_by = |sources: &str, policy| Route {
            principal: Some(sources.parse().unwrap()),
            ..route(policy)
        };
        let (token, anybody) = (
            known_by("jwt:sub", plain()),
            known_by("none", key(KeyRule::Required)),
        );
        for (one, other) in [(&token, &anybody), (&anybody, &token)] {
            assert_eq!(compare(one, other, &http::Method::POST), None);
        }
        // If one of them guards nothing, the other is stricter.
        let open = known_by("none", key(KeyRule::Off));
        assert_eq!(
            compare(&token, &open, &http::Method::POST),
            Some(Ordering::Greater)
        );
        assert_eq!(
            compare(&token, &anybody, &http::Method::GET),
            Some(Ordering::Equal)
        );
    }

    #[test]
    fn one_route_is_stricter_than_another_or_neither_is() {
        let derived = || KeySource::Derived(vec![hapax::Part::Principal]);
        let harmless = || with(|policy| policy.naturally_idempotent = true);
        let open = || Policy {
            fail_open: true,
            ..harmless()
        };
        let required = |change: fn(&mut Policy)| {
            let mut policy = key(KeyRule::Required);
            change(&mut policy);
            policy
        };
        let minute = Duration::from_secs(60);
        let (greater, equal) = (Some(Ordering::Greater), Some(Ordering::Equal));
        let cases = [
            (plain(), plain(), equal),
            (key(KeyRule::Required), plain(), greater),
            (key(KeyRule::Issued), key(KeyRule::Required), greater),
            (plain(), key(KeyRule::Off), greater),
            (plain(), required(|policy| policy.shadow = true), greater),
            (
                plain(),
                with(|policy| policy.methods = vec!["PATCH".into()]),
                greater,
            ),
            (
                plain(),
                with(|policy| policy.methods = vec!["POST".into()]),
                equal,
            ),
            (
                with(|policy| policy.shadow = true),
                key(KeyRule::Off),
                equal,
            ),
            // Whatever else differs, the route that requires a key is stricter.
            (
                required(|policy| policy.retention = Duration::from_secs(60)),
                plain(),
                greater,
            ),
            (
                required(|policy| policy.key_field = "x-key".into()),
                plain(),
                greater,
            ),
            (mode(Mode::Hold), mode(Mode::Rerun), greater),
            (mode(Mode::Fenced), mode(Mode::Rerun), greater),
            (plain(), harmless(), None),
            (harmless(), open(), greater),
            // Neither is stricter.
            (required(|policy| policy.mode = Mode::Rerun), plain(), None),
            (mode(Mode::Transaction), mode(Mode::Hold), None),
            (
                required(|policy| policy.mode = Mode::Transaction),
                plain(),
                None,
            ),
            (with(|policy| policy.retention = minute), plain(), None),
            (
                with(|policy| policy.key_field = "x-key".into()),
                plain(),
                None,
            ),
            (with(|policy| policy.key_source = derived()), plain(), None),
            (
                Policy {
                    key_source: derived(),
                    ..key(KeyRule::Required)
                },
                plain(),
                greater,
            ),
        ];
        for (one, other, expected) in cases {
            let (one, other) = (route(one), route(other));
            assert_eq!(
                compare(&one, &other, &http::Method::POST),
                expected,
                "{one:?} {other:?}"
            );
            assert_eq!(
                compare(&other, &one, &http::Method::POST),
                expected.map(Ordering::reverse),
                "{other:?} {one:?}"
            );
            assert_eq!(
                compare(&one, &other, &http::Method::GET),
                equal,
                "nobody guards GET"
            );
        }
    }
}
