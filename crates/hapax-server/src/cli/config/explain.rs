//! `hapax config explain POST /v1/payments`: which route applies, why, and what a caller gets.

mod sentences;

use http::Method;
use serde_json::json;

use super::print;
use crate::cli::config_flags::ConfigFlags;
use crate::cli::{Exit, text};
use crate::config::file::{Loaded, ReportSection};
use crate::config::{PathAmbiguous, Route, choose};
use crate::gateway::WELL_KNOWN;

/// Say which route a request takes, why no earlier one, and what a first, a repeat and a lost
/// attempt get.
#[derive(clap::Args)]
pub(super) struct Args {
    /// A method, as it is sent
    #[arg(value_name = "METHOD", value_parser = method)]
    method: Method,
    /// A path, as it is sent
    #[arg(value_name = "PATH", value_parser = target)]
    target: Target,
    #[command(flatten)]
    given: ConfigFlags,
    /// As JSON
    #[arg(long)]
    json: bool,
}

fn method(text: &str) -> Result<Method, String> {
    let upper = text.to_ascii_uppercase();
    Method::from_bytes(upper.as_bytes())
        .map_err(|_| format!("`{text}` is no method: write POST, for example"))
}

/// The target of the request to explain.
#[derive(Clone)]
struct Target {
    path: String,
    /// Whether a query was given; no route uses it.
    has_query: bool,
}

fn target(text: &str) -> Result<Target, String> {
    match text.split_once("://") {
        Some((_, rest)) => Err(format!(
            "write the path alone: /{}",
            rest.split_once('/').map_or("", |(_, path)| path)
        )),
        None if !text.starts_with('/') => Err(format!("a path begins with a slash: write /{text}")),
        None => {
            let path = text.split(['?', '#']).next().unwrap_or_default().to_owned();
            Ok(Target {
                has_query: path.len() < text.len(),
                path,
            })
        }
    }
}

pub(super) fn run(args: &Args) -> Result<(), Exit> {
    let loaded = args.given.load()?;
    if args.target.path == WELL_KNOWN {
        text::emit(&our_own(args));
        return Ok(());
    }
    let steps = match steps(&loaded, &args.method, &args.target.path) {
        Ok(steps) => steps,
        Err(ambiguous) => {
            text::emit(&refused(args, &ambiguous));
            return Ok(());
        }
    };
    let (taken, earlier) = steps
        .split_last()
        .expect("the unwritten route takes every request");
    let sentences = sentences::describe(taken.route, &args.method, &loaded.config);
    let printed = if args.json {
        in_json(args, taken, earlier, &sentences)
    } else {
        in_words(args, taken, earlier, &sentences)
    };
    text::emit(&printed);
    Ok(())
}

/// The explanation for a path that the gateway answers itself, before any route.
fn our_own(args: &Args) -> String {
    let said = match args.method {
        Method::GET | Method::HEAD => {
            "the gateway answers this itself, with what it promises on each route; no route is looked at."
        }
        _ => {
            "the gateway answers this itself, with 405: only GET is allowed here; no route is looked at."
        }
    };
    without_route(args, said)
}

/// The explanation for a path that no route can be chosen for.
fn refused(args: &Args, ambiguous: &PathAmbiguous) -> String {
    let why = match &ambiguous.read_as {
        Some(reading) => {
            format!(
                "a service may read the path as `{reading}`, and the rules for that are other rules, none of them stricter"
            )
        }
        None => "services may read the path in too many ways".to_owned(),
    };
    without_route(
        args,
        &format!("the gateway answers this itself, with 400 path-ambiguous: {why}."),
    )
}

fn without_route(args: &Args, said: &str) -> String {
    if !args.json {
        return format!("{}\n  {}\n", head(args), text::line(said));
    }
    print::json_text(&json!({
        "method": args.method.as_str(),
        "path": args.target.path,
        "query_counts": false,
        "earlier": [],
        "route": null,
        "caller_gets": { "every request": said },
        "settings": [],
    }))
}

