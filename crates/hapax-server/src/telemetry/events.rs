//! Counts the events of the library.

use std::sync::Arc;

use hapax::core::key::Pattern;
use hapax::core::record::{Last, State};
use hapax::observe::{Event, Source};
use hapax::{Observer, Rejection};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::metrics::{Label, registered};

/// The counters for the library's events.
#[derive(Clone)]
pub(super) struct Events {
    replays: Replays,
    duplicates_prevented: Counter,
    attempts_in_flight: Gauge,
    attempts: Attempts,
    waits: Counter,
    failed_open: Counter,
    fenced_out: Counter,
    joined: Joined,
    not_joined: Counter,
    probes: Probes,
    guessable: Guessable,
}

#[derive(Clone)]
struct Guessable {
    counter: Counter,
    clock: Counter,
}

/// Records that were completed in the transaction of their effect.
#[derive(Clone)]
struct Joined {
    same: Counter,
    other: Counter,
}

#[derive(Clone)]
struct Probes {
    done: Counter,
    barred: Counter,
    unknown: Counter,
}

#[derive(Clone)]
struct Replays {
    cache: Counter,
    store: Counter,
    wait: Counter,
}

#[derive(Clone)]
struct Attempts {
    completed: Counter,
    failed: Counter,
    retryable: Counter,
    unknown: Counter,
}

/// Counts events, and passes them on.
pub(super) struct Counting {
    pub(super) events: Events,
    pub(super) also: Arc<dyn Observer>,
}

impl Observer for Counting {
    fn on(&self, event: &Event<'_>) {
        self.events.count(event);
        self.also.on(event);
    }
}

impl Events {
    pub(super) fn new(to: &mut Registry) -> Events {
        Events {
            replays: Replays::new(to),
            duplicates_prevented: registered(
                to,
                "duplicates_prevented",
                "Repeats answered without a second dispatch: replayed, told to come back, or told why there is no answer",
            ),
            attempts_in_flight: registered(
                to,
                "attempts_in_flight",
                "Attempts dispatched and not yet written down as ended",
            ),
            attempts: Attempts::new(to),
            waits: registered(to, "waits", "Requests that waited for a running attempt"),
            failed_open: registered(
                to,
                "failed_open",
                "Requests let through without a guard because the store was unreachable",
            ),
            fenced_out: registered(
                to,
                "fenced_out",
                "Attempts that ended after they had lost their fence, and were discarded",
            ),
            joined: Joined::new(to),
            not_joined: registered(
                to,
                "not_joined",
                "Answers that said done on a transaction route, and whose record was not completed in the transaction of the effect",
            ),
            probes: Probes::new(to),
            guessable: Guessable::new(to),
        }
    }

    fn count(&self, event: &Event<'_>) {
        match event {
            Event::Dispatching(_) => {
                self.attempts_in_flight.inc();
            }
            // Every dispatched attempt ends in exactly one of these two events.
            Event::Finished { state, .. } => {
                self.attempts_in_flight.dec();
                self.attempts.count(*state);
            }
            // Attempts whose end this process did not see, because it or another node was killed.
            Event::FencedOut(_) => {
                self.attempts_in_flight.dec();
                self.fenced_out.inc();
            }
            Event::Joined { differs, .. } => self.joined.count(*differs),
            Event::NotJoined(_) => {
                self.not_joined.inc();
            }
            Event::Probed { found, .. } => self.probes.count(found),
            Event::Replayed { source, .. } => {
                self.replays.count(*source);
                self.duplicates_prevented.inc();
            }
            Event::Rejected { rejection, .. } if is_duplicate(rejection) => {
                self.duplicates_prevented.inc();
            }
            Event::Waiting(_) => {
                self.waits.inc();
            }
            Event::FailedOpen(_) => {
                self.failed_open.inc();
            }
            Event::GuessableKey { kind, .. } => self.guessable.count(*kind),
            _ => {}
        }
    }
}

/// Logs attempts that were lost with their process, if there are any.
pub(crate) fn tell_of_lost(lost: usize) {
    if lost > 0 {
        tracing::warn!(
            lost,
            see = "hapax keys list --state unknown",
            "attempts were found lost: the process that ran them ended before they did, and their outcome is unknown"
        );
    }
}

