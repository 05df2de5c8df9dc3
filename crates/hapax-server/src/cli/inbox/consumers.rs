//! `hapax inbox consumers`

use hapax::core::flow::Window;
use hapax_flow::inbox::ConsumerState;

use super::exit;
use crate::admin::inbox::wire::InboxConsumer;
use crate::cli::keys::format::age;
use crate::cli::outbox::place::Place;
use crate::cli::outbox::table;
use crate::cli::{Exit, text};

/// Show every consumer: how many messages it has parked, and for how long its receipts are kept.
///
/// The columns: name; messages parked for an operator; those that failed and are still tried; those
/// that are tried again; age of the oldest that is parked; window.
#[derive(clap::Args)]
pub(super) struct Args {
    /// One JSON object a line
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    place: Place,
}

pub(super) async fn run(args: &Args) -> Result<(), Exit> {
    let consumers = args.place.open_inbox()?.consumers().await.map_err(exit)?;
    if consumers.is_empty() {
        return Err(Exit::failed(
            "there are no consumers: each registers itself with its first message",
        ));
    }
    text::emit(&match args.json {
        true => consumers
            .iter()
            .map(|consumer| text::json_line(&InboxConsumer::from(consumer)))
            .collect(),
        false => {
            let rows: Vec<_> = consumers.iter().map(row).collect();
            table::draw(NAMES, &rows)
        }
    });
    Ok(())
}

const NAMES: [&str; 6] = ["CONSUMER", "PARKED", "TRYING", "AGAIN", "OLDEST", "WINDOW"];

fn row(consumer: &ConsumerState) -> [String; 6] {
    let oldest = consumer
        .oldest_parked_at
        .map(|at| age(consumer.now.since(at)));
    [
        consumer.name.clone(),
        consumer.parked.to_string(),
        consumer.trying.to_string(),
        consumer.again.to_string(),
        oldest.unwrap_or_else(|| "-".to_owned()),
        match consumer.window {
            Window::Limited(window) => age(window),
            Window::Forever => "for ever".to_owned(),
        },
    ]
}
