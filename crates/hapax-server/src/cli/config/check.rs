//! `hapax config check`

use std::collections::BTreeSet;

use crate::cli::config_flags::ConfigFlags;
use crate::cli::{Exit, text};
use crate::config::file::Loaded;
use crate::config::unguarded_siblings;
use crate::gateway;

/// Say whether a start would take a configuration, files that it names included: exit code 0, or 2
/// and every mistake with its line.
#[derive(clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    given: ConfigFlags,
}

pub(super) fn run(args: &Args) -> Result<(), Exit> {
    let loaded = args.given.load()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Exit::failed(format!("could not start the runtime: {error}")))?;
    let mistakes = runtime.block_on(gateway::mistakes(&loaded.config));
    if !mistakes.is_empty() {
        return Err(Exit::usage(mistakes.join("\n")));
    }
    for warning in unguarded_siblings(&loaded.routes) {
        eprintln!("hapax: warning: {}", text::line(&warning));
    }
    let (routes, changed) = (loaded.config.routes.len(), changed(&loaded));
    text::emit(&format!(
        "ok: {routes} {}, {changed} {} changed from defaults\n",
        if routes == 1 { "route" } else { "routes" },
        if changed == 1 { "setting" } else { "settings" },
    ));
    Ok(())
}

/// How many settings were changed from their defaults; one that is set for all routes counts once.
fn changed(loaded: &Loaded) -> usize {
    let settings = loaded.report.iter().flat_map(|section| &section.settings);
    settings
        .filter(|setting| setting.is_changed)
        .map(|setting| (setting.name, &setting.from))
        .collect::<BTreeSet<_>>()
        .len()
}
