//! The schema and the documentation are generated from the table of settings, and agree with the
//! parser.

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

use hapax_server::config::file::Overrides;
use serde_json::{Value, json};

use crate::harness::words;
use crate::{directory, documentation, example, hapax, load, upstream};

const GENERATED: &str = "<!-- From here on this page is made by `hapax config schema --markdown`; a test compares. -->\n\n";

fn schema() -> Value {
    let (code, stdout, stderr) = hapax(directory().path(), &["config", "schema"], &[]);
    assert_eq!(code, 0, "{stderr}");
    serde_json::from_str(&stdout).unwrap()
}

#[test]
fn the_tables_of_the_documentation_are_those_of_the_program() {
    let (_, tables, _) = hapax(directory().path(), &words("config schema --markdown"), &[]);
    let documentation = documentation();
    let (by_hand, made) = documentation
        .split_once(GENERATED)
        .expect("the mark is there");
    if std::env::var_os("HAPAX_BLESS").is_some() {
        fs::write(
            "../../docs/configuration.md",
            format!("{by_hand}{GENERATED}{tables}"),
        )
        .unwrap();
    } else {
        assert_eq!(made, tables, "HAPAX_BLESS=1 writes the new tables down");
    }
}

/// Reads each default and each example of the table as a separate file: all are accepted, and a
/// default changes nothing.
#[test]
fn every_default_and_example_of_the_schema_is_read() {
    let directory = directory();
    for name in ["jwks.json", "jwt.secret", "relay.creds"] {
        fs::write(directory.path().join(name), "").unwrap();
    }
    fs::create_dir(directory.path().join("webhooks")).unwrap();
    let schema = schema();
    let nothing = format!(
        "{:?}",
        load(directory.path(), "", &upstream()).unwrap().config
    );
    let (mut defaults, mut examples) = (0, 0);
    for (section, properties) in sections(&schema) {
        for (name, property) in properties.as_object().unwrap() {
            if let Some(default) = property.get("default") {
                let config = read(&directory, &section, name, default)
                    .unwrap_or_else(|error| panic!("{section} {name}: {error}"));
                let is_alone =
                    beside(&section, name).is_empty() && section != "routes" && name != "store";
                assert!(
                    !is_alone || config == nothing,
                    "{section} {name} = {default} is not the default"
                );
                defaults += 1;
            }
            for example in property
                .get("examples")
                .and_then(Value::as_array)
                .into_iter()
                .flatten()
            {
                read(&directory, &section, name, example)
                    .unwrap_or_else(|error| panic!("{section} {name}: {error}"));
                examples += 1;
            }
            for word in property
                .get("enum")
                .and_then(Value::as_array)
                .into_iter()
                .flatten()
            {
                read(&directory, &section, name, word)
                    .unwrap_or_else(|error| panic!("{section} {name}: {error}"));
            }
        }
    }
    hapax_testkit::report!("{defaults} defaults and {examples} examples, each read");
    assert!(defaults > 40 && examples > 60);
}

/// The properties of each section.
fn sections(schema: &Value) -> Vec<(String, &Value)> {
    let top = &schema["properties"];
    let mut sections = vec![(String::new(), top)];
    for (name, property) in top.as_object().unwrap() {
        if let Some(properties) = property.get("properties") {
            sections.push((name.clone(), properties));
        }
    }
    sections.push(("routes".to_owned(), &top["routes"]["items"]["properties"]));
    let relay = &top["relay"]["additionalProperties"]["properties"];
    sections.push(("relay.orders".to_owned(), relay));
    sections
}

