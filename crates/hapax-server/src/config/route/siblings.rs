//! Finds paths next to a guarded one that were probably forgotten.

use http::Method;

use super::strictness::Guard;
use super::{Route, Segment, choose};

/// A warning for each written route that requires a key while a path above or below it goes to the
/// default route, which does not. An explicit route for that path, with any policy, silences the
/// warning.
pub(crate) fn unguarded_siblings(routes: &[Route]) -> Vec<String> {
    let Some((unwritten, written)) = routes.split_last() else {
        return Vec::new();
    };
    let mut warnings = Vec::new();
    for route in written {
        let methods: Vec<Method> = methods(route)
            .filter(|method| is_weaker(unwritten, route, method))
            .collect();
        let goes_unwritten = |path: &String| {
            let chosen = |method| {
                choose(routes, method, path)
                    .is_ok_and(|choice| std::ptr::eq(choice.route, unwritten))
            };
            methods.iter().any(chosen)
        };
        let siblings: Vec<String> = siblings(route)
            .into_iter()
            .filter(goes_unwritten)
            .map(|path| format!("`{path}`"))
            .collect();
        if !siblings.is_empty() {
            warnings.push(format!(
                "route `{}` requires a key, but {} by no route, and there {}: write a route for {}, or path = \"{}\"",
                route.name,
                if siblings.len() == 1 { format!("{} goes", siblings[0]) } else { format!("{} go", siblings.join(" and ")) },
                if unwritten.policy.guards(methods[0].as_str()) { "a key is optional" } else { "no key is looked at" },
                if siblings.len() == 1 { "it" } else { "them" },
                everything_below(route),
            ));
        }
    }
    warnings
}

/// The methods for which it requires a key.
fn methods(route: &Route) -> impl Iterator<Item = Method> {
    let guarded = route
        .policy
        .methods
        .iter()
        .filter_map(|method| method.parse::<Method>().ok());
    guarded.filter(|method| {
        route.takes_method(method) && Guard::new(&route.policy, method) >= Guard::Key
    })
}

fn is_weaker(unwritten: &Route, route: &Route, method: &Method) -> bool {
    Guard::new(&unwritten.policy, method) < Guard::new(&route.policy, method)
}

/// Paths that a service probably has besides those of a route: `/orders/{id}` besides `/orders`,
/// and `/orders` besides `/orders/{id}`. A placeholder is used literally, as a segment that no
/// pattern names.
fn siblings(route: &Route) -> Vec<String> {
    let pattern = &route.pattern;
    let text = pattern.to_string();
    let text = text.trim_end_matches('/');
    match pattern.segments.last() {
        _ if pattern.any_rest => Vec::new(),
        Some(Segment::Any) => text
            .rsplit_once('/')
            .map(|(above, _)| above.to_owned())
            .filter(|above| !above.is_empty())
            .into_iter()
            .collect(),
        Some(Segment::Just(last)) if !last.is_empty() => vec![format!("{text}/{{id}}")],
        Some(Segment::Just(_)) | None => Vec::new(),
    }
}

fn everything_below(route: &Route) -> String {
    let text = route.pattern.to_string();
    let above = match route.pattern.segments.last() {
        Some(Segment::Any) => text.rsplit_once('/').map_or("", |(above, _)| above),
        _ => &text,
    };
    format!("{above}/**")
}

#[cfg(test)]
mod tests {
    use hapax::{KeyRule, Policy};

    use super::*;

    fn warnings(routes: &[(&str, KeyRule)]) -> Vec<String> {
        let policy = |key| Policy {
            key,
            ..Policy::default()
        };
        let written = routes.iter().map(|(text, key)| Route {
            policy: policy(*key),
            ..text.parse().unwrap()
        });
        let unwritten = Route {
            name: "default".into(),
            ..Route::everywhere(Policy::default())
        };
        unguarded_siblings(&written.chain([unwritten]).collect::<Vec<_>>())
    }

    #[test]
    fn a_sibling_that_nobody_has_thought_of_is_told() {
        use KeyRule::{Off, Optional, Required};
        assert_eq!(
            warnings(&[("/v1/orders", Required)]),
            [
                "route `/v1/orders` requires a key, but `/v1/orders/{id}` goes by no route, and there a key is optional: write a route \
              for it, or path = \"/v1/orders/**\""
            ]
        );
        let told = warnings(&[("POST /v1/orders/*", Required)]);
        assert!(
            told.len() == 1
                && told[0].contains("but `/v1/orders` goes")
                && told[0].contains("\"/v1/orders/**\""),
            "{told:?}"
        );
        for routes in [
            &[("/v1/orders/**", Required)][..],
            &[("/v1/orders", Optional)],
            &[("/v1/orders", Required), ("/v1/orders/{id}", Off)],
            &[("/v1/orders", Required), ("/v1/**", Optional)],
            &[("GET /v1/orders", Required)],
            &[("/", Required)],
            &[("/{id}", Required)],
        ] {
            assert_eq!(warnings(routes), [""; 0], "{routes:?}");
        }
    }
}
