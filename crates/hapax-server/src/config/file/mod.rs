//! The configuration: a file of TOML, variables and flags, read as a tree in which every setting
//! knows its place.
//!
//! The tree is walked by hand rather than derived, because a derived reader stops at the first
//! mistake and forgets where the others stand. `config/settings/` declares all sections and
//! settings; `environment.rs` reads variables; `section.rs` reads one section and notes what is
//! wrong; `value.rs` reads single values; `checks.rs` looks for contradictions in the sections about
//! the gateway itself, `routes.rs` and `policy.rs` in those about routes, `principals.rs` in those
//! about callers; `mistake.rs` shows the lines, `hidden.rs` takes the secrets out of them;
//! `report.rs` keeps where each value came from.

mod addresses;
pub(super) mod checks;
mod environment;
mod hidden;
mod mistake;
pub(super) mod policy;
pub(super) mod principals;
mod report;
mod routes;
pub(crate) mod section;
pub(crate) mod value;

use std::net::SocketAddr;
use std::path::Path;
use std::str::FromStr;

use http::Uri;
use toml::de::DeTable;

pub use self::environment::Environment;
use self::environment::Variables;
use self::mistake::{At, Mistakes};
pub use self::mistake::{ConfigError, Mistake, Place};
use self::policy::Around;
pub use self::report::{Counts, ReportSection, ReportSetting};
use self::section::{Context, Section};
use self::value::parsed;
use super::settings::{
    DEFAULTS, DRAIN, FORWARD_AUTH, JWT, LIMITS, ROUTES, Settings, TIMEOUTS, TLS, TOP, Table,
    UPSTREAM,
};
use super::{Config, Drain, PrincipalSource, PrincipalSources, Route, StoreUrl};

/// What goes before the file: variables, and before those, flags.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    /// The service behind.
    pub upstream: Option<Uri>,
    /// Where clients connect.
    pub listen: Option<SocketAddr>,
    /// Where operators ask; `Some(None)` for nowhere.
    pub admin: Option<Option<SocketAddr>>,
    /// Where records are kept.
    pub store: Option<StoreUrl>,
    /// Who is asking.
    pub principal: Option<PrincipalSources>,
    /// The variables.
    pub environment: Environment,
}

/// A configuration, and how it came about.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// What the gateway is to do.
    pub config: Config,
    /// All routes, the unwritten last one too.
    pub routes: Vec<Route>,
    /// Each setting of each section and route with where it comes from, routes in the same order.
    pub report: Vec<ReportSection>,
    /// What is no mistake and should be looked at.
    pub warnings: Vec<String>,
}

/// Reads a file. Every mistake in it is told, unless it is no TOML: then only where it is none.
pub fn read(path: &Path) -> Result<Config, ConfigError> {
    read_with(path, &Overrides::default())
}

/// Reads a file; where variables and flags say otherwise, they count, and only what results must
/// make sense.
pub fn read_with(path: &Path, overrides: &Overrides) -> Result<Config, ConfigError> {
    load(Some(path), overrides).map(|loaded| loaded.config)
}

/// Reads a configuration, with a file or without, and says how it came about.
pub fn load(path: Option<&Path>, overrides: &Overrides) -> Result<Loaded, ConfigError> {
    let text = read_text(path)?;
    parse(path.unwrap_or(Path::new("")), &text, overrides)
}

fn read_text(path: Option<&Path>) -> Result<String, ConfigError> {
    let Some(path) = path else {
        return Ok(String::new());
    };
    std::fs::read_to_string(path).map_err(|source| ConfigError::Unreadable {
        path: path.to_owned(),
        source,
    })
}

/// Reads the text of a file. Relative paths begin beside `path`.
pub fn parse(path: &Path, text: &str, overrides: &Overrides) -> Result<Loaded, ConfigError> {
    let context = context(path, text, &overrides.environment);
    let table = table(text, &context.mistakes)?;
    let variables = Variables::read(&overrides.environment, &context.mistakes);
    let (config, places) = config(table.get_ref(), &variables, overrides, &context);
    let Context {
        mistakes, report, ..
    } = context;
    mistakes.finish()?;
    let (report, warnings) = report.finish(places);
    Ok(Loaded {
        routes: config.all_routes(),
        config,
        report,
        warnings,
    })
}

/// Reads nothing but where records are kept; `None` where neither a file nor a variable says it.
/// For commands that need no more: a configuration that is made whole by flags of `hapax serve`
/// will do.
pub fn store(
    path: Option<&Path>,
    environment: &Environment,
) -> Result<Option<StoreUrl>, ConfigError> {
    let text = read_text(path)?;
    let path = path.unwrap_or(Path::new(""));
    let context = context(path, &text, environment);
    let table = table(&text, &context.mistakes)?;
    let variables = Variables::read(environment, &context.mistakes);
    let top = Section::absent(&TOP, &context)
        .with_table(table.get_ref(), At::File(0..0))
        .with_variables(variables.section(""));
    let mut store = top.get("store", parsed(StoreUrl::from_str));
    if let Some(store) = &mut store {
        put_beside(&top, store);
    }
    drop(top);
    context.mistakes.finish()?;
    Ok(store)
}

fn context<'a>(path: &Path, text: &'a str, environment: &'a Environment) -> Context<'a> {
    Context {
        mistakes: Mistakes::new(path.display().to_string(), text, environment),
        report: report::Report::default(),
        base: path.parent().unwrap_or(Path::new("")).to_owned(),
    }
}

