//! The settings of a relay.

use std::time::Duration;

use hapax::core::flow::GiveUp;

use super::Settings;
use super::declare::{choice, count, duration, settings, text};
use crate::relay::Destination;

settings! {
    /// Where messages are published, and how: `[relay.NAME]`.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Relay {
        /// where messages go: `stdout:`, a line of JSON for each; `null:`, nowhere, for measuring
        to: Destination = required, text(|text| text.parse()).at_start(), "stdout:";
        /// what happens to a message that the destination refuses, or that was tried `attempts_max`
        /// times: `hold`, it waits for an operator, and so do the later ones of its key; `dead`, it
        /// is kept to be seen, and later ones go on
        give_up: GiveUp = is "hold",
            choice(&["hold", "dead"], give_up, |give_up| Some(word(*give_up).to_owned()))
            .at_start(),
            "dead";
        /// tries of a message, the first one included, with pauses that double from a second to ten
        /// minutes: 12 take about 47 minutes
        attempts_max: u32 = is "12", count(1, 1_000_000).at_start(), "20";
        /// how often an empty outbox is looked at; at most `60s`
        poll: Duration = is "20ms",
            duration(
                false,
                Duration::from_secs(60),
                "every message may wait for this: write at most \"60s\"",
            )
            .at_start(),
            "1s";
    }
    and {
        /// The name of the reader: relays with the same one share its work, and one is active.
        reader: String,
    }
}

impl Default for Relay {
    fn default() -> Self {
        Relay::read(None)
    }
}

/// What becomes of a message that is given up, by its name in the configuration.
pub(crate) fn give_up(text: &str) -> Result<GiveUp, String> {
    match text {
        "hold" => Ok(GiveUp::Hold),
        "dead" => Ok(GiveUp::Dead),
        _ => Err(format!(
            "`{text}` is not known here: write \"hold\" or \"dead\""
        )),
    }
}

fn word(give_up: GiveUp) -> &'static str {
    match give_up {
        GiveUp::Hold => "hold",
        GiveUp::Dead => "dead",
    }
}
