//! What `settle` and `forget` have in common: who signs, and changing each key.

use std::io::IsTerminal;

use super::format::count;
use super::table;
use crate::admin::keys::wire::{Entry, Signed};
use crate::cli::{Exit, text};

/// How many changes run concurrently: each `forget` waits for about a second.
const AT_ONCE: usize = 32;

/// Who does this, and why, as flags.
#[derive(clap::Args)]
pub(in crate::cli) struct Sign {
    /// Why, and how you know: for whoever reads the log
    #[arg(long, value_name = "TEXT")]
    reason: String,
    /// Who says so [default: user@host]
    #[arg(long, value_name = "WHO")]
    by: Option<String>,
}

impl Sign {
    /// The same, for a store that is changed from here.
    pub(in crate::cli) fn kept(&self) -> Result<hapax::core::audit::Signed, Exit> {
        self.signed()?.kept().map_err(Exit::usage)
    }

    /// Prints to standard error which name is used, if none was given.
    pub(super) fn signed(&self) -> Result<Signed, Exit> {
        let by = self.by.clone().unwrap_or_else(|| {
            let by = user_at_host();
            eprintln!("signed as {} (--by says otherwise)", text::line(&by));
            by
        });
        let signed = Signed {
            by,
            reason: self.reason.clone(),
        };
        signed.check().map_err(Exit::usage)?;
        Ok(signed)
    }
}

/// The user at the terminal, as far as the system knows.
pub(in crate::cli) fn user_at_host() -> String {
    let user = ["USER", "LOGNAME"]
        .iter()
        .find_map(|name| std::env::var(name).ok().filter(|user| !user.is_empty()));
    let user = user.unwrap_or_else(|| format!("uid{}", rustix::process::getuid().as_raw()));
    let system = rustix::system::uname();
    format!("{user}@{}", system.nodename().to_string_lossy())
}

/// The result of changing some keys.
pub(super) struct Changed {
    /// The keys that changed, as they were before.
    pub(super) before: Vec<Entry>,
    failures: usize,
}

impl Changed {
    /// Returns an error if some key did not change.
    pub(super) fn end(&self, done: &str) -> Result<(), Exit> {
        match self.failures {
            0 => Ok(()),
            failures => Err(Exit::failed(format!(
                "{failures} of {} not {done}",
                count(self.before.len() + failures, "key")
            ))),
        }
    }
}

/// Changes each key, and prints the result.
pub(super) async fn each<F, C>(entries: Vec<Entry>, done: &str, change: F) -> Changed
where
    F: Fn(&Entry) -> C,
    C: Future<Output = Result<Entry, String>> + Send + 'static,
{
    let (mut changed, progress) = (
        Changed {
            before: Vec::new(),
            failures: 0,
        },
        Progress::new(entries.len()),
    );
    for (number, chunk) in entries.chunks(AT_ONCE).enumerate() {
        progress.show(number * AT_ONCE, done);
        let changes: Vec<_> = chunk
            .iter()
            .map(|entry| (entry, tokio::spawn(change(entry))))
            .collect();
        for (before, change) in changes {
            match change.await.unwrap_or_else(|error| Err(error.to_string())) {
                Ok(entry) => {
                    changed.before.push(before.clone());
                    text::emit(&line(done, &entry));
                }
                Err(why) => {
                    changed.failures += 1;
                    eprintln!("not {done}: {}: {}", before.id, text::line(&why));
                }
            }
        }
    }
    changed
}

/// Shows the progress on standard error if that is a terminal and standard output, where each
/// change is printed, is not.
struct Progress(Option<usize>);

impl Progress {
    fn new(all: usize) -> Progress {
        let is_alone = std::io::stderr().is_terminal() && !std::io::stdout().is_terminal();
        Progress((is_alone && all > AT_ONCE).then_some(all))
    }

    fn show(&self, ended: usize, done: &str) {
        if let Progress(Some(all)) = self {
            eprint!("\r{ended} of {all} {done}");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.0.is_some() {
            eprint!("\r\u{1b}[K");
        }
    }
}

fn line(done: &str, entry: &Entry) -> String {
    let fields = [
        done,
        &entry.id,
        &table::state(entry),
        &format!("{} {}", entry.method, entry.path),
        &entry.key,
    ];
    let fields: Vec<_> = fields.iter().map(|field| text::line(field)).collect();
    format!("{}\n", fields.join("\t"))
}
