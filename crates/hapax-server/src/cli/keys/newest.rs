//! Finds the newest keys of a store. Stores list in the order of ids, which are digests, so this
//! reads every key and keeps the newest so far. A gateway reads 10,000 per call, and sends only the
//! newest of them.

use hapax::core::time::Timestamp;

use super::source::Source;
use crate::admin::keys::wire::{Entry, Query};
use crate::cli::Exit;

/// Limit on the keys that are read for one listing.
const LOOKED_AT_MAX: usize = 1_000_000;
/// Keys per answer.
const PAGE: usize = 1_000;

/// The result of a search.
pub(super) struct Newest {
    /// Newest first.
    pub(super) entries: Vec<Entry>,
    pub(super) now: Timestamp,
    pub(super) looked_at: usize,
    /// There are older keys that match.
    pub(super) has_older: bool,
    /// There are keys that were not read.
    pub(super) is_cut_off: bool,
}

/// The newest keys that a query finds, at most `limit`.
pub(super) async fn find(source: &Source, query: &Query, limit: usize) -> Result<Newest, Exit> {
    // One more than `limit`, to know whether there are more. If that does not fit into an answer,
    // all matching keys are sent and sorted here.
    let is_sorted_there = limit < PAGE;
    let mut query = Query {
        newest: is_sorted_there,
        limit: Some(if is_sorted_there { limit + 1 } else { PAGE }),
        ..query.clone()
    };
    let mut found = Newest {
        entries: Vec::new(),
        now: Timestamp::ZERO,
        looked_at: 0,
        has_older: false,
        is_cut_off: false,
    };
    loop {
        let page = source.list(&query).await?;
        found.now = page.now.0;
        found.looked_at += page.looked_at;
        found.entries.extend(page.keys);
        sort(&mut found.entries);
        found.has_older |= found.entries.len() > limit;
        found.entries.truncate(limit);
        let Some(next) = page.next else {
            return Ok(found);
        };
        if found.looked_at >= LOOKED_AT_MAX {
            found.is_cut_off = true;
            return Ok(found);
        }
        query.after = Some(next);
    }
}

/// Sorts newest first.
pub(super) fn sort(entries: &mut [Entry]) {
    entries.sort_by(|one, other| {
        other
            .created_at
            .0
            .cmp(&one.created_at.0)
            .then_with(|| one.id.cmp(&other.id))
    });
}

impl Newest {
    /// Prints to standard error what is not shown.
    pub(super) fn tell_of_rest(&self) {
        if self.is_cut_off {
            eprintln!(
                "the store has more keys than are looked at for one listing ({}): these are the newest of those. `--by-id` goes through all of them",
                self.looked_at
            );
        } else if self.has_older {
            eprintln!(
                "there are older ones: raise --limit, or go through all of them with --by-id"
            );
        }
    }
}

/// If `typed` is a whole name of a principal, keeps only the keys of that principal, not of others
/// that have it as a part of their name.
pub(super) fn keep_exact(entries: &mut Vec<Entry>, typed: Option<&str>) {
    let Some(typed) = typed else { return };
    if entries
        .iter()
        .any(|entry| super::table::principal(entry) == typed)
    {
        entries.retain(|entry| super::table::principal(entry) == typed);
    }
}

/// The principals of some keys, if `typed` matches several.
pub(super) fn principals(entries: &[Entry], typed: Option<&str>) -> Vec<String> {
    let mut all: Vec<String> = entries.iter().map(super::table::principal).collect();
    all.sort();
    all.dedup();
    if typed.is_none() || all.len() < 2 {
        Vec::new()
    } else {
        all
    }
}

/// Prints which principals a name matches, if there are several.
pub(super) fn tell_of_principals(entries: &[Entry], typed: Option<&str>) {
    let all = principals(entries, typed);
    if let (Some(typed), false) = (typed, all.is_empty()) {
        eprintln!(
            "`{}` is {} principals:",
            crate::cli::text::line(typed),
            all.len()
        );
        all.iter()
            .for_each(|name| eprintln!("  {}", crate::cli::text::line(name)));
    }
}
