//! What a new configuration would break: keys that a retry would not find again, and outcomes that
//! are held and would run.
//!
//! A record is found by namespace, principal, method, path and key. Routes are not in there, so
//! they may come, go and change places; but where a route looks for the key is what makes it that
//! key, and a route that guards no more looks for none.

use hapax::core::record::{Head, State};
use hapax::core::store::{ListQuery, StoreError};
use hapax::core::time::Timestamp;
use hapax::{Hapax, KeySource, Mode, Policy};
use http::Method;

use crate::config::{Config, Route};

/// Looked no further for keys that are live: by then it is many.
const COUNTED_MAX: usize = 10_000;
const PAGE: usize = 1_000;

/// A promise that would be broken.
pub(super) struct Broken {
    what: String,
    of: Of,
    /// Records that it is about, as far as they were counted.
    records: usize,
}

/// Which records it is about.
enum Of {
    /// All that are live.
    All,
    /// Those of the requests that went to the first of these routes and would go to the second.
    Route {
        from: usize,
        to: usize,
        methods: Vec<Method>,
        is_unknown: bool,
    },
    /// Those of the requests that went to one of these routes and would go to one of those.
    Routes { from: Vec<usize>, to: Vec<usize> },
}

/// Every promise that would be broken by going from one configuration to another.
pub(super) fn broken(old: &Config, new: &Config) -> Vec<Broken> {
    let mut all = Vec::new();
    if old.namespace != new.namespace {
        let what = format!(
            "`namespace` changes from {:?} to {:?}: no key would be found again",
            old.namespace, new.namespace
        );
        all.push(Broken::new(what, Of::All));
    }
    let (before, after) = (
        old.identity_of(&old.principal),
        new.identity_of(&new.principal),
    );
    if before != after {
        let what = format!(
            "`principal` changes from {before} to {after}: callers would be somebody else, and their keys would not be found again"
        );
        all.push(Broken::new(
            what,
            Of::Routes {
                from: without_own_principal(old),
                to: without_own_principal(new),
            },
        ));
    }
    all.extend(between(old, new));
    all
}

/// The places of the routes that do not say who is asking, the unwritten one too.
fn without_own_principal(config: &Config) -> Vec<usize> {
    (0..=config.routes.len())
        .filter(|place| {
            config
                .routes
                .get(*place)
                .is_none_or(|route| route.principal.is_none())
        })
        .collect()
}

/// How callers are known on a route, before and after, if not by the same name.
fn other_principal(
    before: (&Config, &Route, bool),
    after: (&Config, &Route, bool),
) -> Option<String> {
    // Said once for all of those.
    if before.2 && after.2 {
        return None;
    }
    let identity = |(config, route, _): (&Config, &Route, bool)| {
        config.identity_of(config.principal_of(route))
    };
    let (before, after) = (identity(before), identity(after));
    (before != after).then(|| format!("from {before} to {after}"))
}

/// The same of routes alone.
fn between(old_config: &Config, new_config: &Config) -> Vec<Broken> {
    let (old, new) = (&old_config.all_routes()[..], &new_config.all_routes()[..]);
    let (old_plain, new_plain) = (
        without_own_principal(old_config),
        without_own_principal(new_config),
    );
    let depth = old
        .iter()
        .chain(new)
        .map(|route| route.pattern.depth())
        .max()
        .unwrap_or(0)
        + 1;
    let mut all = Vec::new();
    for (from, before) in old.iter().enumerate() {
        for (to, after) in new.iter().enumerate() {
            let principal = other_principal(
                (old_config, before, old_plain.contains(&from)),
                (new_config, after, new_plain.contains(&to)),
            );
            for (breach, methods) in breaches(before, after, principal) {
                let goes = |method: &Method| {
                    let paths = before.pattern.common(&after.pattern, depth);
                    paths.iter().any(|path| {
                        first(old, method, path) == Some(from)
                            && first(new, method, path) == Some(to)
                    })
                };
                let methods: Vec<Method> = methods.into_iter().filter(goes).collect();
                if !methods.is_empty() {
                    let what = breach.told(before, after, &methods);
                    let is_unknown = matches!(breach, Breach::Mode);
                    all.push(Broken::new(
                        what,
                        Of::Route {
                            from,
                            to,
                            methods,
                            is_unknown,
                        },
                    ));
                }
            }
        }
    }
    all
}

