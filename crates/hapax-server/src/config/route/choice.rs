//! Chooses the route of a request, however its path is spelled.
//!
//! The path is matched as sent and in its [normal spelling](spelling::normal). If the results
//! differ, the stricter route applies; if neither is stricter, it is unclear what the request was
//! promised, and it is refused. Services have more ways to read a path than this normal spelling,
//! such as ignoring case. Those only ever make the choice stricter: a request must not be refused
//! because of a reading that is merely possible.

use std::borrow::Borrow;
use std::cmp::Ordering;

use http::Method;

use super::strictness::{Guard, compare};
use super::{Pattern, Route, spelling};

/// The route of a request.
#[derive(Debug)]
pub struct Choice<'a, R> {
    /// The route.
    pub route: &'a R,
    /// The spelling of the path that led to the route, if it is not the one that was sent.
    pub read_as: Option<String>,
}

/// Services may read this path in several ways that fall under different rules, none of which is
/// the strictest.
#[derive(Debug, PartialEq, Eq)]
pub struct PathAmbiguous {
    /// The other spelling; `None` if there are too many.
    pub read_as: Option<String>,
}

/// Chooses the route of a request. The last route takes all requests that the others do not match.
///
/// # Panics
///
/// If there are no routes.
pub fn choose<'a, R: Borrow<Route>>(
    routes: &'a [R],
    method: &Method,
    path: &str,
) -> Result<Choice<'a, R>, PathAmbiguous> {
    let mut search = Search {
        routes,
        method,
        chosen: 0,
        read_as: None,
    };
    search.chosen = search.first(|pattern| pattern.matches(path));
    let as_sent = search.chosen;
    if spelling::is_plain(path) {
        search.weigh(search.first(|pattern| pattern.matches_loosely(path)), path)?;
    } else if search.is_guarded() {
        let normal = spelling::normal(path);
        search.weigh_normal(search.first(|pattern| pattern.matches(&normal)), &normal)?;
        let mut readings = spelling::readings(path).ok_or(PathAmbiguous { read_as: None })?;
        if !routes[as_sent].borrow().pattern.ends_in_text() {
            let paths = readings.iter().chain([&normal]);
            let more: Vec<_> = paths
                .flat_map(|path| spelling::without_extension(path))
                .map(str::to_owned)
                .collect();
            readings.extend(more);
        }
        for reading in &readings {
            search.weigh(search.first(|pattern| pattern.matches(reading)), reading)?;
            search.weigh(
                search.first(|pattern| pattern.matches_loosely(reading)),
                reading,
            )?;
        }
    }
    Ok(Choice {
        route: &routes[search.chosen],
        read_as: search.read_as,
    })
}

/// The route of the requests of a scope. If [none](PathAmbiguous) can be chosen, the one that
/// matches the path as sent.
pub fn route_of<'a>(routes: &'a [Route], scope: &hapax::Scope) -> Option<&'a Route> {
    let method = Method::from_bytes(scope.method.as_bytes()).ok()?;
    match choose(routes, &method, &scope.path) {
        Ok(choice) => Some(choice.route),
        Err(PathAmbiguous { .. }) => routes
            .iter()
            .find(|route| route.matches(&method, &scope.path)),
    }
}

struct Search<'a, R> {
    routes: &'a [R],
    method: &'a Method,
    chosen: usize,
    read_as: Option<String>,
}

