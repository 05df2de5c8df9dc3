//! Selects the keys of a command: by id, by the beginning of an id, or by a filter.

use std::io::{BufRead, IsTerminal};

use hapax::RecordId;
use hapax::core::time::Timestamp;

use super::filter::Filter;
use super::format::{count, nothing_matched};
use super::newest;
use super::source::Source;
use super::table::{self, Style};
use crate::admin::keys::wire::{Entry, Page, Query};
use crate::admin::operation::{self, before};
use crate::cli::{Exit, text};

/// The fewest digits that may abbreviate an id.
const ID_DIGITS_MIN: usize = 6;
/// Keys per request.
const PAGE: usize = 1_000;
/// How many of the keys to be changed are shown.
const SHOWN_MAX: usize = 20;

/// Reads the results of a query page by page, up to a limit.
pub(super) struct Walk<'a> {
    source: &'a Source,
    query: Query,
    left: usize,
    is_over: bool,
}

impl<'a> Walk<'a> {
    pub(super) fn new(source: &'a Source, query: Query, limit: usize) -> Walk<'a> {
        Walk {
            source,
            query,
            left: limit,
            is_over: false,
        }
    }

    pub(super) async fn next(&mut self) -> Result<Option<Page>, Exit> {
        if self.is_over || self.left == 0 {
            return Ok(None);
        }
        let page = self.page(self.left.min(PAGE)).await?;
        self.left -= page.keys.len().min(self.left);
        Ok(Some(page))
    }

    /// Raises the limit by keys that were found but do not count.
    fn give_back(&mut self, count: usize) {
        self.left += count;
    }

    /// The id to continue after, if the limit may have cut the results off.
    pub(super) fn rest(&self) -> Option<&str> {
        self.query.after.as_deref().filter(|_| !self.is_over)
    }

    async fn page(&mut self, limit: usize) -> Result<Page, Exit> {
        self.query.limit = Some(limit);
        let page = self.source.list(&self.query).await?;
        match &page.next {
            Some(next) => self.query.after = Some(next.clone()),
            None => self.is_over = true,
        }
        Ok(page)
    }
}

/// The only record whose id begins with `text`.
pub(super) async fn resolve(source: &Source, text: &str) -> Result<RecordId, Exit> {
    let text = text.to_ascii_lowercase();
    if let Ok(id) = text.parse() {
        // An operation id has the same form as a record id.
        return Ok(of_operation(source, &text).await?.unwrap_or(id));
    }
    let Some(first) = lowest(&text) else {
        return Err(Exit::usage(format!(
            "`{0}` is no id: an id is 64 hexadecimal digits, of which the first {ID_DIGITS_MIN} or more will do. For a key as its caller sent it, write `hapax keys show --key {0}`",
            text::line(&text)
        )));
    };
    let mut found = two_from(source, first).await?;
    found.retain(|entry| entry.id.starts_with(&text));
    match &found[..] {
        [] => Err(Exit::failed(format!(
            "there is no key whose id begins with {text}"
        ))),
        [only] => parsed(only).map_err(Exit::failed),
        _ => Err(Exit::failed(format!(
            "several ids begin with {text}: give more digits (`hapax keys list --full` shows them whole)"
        ))),
    }
}

/// The record of an operation id.
async fn of_operation(source: &Source, operation: &str) -> Result<Option<RecordId>, Exit> {
    let Some(first) = lowest(operation::beginning(operation)) else {
        return Ok(None);
    };
    let found = two_from(source, first).await?;
    found
        .iter()
        .find(|entry| entry.operation_id == operation)
        .map(parsed)
        .transpose()
        .map_err(Exit::failed)
}

/// The first two keys from an id on; a second one may show that the beginning is ambiguous.
async fn two_from(source: &Source, first: RecordId) -> Result<Vec<Entry>, Exit> {
    let query = Query {
        after: before(first).map(|id| id.to_string()),
        limit: Some(2),
        ..Query::default()
    };
    Ok(source.list(&query).await?.keys)
}

/// The lowest id that begins with `digits`.
fn lowest(digits: &str) -> Option<RecordId> {
    let is_short_id = (ID_DIGITS_MIN..64).contains(&digits.len())
        && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_short_id
        .then(|| format!("{digits:0<64}").parse().ok())
        .flatten()
}

/// What a command does with keys.
pub(super) struct Wish<'a> {
    /// The state to select if none is given.
    pub(super) state: Option<&'a str>,
    /// A participle, such as `settled`.
    pub(super) done: &'a str,
    /// The full description.
    pub(super) what: &'a str,
    /// Why it cannot be done with a key, if so.
    pub(super) refusal: fn(&Entry) -> Option<String>,
    /// Whether nothing is left to do with a key.
    pub(super) is_done: fn(&Entry) -> bool,
    /// Why it can be done with one key only, if so.
    pub(super) only_one: Option<&'a str>,
}

