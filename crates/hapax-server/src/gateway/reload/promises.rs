//! Finds the promises that a new configuration would break: keys that a retry would not find again,
//! and held outcomes that would run again.
//!
//! A record is found by namespace, principal, method, path and key. Routes are not part of that, so
//! they may be added, removed and reordered. But a route decides where the key is read from, and a
//! route that stops guarding reads no key.

use hapax::core::record::{Head, State};
use hapax::core::store::{ListQuery, StoreError};
use hapax::core::time::Timestamp;
use hapax::{Hapax, KeySource, Mode, Policy};
use http::Method;

use crate::config::{Config, Route};

/// Limit on the records that are counted; more than that is reported as many.
const COUNTED_MAX: usize = 10_000;
const PAGE: usize = 1_000;

/// A promise that would be broken. It concerns requests with these methods, or with any, that went
/// to one of the routes `from` and would go to one of the routes `to`.
pub(super) struct Broken {
    pub(super) what: String,
    from: Vec<usize>,
    to: Vec<usize>,
    methods: Option<Vec<Method>>,
    /// Concerns only records whose outcome is unknown.
    is_of_unknown: bool,
    /// The number of affected records, as far as they were counted.
    records: usize,
}

/// Every promise that a change from `old` to `new` would break.
pub(super) fn find_broken(old: &Config, new: &Config) -> Vec<Broken> {
    let of_all = |what, from, to| Broken {
        what,
        from,
        to,
        methods: None,
        is_of_unknown: false,
        records: 0,
    };
    let mut all = Vec::new();
    if old.namespace != new.namespace {
        let what = format!(
            "`namespace` changes from {:?} to {:?}: no key would be found again",
            old.namespace, new.namespace
        );
        let places = |config: &Config| (0..=config.routes.len()).collect();
        all.push(of_all(what, places(old), places(new)));
    }
    let before = old.identity_of(&old.principal);
    let after = new.identity_of(&new.principal);
    if before != after {
        let what = format!(
            "`principal` changes from {before} to {after}: callers would be somebody else, and \
             their keys would not be found again"
        );
        let (from, to) = (without_own_principal(old), without_own_principal(new));
        all.push(of_all(what, from, to));
    }
    all.extend(compare_routes(old, new));
    all
}

/// The indexes of the routes without their own `principal`, including the default route.
fn without_own_principal(config: &Config) -> Vec<usize> {
    let says_nothing = |place: &usize| {
        let route = config.routes.get(*place);
        route.is_none_or(|route| route.principal.is_none())
    };
    (0..=config.routes.len()).filter(says_nothing).collect()
}

/// The promises that are broken for requests that move from one route to another, or whose route
/// changes.
fn compare_routes(old_config: &Config, new_config: &Config) -> Vec<Broken> {
    let (old, new) = (old_config.all_routes(), new_config.all_routes());
    let old_plain = without_own_principal(old_config);
    let new_plain = without_own_principal(new_config);
    let depths = old.iter().chain(&new).map(|route| route.pattern.depth());
    let depth = depths.max().unwrap_or(0) + 1;
    let mut all = Vec::new();
    for (from, before) in old.iter().enumerate() {
        for (to, after) in new.iter().enumerate() {
            let identities = (
                old_config.identity_of(old_config.principal_of(before)),
                new_config.identity_of(new_config.principal_of(after)),
            );
            // A change of the global principal is reported once, not per route.
            let is_said = old_plain.contains(&from) && new_plain.contains(&to);
            let principal = (identities.0 != identities.1 && !is_said)
                .then(|| format!("from {} to {}", identities.0, identities.1));
            for (breach, mut methods) in breaches(before, after, principal) {
                let paths = before.pattern.common(&after.pattern, depth);
                methods.retain(|method| {
                    paths.iter().any(|path| {
                        first(&old, method, path) == Some(from)
                            && first(&new, method, path) == Some(to)
                    })
                });
                if !methods.is_empty() {
                    all.push(Broken {
                        what: breach.describe(before, after, &methods),
                        from: vec![from],
                        to: vec![to],
                        methods: Some(methods),
                        is_of_unknown: matches!(breach, Breach::Mode),
                        records: 0,
                    });
                }
            }
        }
    }
    all
}

/// The index of the route that a request goes to.
fn first(routes: &[Route], method: &Method, path: &str) -> Option<usize> {
    routes.iter().position(|route| route.matches(method, path))
}

/// How a new policy breaks a promise of the old one.
enum Breach {
    Unguarded,
    OtherKey,
    /// The change of the principal sources, as text.
    OtherPrincipal(String),
    Mode,
}

