//! `hapax inbox show`

use hapax_flow::inbox::{Found, Head};

use super::exit;
use crate::admin::inbox::wire::{InboxMessage, Time};
use crate::cli::outbox::place::Place;
use crate::cli::{Exit, text};

/// Show a message that was not applied, with its headers and its payload.
///
/// Exit code 1 if there is none. The payload is not shown as it is where a terminal would act on
/// it; --json has its bytes.
#[derive(clap::Args)]
pub(super) struct Args {
    /// The consumer
    consumer: String,
    /// The id that the producer gave the message
    id: String,
    /// As a JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    place: Place,
}

pub(super) async fn run(args: &Args) -> Result<(), Exit> {
    let inbox = args.place.open_inbox()?;
    let found = inbox.find(&args.consumer, &args.id).await.map_err(exit)?;
    let Some(found) = found else {
        return Err(Exit::failed(format!(
            "{} has parked no message {}",
            text::line(&args.consumer),
            text::line(&args.id)
        )));
    };
    text::emit(&match args.json {
        true => text::json_line(&InboxMessage::from(&found)),
        false => format!("{}\n{}\n", described(&found.head), payload(&found)),
    });
    Ok(())
}

fn described(head: &Head) -> String {
    let mut lines = vec![
        ("consumer", head.consumer.clone()),
        ("id", head.id.clone()),
        (
            "state",
            format!("{} after {} attempts", head.state.word(), head.attempts),
        ),
        ("cause", head.cause.clone()),
    ];
    let mut add = |name, value: Option<String>| lines.extend(value.map(|value| (name, value)));
    add("reason", head.reason.clone());
    add("parked", Some(Time(head.parked_at).to_string()));
    add("topic", head.topic.clone());
    add("key", head.key.clone());
    add("version", head.version.map(|version| version.to_string()));
    add("produced", head.at.map(|at| Time(at).to_string()));
    let headers = head.headers.iter();
    lines.extend(headers.map(|(name, value)| ("header", format!("{name}: {value}"))));
    let line = |(name, value): (&str, String)| format!("{name:<10}{}\n", text::line(&value));
    lines.into_iter().map(line).collect()
}

fn payload(found: &Found) -> String {
    text::lines(&String::from_utf8_lossy(&found.payload)).into_owned()
}
