//! Finds paths that two patterns have in common.

use super::{Pattern, Segment};

/// A segment that no pattern names: patterns cannot contain it.
const FRESH: &str = " ";

/// How many segments of a rest are tried both empty and nonempty: each doubles the paths.
const CHOSEN_MAX: usize = 6;

impl Pattern {
    /// A few paths that both patterns match, of at most `depth` segments, as representatives: every
    /// common path is matched by the same patterns as one of these. So if some common path goes to
    /// neither of two routes, one of these does.
    ///
    /// A free segment is one that no pattern names, so as few patterns as possible match it. A free
    /// rest is tried in each length, and with any of its segments left empty, which no placeholder
    /// matches.
    pub(crate) fn common(&self, other: &Pattern, depth: usize) -> Vec<String> {
        let Some(fixed) = meet(self, other) else {
            return Vec::new();
        };
        let mut paths = vec![path(&fixed, &[])];
        if self.any_rest && other.any_rest {
            for more in 1..=depth.saturating_sub(fixed.len()) {
                paths.extend(rests(more).map(|rest| path(&fixed, &rest)));
            }
        }
        paths
    }

    /// The number of its segments.
    pub(crate) fn depth(&self) -> usize {
        self.segments.len()
    }
}

/// All sequences of this many segments, each fresh or empty. Only the first [`CHOSEN_MAX`] segments
/// vary: no real pattern has empty segments deeper than that.
fn rests(segments: usize) -> impl Iterator<Item = Vec<&'static str>> {
    let chosen = |choice: usize, at: usize| at < CHOSEN_MAX && choice >> at & 1 == 1;
    (0..1_usize << segments.min(CHOSEN_MAX)).map(move |choice| {
        (0..segments)
            .map(|at| if chosen(choice, at) { "" } else { FRESH })
            .collect()
    })
}

/// The segments of a path that both patterns match; `None` if there is no such path.
fn meet<'a>(one: &'a Pattern, other: &'a Pattern) -> Option<Vec<&'a str>> {
    let reaches = |shorter: &Pattern, longer: &Pattern| {
        shorter.segments.len() >= longer.segments.len() || shorter.any_rest
    };
    if !reaches(one, other) || !reaches(other, one) {
        return None;
    }
    let segment = |at: usize| match (one.segments.get(at), other.segments.get(at)) {
        (Some(Segment::Just(ours)), Some(Segment::Just(theirs))) => {
            (ours == theirs).then_some(&**ours)
        }
        (Some(Segment::Just(just)), Some(Segment::Any))
        | (Some(Segment::Any), Some(Segment::Just(just))) => (!just.is_empty()).then_some(&**just),
        (Some(Segment::Just(just)), None) | (None, Some(Segment::Just(just))) => Some(&**just),
        _ => Some(FRESH),
    };
    (0..one.segments.len().max(other.segments.len()))
        .map(segment)
        .collect()
}

fn path(fixed: &[&str], rest: &[&str]) -> String {
    let segments: Vec<&str> = fixed.iter().chain(rest).copied().collect();
    format!("/{}", segments.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_common_is_matched_by_both_and_nothing_else_is_common() {
        let patterns = [
            "/", "//", "//**", "//*/**", "/a", "/a/", "/*", "/a/*", "/*/b", "/a/b", "/**", "/a/**",
            "/a/*/**", "/*/**", "/b/{x}/c",
        ];
        let patterns = patterns.map(|text| text.parse::<Pattern>().unwrap());
        let words = ["a", "b", "c", "z", ""];
        let short = words.iter().map(|one| format!("/{one}"));
        let longer = words
            .iter()
            .flat_map(|one| words.iter().map(move |two| format!("/{one}/{two}")));
        let two = words
            .iter()
            .flat_map(|one| words.iter().map(move |two| format!("/{one}/{two}")));
        let longest = two.flat_map(|two| ["c", ""].map(|three| format!("{two}/{three}")));
        let paths: Vec<String> = short.chain(longer).chain(longest).collect();
        for one in &patterns {
            for other in &patterns {
                let common = one.common(other, 4);
                assert!(
                    common
                        .iter()
                        .all(|path| one.matches(path) && other.matches(path)),
                    "{one} {other} {common:?}"
                );
                let is_common = paths
                    .iter()
                    .any(|path| one.matches(path) && other.matches(path));
                assert_eq!(!common.is_empty(), is_common, "{one} {other} {common:?}");
                // Every common path is matched by the same patterns as one of the representatives.
                for path in paths
                    .iter()
                    .filter(|path| one.matches(path) && other.matches(path))
                {
                    let past = |path: &str| {
                        patterns
                            .iter()
                            .filter(|pattern| !pattern.matches(path))
                            .count()
                    };
                    assert!(
                        common.iter().any(|sample| past(sample) >= past(path)),
                        "{one} {other} {path} {common:?}"
                    );
                }
            }
        }
    }
}