/// Other settings that this setting requires.
fn beside(section: &str, name: &str) -> &'static str {
    match (section, name) {
        ("", "durability") => "store = \"redis://a\"\n",
        ("", "cache") => "store = \"postgres://a@b/c\"\n",
        ("", "replicas") => "store = \"redis://a\"\ndurability = \"best-effort\"\n",
        ("upstream", "ca_file") => "url = \"https://a\"\n",
        ("defaults" | "routes", "fingerprint_omit" | "fingerprint_only") => {
            "fingerprint = \"json\"\n"
        }
        ("defaults" | "routes", "fail_open") => "naturally_idempotent = true\n",
        ("tls", "certificate") => "key = \"key.pem\"\n",
        ("tls", "key") => "certificate = \"certificate.pem\"\n",
        ("jwt", "secret_file") => "algorithms = \"HS256\"\nissuer = \"any\"\naudience = \"any\"\n",
        ("jwt", "algorithms") => "keys_file = \"key.pem\"\nissuer = \"any\"\naudience = \"any\"\n",
        ("jwt", "keys_file" | "keys_url") => {
            "algorithms = \"RS256\"\nissuer = \"any\"\naudience = \"any\"\n"
        }
        ("jwt", "issuer") => {
            "algorithms = \"RS256\"\nkeys_url = \"https://a/b\"\naudience = \"any\"\n"
        }
        ("jwt", "audience") => {
            "algorithms = \"RS256\"\nkeys_url = \"https://a/b\"\nissuer = \"any\"\n"
        }
        ("jwt", _) => {
            "algorithms = \"RS256\"\nkeys_url = \"https://a/b\"\nissuer = \"any\"\naudience = \"any\"\n"
        }
        ("forward_auth", name) if name != "principal_field" => {
            "principal_field = \"x-auth-user\"\n"
        }
        ("standard_webhooks", name) if name != "secret_directory" => {
            "secret_directory = \"webhooks\"\n"
        }
        ("defaults" | "routes", "probe") => "mode = \"probe\"\n",
        ("on_unknown", "url") => "secret_files = [\"/a\"]\n",
        ("on_unknown", "secret_files") => "url = \"https://a/b\"\n",
        ("on_unknown", _) => "url = \"https://a/b\"\nsecret_files = [\"/a\"]\n",
        ("relay.orders", name) if name != "to" => "to = \"stdout:\"\n",
        ("routes", name) if name != "path" => "path = \"/a\"\n",
        _ => "",
    }
}

fn read(
    directory: &tempfile::TempDir,
    section: &str,
    name: &str,
    value: &Value,
) -> Result<String, String> {
    let value = toml::Value::try_from(value).unwrap();
    let header = match section {
        "" => String::new(),
        "routes" => "[[routes]]\n".to_owned(),
        section => format!("[{section}]\n"),
    };
    let before = match section {
        "jwt" => "principal = \"jwt:sub\"\n",
        "relay.orders" => "store = \"postgres://a@b/c\"\n",
        "forward_auth" => "principal = \"forward-auth:https://auth.example.com/\"\n",
        _ => "",
    };
    let more = if section == "routes" && name.starts_with("fingerprint_o") {
        "path = \"/a\"\n"
    } else {
        ""
    };
    let more = if section == "routes" && matches!(name, "fail_open" | "probe") {
        "path = \"/a\"\n"
    } else {
        more
    };
    // Some modes need settings in other sections.
    let (before, more) = match (name, value.as_str()) {
        ("mode", Some("transaction")) => ("store = \"postgres://a@b/c\"\n", more),
        ("mode", Some("probe")) => (before, "probe = \"/hapax/probe\"\n"),
        _ => (before, more),
    };
    let text = format!(
        "{before}{header}{}{more}{name} = {value}\n",
        beside(section, name)
    );
    // The flag would override the file's `[upstream]` section.
    let overrides = if section == "upstream" {
        Overrides::default()
    } else {
        upstream()
    };
    let text = if section == "upstream" && !text.contains("url =") {
        text.replace(
            "[upstream]\n",
            "[upstream]\nurl = \"http://127.0.0.1:3000\"\n",
        )
    } else {
        text
    };
    let loaded =
        load(directory.path(), &text, &overrides).map_err(|error| format!("{error}\n{text}"))?;
    Ok(format!("{:?}", loaded.config))
}

