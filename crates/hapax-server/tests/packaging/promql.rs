//! Finds the metrics and labels in a PromQL expression. This is not a parser: promtool checks the
//! syntax.

use std::collections::{BTreeMap, BTreeSet};

/// Labels that Prometheus adds to every series.
const ADDED: [&str; 3] = ["job", "instance", "le"];

/// A label, and its literal values.
pub type Matcher = (String, Vec<String>);

/// The names in an expression.
#[derive(Debug, Default)]
pub struct Names {
    /// The metrics, each with its matchers.
    pub chosen: Vec<(String, Vec<Matcher>)>,
    /// The labels by which sums are grouped.
    pub kept: Vec<String>,
}

pub fn names(expression: &str) -> Names {
    let mut names = Names::default();
    let mut rest = expression;
    while let Some(at) = rest.find("hapax_") {
        let metric: String = rest[at..]
            .chars()
            .take_while(|c| c.is_ascii_alphanumeric() || *c == '_')
            .collect();
        rest = &rest[at + metric.len()..];
        let matchers = rest
            .strip_prefix('{')
            .and_then(|rest| rest.split_once('}'))
            .map_or("", |(matchers, _)| matchers);
        names.chosen.push((metric, split(matchers)));
    }
    for part in expression.split(" by (").skip(1) {
        names.kept.extend(
            part.split(')')
                .next()
                .unwrap()
                .split(',')
                .map(|label| label.trim().to_owned()),
        );
    }
    names
}

/// Splits `a="x", b=~"y|z"` into names and values. Values with a variable or a pattern are left
/// out.
fn split(matchers: &str) -> Vec<Matcher> {
    let mut found = Vec::new();
    for matcher in matchers
        .split("\",")
        .filter(|matcher| !matcher.trim().is_empty())
    {
        // The operator is `=`, `!=`, `=~` or `!~`.
        let (name, value) = matcher
            .split_once(['=', '!'])
            .unwrap_or_else(|| panic!("{matcher}"));
        let value = value.trim_start_matches(['~', '=']).trim_matches('"');
        let values = value.split('|').filter(|value| {
            value
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_')
        });
        found.push((name.trim().to_owned(), values.map(str::to_owned).collect()));
    }
    found
}

/// The metrics that a gateway has, by name.
pub struct Offered(BTreeMap<String, Family>);

#[derive(Default)]
struct Family {
    has_series: bool,
    /// The labels of its series, and their values.
    labels: BTreeMap<String, BTreeSet<String>>,
}

impl Offered {
    /// Reads a scrape. A family without a series is known only by its type.
    pub fn read(scrape: &str) -> Offered {
        let mut offered: BTreeMap<String, Family> = BTreeMap::new();
        for line in scrape.lines() {
            if let Some((name, kind)) = line
                .strip_prefix("# TYPE ")
                .and_then(|rest| rest.split_once(' '))
            {
                let ends: &[&str] = match kind {
                    "counter" => &["_total"],
                    "histogram" => &["_bucket", "_sum", "_count"],
                    "info" => &["_info"],
                    _ => &[""],
                };
                for end in ends {
                    offered.entry(format!("{name}{end}")).or_default();
                }
            } else if line.starts_with("hapax_") {
                let (series, _) = line.rsplit_once(' ').unwrap();
                let (name, labels) = series.split_once('{').map_or((series, ""), |(name, rest)| {
                    (name, rest.trim_end_matches('}'))
                });
                let family = offered.entry(name.to_owned()).or_default();
                family.has_series = true;
                for (label, values) in split(labels) {
                    family.labels.entry(label).or_default().extend(values);
                }
            }
        }
        Offered(offered)
    }

    /// Panics unless the gateway has all metrics and labels of the expression. `words` are further
    /// label values that may be missing in a scrape.
    #[track_caller]
    pub fn check(&self, place: &str, expression: &str, words: &BTreeSet<String>) -> usize {
        let names = names(expression);
        for (metric, matchers) in &names.chosen {
            let labels = &self
                .0
                .get(metric)
                .unwrap_or_else(|| panic!("{place}: there is no {metric}"))
                .labels;
            for (label, values) in matchers
                .iter()
                .filter(|(label, _)| !ADDED.contains(&label.as_str()))
            {
                let known = labels.get(label).unwrap_or_else(|| {
                    panic!("{place}: {metric} has no label {label}: {labels:?}")
                });
                for value in values {
                    assert!(
                        known.contains(value) || words.contains(value),
                        "{place}: {metric} has no {label}={value}: {known:?}"
                    );
                }
            }
        }
        for kept in names
            .kept
            .iter()
            .filter(|label| !ADDED.contains(&label.as_str()))
        {
            let has = |metric: &String| {
                !self.0[metric].has_series || self.0[metric].labels.contains_key(kept)
            };
            assert!(
                names.chosen.iter().all(|(metric, _)| has(metric)),
                "{place}: no label {kept} in {expression}"
            );
        }
        names.chosen.len()
    }

    /// The metrics without a series in the scrape, whose labels could not be checked.
    pub fn without_series(&self) -> Vec<&str> {
        self.0
            .iter()
            .filter(|(_, family)| !family.has_series)
            .map(|(name, _)| name.as_str())
            .collect()
    }
}

#[test]
fn names_are_found() {
    let found = names(
        "sum by (route, le) (rate(hapax_a_total{job=~\"$job\", outcome=~\"x|y-z\", b!=\"c\"}[5m])) / hapax_d",
    );
    assert_eq!(found.kept, ["route", "le"]);
    let (metrics, matchers): (Vec<_>, Vec<_>) = found.chosen.into_iter().unzip();
    assert_eq!(metrics, ["hapax_a_total", "hapax_d"]);
    assert_eq!(
        matchers[0][1],
        ("outcome".to_owned(), vec!["x".to_owned(), "y-z".to_owned()])
    );
    assert_eq!(matchers[0][2].0, "b");
}
