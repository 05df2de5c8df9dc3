//! What somebody may have meant who wrote a name that is none.

use super::{ALL, Names, POLICY, ROUTES};

/// More names than these are not listed in a message.
const LISTED_MAX: usize = 20;

/// What to say of a setting that a section does not have.
pub(crate) fn unknown(names: &Names, written: &str) -> String {
    let place = if names.section.is_empty() {
        "before the first section".to_owned()
    } else {
        format!("in {}", names.header)
    };
    let what = if written.is_empty() {
        "a setting without a name".to_owned()
    } else {
        format!("unknown setting `{written}` {place}")
    };
    if written == "strict" {
        return format!(
            "{what}: every 5xx but 503 is unknown by default now: leave it out, or write classes = {{ \"503\" = \"unknown\" }} to hold that one too"
        );
    }
    if let Some(meant) = nearest(names, written) {
        return format!("{what}: did you mean `{meant}`?");
    }
    if POLICY.iter().any(|setting| setting.name == written) {
        return format!(
            "{what}: it belongs in {}, or in [defaults] for all of them",
            ROUTES.header
        );
    }
    match ALL.iter().find(|other| other.word(written).is_some()) {
        Some(other) if other.section.is_empty() => {
            format!("{what}: it belongs at the top of the file, before the first section")
        }
        Some(other) => format!("{what}: it belongs in {}", other.header),
        None => format!("{what}: {}", listed(names)),
    }
}

fn listed(names: &Names) -> String {
    let words: Vec<&str> = names.words().collect();
    match words.len() {
        0..=LISTED_MAX => format!("there are {}", words.join(", ")),
        _ => "`hapax config schema --markdown` lists all there are".to_owned(),
    }
}

/// The setting of this section that somebody may have meant.
pub(crate) fn nearest(names: &Names, written: &str) -> Option<&'static str> {
    let plain = written.replace('-', "_").to_ascii_lowercase();
    let (distance, name) = names
        .words()
        .map(|name| (distance(&plain, name), name))
        .min()?;
    (distance <= 2 && distance * 3 <= plain.chars().count()).then_some(name)
}

/// How many letters must be put in, left out or exchanged to make one word of another.
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    // Enough to tell that two words are not alike, however long a line somebody wrote.
    let one = one.chars().take(64);
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (i, letter) in one.enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, wanted) in other.iter().enumerate() {
            let exchanged = diagonal + usize::from(letter != *wanted);
            diagonal = row[j + 1];
            row[j + 1] = exchanged.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::super::TOP;
    use super::*;

    #[test]
    fn near_misses_are_recognised() {
        assert_eq!(nearest(&ROUTES, "retenton"), Some("retention"));
        assert_eq!(nearest(&ROUTES, "longest-attempt"), Some("longest_attempt"));
        assert_eq!(nearest(&TOP, "Listen"), Some("listen"));
        assert_eq!(nearest(&TOP, "admin-token-file"), Some("admin_token_file"));
        assert_eq!(nearest(&ROUTES, "methods"), Some("method"));
        assert_eq!(nearest(&ROUTES, "x"), None);
        assert_eq!(nearest(&TOP, "workers"), None);
    }
}
