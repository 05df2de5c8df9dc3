//! `hapax outbox show`

use hapax::core::flow::MessageId;
use hapax_flow::outbox::operate::{Found, Head};

use super::place::{Place, exit};
use crate::admin::keys::time::Time;
use crate::admin::outbox::wire::OutboxMessage;
use crate::cli::{Exit, text};

/// Show a message with its headers and its payload, and how it stands with each reader.
///
/// Exit code 1 if there is none. The payload is not shown as it is where a terminal would act on
/// it; --json has its bytes. A message that every reader has is removed after a while.
#[derive(clap::Args)]
pub(super) struct Args {
    /// The id of the message
    id: MessageId,
    /// As JSON: one object a line, for each reader and for the outbox itself
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    place: Place,
}

pub(super) async fn run(args: &Args) -> Result<(), Exit> {
    let found = args.place.open()?.find(args.id).await.map_err(exit)?;
    let Some(first) = found.first() else {
        return Err(Exit::failed(format!(
            "there is no message {}: every reader has it and it was removed, or it never was",
            args.id
        )));
    };
    text::emit(&match args.json {
        true => found
            .iter()
            .map(|one| text::json_line(&OutboxMessage::from(one)))
            .collect(),
        false => {
            let readers: String = found.iter().map(reader).collect();
            format!("{}{readers}\n{}\n", described(&first.head), payload(first))
        }
    });
    Ok(())
}

fn described(head: &Head) -> String {
    let mut lines = vec![
        ("id", head.id.to_string()),
        ("topic", head.topic.clone()),
        ("key", head.key.clone().unwrap_or_else(|| "none".to_owned())),
        ("emitted", Time(head.at).to_string()),
    ];
    if !head.ordered {
        lines.push(("ordered", "no".to_owned()));
    }
    if let Some(version) = head.version {
        lines.push(("version", version.to_string()));
    }
    let headers = head.headers.iter();
    lines.extend(headers.map(|(name, value)| ("header", format!("{name}: {value}"))));
    let line = |(name, value): (&str, String)| format!("{name:<10}{}\n", text::line(&value));
    lines.into_iter().map(line).collect()
}

fn reader(found: &Found) -> String {
    let Some(aside) = &found.aside else {
        return "outbox    in it, for readers that have not come to it yet\n".to_owned();
    };
    let due = match aside.due_at {
        Some(due) => format!(", due {}", Time(due)),
        None => String::new(),
    };
    let reason = match &aside.reason {
        Some(reason) => format!(": {}", text::line(reason)),
        None => String::new(),
    };
    format!(
        "reader    {}: {} after {} attempts{due}{reason}\n",
        text::line(&aside.reader),
        aside.state.word(),
        aside.attempts
    )
}

fn payload(found: &Found) -> String {
    text::lines(&String::from_utf8_lossy(&found.payload)).into_owned()
}
