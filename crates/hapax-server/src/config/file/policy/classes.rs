//! Parses the classes of statuses on a route: `{ "404" = "release", "5xx" = "unknown" }`.

use std::collections::BTreeMap;

use hapax::core::outcome::Class;
use toml::de::DeValue;

use super::super::value::{Read, kind};
use crate::config::settings::Kind;

const EXAMPLE: &str = "{ \"404\" = \"release\", \"5xx\" = \"unknown\" }";

pub(crate) fn read(value: &DeValue<'_>, _: Kind) -> Read<BTreeMap<u16, Class>> {
    let DeValue::Table(table) = value else {
        return Err(format!(
            "this must be statuses and their classes, as in {EXAMPLE}, and is {}",
            kind(value)
        ));
    };
    let (mut classes, mut hundreds) = (BTreeMap::new(), BTreeMap::new());
    for (key, value) in table {
        let status = key.get_ref();
        let class = class(status, value.get_ref())?;
        if class == Class::Release && status.starts_with('2') {
            return Err(format!(
                "`{status}` says that the work is done, and to release its key would do it again with every repeat: write \"keep\", or keep_answers = false if its answer should not be kept"
            ));
        }
        match statuses(status)? {
            Statuses::One(status) => drop(classes.insert(status, class)),
            Statuses::Hundred(first) => drop(hundreds.insert(first, class)),
        }
    }
    // The class of a single status overrides that of its hundred.
    for (first, class) in hundreds {
        for status in first..first + 100 {
            classes.entry(status).or_insert(class);
        }
    }
    Ok(classes)
}

enum Statuses {
    One(u16),
    Hundred(u16),
}

fn statuses(text: &str) -> Read<Statuses> {
    let hundred = text.strip_suffix("xx").or_else(|| text.strip_suffix("XX"));
    match (
        text.parse::<u16>(),
        hundred.and_then(|digit| digit.parse::<u16>().ok()),
    ) {
        (Ok(status @ 200..=599), _) if text.len() == 3 => Ok(Statuses::One(status)),
        (_, Some(digit @ 2..=5)) => Ok(Statuses::Hundred(digit * 100)),
        _ => Err(format!(
            "`{text}` is no status that ends a request: write one from \"200\" to \"599\", or \"4xx\" for a hundred of them"
        )),
    }
}

fn class(status: &str, value: &DeValue<'_>) -> Read<Class> {
    match value {
        DeValue::String(word) => match &**word {
            "keep" => Ok(Class::Keep),
            "release" => Ok(Class::Release),
            "unknown" => Ok(Class::Unknown),
            other => Err(format!(
                "`{other}` is no class for {status}: write \"keep\", \"release\" or \"unknown\""
            )),
        },
        other => Err(format!(
            "the class of {status} must be \"keep\", \"release\" or \"unknown\", and is {}",
            kind(other)
        )),
    }
}