/// The route that a request goes to.
fn first(routes: &[Route], method: &Method, path: &str) -> Option<usize> {
    routes.iter().position(|route| route.matches(method, path))
}

/// How one policy breaks what another promised.
enum Breach {
    Unguarded,
    OtherKey,
    /// How callers are known, in words.
    OtherPrincipal(String),
    Mode,
}

/// How requests would fare that went by one route and would go by another, and with which methods.
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

/// Whether what one mode left unknown is as safe with another.
///
/// Holding is always safe. Of `rerun` nobody was promised that there is only one effect. The others
/// were: and whatever had its effect before the service did for its part what the new mode needs,
/// it would not know again. Only one that was fenced can be asked: what it kept for each operation
/// is what a probe answers from. The other way round is not the same: a service that answers probes
/// need not look at what was applied before it runs, and a transaction leaves unknown what was said
/// to be done and did not join.
fn may_become(before: Mode, after: Mode) -> bool {
    match (before, after) {
        (_, Mode::Hold) | (Mode::Rerun, _) | (Mode::Fenced, Mode::Probe) => true,
        (before, after) => before == after,
    }
}

/// Whether a key means something there. On a route that only watches it does not.
fn guards(policy: &Policy, method: &Method) -> bool {
    !policy.shadow && policy.guards(method.as_str())
}

/// Where the key is looked for. The field is of no matter where it is not looked at.
fn key(policy: &Policy) -> (&KeySource, Option<String>) {
    let field =
        (policy.key_source == KeySource::Field).then(|| policy.key_field.to_ascii_lowercase());
    (&policy.key_source, field)
}

impl Breach {
    fn told(&self, before: &Route, after: &Route, methods: &[Method]) -> String {
        let methods: Vec<&str> = methods.iter().map(Method::as_str).collect();
        let (methods, now) = (methods.join(" and "), goes_by(before, after));
        let name = &before.name;
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

fn goes_by(before: &Route, after: &Route) -> String {
    if before.name == after.name {
        String::new()
    } else {
        format!(", now under `{}`,", after.name)
    }
}

impl Broken {
    fn new(what: String, of: Of) -> Broken {
        Broken {
            what,
            of,
            records: 0,
        }
    }

    /// For whoever has to decide.
    pub(super) fn told(&self) -> String {
        self.what.clone()
    }

    /// The same with the number of records that it is about.
    pub(super) fn counted(&self) -> String {
        let what = match self.of {
            Of::Route {
                is_unknown: true, ..
            } => "unknown",
            _ => "live",
        };
        let count = match self.records {
            COUNTED_MAX.. => format!("{COUNTED_MAX} or more"),
            count => count.to_string(),
        };
        let noun = if self.records == 1 { "key" } else { "keys" };
        format!("{} ({count} {what} {noun} now)", self.what)
    }

    fn is_about(&self, subject: &Subject<'_>) -> bool {
        match &self.of {
            Of::All => true,
            Of::Routes { from, to } => {
                let has = |places: &[usize], place: Option<usize>| {
                    place.is_some_and(|place| places.contains(&place))
                };
                has(from, subject.from) && has(to, subject.to)
            }
            Of::Route {
                from,
                to,
                methods,
                is_unknown,
            } => {
                (subject.from, subject.to) == (Some(*from), Some(*to))
                    && methods.contains(subject.method)
                    && (!is_unknown || subject.is_unknown())
            }
        }
    }
}

/// A record, and the routes that its request goes by.
struct Subject<'a> {
    state: State,
    method: &'a Method,
    from: Option<usize>,
    to: Option<usize>,
}

impl Subject<'_> {
    fn is_unknown(&self) -> bool {
        self.state.is_open() && self.state != State::Running
    }
}

/// Counts the records that each is about.
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
    // What is beyond was not looked at: it may be any number.
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
    // A tombstone counts too: it keeps a late retry from running.
    if head.is_gone(now) {
        return;
    }
    let (from, to) = (
        first(before, &method, &head.scope.path),
        first(after, &method, &head.scope.path),
    );
    let subject = Subject {
        state: head.state_at(now),
        method: &method,
        from,
        to,
    };
    for broken in broken.iter_mut().filter(|broken| broken.is_about(&subject)) {
        broken.records += 1;
    }
}

#[cfg(test)]
mod tests {
    use hapax::KeyRule;

    use super::*;