/// Whether a rejection answers a repeat of a request that was dispatched and may have had its
/// effect.
///
/// Excluded are `Lost`, which goes to the caller of the attempt itself; `KeyReused`, which is a
/// different request; and keys whose attempts are known not to count.
fn is_duplicate(rejection: &Rejection) -> bool {
    match rejection {
        Rejection::InFlight { .. }
        | Rejection::OutcomeUnknown
        | Rejection::AnswerNotKept { .. } => true,
        Rejection::KeyExpired { last, .. } => {
            matches!(last, Some(Last::Completed | Last::Failed | Last::Unknown))
        }
        _ => false,
    }
}

impl Joined {
    fn new(to: &mut Registry) -> Joined {
        let help = "Records completed in the transaction of their effect, by whether what was answered differs from what was stored, which is what counts";
        let joined: Family<Label, Counter> = registered(to, "joined", help);
        let differs = |differs| joined.get_or_create_owned(&[("differs", differs)]);
        Joined {
            same: differs("false"),
            other: differs("true"),
        }
    }

    fn count(&self, differs: bool) {
        if differs {
            self.other.inc()
        } else {
            self.same.inc()
        };
    }
}

impl Probes {
    fn new(to: &mut Registry) -> Probes {
        let help = "Times that the upstream was asked what became of a lost attempt, by what it said: done, barred, or unknown";
        let probes: Family<Label, Counter> = registered(to, "probes", help);
        let found = |found| probes.get_or_create_owned(&[("found", found)]);
        Probes {
            done: found("done"),
            barred: found("barred"),
            unknown: found("unknown"),
        }
    }

    fn count(&self, found: &str) {
        match found {
            "done" => self.done.inc(),
            "barred" => self.barred.inc(),
            _ => self.unknown.inc(),
        };
    }
}

impl Replays {
    fn new(to: &mut Registry) -> Replays {
        let replays: Family<Label, Counter> = registered(
            to,
            "replays",
            "Stored answers sent again, by where they came from",
        );
        let source = |source| replays.get_or_create_owned(&[("source", source)]);
        Replays {
            cache: source("cache"),
            store: source("store"),
            wait: source("wait"),
        }
    }

    fn count(&self, source: Source) {
        match source {
            Source::Cache => self.cache.inc(),
            Source::Store => self.store.inc(),
            Source::Wait => self.wait.inc(),
        };
    }
}

impl Guessable {
    fn new(to: &mut Registry) -> Guessable {
        let help = "New keys that somebody could guess from one seen before, by what they look like: counter, clock";
        let keys: Family<Label, Counter> = registered(to, "guessable_keys", help);
        let kind = |kind: Pattern| keys.get_or_create_owned(&[("kind", kind.word())]);
        Guessable {
            counter: kind(Pattern::Counter),
            clock: kind(Pattern::Clock),
        }
    }

    fn count(&self, kind: Pattern) {
        match kind {
            Pattern::Clock => self.clock.inc(),
            _ => self.counter.inc(),
        };
    }
}

impl Attempts {
    fn new(to: &mut Registry) -> Attempts {
        let attempts: Family<Label, Counter> =
            registered(to, "attempts", "Attempts that ended, by what they ended in");
        let state = |state: State| attempts.get_or_create_owned(&[("state", state.word())]);
        Attempts {
            completed: state(State::Completed),
            failed: state(State::Failed),
            retryable: state(State::Retryable),
            unknown: state(State::Unknown),
        }
    }

    fn count(&self, state: State) {
        match state {
            State::Completed => self.completed.inc(),
            State::Failed => self.failed.inc(),
            State::Retryable => self.retryable.inc(),
            // An attempt has no other final state.
            _ => self.unknown.inc(),
        };
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use hapax::core::time::Timestamp;

    use super::*;

    #[test]
    fn what_counts_as_a_duplicate_prevented() {
        let expired = |last| Rejection::KeyExpired {
            last,
            is_forgotten: false,
        };
        for (rejection, counts) in [
            (
                Rejection::InFlight {
                    retry_after: Duration::ZERO,
                },
                true,
            ),
            (Rejection::OutcomeUnknown, true),
            (
                Rejection::AnswerNotKept {
                    status: None,
                    at: Timestamp::ZERO,
                },
                true,
            ),
            (expired(Some(Last::Completed)), true),
            (expired(Some(Last::Unknown)), true),
            (expired(Some(Last::Retryable)), false),
            (expired(None), false),
            (
                Rejection::Lost {
                    timed_out: false,
                    repeat: false,
                },
                false,
            ),
            (Rejection::KeyReused, false),
            (Rejection::StoreUnavailable, false),
            (Rejection::UpstreamUnreachable, false),
        ] {
            assert_eq!(is_duplicate(&rejection), counts, "{rejection:?}");
        }
    }
}
