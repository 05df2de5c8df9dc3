//! The names of all sections and settings, and what somebody may have meant who wrote another.

/// A section and what may stand in it.
pub(crate) struct Names {
    /// Its name; empty for what stands before the first section.
    pub(crate) section: &'static str,
    /// How its header is written.
    pub(crate) header: &'static str,
    /// The settings and sections inside it.
    pub(crate) settings: &'static [&'static str],
}

pub(crate) const TOP: Names = Names {
    section: "",
    header: "",
    settings: &[
        "listen",
        "admin",
        "store",
        "principal",
        "namespace",
        "trusted_proxies",
        "upstream",
        "tls",
        "timeouts",
        "limits",
        "drain",
        "routes",
    ],
};

pub(crate) const UPSTREAM: Names = Names {
    section: "upstream",
    header: "[upstream]",
    settings: &["url", "protocol", "ca_file", "connections_max", "idle_max", "reuse_max"],
};

pub(crate) const TLS: Names = Names { section: "tls", header: "[tls]", settings: &["certificate", "key"] };

pub(crate) const TIMEOUTS: Names = Names {
    section: "timeouts",
    header: "[timeouts]",
    settings: &["first_byte", "handshake", "header", "keep_alive", "stall", "connect", "answer"],
};

pub(crate) const LIMITS: Names = Names {
    section: "limits",
    header: "[limits]",
    settings: &[
        "connections_max",
        "silent_connections_max",
        "header_bytes_max",
        "header_fields_max",
        "streams_max",
        "attempts_max",
        "rate_min",
    ],
};

pub(crate) const DRAIN: Names = Names { section: "drain", header: "[drain]", settings: &["notice", "deadline"] };

pub(crate) const ROUTES: Names = Names {
    section: "routes",
    header: "[[routes]]",
    settings: &[
        "method",
        "path",
        "mode",
        "key",
        "key_field",
        "retention",
        "tombstone",
        "lease",
        "longest_attempt",
        "wait",
        "wait_max",
        "strict",
        "answer_bytes_max",
        "body_bytes_max",
    ],
};

pub(crate) const ALL: [&Names; 7] = [&TOP, &UPSTREAM, &TLS, &TIMEOUTS, &LIMITS, &DRAIN, &ROUTES];

/// What to say of a setting that a section does not have.
pub(super) fn unknown(names: &Names, written: &str) -> String {
    let place = if names.section.is_empty() { "before the first section".to_owned() } else { format!("in {}", names.header) };
    let what =
        if written.is_empty() { "a setting without a name".to_owned() } else { format!("unknown setting `{written}` {place}") };
    if let Some(meant) = nearest(names, written) {
        return format!("{what}: did you mean `{meant}`?");
    }
    match ALL.iter().find(|other| other.settings.contains(&written)) {
        Some(other) if other.section.is_empty() => format!("{what}: it belongs at the top of the file, before the first section"),
        Some(other) => format!("{what}: it belongs in {}", other.header),
        None => format!("{what}: there are {}", names.settings.join(", ")),
    }
}

/// The setting of this section that somebody may have meant.
fn nearest(names: &Names, written: &str) -> Option<&'static str> {
    let plain = written.replace('-', "_").to_ascii_lowercase();
    let (distance, name) = names.settings.iter().map(|name| (distance(&plain, name), *name)).min()?;
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
    use super::*;

    #[test]
    fn near_misses_are_recognised() {
        assert_eq!(nearest(&ROUTES, "retenton"), Some("retention"));
        assert_eq!(nearest(&ROUTES, "longest-attempt"), Some("longest_attempt"));
        assert_eq!(nearest(&TOP, "Listen"), Some("listen"));
        assert_eq!(nearest(&ROUTES, "methods"), Some("method"));
        assert_eq!(nearest(&ROUTES, "x"), None);
        assert_eq!(nearest(&TOP, "workers"), None);
    }
}