    fn route(text: &str, policy: Policy) -> Route {
        let (methods, pattern) = text.split_once(' ').unwrap_or(("", text));
        let methods = methods
            .split('|')
            .filter(|method| !method.is_empty())
            .map(|method| method.parse().unwrap())
            .collect();
        Route {
            name: text.into(),
            methods,
            pattern: pattern.parse().unwrap(),
            ..Route::everywhere(policy)
        }
    }

    fn config(routes: Vec<Route>) -> Config {
        Config {
            routes,
            ..Config::new("http://127.0.0.1:1".parse().unwrap())
        }
    }

    #[track_caller]
    fn check(old: Vec<Route>, new: Vec<Route>, expected: &[&str]) {
        let told: Vec<String> = broken(&config(old), &config(new))
            .iter()
            .map(Broken::told)
            .collect();
        assert_eq!(told.len(), expected.len(), "{told:?}");
        for (told, expected) in told.iter().zip(expected) {
            assert!(told.contains(expected), "{told} {expected}");
        }
    }

    fn plain() -> Policy {
        Policy::default()
    }

    fn off() -> Policy {
        Policy {
            key: KeyRule::Off,
            ..plain()
        }
    }

    fn by(field: &str) -> Policy {
        Policy {
            key_field: field.into(),
            ..plain()
        }
    }

    fn rerun() -> Policy {
        of(Mode::Rerun)
    }

    fn of(mode: Mode) -> Policy {
        Policy { mode, ..plain() }
    }

    #[test]
    fn routes_may_come_go_and_change_places() {
        let (a, b) = (
            || {
                route(
                    "POST /a",
                    Policy {
                        key: KeyRule::Required,
                        ..plain()
                    },
                )
            },
            || route("/b/**", plain()),
        );
        check(vec![], vec![a(), b()], &[]);
        check(vec![a(), b()], vec![], &[]);
        check(vec![a(), b()], vec![b(), a()], &[]);
        // Nobody's key is lost where none was heeded.
        check(
            vec![route("/a", off())],
            vec![route("/a", by("x-key"))],
            &[],
        );
        check(
            vec![route(
                "/a",
                Policy {
                    shadow: true,
                    ..plain()
                },
            )],
            vec![route("/a", by("x-key"))],
            &[],
        );
        // Each under a route of its own before and after: no request changes hands.
        check(
            vec![route("/a", by("x-key")), route("/b", off())],
            vec![route("/b", off()), route("/a", by("X-Key"))],
            &[],
        );
    }

    #[test]
    fn a_route_that_stops_guarding_is_found_however_it_comes_about() {
        check(
            vec![route("/a", plain())],
            vec![route("/a", off())],
            &["route `/a` would no longer guard POST and PATCH"],
        );
        check(
            vec![],
            vec![route("/a", off())],
            &["route `default`, now under `/a`, would no longer guard"],
        );
        check(
            vec![route("/a", plain())],
            vec![route(
                "/a",
                Policy {
                    shadow: true,
                    ..plain()
                },
            )],
            &["would no longer guard"],
        );
        // A method that only the old route named.
        let put = || {
            route(
                "PUT|POST /a",
                Policy {
                    methods: vec!["PUT".into(), "POST".into()],
                    ..plain()
                },
            )
        };
        check(
            vec![put()],
            vec![route("POST /a", plain())],
            &["now under `default`, would no longer guard PUT:"],
        );
        // An unguarded route that moves before a guarded one.
        let (guarded, unguarded) = (|| route("POST /a/{id}", plain()), || route("/a/**", off()));
        check(
            vec![guarded(), unguarded()],
            vec![unguarded(), guarded()],
            &["`POST /a/{id}`, now under `/a/**`, would no longer guard POST:"],
        );
    }

    #[test]
    fn a_path_with_several_empty_segments_is_not_missed() {
        // What is left for the last is `//`, and its like.
        let new = || {
            ["/*/**", "/", "//*/**"]
                .map(|path| route(path, plain()))
                .into_iter()
                .chain([route("/**", off())])
                .collect()
        };
        check(
            vec![],
            new(),
            &["route `default`, now under `/**`, would no longer guard POST and PATCH"],
        );
    }