/// The request that is explained.
fn head(args: &Args) -> String {
    let note = if args.target.has_query {
        "  (the query does not count: no route looks at it)\n"
    } else {
        ""
    };
    format!("{} {}\n{note}", args.method, text::line(&args.target.path))
}

/// A route that was tried.
struct Step<'a> {
    route: &'a Route,
    section: &'a ReportSection,
    /// Why it does not match; `None` for the one that does.
    why_not: Option<String>,
}

/// The routes in the order in which they are tried: up to the first that matches, and then the one
/// that is used, if another spelling of the path leads to a stricter route.
fn steps<'a>(
    loaded: &'a Loaded,
    method: &Method,
    path: &str,
) -> Result<Vec<Step<'a>>, PathAmbiguous> {
    let choice = choose(&loaded.routes, method, path)?;
    let sections = || {
        loaded
            .report
            .iter()
            .filter(|section| section.header == "[[routes]]")
    };
    let mut steps = Vec::new();
    for (route, section) in loaded.routes.iter().zip(sections()) {
        let why_not = why_not(route, method, path);
        let is_taken = why_not.is_none();
        steps.push(Step {
            route,
            section,
            why_not,
        });
        if is_taken {
            break;
        }
    }
    if let Some(reading) = choice.read_as {
        if let Some(matching) = steps.last_mut() {
            let reading = if reading == path {
                "in another letter case".to_owned()
            } else {
                format!("as `{reading}`")
            };
            matching.why_not = Some(format!(
                "it matches, but a service may read the path {reading}, and the route for that is stricter"
            ));
        }
        let taken = loaded
            .routes
            .iter()
            .zip(sections())
            .find(|(route, _)| std::ptr::eq(*route, choice.route));
        steps.extend(taken.map(|(route, section)| Step {
            route,
            section,
            why_not: None,
        }));
    }
    Ok(steps)
}

fn why_not(route: &Route, method: &Method, path: &str) -> Option<String> {
    if !route.methods.is_empty() && !route.methods.contains(method) {
        let methods: Vec<&str> = route.methods.iter().map(Method::as_str).collect();
        return Some(format!(
            "the method is {method}, and this route is for {}",
            methods.join(" and ")
        ));
    }
    route.pattern.difference(path)
}

fn in_words(
    args: &Args,
    taken: &Step<'_>,
    earlier: &[Step<'_>],
    sentences: &[(&str, String)],
) -> String {
    let mut words = format!("{}\n", head(args));
    for step in earlier {
        let why_not = step.why_not.as_deref().unwrap_or_default();
        words += &format!(
            "  not  {} ({}): {}\n",
            text::line(&step.route.name),
            step.section.place,
            text::line(why_not)
        );
    }
    words += &format!(
        "  takes {} ({})\n",
        text::line(&taken.route.name),
        taken.section.place
    );
    words += "\nWhat a caller gets\n\n";
    for (situation, sentence) in sentences {
        words += &format!("  {situation:<16} {}\n", text::line(sentence));
    }
    words += "\nWhat counts, and where it was said\n\n";
    for setting in &taken.section.settings {
        words += &format!("  {}", print::line(setting));
    }
    words
}

fn in_json(
    args: &Args,
    taken: &Step<'_>,
    earlier: &[Step<'_>],
    sentences: &[(&str, String)],
) -> String {
    let earlier: Vec<_> = earlier
        .iter()
        .map(|step| json!({ "route": *step.route.name, "place": step.section.place, "why_not": step.why_not }))
        .collect();
    let gets: serde_json::Map<String, serde_json::Value> = sentences
        .iter()
        .map(|(situation, sentence)| ((*situation).to_owned(), json!(sentence)))
        .collect();
    let policy: Vec<_> = taken
        .section
        .settings
        .iter()
        .map(print::json_setting)
        .collect();
    let document = json!({
        "method": args.method.as_str(),
        "path": args.target.path,
        "query_counts": false,
        "earlier": earlier,
        "route": *taken.route.name,
        "place": taken.section.place,
        "caller_gets": gets,
        "settings": policy,
    });
    print::json_text(&document)
}