/// What a change is about, as flags.
#[derive(clap::Args)]
pub(super) struct Targets {
    /// The records' ids, or their first digits, or operation ids
    #[arg(value_name = "ID")]
    ids: Vec<String>,
    #[command(flatten)]
    filter: Filter,
    /// With a filter: at most so many in one go
    #[arg(long, default_value_t = 1_000)]
    limit: usize,
    /// With a filter: do not ask
    #[arg(long)]
    yes: bool,
    /// Show what would be changed, and change nothing
    #[arg(long, conflicts_with = "yes")]
    dry_run: bool,
}

impl Targets {
    pub(super) fn state(&self) -> Option<&str> {
        self.filter.state()
    }

    /// The selected keys in their current versions; a version that arises later must not be
    /// changed. Keys found by a filter are shown first, and the user is asked. `None` if they are
    /// not to be changed.
    pub(super) async fn choose(
        &self,
        source: &Source,
        wish: &Wish<'_>,
    ) -> Result<Option<Vec<Entry>>, Exit> {
        match (self.ids.is_empty(), self.filter.is_empty()) {
            (false, false) => Err(Exit::usage("give ids or a filter such as --path, not both")),
            (true, true) => Err(Exit::usage(
                "say which keys: ids, or a filter such as --path /v1/charges or --older-than 1h",
            )),
            (false, true) => {
                let mut entries = Vec::new();
                for text in &self.ids {
                    entries.push(
                        source
                            .show(resolve(source, text).await?, false)
                            .await?
                            .entry,
                    );
                }
                wish.fits(entries.len())?;
                if self.dry_run {
                    return wish.judge(&entries).map(|()| None);
                }
                Ok(Some(entries))
            }
            (true, false) => self.choose_by_filter(source, wish).await,
        }
    }

    async fn choose_by_filter(
        &self,
        source: &Source,
        wish: &Wish<'_>,
    ) -> Result<Option<Vec<Entry>>, Exit> {
        let mut query = self.filter.query();
        query.state = query.state.or_else(|| wish.state.map(str::to_owned));
        // Which principal is meant is decided by all keys, not only by those within the limit.
        let person = self.one_principal(source).await?;
        let mut walk = Walk::new(source, query, self.limit);
        let (mut found, mut unknown, mut looked_at, mut now) = (Vec::new(), 0, 0, Timestamp::ZERO);
        while let Some(mut page) = walk.next().await? {
            let all = page.keys.len();
            page.keys.retain(|entry| {
                person
                    .as_ref()
                    .is_none_or(|person| table::principal(entry) == *person)
            });
            let of_person = page.keys.len();
            page.keys
                .retain(|entry| wish.state == Some("unknown") || !entry.is_unresolved());
            unknown += of_person - page.keys.len();
            page.keys.retain(|entry| !(wish.is_done)(entry));
            walk.give_back(all - page.keys.len());
            looked_at += page.looked_at;
            now = page.now.0;
            found.extend(page.keys);
        }
        newest::sort(&mut found);
        preview(&found, now);
        if unknown > 0 {
            eprintln!(
                "left out: {} of unknown outcome, to be settled first",
                count(unknown, "key")
            );
        }
        let what = wish.what;
        if found.is_empty() {
            return Err(Exit::failed(format!(
                "{}: nothing to do",
                nothing_matched(&self.filter.flags(), looked_at)
            )));
        }
        wish.fits(found.len())?;
        let more = if walk.rest().is_some() {
            ", and there may be more: run this again for those"
        } else {
            ""
        };
        eprintln!("{} would be {what}{more}", count(found.len(), "key"));
        if self.dry_run {
            return Ok(None);
        }
        if self.yes || is_confirmed()? {
            return Ok(Some(found));
        }
        Err(Exit::usage("nothing was changed: add --yes to go on"))
    }
}