fn table<'a>(
    text: &'a str,
    mistakes: &Mistakes<'_>,
) -> Result<toml::Spanned<DeTable<'a>>, ConfigError> {
    let (table, mut errors) = DeTable::parse_recoverable(text);
    if errors.is_empty() {
        return Ok(table);
    }
    errors.sort_by_key(|error| error.span().map(|span| span.start));
    let mistake = |error: &toml::de::Error| {
        let span = error.span().unwrap_or_default();
        mistakes.mistake(&At::File(span), no_toml(error.message()))
    };
    Err(ConfigError::Mistakes(errors.iter().map(mistake).collect()))
}

/// A file that is named by a relative path is beside the configuration.
fn put_beside(top: &Section<'_>, store: &mut StoreUrl) {
    if let StoreUrl::Sqlite(path) = store
        && top.has("store")
    {
        *path = top.base("store").join(&*path);
    }
}

/// What the parser says, and what it does not: what to write.
fn no_toml(message: &str) -> String {
    let fix = match message {
        _ if message.starts_with("duplicate key") => "it is there already: keep one of the two",
        _ if message.starts_with("key with no value") => {
            "a setting has a value: write name = \"value\""
        }
        _ if message.contains("string") => "text begins and ends with a quote, on one line",
        _ => "text stands in quotes, as in listen = \"127.0.0.1:4000\"",
    };
    format!("this is no TOML ({message}): {fix}")
}

/// The configuration, and where each route stands.
fn config<'a>(
    table: &'a DeTable<'a>,
    variables: &'a Variables<'a>,
    overrides: &Overrides,
    context: &'a Context<'a>,
) -> (Config, Vec<String>) {
    let top = Section::absent(&TOP, context)
        .with_table(table, At::File(0..0))
        .with_variables(variables.section(""));
    let section = |table: &'static Table| {
        top.section(table)
            .with_variables(variables.section(table.name))
    };
    let mut config = Config::read(Some(&top));
    put_beside(&top, &mut config.store);
    overrule(&mut config, &top, overrides);
    config.timeouts = checks::timeouts(&section(&TIMEOUTS));
    let is_store_known = overrides.store.is_some()
        || !top.has("store")
        || top.peek("store", parsed(StoreUrl::from_str)).is_some();
    let (store, timeouts) = (config.store.clone(), config.timeouts);
    let around = Around {
        timeouts: &timeouts,
        store: is_store_known.then_some(&store),
    };
    let all = section(&DEFAULTS);
    (config.defaults, config.probe) = policy::policy(&all, &around);
    let routes = route_sections(&top, &all, variables, context);
    config.routes = routes::routes(&routes, &around);
    let (jwt, forward_auth) = (section(&JWT), section(&FORWARD_AUTH));
    config.jwt = principals::jwt(&jwt);
    config.forward_auth = principals::forward_auth(&forward_auth);
    let (upstream, limits) = (section(&UPSTREAM), section(&LIMITS));
    config.upstream = checks::upstream(&upstream, overrides);
    config.tls = checks::tls(&section(&TLS));
    config.limits = checks::limits(&limits);
    config.drain = Drain::read(Some(&section(&DRAIN)));
    addresses::apart(&top, &config, overrides);
    principals::check(&top, [&jwt, &forward_auth], &routes, &config, overrides);
    addresses::no_loop(&upstream, &config, overrides);
    checks::bodies_fit(&limits, &config.all_routes(), &config.limits);
    addresses::admin_is_guarded(&top, &config, overrides);
    let unwritten = Section::absent(&ROUTES, context)
        .with_index(routes.len())
        .with_defaults(&all);
    // Read once more for the report alone: as a route, and not as what routes are made of.
    let _ = policy::policy(&unwritten, &around);
    unwritten.report_follows("path", "/**", "unwritten, after the last");
    let places = routes
        .iter()
        .map(Section::words)
        .chain(["unwritten".to_owned()])
        .collect();
    (config, places)
}

/// The routes of the file, then those that variables add.
fn route_sections<'a>(
    top: &Section<'a>,
    all: &Section<'a>,
    variables: &'a Variables<'a>,
    context: &'a Context<'a>,
) -> Vec<Section<'a>> {
    let mut routes = top.sections(&ROUTES);
    variables.refuse_gaps(routes.len(), &context.mistakes);
    while variables.route(routes.len()).is_some() {
        routes.push(Section::absent(&ROUTES, context).with_index(routes.len()));
    }
    let whole = |(index, route): (usize, Section<'a>)| {
        route
            .with_variables(variables.route(index))
            .with_defaults(all)
    };
    routes.into_iter().enumerate().map(whole).collect()
}

/// Puts what flags say before everything else.
fn overrule(config: &mut Config, top: &Section<'_>, overrides: &Overrides) {
    if let Some(listen) = overrides.listen {
        config.listen = listen;
        top.report_flag("listen", "--listen", listen.to_string());
    }
    if let Some(admin) = overrides.admin {
        config.admin = admin;
        let shown = admin.map_or("off".to_owned(), |admin| admin.to_string());
        top.report_flag("admin", "--admin", shown);
    }
    if let Some(store) = &overrides.store {
        config.store = store.clone();
        top.report_flag("store", "--store", store.expose());
    }
    if let Some(principal) = &overrides.principal {
        config.principal = principal.clone();
        let sources: Vec<String> = principal.iter().map(PrincipalSource::expose).collect();
        let value = match &sources[..] {
            [one] => toml::Value::from(one.clone()),
            all => toml::Value::from(all.to_vec()),
        };
        top.report_flag("principal", "--principal", value);
    }
}
