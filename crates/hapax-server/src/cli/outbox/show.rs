//! `hapax outbox show`

use base64::prelude::{BASE64_STANDARD, Engine as _};
use hapax::core::flow::MessageId;
use hapax_flow::outbox::operate::{Found, Head, Listed, SetAside};
use serde_json::{Map, Value, json};

use super::place::{Place, exit};
use crate::admin::keys::time::Time;
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
            .map(|one| text::json_line(&document(one)))
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

/// A message of a list, as JSON.
pub(super) fn listed(listed: &Listed) -> Value {
    let mut document = head(&listed.head);
    document.insert("payload_bytes".into(), json!(listed.payload_bytes));
    document.extend(aside(&listed.aside));
    Value::Object(document)
}

fn document(found: &Found) -> Value {
    let mut document = head(&found.head);
    document.insert("payload_bytes".into(), json!(found.payload.len()));
    let (name, payload) = match std::str::from_utf8(&found.payload) {
        Ok(text) => ("payload", text.to_owned()),
        Err(_) => ("payload_base64", BASE64_STANDARD.encode(&found.payload)),
    };
    document.insert(name.into(), json!(payload));
    if let Some(set_aside) = &found.aside {
        document.extend(aside(set_aside));
    }
    Value::Object(document)
}

fn head(head: &Head) -> Map<String, Value> {
    let headers: Map<String, Value> = head
        .headers
        .iter()
        .map(|(name, value)| (name.clone(), json!(value)))
        .collect();
    object(json!({
        "id": head.id.to_string(),
        "topic": head.topic,
        "key": head.key,
        "at": Time(head.at),
        "ordered": head.ordered,
        "version": head.version,
        "headers": headers,
    }))
}

fn aside(aside: &SetAside) -> Map<String, Value> {
    object(json!({
        "reader": aside.reader,
        "state": aside.state.word(),
        "attempts": aside.attempts,
        "due_at": aside.due_at.map(Time),
        "reason": aside.reason,
    }))
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(object) => object,
        _ => Map::new(),
    }
}