/// Implements the parts of JSON Schema that this schema uses, except patterns, which another test
/// covers.
fn is_valid(schema: &Value, value: &Value) -> bool {
    let all_of = |name: &str, test: &dyn Fn(&Value) -> bool| schema.get(name).is_none_or(test);
    let is_type = |kind: &Value| match kind.as_str().unwrap() {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        other => panic!("{other}"),
    };
    let has_properties = |properties: &Value| {
        value.as_object().is_none_or(|members| {
            members
                .iter()
                .all(|(name, member)| match properties.get(name) {
                    Some(schema) => is_valid(schema, member),
                    None => schema.get("additionalProperties") != Some(&json!(false)),
                })
        })
    };
    all_of("type", &is_type)
        && all_of("enum", &|words| words.as_array().unwrap().contains(value))
        && all_of("properties", &has_properties)
        && all_of("items", &|items| {
            value
                .as_array()
                .is_none_or(|list| list.iter().all(|item| is_valid(items, item)))
        })
        && all_of("anyOf", &|schemas| {
            schemas
                .as_array()
                .unwrap()
                .iter()
                .any(|schema| is_valid(schema, value))
        })
        && all_of("minimum", &|min| {
            value
                .as_u64()
                .is_none_or(|value| value >= min.as_u64().unwrap())
        })
        && all_of("maximum", &|max| {
            value
                .as_u64()
                .is_none_or(|value| value <= max.as_u64().unwrap())
        })
        && all_of("minLength", &|min| {
            value
                .as_str()
                .is_none_or(|text| text.len() as u64 >= min.as_u64().unwrap())
        })
        && all_of("minItems", &|min| {
            value
                .as_array()
                .is_none_or(|list| list.len() as u64 >= min.as_u64().unwrap())
        })
        && all_of("required", &|names| {
            names
                .as_array()
                .unwrap()
                .iter()
                .all(|name| value.get(name.as_str().unwrap()).is_some())
        })
}

fn as_json(text: &str) -> Option<Value> {
    serde_json::to_value(text.parse::<toml::Table>().ok()?).ok()
}

/// Files with mistakes that a schema can detect: unknown names, wrong types, numbers out of bounds.
const WRONG: [&str; 13] = [
    "lisen = \"127.0.0.1:4000\"",
    "listen = 4000",
    "[limits]\nstreams_max = 0",
    "[limits]\nstreams_max = \"many\"",
    "[limits]\nworkers = 4",
    "[[routes]]\nmode = \"rerun\"",
    "[[routes]]\npath = \"/v1\"\nmode = \"once\"",
    "[[routes]]\npath = \"/v1\"\nstrict_key = \"yes\"",
    "[[routes]]\npath = \"/v1\"\nmethod = []",
    "[[routes]]\npath = \"/v1\"\nvelocity = [{ by = \"principal\" }]",
    "[defaults]\npath = \"/v1\"",
    "tls = true",
    "relay = true",
];

#[test]
fn the_schema_takes_good_files_and_refuses_wrong_ones() {
    let schema = schema();
    assert_eq!(
        schema["$schema"],
        "https://json-schema.org/draft/2020-12/schema"
    );
    assert!(is_valid(&schema, &as_json(&example()).unwrap()));
    for text in WRONG {
        assert!(!is_valid(&schema, &as_json(text).unwrap()), "{text}");
    }
}

#[test]
fn another_validator_says_the_same_of_the_schema() {
    let script = "import json, sys\nfrom jsonschema import Draft202012Validator as V\ndata = json.load(sys.stdin)\nV.check_schema(data['schema'])\n\
                  v = V(data['schema'])\nprint(json.dumps([v.is_valid(x) for x in data['files']]))\n";
    let has_it = Command::new("python3")
        .args(["-c", "import jsonschema"])
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    if !has_it {
        return hapax_testkit::skipped("needs python3 with jsonschema");
    }
    let units = [
        "[timeouts]\nconnect = \"5\"",
        "[[routes]]\npath = \"/v1\"\nbody_bytes_max = \"1MB\"",
        "[[routes]]\npath = \"/v1\"\nclasses = { \"600\" = \"keep\" }",
    ];
    let wrong: Vec<Value> = WRONG
        .iter()
        .chain(&units)
        .filter_map(|text| as_json(text))
        .collect();
    let files: Vec<Value> = std::iter::once(as_json(&example()).unwrap())
        .chain(wrong)
        .collect();
    let count = files.len();
    let mut python = Command::new("python3")
        .args(["-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let input = json!({ "schema": schema(), "files": files });
    python
        .stdin
        .take()
        .unwrap()
        .write_all(input.to_string().as_bytes())
        .unwrap();
    let output = python.wait_with_output().unwrap();
    let verdicts: Vec<bool> = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        verdicts,
        std::iter::once(true)
            .chain(std::iter::repeat_n(false, count - 1))
            .collect::<Vec<_>>()
    );
}
