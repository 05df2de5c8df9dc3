//! The output of a check, during the run and at the end.

use std::fmt::Write;
use std::io::IsTerminal;

use hapax::core::store::StoreError;
use hapax_contract::{CASES, Left};
use serde_json::json;

use super::run::{Judged, Verdict};
use crate::cli::{Exit, text};
use crate::config::StoreUrl;

/// Characters of a reason on a line; JSON has all of them.
const WHY_WIDTH: usize = 500;

/// Shows the progress on a terminal.
pub(super) struct Progress(bool);

impl Progress {
    pub(super) fn new() -> Progress {
        Progress(std::io::stderr().is_terminal())
    }

    pub(super) fn show(&mut self, number: usize) {
        if self.0 {
            eprint!(
                "\r\u{1b}[K{} of {}: {}",
                number + 1,
                CASES.len(),
                spoken(CASES[number].name)
            );
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.0 {
            eprint!("\r\u{1b}[K");
        }
    }
}

/// The results of a check.
pub(super) struct Report<'a> {
    pub(super) url: &'a StoreUrl,
    pub(super) judged: Judged,
    pub(super) left: Result<Left, StoreError>,
}

impl Report<'_> {
    pub(super) fn text(&self) -> String {
        let mut said = String::new();
        let mut line = |word: &str, case: &str, why: &str| {
            let why = text::line(why);
            writeln!(
                said,
                "{word}  {}: {}",
                spoken(case),
                text::cut(&why, WHY_WIDTH)
            )
            .expect("text can always be written to");
        };
        for (case, verdict) in &self.judged.cases {
            match verdict {
                Verdict::Kept => {}
                Verdict::KeptLater(why) => line(
                    "AGAIN  ",
                    case,
                    &format!(
                        "kept when it was tried again, as somebody else may have swept; at first: {why}"
                    ),
                ),
                Verdict::Broken(why) => line("BROKEN ", case, why),
                Verdict::Skipped(why) => line("SKIPPED", case, why),
            }
        }
        let [kept, broken, skipped] = self.counts();
        let seconds = self.judged.took.as_secs_f64();
        writeln!(
            said,
            "{}: {kept} promises kept, {broken} broken, {skipped} skipped, in {seconds:.1} s",
            self.url
        )
        .expect("text can always be written to");
        said + &self.leftovers()
    }

    pub(super) fn json(&self) -> String {
        let cases = self.judged.cases.iter().map(|(case, verdict)| {
            let (word, why) = match verdict {
                Verdict::Kept => ("kept", None),
                Verdict::KeptLater(why) => ("kept-later", Some(&**why)),
                Verdict::Broken(why) => ("broken", Some(&**why)),
                Verdict::Skipped(why) => ("skipped", Some(*why)),
            };
            json!({ "case": case, "verdict": word, "why": why })
        });
        let left = match &self.left {
            Ok(left) => json!({
                "tombstones": left.tombstones,
                "tombstones_until": (left.tombstones > 0).then(|| date(left)),
                "tombstones_for_good": left.for_good,
                "audit_entries": left.entries,
            }),
            Err(error) => json!({ "error": error.to_string() }),
        };
        let [kept, broken, skipped] = self.counts();
        let document = json!({
            "store": self.url.to_string(),
            "kept": kept,
            "broken": broken,
            "skipped": skipped,
            "seconds": self.judged.took.as_secs_f64(),
            "cases": cases.collect::<Vec<_>>(),
            "left": left,
        });
        format!("{}\n", text::json(&document.to_string()))
    }

    /// The result as an exit code.
    pub(super) fn verdict(&self) -> Result<(), Exit> {
        let [_, broken, _] = self.counts();
        if broken > 0 {
            return Err(Exit::failed(format!(
                "the store breaks {broken} of {} promises: Hapax must not be run on it",
                CASES.len()
            )));
        }
        match &self.left {
            Ok(_) => Ok(()),
            Err(error) => Err(Exit::failed(format!(
                "what the check made could not be cleared up: {error}"
            ))),
        }
    }

    fn counts(&self) -> [usize; 3] {
        let count = |is: fn(&Verdict) -> bool| {
            self.judged
                .cases
                .iter()
                .filter(|(_, verdict)| is(verdict))
                .count()
        };
        [
            count(|verdict| matches!(verdict, Verdict::Kept | Verdict::KeptLater(_))),
            count(|verdict| matches!(verdict, Verdict::Broken(_))),
            count(|verdict| matches!(verdict, Verdict::Skipped(_))),
        ]
    }

    /// What remains in a store that persists.
    fn leftovers(&self) -> String {
        match (&self.left, self.url) {
            (_, StoreUrl::Memory) | (Err(_), _) => String::new(),
            (Ok(left), _) => format!(
                "Left in it: {} tombstones, the last of which is over at {}; {} of forgotten unknowns, which stay; {} entries in the audit log, for 400 days.\n",
                left.tombstones,
                date(left),
                left.for_good,
                left.entries
            ),
        }
    }
}

fn date(left: &Left) -> String {
    httpdate::fmt_http_date(left.until.to_system_time())
}

/// The name of a case as a sentence.
fn spoken(name: &str) -> String {
    name.replace('_', " ")
}
