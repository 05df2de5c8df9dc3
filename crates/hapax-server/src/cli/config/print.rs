//! `hapax config print`: all effective values and their origins. The output is itself an equivalent
//! configuration.

use serde_json::{Value, json};

use crate::cli::config_flags::ConfigFlags;
use crate::cli::{Exit, text};
use crate::config::file::{Counts, ReportSection, ReportSetting};

/// The width of the column of values, before that of their origins.
const VALUE_WIDTH: usize = 44;

/// Show every setting that counts and where it comes from: a default, a line, a variable, a flag.
/// Secrets stay hidden.
#[derive(clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    given: ConfigFlags,
    /// As JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<(), Exit> {
    let loaded = args.given.load()?;
    let names: Vec<String> = loaded
        .routes
        .iter()
        .map(|route| route.name.to_string())
        .collect();
    let printed = if args.json {
        to_json(&loaded.report, &names)
    } else {
        to_toml(&loaded.report, &names)
    };
    text::emit(&printed);
    Ok(())
}

fn to_toml(report: &[ReportSection], names: &[String]) -> String {
    let mut names = names.iter();
    let mut printed = String::new();
    for section in report {
        if !section.header.is_empty() {
            printed.push('\n');
        }
        printed += &match &*section.header {
            ROUTE if section.place == UNWRITTEN => unwritten(section),
            ROUTE => format!(
                "# {}, {}\n{}",
                text::line(names.next().map_or("", String::as_str)),
                section.place,
                body(section)
            ),
            _ if is_absent(section) => commented(&body(section)),
            _ => body(section),
        };
    }
    printed
}

const ROUTE: &str = "[[routes]]";
const UNWRITTEN: &str = "unwritten";

fn body(section: &ReportSection) -> String {
    let header = if section.header.is_empty() {
        String::new()
    } else {
        format!("{}\n", section.header)
    };
    header + &section.settings.iter().map(line).collect::<String>()
}

/// The default route, which has no section of its own. It is printed as `[defaults]`: every other
/// route is printed in full, so the defaults apply to it alone.
fn unwritten(section: &ReportSection) -> String {
    let settings = section
        .settings
        .iter()
        .filter(|setting| !["name", "method", "path", "principal"].contains(&setting.name));
    let lines: String = settings.map(line).collect();
    format!("# default, {UNWRITTEN}: every other path\n[defaults]\n{lines}")
}

/// Whether an optional section is absent: printed with its defaults alone, it would lack required
/// settings.
fn is_absent(section: &ReportSection) -> bool {
    let is_optional = [
        "[tls]",
        "[jwt]",
        "[forward_auth]",
        "[on_unknown]",
        "[standard_webhooks]",
    ]
    .contains(&&*section.header);
    is_optional && section.settings.iter().all(|setting| setting.is_default)
}

fn commented(text: &str) -> String {
    text.lines()
        .map(|line| {
            if line.starts_with('#') {
                format!("{line}\n")
            } else {
                format!("# {line}\n")
            }
        })
        .collect()
}

pub(super) fn line(setting: &ReportSetting) -> String {
    let ReportSetting {
        name, value, from, ..
    } = setting;
    let written = match value {
        Counts::Value(value) => format!("{name} = {value}"),
        Counts::Hidden => format!("# {name} = (hidden)"),
        Counts::Masked(shown) => format!("# {name} = {shown}"),
        Counts::Words(words) => format!("# {name}: {}", words.replace('`', "")),
        Counts::Nothing => format!("# {name}: none"),
    };
    format!(
        "{}  # {}\n",
        text::line(&format!("{written:<VALUE_WIDTH$}")),
        text::line(from)
    )
}

fn to_json(report: &[ReportSection], names: &[String]) -> String {
    let mut names = names.iter();
    let sections: Vec<Value> = report
        .iter()
        .map(|section| {
            let settings: Vec<Value> = section.settings.iter().map(json_setting).collect();
            match &*section.header {
                ROUTE => json!({
                    "section": "routes", "route": names.next(), "place": section.place, "settings": settings,
                }),
                header => json!({ "section": header.trim_matches(['[', ']']), "settings": settings }),
            }
        })
        .collect();
    json_text(&Value::Array(sections))
}

/// A document for people and programs, without characters that a terminal would interpret.
pub(super) fn json_text(document: &Value) -> String {
    let printed = serde_json::to_string_pretty(document).expect("words and numbers are JSON");
    printed
        .lines()
        .map(|line| format!("{}\n", text::json(line)))
        .collect()
}

pub(super) fn json_setting(setting: &ReportSetting) -> Value {
    let value = match &setting.value {
        Counts::Value(value) | Counts::Masked(value) => {
            serde_json::to_value(value).unwrap_or(Value::Null)
        }
        Counts::Hidden | Counts::Nothing | Counts::Words(_) => Value::Null,
    };
    json!({
        "name": setting.name,
        "value": value,
        "from": setting.from,
        "hidden": matches!(setting.value, Counts::Hidden | Counts::Masked(_)),
        "default": setting.is_default,
    })
}
