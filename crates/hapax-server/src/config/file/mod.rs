//! Reads the configuration: a TOML file, variables and flags, as a tree in which every setting
//! knows its place.
//!
//! The tree is walked by hand rather than with a derived reader, because that would stop at the
//! first mistake and lose the places of the others. `config/settings/` declares all sections and
//! settings; `environment.rs` reads variables; `section.rs` reads one section and records mistakes;
//! `value.rs` reads single values; `checks.rs` looks for contradictions in the sections about the
//! gateway itself, `routes.rs` and `policy.rs` in those about routes, `principals.rs` in those
//! about callers, `relays.rs` in those about relays; `mistake.rs` shows the lines, `hidden.rs` removes the secrets from them;
//! `report.rs` records where each value came from.

mod addresses;
pub(super) mod checks;
mod environment;
mod hidden;
mod mistake;
pub(super) mod policy;
pub(super) mod principals;
mod relays;
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
    DEFAULTS, DRAIN, FORWARD_AUTH, JWT, LIMITS, ON_UNKNOWN, ROUTES, STANDARD_WEBHOOKS, Settings,
    TIMEOUTS, TLS, TOP, Table, UPSTREAM,
};
use super::{Config, Drain, PrincipalSource, PrincipalSources, Relay, Route, StoreUrl};

/// Overrides of the file: variables, and flags, which override those too.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    /// The URL of the upstream.
    pub upstream: Option<Uri>,
    /// The address for clients.
    pub listen: Option<SocketAddr>,
    /// The address for operators; `Some(None)` for none.
    pub admin: Option<Option<SocketAddr>>,
    /// The store of the records.
    pub store: Option<StoreUrl>,
    /// What identifies callers.
    pub principal: Option<PrincipalSources>,
    /// The environment variables.
    pub environment: Environment,
}

/// A configuration, and where its values came from.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The configuration.
    pub config: Config,
    /// All routes, including the default route at the end.
    pub routes: Vec<Route>,
    /// Each setting of each section and route with its origin; routes in the same order.
    pub report: Vec<ReportSection>,
    /// What is not a mistake, but should be looked at.
    pub warnings: Vec<String>,
}

/// Reads a file. All mistakes are reported; if the file is not TOML, only its syntax errors.
pub fn read(path: &Path) -> Result<Config, ConfigError> {
    read_with(path, &Overrides::default())
}

/// Reads a file. Variables and flags override it, and only the result must be consistent.
pub fn read_with(path: &Path, overrides: &Overrides) -> Result<Config, ConfigError> {
    load(Some(path), overrides).map(|loaded| loaded.config)
}

/// Reads a configuration, with or without a file, and reports where its values came from.
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

/// Reads the text of a file. Relative paths are relative to the directory of `path`.
pub fn parse(path: &Path, text: &str, overrides: &Overrides) -> Result<Loaded, ConfigError> {
    let context = context(path, text, &overrides.environment);
    let table = table(text, &context.mistakes)?;
    let variables = Variables::read(&overrides.environment, &context.mistakes);
    let (config, places) = config(table.get_ref(), &variables, overrides, &context);
    let Context {
        mistakes, report, ..
    } = context;
    mistakes.finish()?;
    let (report, warnings) = report.finish(places, &config.relays);
    Ok(Loaded {
        routes: config.all_routes(),
        config,
        report,
        warnings,
    })
}

/// Reads only the store's URL; `None` if neither a file nor a variable sets it. This is for
/// commands that need nothing else: the configuration may be incomplete without flags of `hapax
/// serve`.
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

/// Reads only what relays need: the store's URL, if a file or a variable sets it, and the relays.
pub(crate) fn relays(
    path: &Path,
    environment: &Environment,
) -> Result<(Option<StoreUrl>, Vec<Relay>), ConfigError> {
    let text = read_text(Some(path))?;
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
    let relays = relays::relays(&top);
    drop(top);
    context.mistakes.finish()?;
    Ok((store, relays))
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

/// A relative path of a store file is relative to the configuration file.
fn put_beside(top: &Section<'_>, store: &mut StoreUrl) {
    if let StoreUrl::Sqlite(path) = store
        && top.has("store")
    {
        *path = top.base("store").join(&*path);
    }
}

/// The parser's message, with advice on what to write.
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

/// The configuration, and the place of each route.
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
    config.relays = relays::relays(&top);
    let (jwt, forward_auth) = (section(&JWT), section(&FORWARD_AUTH));
    config.jwt = principals::jwt(&jwt);
    config.forward_auth = principals::forward_auth(&forward_auth);
    let webhooks = section(&STANDARD_WEBHOOKS);
    config.standard_webhooks = principals::standard_webhooks(&webhooks);
    let (upstream, limits) = (section(&UPSTREAM), section(&LIMITS));
    config.upstream = checks::upstream(&upstream, overrides);
    config.tls = checks::tls(&section(&TLS));
    config.limits = checks::limits(&limits);
    config.drain = Drain::read(Some(&section(&DRAIN)));
    config.on_unknown = checks::on_unknown(&section(&ON_UNKNOWN));
    addresses::apart(&top, &config, overrides);
    if is_store_known {
        checks::store(&top, &config, overrides);
    }
    let by_source = [&jwt, &forward_auth, &webhooks];
    principals::check(&top, by_source, &routes, &config, overrides);
    addresses::no_loop(&upstream, &config, overrides);
    checks::bodies_fit(&limits, &config.all_routes(), &config.limits);
    addresses::admin_is_guarded(&top, &config, overrides);
    let unwritten = Section::absent(&ROUTES, context)
        .with_index(routes.len())
        .with_defaults(&all);
    // Read once more for the report alone: as a route, and not as the defaults of routes.
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

/// Applies the flags, which override everything else.
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