/// The breaches for requests that went to `before` and would go to `after`, with the affected
/// methods.
fn breaches(
    before: &Route,
    after: &Route,
    principal: Option<String>,
) -> Vec<(Breach, Vec<Method>)> {
    let guarded = before
        .policy
        .methods
        .iter()
        .filter_map(|method| method.parse::<Method>().ok());
    let guarded = guarded.filter(|method| guards(&before.policy, method));
    let (still, no_more): (Vec<Method>, Vec<Method>) =
        guarded.partition(|method| guards(&after.policy, method));
    let mut breaches = vec![(Breach::Unguarded, no_more)];
    if key(&before.policy) != key(&after.policy) {
        breaches.push((Breach::OtherKey, still.clone()));
    }
    breaches.extend(principal.map(|change| (Breach::OtherPrincipal(change), still.clone())));
    if !may_become(before.policy.mode, after.policy.mode) {
        breaches.push((Breach::Mode, still));
    }
    breaches.retain(|(_, methods)| !methods.is_empty());
    breaches
}

/// Whether an outcome that one mode left unknown is as safe under another mode.
///
/// `hold` is always safe. `rerun` never promised a single effect. The other modes did: an effect
/// that happened before the service supported the new mode would not be recognized. Only `fenced`
/// can become `probe`: what the service stored for each operation is what a probe answers from. The
/// reverse does not hold: a service that answers probes need not check what was applied before it
/// runs, and with `transaction` an attempt may be unknown that was reported as done and did not
/// join.
fn may_become(before: Mode, after: Mode) -> bool {
    match (before, after) {
        (_, Mode::Hold) | (Mode::Rerun, _) | (Mode::Fenced, Mode::Probe) => true,
        (before, after) => before == after,
    }
}

/// Whether a route guards a method. A shadow route does not.
fn guards(policy: &Policy, method: &Method) -> bool {
    !policy.shadow && policy.guards(method.as_str())
}

/// Where the key is read from. The field's name matters only if the key comes from a field.
fn key(policy: &Policy) -> (&KeySource, Option<String>) {
    let field =
        (policy.key_source == KeySource::Field).then(|| policy.key_field.to_ascii_lowercase());
    (&policy.key_source, field)
}

impl Breach {
    fn describe(&self, before: &Route, after: &Route, methods: &[Method]) -> String {
        let methods: Vec<&str> = methods.iter().map(Method::as_str).collect();
        let methods = methods.join(" and ");
        let name = &before.name;
        let now = if before.name == after.name {
            String::new()
        } else {
            format!(", now under `{}`,", after.name)
        };
        match self {
            Breach::Unguarded => format!(
                "route `{name}`{now} would no longer guard {methods}: a retry would run again"
            ),
            Breach::OtherKey => format!(
                "route `{name}`{now} would look for the key elsewhere: a retry would not find its own"
            ),
            Breach::OtherPrincipal(change) => format!(
                "`principal` of route `{name}`{now} changes {change}: callers would be somebody else, and their keys would not be found again"
            ),
            Breach::Mode => {
                let (from, to) = (before.policy.mode, after.policy.mode);
                let unknown = if from == Mode::Hold {
                    "what is held as unknown"
                } else {
                    "what is unknown by then"
                };
                format!(
                    "route `{name}`{now} changes from {} to {}: {unknown} would run again when it is repeated",
                    from.word(),
                    to.word()
                )
            }
        }
    }
}

impl Broken {
    /// The description, with the number of affected records.
    pub(super) fn describe_counted(&self) -> String {
        let what = if self.is_of_unknown {
            "unknown"
        } else {
            "live"
        };
        let count = match self.records {
            COUNTED_MAX.. => format!("{COUNTED_MAX} or more"),
            count => count.to_string(),
        };
        let noun = if self.records == 1 { "key" } else { "keys" };
        format!("{} ({count} {what} {noun} now)", self.what)
    }
}

/// Counts the records that each broken promise affects.
pub(super) async fn count(
    broken: &mut [Broken],
    hapax: &Hapax,
    old: &Config,
    new: &Config,
    now: Timestamp,
) -> Result<(), StoreError> {
    let (before, after) = (old.all_routes(), new.all_routes());
    let (mut seen, mut cursor) = (0, None);
    while seen < COUNTED_MAX {
        let page = hapax
            .list(ListQuery {
                state: None,
                after: cursor,
                limit: PAGE,
            })
            .await?;
        for head in page
            .iter()
            .filter(|head| *head.scope.namespace == *old.namespace)
        {
            count_one(broken, head, (&before, &after), now);
        }
        seen += page.len();
        cursor = page.last().map(|head| head.id);
        if page.len() < PAGE {
            return Ok(());
        }
    }
    // The rest was not counted, so each may affect any number of records.
    broken
        .iter_mut()
        .for_each(|broken| broken.records = COUNTED_MAX);
    Ok(())
}