impl<R: Borrow<Route>> Search<'_, R> {
    fn first(&self, fits: impl Fn(&Pattern) -> bool) -> usize {
        let is_it =
            |route: &R| route.borrow().takes_method(self.method) && fits(&route.borrow().pattern);
        self.routes
            .iter()
            .position(is_it)
            .unwrap_or(self.routes.len() - 1)
    }

    /// Whether some route guards requests with this method. If none does, all routes forward the
    /// request.
    fn is_guarded(&self) -> bool {
        self.routes
            .iter()
            .any(|route| self.guard(route) > Guard::Nothing)
    }

    fn guard(&self, route: &R) -> Guard {
        Guard::new(&route.borrow().policy, self.method)
    }

    fn compare(&self, found: usize) -> Option<Ordering> {
        if found == self.chosen {
            return Some(Ordering::Equal);
        }
        compare(
            self.routes[found].borrow(),
            self.routes[self.chosen].borrow(),
            self.method,
        )
    }

    /// Considers the route that the normal spelling leads to.
    fn weigh_normal(&mut self, found: usize, normal: &str) -> Result<(), PathAmbiguous> {
        match self.compare(found) {
            Some(Ordering::Greater) => self.take(found, normal),
            Some(Ordering::Less | Ordering::Equal) => {}
            None => {
                return Err(PathAmbiguous {
                    read_as: Some(normal.to_owned()),
                });
            }
        }
        Ok(())
    }

    /// Considers the route that another reading leads to. The request is refused only if it could
    /// bypass a guard that requires more of it.
    fn weigh(&mut self, found: usize, reading: &str) -> Result<(), PathAmbiguous> {
        match self.compare(found) {
            Some(Ordering::Greater) => self.take(found, reading),
            None if self.guard(&self.routes[found]) > self.guard(&self.routes[self.chosen]) => {
                return Err(PathAmbiguous {
                    read_as: Some(reading.to_owned()),
                });
            }
            Some(Ordering::Less | Ordering::Equal) | None => {}
        }
        Ok(())
    }

    fn take(&mut self, found: usize, reading: &str) {
        self.chosen = found;
        self.read_as = Some(reading.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use hapax::{KeyRule, Mode, Policy};

    use super::*;

    fn routes(written: &[(&str, Policy)]) -> Vec<Route> {
        let route = |(text, policy): &(&str, Policy)| Route {
            policy: policy.clone(),
            ..text.parse().unwrap()
        };
        let unwritten = Route {
            name: "default".into(),
            ..Route::everywhere(Policy::default())
        };
        written.iter().map(route).chain([unwritten]).collect()
    }

    fn key(key: KeyRule) -> Policy {
        Policy {
            key,
            ..Policy::default()
        }
    }

    #[track_caller]
    fn check(routes: &[Route], path: &str, expected: &str) {
        let chosen = choose(routes, &Method::POST, path).map_or("ambiguous".to_owned(), |choice| {
            choice.route.name.to_string()
        });
        assert_eq!(chosen, expected, "{path}");
    }

    #[test]
    fn an_extension_before_a_trailing_slash_walks_around_nothing() {
        let routes = routes(&[("POST /v1/orders", key(KeyRule::Required))]);
        for path in [
            "/v1/orders.json",
            "/v1/orders.json/",
            "/v1/orders.json//",
            "/v1/orders.json/.",
            "/v1/orders.v2.json/",
        ] {
            check(&routes, path, "POST /v1/orders");
        }
    }

    #[test]
    fn a_spelling_goes_by_the_strictest_route_that_it_may_mean() {
        let routes = routes(&[
            ("/open/**", key(KeyRule::Off)),
            ("/v1/orders", key(KeyRule::Required)),
            ("/v1/orders/{id}", key(KeyRule::Required)),
            ("/v1/Reports/", key(KeyRule::Required)),
            (
                "/v1/files/{id}",
                Policy {
                    retention: Duration::from_secs(3_600),
                    ..Policy::default()
                },
            ),
            (
                "/v1/mails",
                Policy {
                    mode: Mode::Rerun,
                    ..Policy::default()
                },
            ),
            (
                "/v1/pay",
                Policy {
                    mode: Mode::Transaction,
                    ..key(KeyRule::Required)
                },
            ),
            ("/v1/search.all", key(KeyRule::Off)),
            ("/v1/search", key(KeyRule::Required)),
        ]);
        for (path, expected) in [
            ("/v1/orders", "/v1/orders"),
            ("/v1/orders/", "/v1/orders"),
            ("/V1/ORDERS", "/v1/orders"),
            ("/open/../v1/orders", "/v1/orders"),
            ("/open/a", "/open/**"),
            ("/open//a/", "/open/**"),
            ("/open/a%2Fb;c", "/open/**"),
            // The patterns themselves may have other spellings too.
            ("/v1/Reports/", "/v1/Reports/"),
            ("/v1/reports", "/v1/Reports/"),
            ("/v1/%72eports", "/v1/Reports/"),
            // A spelling that leads to the same route passes, including `%2F` in an id.
            ("/v1/orders/a%2Fb", "/v1/orders/{id}"),
            ("/v1/files/a%2Fb", "/v1/files/{id}"),
            ("/v1/files/a.b", "/v1/files/{id}"),
            ("/v1/other//x/", "default"),
            ("/v1/other/..%2F", "default"),
            // Neither rule is stricter.
            ("/v1/files/7/", "ambiguous"),
            ("/v1/pay/", "ambiguous"),
            ("/v1/Pay", "ambiguous"),
            ("/v1%2Fpay", "ambiguous"),
            // The weaker of two rules never applies, even if it was the one meant.
            ("/v1/mails", "/v1/mails"),
            ("/v1/mails/", "default"),
            // A name with a dot that a route spells out is taken literally.
            ("/v1/search.all", "/v1/search.all"),
            ("/v1/search.json", "/v1/search"),
            // No honest path has so many readings.
            ("/v1;a%3Ba%2F%5C\\//../a%3b/%2E%2E;/x%41.%20", "ambiguous"),
        ] {
            check(&routes, path, expected);
        }
        // No route guards GET: every path passes as it is.
        for path in [
            "/v1/pay/",
            "/v1/files/7/",
            "/v1;a%3Ba%2F%5C\\//../a%3b/%2E%2E;/x%41.%20",
        ] {
            assert!(
                choose(&routes, &Method::GET, path).is_ok_and(|choice| choice.read_as.is_none()),
                "{path}"
            );
        }
    }

    #[test]
    fn the_spelling_that_decided_is_told() {
        let routes = routes(&[("/v1/orders", key(KeyRule::Required))]);
        let read_as = |path| choose(&routes, &Method::POST, path).unwrap().read_as;
        assert_eq!(read_as("/v1/orders"), None);
        assert_eq!(read_as("/v1/./orders/").as_deref(), Some("/v1/orders"));
        assert_eq!(read_as("/V1/orders").as_deref(), Some("/V1/orders"));
        assert_eq!(read_as("/v1/orders/7"), None);
    }

    #[test]
    fn without_written_routes_every_path_goes_by_the_unwritten_one() {
        let routes = routes(&[]);
        for path in ["/", "/v1//orders/", "", "*", "/%"] {
            check(&routes, path, "default");
        }
    }
}