impl Targets {
    /// The principal that was named, as stored; `None` if none was named or no key has it. Refuses
    /// a name that several principals have.
    async fn one_principal(&self, source: &Source) -> Result<Option<String>, Exit> {
        if self.filter.principal.is_none() {
            return Ok(None);
        }
        let all = self.look_again(source).await?;
        if newest::principals(&all, self.filter.principal.as_deref()).is_empty() {
            return Ok(all.first().map(table::principal));
        }
        newest::tell_of_principals(&all, self.filter.principal.as_deref());
        Err(Exit::usage(
            "nothing was changed: these may be several people. Give --principal as one of them is written here",
        ))
    }

    /// The named principal, if keys were selected by one.
    pub(super) fn principal(&self) -> Option<&str> {
        self.filter
            .principal
            .as_deref()
            .filter(|_| self.ids.is_empty())
    }

    /// Every key that the filter finds now, in any state and without a limit.
    pub(super) async fn look_again(&self, source: &Source) -> Result<Vec<Entry>, Exit> {
        let mut walk = Walk::new(source, self.filter.query(), usize::MAX);
        let mut found = Vec::new();
        while let Some(page) = walk.next().await? {
            found.extend(page.keys);
        }
        newest::keep_exact(&mut found, self.filter.principal.as_deref());
        Ok(found)
    }
}

pub(super) fn parsed(entry: &Entry) -> Result<RecordId, String> {
    entry
        .id
        .parse::<RecordId>()
        .map_err(|error| error.to_string())
}

impl Wish<'_> {
    /// Checks that it can be done with this many keys.
    fn fits(&self, keys: usize) -> Result<(), Exit> {
        match self.only_one {
            Some(why) if keys > 1 => Err(Exit::usage(format!(
                "nothing was changed: this is about {keys} keys, and {why}"
            ))),
            _ => Ok(()),
        }
    }

    /// Prints what would become of each key. Returns an error if one cannot be changed.
    fn judge(&self, entries: &[Entry]) -> Result<(), Exit> {
        let Wish {
            done,
            what,
            refusal,
            ..
        } = self;
        let mut refused = 0;
        for entry in entries {
            if let Some(why) = refusal(entry) {
                refused += 1;
                eprintln!("would not be {done}: {}: {}", entry.id, text::line(&why));
            }
        }
        if refused < entries.len() {
            eprintln!("{} would be {what}", count(entries.len() - refused, "key"));
        }
        match refused {
            0 => Ok(()),
            _ => Err(Exit::failed(format!(
                "{refused} of {} would not be {done}",
                count(entries.len(), "key")
            ))),
        }
    }
}

/// Shows the newest of the keys to be changed.
fn preview(found: &[Entry], now: Timestamp) {
    let shown = found.len().min(SHOWN_MAX);
    if shown > 0 {
        eprint!("{}", table::draw(&found[..shown], now, Style::plain()));
    }
    if shown < found.len() {
        eprintln!("… and {}", count(found.len() - shown, "further key"));
    }
}

/// Asks for confirmation, if standard input and standard error are terminals.
fn is_confirmed() -> Result<bool, Exit> {
    if !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
        return Ok(false);
    }
    eprint!("Go on? [y/N] ");
    let mut answer = String::new();
    std::io::stdin()
        .lock()
        .read_line(&mut answer)
        .map_err(|error| Exit::failed(format!("no answer could be read: {error}")))?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lookup_begins_just_before_the_lowest_id_that_fits() {
        let start = |digits: &str| before(lowest(digits).unwrap()).map(|id| id.to_string());
        assert_eq!(start("000000"), None);
        assert_eq!(start("abc100"), Some(format!("abc0{}", "f".repeat(60))));
        assert_eq!(
            start("abcdef01"),
            Some(format!("abcdef00{}", "f".repeat(56)))
        );
        for text in ["", "abcde", "xyzxyz", &"a".repeat(65)] {
            assert!(lowest(text).is_none(), "{text}");
        }
    }
}