    #[test]
    fn another_place_for_the_key_is_found_where_a_request_goes_by_it() {
        check(
            vec![route("/a", plain())],
            vec![route("/a", by("x-key"))],
            &["route `/a` would look for the key elsewhere"],
        );
        check(
            vec![],
            vec![route("/a/b", by("x-key"))],
            &["route `default`, now under `/a/b`, would look"],
        );
        check(
            vec![route("/a/*", by("x-key"))],
            vec![route("/*/b", by("x-key"))],
            &[
                "`/a/*`, now under `default`,",
                "route `default`, now under `/*/b`,",
            ],
        );
        // The route before it takes every such request, then and now.
        let first = || route("/a/**", plain());
        check(
            vec![first(), route("/a/b", plain())],
            vec![first(), route("/a/b", by("x-key"))],
            &[],
        );
        let derived = || Policy {
            key_source: KeySource::Derived(vec![hapax::Part::Principal]),
            ..plain()
        };
        check(
            vec![route("/a", derived())],
            vec![route("/a", derived())],
            &[],
        );
        check(
            vec![route("/a", plain())],
            vec![route("/a", derived())],
            &["would look for the key elsewhere"],
        );
    }

    #[test]
    fn hold_does_not_quietly_become_rerun() {
        check(
            vec![route("/a", plain())],
            vec![route("/a", rerun())],
            &["route `/a` changes from hold to rerun"],
        );
        check(vec![route("/a", rerun())], vec![route("/a", plain())], &[]);
        check(vec![route("/a", rerun())], vec![], &[]);
        check(
            vec![],
            vec![route("/a", rerun())],
            &["route `default`, now under `/a`, changes from hold to rerun"],
        );
    }

    /// From each mode in a row to each: `x` is refused.
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
                let told = format!(
                    "route `/a` changes from {} to {}",
                    before.word(),
                    after.word()
                );
                let expected = if verdict == 'x' { vec![&*told] } else { vec![] };
                check(
                    vec![route("/a", of(before))],
                    vec![route("/a", of(after))],
                    &expected,
                );
            }
        }
    }

    #[test]
    fn a_route_that_knows_callers_by_another_source_is_found_however_it_comes_about() {
        let by = |path: &str, sources: &str| Route {
            principal: Some(sources.parse().unwrap()),
            ..route(path, plain())
        };
        let check_of =
            |old: Vec<Route>, new: Vec<Route>, expected: &[&str]| check(old, new, expected);
        check_of(
            vec![by("/a", "none")],
            vec![by("/a", "cookie:sid")],
            &["`principal` of route `/a` changes from none to cookie:sid"],
        );
        check_of(
            vec![],
            vec![by("/a", "none")],
            &["`default`, now under `/a`, changes from digest:authorization to none"],
        );
        check_of(
            vec![by("/a", "none")],
            vec![],
            &["route `/a`, now under `default`, changes from none to digest:authorization"],
        );
        // Written out or not, it is the same.
        check_of(
            vec![by("/a", "digest:authorization")],
            vec![route("/a", plain())],
            &[],
        );
        check_of(
            vec![by("/a", "none"), by("/b", "cookie:sid")],
            vec![by("/b", "cookie:sid"), by("/a", "none")],
            &[],
        );
        // Nobody's key is lost where none was heeded.
        let open = |sources: &str| Route {
            policy: off(),
            ..by("/a", sources)
        };
        check_of(vec![open("none")], vec![open("cookie:sid")], &[]);
        // Another source for all says it once, and not for the routes that have their own.
        let config_of = |principal: &str| {
            let routes = vec![by("/a", "cookie:sid"), route("/b", plain())];
            Config {
                principal: principal.parse().unwrap(),
                ..config(routes)
            }
        };
        let told: Vec<String> = broken(&config_of("digest:authorization"), &config_of("none"))
            .iter()
            .map(Broken::told)
            .collect();
        assert!(
            told.len() == 1
                && told[0].starts_with("`principal` changes from digest:authorization to none"),
            "{told:?}"
        );
    }

    #[test]
    fn namespace_and_principal_are_everybodys() {
        let (old, mut new) = (config(vec![]), config(vec![]));
        (new.namespace, new.principal) = (
            "other".to_owned(),
            crate::config::PrincipalSource::None.into(),
        );
        let told: Vec<String> = broken(&old, &new).iter().map(Broken::told).collect();
        assert!(
            told.len() == 2
                && told[0].contains("from \"default\" to \"other\"")
                && told[1].contains("to none"),
            "{told:?}"
        );
    }
}
