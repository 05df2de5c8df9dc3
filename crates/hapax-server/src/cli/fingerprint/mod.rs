//! `hapax fingerprint`: which parts of a request count, and why two requests are not the same.

mod explain;
mod print;
mod request;
mod subject;

use std::io::Read;
use std::path::{Path, PathBuf};

use hapax::FingerprintPolicy;
use hapax::core::fingerprint::{BodyMode, Pointer, Selection};

use self::request::Request;
use self::subject::Subject;
use super::{Exit, text};
use crate::config::file::{self, Overrides};
use crate::config::{Environment, Route, choose};

/// The largest request that is read: the largest body that the gateway accepts, and a head.
const BYTES_MAX: u64 = (64 << 20) + (64 << 10);

/// Show what counts of a request, or why two requests differ.
///
/// A request is a file as it would be sent: `POST /orders HTTP/1.1`, header lines, an empty line,
/// the body. Lines may end with LF alone. Without Content-Length the body is the rest of the file,
/// a line end that an editor added included.
#[derive(clap::Args)]
pub(super) struct Args {
    /// The request; with --explain two of them. - is standard input
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Compare two requests and say which part differs; exit code 1 if one does
    #[arg(long)]
    explain: bool,
    /// Compare as the routes of this configuration do, each request by the route that it takes
    #[arg(long, value_name = "FILE", conflicts_with_all = ["fingerprint", "omit", "only", "headers", "namespace"])]
    config: Option<PathBuf>,
    /// Compare the body so, like the setting `fingerprint` [default: auto]
    #[arg(long, value_enum, value_name = "HOW")]
    fingerprint: Option<Comparison>,
    /// Leave the value at this JSON Pointer out, as in /sent_at or /items/*/id, like
    /// `fingerprint_omit`; may be repeated
    #[arg(long, value_name = "POINTER", conflicts_with = "only")]
    omit: Vec<Pointer>,
    /// Count only the value at this JSON Pointer, like `fingerprint_only`; may be repeated
    #[arg(long, value_name = "POINTER")]
    only: Vec<Pointer>,
    /// Count this header too, like `fingerprint_headers`; may be repeated
    #[arg(long, value_name = "NAME", value_parser = header)]
    headers: Vec<String>,
    /// Say who asks, as `hapax keys show` prints it
    #[arg(long, value_name = "TEXT")]
    principal: Option<String>,
    /// Say which namespace the gateway has [default: default]
    #[arg(long, value_name = "NAME")]
    namespace: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Comparison {
    /// As the content type says: JSON by its values, multipart part by part, anything else byte for
    /// byte
    Auto,
    /// Byte for byte
    Raw,
    /// By its values
    Json,
    /// Part by part, whatever the boundary
    Multipart,
}

pub(super) fn run(args: &Args) -> Result<(), Exit> {
    let rules = Rules::new(args)?;
    let subject = |file: &Path| -> Result<Subject, Exit> {
        let wrong = |why: String| Exit::usage(format!("{}: {why}", shown(file)));
        let request = request::parse(&read(file)?).map_err(|why| wrong(why.to_string()))?;
        let policy = rules.policy(&request).map_err(wrong)?;
        Ok(Subject::new(
            request,
            &policy,
            rules.namespace(),
            args.principal.as_deref(),
        ))
    };
    match (&args.files[..], args.explain) {
        ([file], false) => print::print(&subject(file)?, args.json),
        ([a, b], true) => explain::explain(&subject(a)?, &subject(b)?, args.json),
        (_, true) => Err(Exit::usage(
            "--explain compares two requests: give two files",
        )),
        (_, false) => Err(Exit::usage(
            "give one request; to compare two, add --explain",
        )),
    }
}

/// The rules by which requests are compared.
enum Rules<'a> {
    /// The rules from flags, for every request.
    Flags {
        policy: Box<FingerprintPolicy>,
        namespace: &'a str,
    },
    /// The rules of a configuration, for the route that a request takes.
    Routes {
        routes: Vec<Route>,
        namespace: String,
    },
}

impl Rules<'_> {
    fn new(args: &Args) -> Result<Rules<'_>, Exit> {
        let Some(config) = &args.config else {
            let namespace = args.namespace.as_deref().unwrap_or("default");
            return Ok(Rules::Flags {
                policy: Box::new(args.policy()?),
                namespace,
            });
        };
        let overrides = Overrides {
            environment: Environment::of_process(),
            ..Overrides::default()
        };
        let loaded = file::load(Some(config), &overrides).map_err(Exit::usage)?;
        Ok(Rules::Routes {
            routes: loaded.config.all_routes(),
            namespace: loaded.config.namespace,
        })
    }

    fn namespace(&self) -> &str {
        match self {
            Rules::Flags { namespace, .. } => namespace,
            Rules::Routes { namespace, .. } => namespace,
        }
    }

    fn policy(&self, request: &Request) -> Result<FingerprintPolicy, String> {
        match self {
            Rules::Flags { policy, .. } => Ok((**policy).clone()),
            Rules::Routes { routes, .. } => {
                let method = http::Method::from_bytes(request.method.as_bytes())
                    .map_err(|_| "its method is none")?;
                let choice = choose(routes, &method, &request.path)
                    .map_err(|_| "its path can be read in more than one way, and is refused as path-ambiguous")?;
                Ok((*choice.route.policy.fingerprint).clone())
            }
        }
    }
}

impl Args {
    fn policy(&self) -> Result<FingerprintPolicy, Exit> {
        let comparison = self.fingerprint.unwrap_or(Comparison::Auto);
        if comparison != Comparison::Json && !(self.omit.is_empty() && self.only.is_empty()) {
            return Err(Exit::usage(
                "--omit and --only choose values of a JSON body: add --fingerprint json",
            ));
        }
        let body = match comparison {
            Comparison::Auto => BodyMode::Auto,
            Comparison::Raw => BodyMode::Raw,
            Comparison::Json => BodyMode::Json(self.selection()),
            Comparison::Multipart => BodyMode::Multipart,
        };
        let mut policy = FingerprintPolicy::default();
        policy.body = body;
        Ok(self
            .headers
            .iter()
            .fold(policy, |policy, name| policy.with_header(name)))
    }

    fn selection(&self) -> Selection {
        match (&self.omit[..], &self.only[..]) {
            ([], []) => Selection::All,
            (omit, []) => Selection::Omit(omit.to_vec()),
            (_, only) => Selection::Only(only.to_vec()),
        }
    }
}

fn read(file: &Path) -> Result<Vec<u8>, Exit> {
    let wrong = |error| Exit::usage(format!("{} could not be read: {error}", shown(file)));
    let mut bytes = Vec::new();
    let len = if file.as_os_str() == "-" {
        std::io::stdin()
            .lock()
            .take(BYTES_MAX)
            .read_to_end(&mut bytes)
            .map_err(wrong)?
    } else {
        std::fs::File::open(file)
            .and_then(|file| file.take(BYTES_MAX).read_to_end(&mut bytes))
            .map_err(wrong)?
    };
    if len as u64 == BYTES_MAX {
        return Err(Exit::usage(format!(
            "{} is larger than any request that is guarded",
            shown(file)
        )));
    }
    Ok(bytes)
}

fn shown(file: &Path) -> String {
    text::line(&file.to_string_lossy()).into_owned()
}

fn header(name: &str) -> Result<String, String> {
    match http::HeaderName::try_from(name) {
        Ok(name) => Ok(name.as_str().to_owned()),
        Err(_) => Err("this is not the name of a header field".to_owned()),
    }
}