fn count_one(
    broken: &mut [Broken],
    head: &Head,
    (before, after): (&[Route], &[Route]),
    now: Timestamp,
) {
    let Ok(method) = head.scope.method.parse::<Method>() else {
        return;
    };
    // A tombstone counts too: it prevents a late retry from running.
    if head.is_gone(now) {
        return;
    }
    let state = head.state_at(now);
    let is_unknown = state.is_open() && state != State::Running;
    let (Some(from), Some(to)) = (
        first(before, &method, &head.scope.path),
        first(after, &method, &head.scope.path),
    ) else {
        return;
    };
    for broken in broken {
        let is_method = |methods: &Vec<Method>| methods.contains(&method);
        if broken.from.contains(&from)
            && broken.to.contains(&to)
            && broken.methods.as_ref().is_none_or(is_method)
            && (!broken.is_of_unknown || is_unknown)
        {
            broken.records += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Routes as `METHODS PATH: SETTING…`, each setting a mode, `off`, `required`, `shadow`,
    /// `derived`, `field=NAME`, `by=SOURCE` or `guards=METHODS`.
    fn config(routes: &[&str]) -> Config {
        Config {
            routes: routes.iter().map(|text| route(text)).collect(),
            ..Config::new("http://127.0.0.1:1".parse().unwrap())
        }
    }

    fn route(text: &str) -> Route {
        let (name, settings) = text.split_once(": ").unwrap_or((text, ""));
        let mut route: Route = name.parse().unwrap();
        let policy = &mut route.policy;
        for setting in settings.split_whitespace() {
            match setting.split_once('=').unwrap_or((setting, "")) {
                ("off", _) => policy.key = hapax::KeyRule::Off,
                ("required", _) => policy.key = hapax::KeyRule::Required,
                ("shadow", _) => policy.shadow = true,
                ("derived", _) => {
                    policy.key_source = KeySource::Derived(vec![hapax::Part::Principal]);
                }
                ("field", name) => policy.key_field = name.into(),
                ("by", source) => route.principal = Some(source.parse().unwrap()),
                ("guards", methods) => {
                    policy.methods = methods.split('|').map(Into::into).collect();
                }
                (mode, _) => {
                    let is_mode = |known: &Mode| known.word() == mode;
                    policy.mode = Mode::ALL.into_iter().find(is_mode).unwrap();
                }
            }
        }
        route
    }

    #[track_caller]
    fn check(old: &[&str], new: &[&str], expected: &[&str]) {
        check_configs(&config(old), &config(new), expected);
    }

    #[track_caller]
    fn check_configs(old: &Config, new: &Config, expected: &[&str]) {
        let broken = find_broken(old, new);
        let told: Vec<&str> = broken.iter().map(|broken| &*broken.what).collect();
        assert_eq!(told.len(), expected.len(), "{told:?}");
        for (told, expected) in told.iter().zip(expected) {
            assert!(told.contains(expected), "{told} {expected}");
        }
    }

    #[test]
    fn routes_may_come_go_and_change_places() {
        let (a, b) = ("POST /a: required", "/b/**");
        check(&[], &[a, b], &[]);
        check(&[a, b], &[], &[]);
        check(&[a, b], &[b, a], &[]);
        // No key is lost where keys were ignored before.
        check(&["/a: off"], &["/a: field=x-key"], &[]);
        check(&["/a: shadow"], &["/a: field=x-key"], &[]);
        // `/a` and `/b` keep their own routes: no request moves to another route.
        let old = ["/a: field=x-key", "/b: off"];
        check(&old, &["/b: off", "/a: field=X-Key"], &[]);
    }

    #[test]
    fn a_route_that_stops_guarding_is_found_however_it_comes_about() {
        let expected = "route `/a` would no longer guard POST and PATCH";
        check(&["/a"], &["/a: off"], &[expected]);
        let expected = "route `default`, now under `/a`, would no longer guard";
        check(&[], &["/a: off"], &[expected]);
        check(&["/a"], &["/a: shadow"], &["would no longer guard"]);
        // A method that only the old route named.
        let expected = "now under `default`, would no longer guard PUT:";
        check(&["PUT|POST /a: guards=PUT|POST"], &["POST /a"], &[expected]);
        // An unguarded route that moves before a guarded one.
        let expected = "`POST /a/{id}`, now under `/a/**`, would no longer guard POST:";
        let old = ["POST /a/{id}", "/a/**: off"];
        check(&old, &["/a/**: off", "POST /a/{id}"], &[expected]);
    }

    #[test]
    fn a_path_with_several_empty_segments_is_not_missed() {
        // Only paths such as `//` reach the last route.
        let expected = "route `default`, now under `/**`, would no longer guard POST and PATCH";
        check(&[], &["/*/**", "/", "//*/**", "/**: off"], &[expected]);
    }

    #[test]
    fn another_place_for_the_key_is_found_where_a_request_goes_by_it() {
        let expected = "route `/a` would look for the key elsewhere";
        check(&["/a"], &["/a: field=x-key"], &[expected]);
        let expected = "route `default`, now under `/a/b`, would look";
        check(&[], &["/a/b: field=x-key"], &[expected]);
        let expected = [
            "`/a/*`, now under `default`,",
            "route `default`, now under `/*/b`,",
        ];
        check(&["/a/*: field=x-key"], &["/*/b: field=x-key"], &expected);
        // The route before it takes every such request, before and after.
        check(&["/a/**", "/a/b"], &["/a/**", "/a/b: field=x-key"], &[]);
        check(&["/a: derived"], &["/a: derived"], &[]);
        check(
            &["/a"],
            &["/a: derived"],
            &["would look for the key elsewhere"],
        );
    }

    #[test]
    fn hold_does_not_quietly_become_rerun() {
        let expected = "route `/a` changes from hold to rerun";
        check(&["/a"], &["/a: rerun"], &[expected]);
        check(&["/a: rerun"], &["/a"], &[]);
        check(&["/a: rerun"], &[], &[]);
        let expected = "route `default`, now under `/a`, changes from hold to rerun";
        check(&[], &["/a: rerun"], &[expected]);
    }

    /// From the mode of each row to each mode: `x` means refused.
    #[test]
    fn no_mode_runs_again_what_another_left_unknown() {
        let table = [
            ("transaction", "-xx-x"),
            ("fenced     ", "x---x"),
            ("probe      ", "xx--x"),
            ("hold       ", "xxx-x"),
            ("rerun      ", "-----"),
        ];
        for (before, (word, row)) in Mode::ALL.into_iter().zip(table) {
            assert_eq!(before.word(), word.trim_end());
            for (after, verdict) in Mode::ALL.into_iter().zip(row.chars()) {
                let (before, after) = (before.word(), after.word());
                let told = format!("route `/a` changes from {before} to {after}");
                let expected = if verdict == 'x' { vec![&*told] } else { vec![] };
                let (before, after) = (format!("/a: {before}"), format!("/a: {after}"));
                check(&[&before], &[&after], &expected);
            }
        }
    }

    #[test]
    fn a_route_that_knows_callers_by_another_source_is_found_however_it_comes_about() {
        let expected = "`principal` of route `/a` changes from none to cookie:sid";
        check(&["/a: by=none"], &["/a: by=cookie:sid"], &[expected]);
        let expected = "`default`, now under `/a`, changes from digest:authorization to none";
        check(&[], &["/a: by=none"], &[expected]);
        let expected = "route `/a`, now under `default`, changes from none to digest:authorization";
        check(&["/a: by=none"], &[], &[expected]);
        // Writing the default out changes nothing.
        check(&["/a: by=digest:authorization"], &["/a"], &[]);
        let (a, b) = ("/a: by=none", "/b: by=cookie:sid");
        check(&[a, b], &[b, a], &[]);
        // No key is lost where keys were ignored before.
        check(&["/a: off by=none"], &["/a: off by=cookie:sid"], &[]);
        // Another global source is reported once, and not for the routes that have their own.
        let old = config(&["/a: by=cookie:sid", "/b"]);
        let mut new = old.clone();
        new.principal = "none".parse().unwrap();
        let expected = "`principal` changes from digest:authorization to none";
        check_configs(&old, &new, &[expected]);
    }

    #[test]
    fn namespace_and_principal_are_everybodys() {
        let old = config(&[]);
        let mut new = old.clone();
        new.namespace = "other".to_owned();
        new.principal = "none".parse().unwrap();
        check_configs(&old, &new, &["from \"default\" to \"other\"", "to none"]);
    }
}
