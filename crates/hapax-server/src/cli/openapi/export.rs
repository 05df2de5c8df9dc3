//! `hapax openapi export`: adds to a document what callers of guarded operations send and get.
//!
//! Only what is missing is added, so that a second time changes nothing. What a document refers to
//! is never changed in its place: other operations may refer to it too.

mod parts;

use std::path::PathBuf;

use hapax::core::policy::KeySource;
use hapax::{KeyRule, Policy};

use self::parts::{COMPONENTS, REFUSALS};
use super::document::{self, Node};
use super::operation::{self, Operation};
use crate::cli::given::Given;
use crate::cli::{Exit, text};
use crate::config::Route;

/// Add to an OpenAPI document what the gateway does: the key, its own answers, the mark of a
/// replay. Printed in the same format.
#[derive(clap::Args)]
pub(super) struct Args {
    /// The document
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    given: Given,
}

pub(super) fn run(args: &Args) -> Result<(), Exit> {
    let (document, format) = document::read(&args.file)?;
    let routes = args.given.load()?.routes;
    let (document, guarded) = exported(&document, &routes)?;
    if guarded == 0 {
        eprintln!(
            "hapax: warning: no operation of {} is guarded by this configuration: nothing was added",
            args.file.display()
        );
    }
    text::emit(&document::write(&document, format)?);
    Ok(())
}

/// The document with what was missing, and how many operations are guarded.
fn exported(document: &Node, routes: &[Route]) -> Result<(Node, usize), Exit> {
    let mut new = document.clone();
    let mut guarded = 0;
    for operation in operation::all(document) {
        let Some(policy) = guarding(&operation, routes) else {
            continue;
        };
        guarded += 1;
        let added = operation_with(&operation, policy);
        let place = new
            .entry("paths", Node::Null)
            .entry(operation.path, Node::Null);
        // A path that stands elsewhere in the document gets a copy of its own, as answers do.
        if place.get("$ref").is_some() {
            *place = operation.item.clone();
        }
        *place.entry(&operation.method.as_str().to_ascii_lowercase(), Node::Null) = added;
    }
    if guarded > 0 {
        add_components(&mut new)?;
    }
    Ok((new, guarded))
}

/// The policy that guards an operation, if one does. A placeholder stands for itself: it is some
/// segment, and none that is spelled out.
fn guarding<'a>(operation: &Operation<'_>, routes: &'a [Route]) -> Option<&'a Policy> {
    let path = format!("{}{}", operation.base(), operation.path);
    let route = routes
        .iter()
        .find(|route| route.matches(&operation.method, &path))?;
    (route.policy.guards(operation.method.as_str()) && !route.policy.shadow)
        .then_some(&route.policy)
}

fn operation_with(operation: &Operation<'_>, policy: &Policy) -> Node {
    let mut node = operation.node.clone();
    add_key(&mut node, operation, policy);
    let responses = node.entry("responses", Node::Map(Vec::new()));
    mark_replays(responses, operation.document);
    for (status, component, _, _) in REFUSALS {
        add_refusal(responses, status, component);
    }
    node
}

fn add_key(node: &mut Node, operation: &Operation<'_>, policy: &Policy) {
    let is_there = |parameter: &&Node| {
        let is = |field: &str, wanted: &str| {
            parameter
                .get(field)
                .is_some_and(|value| value.words().eq_ignore_ascii_case(wanted))
        };
        is("in", "header") && is("name", &policy.key_field)
    };
    if policy.key_source != KeySource::Field || operation.parameters().iter().any(is_there) {
        return;
    }
    let parameters = node.entry("parameters", Node::List(Vec::new()));
    if let Node::List(list) = parameters {
        list.push(parts::key_parameter(
            &policy.key_field,
            policy.key == KeyRule::Required,
        ));
    }
}

/// On every success: whether it is a replay, and until when there will be one.
fn mark_replays(responses: &mut Node, document: &Node) {
    let Node::Map(entries) = responses else {
        return;
    };
    for (_, response) in entries
        .iter_mut()
        .filter(|(status, _)| status.starts_with('2'))
    {
        // A copy of its own, if it refers to one that others may refer to as well. What lies
        // outside this document stays as it is.
        let Some(own) = document.follow(response).cloned() else {
            continue;
        };
        let headers = own.get("headers").cloned().unwrap_or(Node::Map(Vec::new()));
        let has = |name: &str| {
            headers
                .entries()
                .iter()
                .any(|(other, _)| other.eq_ignore_ascii_case(name))
        };
        let missing: Vec<_> = parts::REPLAY_FIELDS
            .iter()
            .filter(|(name, _)| !has(name))
            .collect();
        if missing.is_empty() {
            continue;
        }
        *response = own;
        let headers = response.entry("headers", Node::Map(Vec::new()));
        for (name, component) in missing {
            headers.entry(
                name,
                Node::reference(&format!("#/components/headers/{component}")),
            );
        }
    }
}

/// One of our own answers; where the document has one with this status, ours is another kind of
/// body for it.
fn add_refusal(responses: &mut Node, status: &str, component: &str) {
    let theirs = responses.entry(
        status,
        Node::reference(&format!("#/components/responses/{component}")),
    );
    if theirs.get("$ref").is_none() {
        let content = theirs.entry("content", Node::Map(Vec::new()));
        content.entry(parts::PROBLEM_TYPE, parts::problem_media());
    }
}

/// What the operations refer to. A component of that name which is not ours is not written over.
fn add_components(document: &mut Node) -> Result<(), Exit> {
    let components = document.entry("components", Node::Map(Vec::new()));
    for (kind, make) in COMPONENTS {
        for (name, ours) in make() {
            let there = components
                .entry(kind, Node::Map(Vec::new()))
                .entry(&name, ours.clone());
            if *there != ours {
                return Err(Exit::usage(format!(
                    "the document has a component {kind}/{name} of its own, where hapax wants to put one: rename yours, or remove it if it is of an earlier export"
                )));
            }
        }
    }
    Ok(())
}
