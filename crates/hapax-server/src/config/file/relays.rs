//! Reads the sections about relays.

use super::section::Section;
use crate::config::settings::{RELAY, Settings};
use crate::config::{Relay, reader_name};

pub(super) fn relays(top: &Section<'_>) -> Vec<Relay> {
    let mut relays = Vec::new();
    for (name, section) in top.named(&RELAY) {
        let read = Relay::read(Some(&section));
        if !section.has("to") {
            let message = format!("the relay `{name}` lacks `to`: write to = \"stdout:\"");
            section.mistake(&[], message);
        }
        match reader_name(name) {
            Ok(reader) => relays.push(Relay { reader, ..read }),
            Err(message) => section.mistake(&[], message),
        }
    }
    relays
}
