//! `hapax openapi import`: proposes routes, each with reasons for its settings.

mod route;

use std::io::Write;
use std::path::{Path, PathBuf};

use http::Method;
use serde_json::Value;

use self::route::Proposed;
use super::document;
use super::operation::{self, Operation};
use crate::cli::{Exit, text};
use crate::config::file::{self, Overrides};

/// Propose [[routes]] for the operations of an OpenAPI document (3.0 or 3.1, JSON or YAML), each
/// with its reasons.
#[derive(clap::Args)]
pub(super) struct Args {
    /// The document
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Write the routes into this file, which must not be there yet, instead of printing them
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
}

pub(super) fn run(args: &Args) -> Result<(), Exit> {
    let document = document::read(&args.file)?;
    let proposal = proposal(&document, &args.file.display().to_string());
    // The proposal must be valid: a mistake in it is a bug of Hapax.
    let overrides = Overrides {
        upstream: Some(http::Uri::from_static("http://127.0.0.1:3000")),
        ..Overrides::default()
    };
    let loaded = file::parse(Path::new("routes.toml"), &proposal, &overrides).map_err(|error| {
        Exit::failed(format!(
            "the routes of {} are no configuration, which is a defect of hapax:\n{error}",
            args.file.display()
        ))
    })?;
    let routes = loaded.config.routes.len();
    match &args.write {
        None => drop(text::emit(&proposal)),
        Some(path) => write(path, &proposal)?,
    }
    let place = args
        .write
        .as_ref()
        .map_or(String::new(), |path| format!(" into {}", path.display()));
    eprintln!(
        "{routes} {} proposed{place}: read each before you use it",
        if routes == 1 { "route" } else { "routes" }
    );
    Ok(())
}

/// Never overwrites a file, because a user may have edited it.
fn write(path: &Path, proposal: &str) -> Result<(), Exit> {
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(path)
        .map_err(|error| {
            let fix = if error.kind() == std::io::ErrorKind::AlreadyExists {
                ": name another, or remove it first"
            } else {
                ""
            };
            Exit::usage(format!("could not write {}: {error}{fix}", path.display()))
        })?;
    file.write_all(proposal.as_bytes())
        .map_err(|error| Exit::failed(format!("could not write {}: {error}", path.display())))
}

fn proposal(document: &Value, name: &str) -> String {
    let info = |field: &str| {
        document
            .get("info")
            .and_then(|info| info.get(field))
            .map(document::words)
            .unwrap_or_default()
    };
    let mut lines = vec![
        format!(
            "# Proposed by `hapax openapi import` from {}: {}, version {}.",
            one_line(name),
            one_line(&info("title")),
            one_line(&info("version"))
        ),
        "# The first route that matches counts. Read each before you use it.".to_owned(),
        String::new(),
    ];
    let operations = operation::all(document);
    let mut routes: Vec<Proposed> = Vec::new();
    let mut passing: Vec<String> = Vec::new();
    for operation in &operations {
        match operation.method {
            Method::POST | Method::PATCH => routes.push(route::propose(operation)),
            _ => passing.push(format!("# {}", passes(operation))),
        }
    }
    route::arrange(&mut routes);
    lines.extend(routes.iter().map(Proposed::text));
    if !passing.is_empty() {
        lines.push("# Idempotent by what HTTP says of their methods, so they pass as they are. Name one in a route of its own to guard it:".to_owned());
        lines.append(&mut passing);
    }
    if routes.is_empty() {
        lines.push("# No operation has POST or PATCH: there is nothing to guard.".to_owned());
    }
    lines.join("\n") + "\n"
}

fn passes(operation: &Operation<'_>) -> String {
    one_line(&format!(
        "{} {}{}",
        operation.method,
        operation.base(),
        operation.path
    ))
}

/// Text of the document as a part of a comment: on one line, and cut to its length.
fn one_line(text: &str) -> String {
    let safe = text::line(text);
    text::cut(&safe, 100).into_owned()
}
