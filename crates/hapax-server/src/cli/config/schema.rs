//! `hapax config schema`: the valid contents of a file, for editors and for people.

mod markdown;

use serde_json::{Map, Value, json};

use crate::cli::{Exit, text};
use crate::config::settings::{Fallback, Kind, Setting, TOP, Table};

const DURATION: &str = "^[0-9]+ ?(ms|s|m|h|d)$";
const SIZE: &str = "^[0-9]+ ?(B|KiB|MiB|GiB)$";

/// Print the JSON Schema of the configuration file.
#[derive(clap::Args)]
pub(super) struct Args {
    /// The tables of docs/configuration.md instead
    #[arg(long)]
    markdown: bool,
}

pub(super) fn run(args: &Args) -> Result<(), Exit> {
    let printed = if args.markdown {
        markdown::tables()
    } else {
        super::print::json_text(&document())
    };
    text::emit(&printed);
    Ok(())
}

fn document() -> Value {
    let mut schema = object(&TOP);
    schema.insert(
        "$schema".into(),
        json!("https://json-schema.org/draft/2020-12/schema"),
    );
    schema.insert("title".into(), json!("Configuration of hapax serve"));
    // A variable or a flag may set it.
    schema.remove("required");
    Value::Object(schema)
}

fn object(table: &Table) -> Map<String, Value> {
    let mut properties = Map::new();
    for setting in table.settings() {
        properties.insert(setting.name.into(), property(setting));
        if let Some(file) = setting.file_name() {
            let description = format!("a file that has `{}`", setting.name);
            properties.insert(
                file.into(),
                json!({ "type": "string", "minLength": 1, "description": description }),
            );
        }
    }
    // What a section requires may come from a variable. Only a route's path, the parts of a
    // velocity and a relay's destination must be in the file.
    let needs = ["routes", "velocity", "relay"].contains(&table.name);
    let required: Vec<&str> = table
        .settings()
        .filter(|setting| needs && matches!(setting.fallback, Fallback::Required))
        .map(|setting| setting.name)
        .collect();
    let mut schema = Map::new();
    schema.insert("type".into(), json!("object"));
    if !table.about.is_empty() {
        schema.insert("description".into(), json!(table.about));
    }
    schema.insert("properties".into(), Value::Object(properties));
    schema.insert("additionalProperties".into(), json!(false));
    if !required.is_empty() {
        schema.insert("required".into(), json!(required));
    }
    schema
}

fn property(setting: &Setting) -> Value {
    let mut schema = match setting.kind {
        Kind::Section(table) => return Value::Object(object(table)),
        Kind::Sections(table) => json!({ "type": "array", "items": object(table) }),
        Kind::Named(table) => json!({
            "type": "object",
            "propertyNames": { "pattern": "^[A-Za-z0-9._-]{1,64}$" },
            "additionalProperties": object(table),
        }),
        Kind::Text | Kind::Path | Kind::Secret { .. } => {
            json!({ "type": "string", "minLength": 1 })
        }
        Kind::Choice(words) => json!({ "enum": words }),
        Kind::Duration { .. } => json!({ "type": "string", "pattern": DURATION }),
        Kind::Size { min, max } => {
            json!({ "anyOf": [whole(min, max), { "type": "string", "pattern": SIZE }] })
        }
        Kind::Count { min, max } => whole(min, max),
        Kind::Switch => json!({ "type": "boolean" }),
        Kind::List => json!({ "type": "array", "items": { "type": "string" } }),
        Kind::TextOrList => json!({
            "anyOf": [
                { "type": "string", "minLength": 1 },
                { "type": "array", "items": { "type": "string", "minLength": 1 }, "minItems": 1, "uniqueItems": true },
            ],
        }),
        Kind::Classes(words) => json!({
            "type": "object",
            "patternProperties": { "^([2-5][0-9][0-9]|[2-5](xx|XX))$": { "enum": words } },
            "additionalProperties": false,
        }),
    };
    if let Value::Object(schema) = &mut schema {
        if !setting.meaning().is_empty() {
            schema.insert("description".into(), json!(setting.meaning()));
        }
        if let Fallback::Is(value) = setting.fallback {
            schema.insert("default".into(), in_json(setting, value));
        }
        if !setting.example.is_empty() && setting.file_name().is_none() {
            schema.insert(
                "examples".into(),
                json!([in_json(setting, setting.example)]),
            );
        }
    }
    schema
}

fn whole(min: u64, max: u64) -> Value {
    match max {
        u64::MAX => json!({ "type": "integer", "minimum": min }),
        max => json!({ "type": "integer", "minimum": min, "maximum": max }),
    }
}

/// A value of a declaration, as it is written in a file.
fn in_json(setting: &Setting, value: &str) -> Value {
    let text = format!("value = {}", setting.kind.in_toml(value));
    let table: toml::Table = text.parse().expect("a declaration holds good TOML");
    serde_json::to_value(&table["value"]).expect("a declaration holds no dates")
}
