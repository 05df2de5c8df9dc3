//! `hapax inbox parked`

use hapax::core::time::Timestamp;
use hapax_flow::inbox::{Listed, ParkedQuery, ParkedState};

use super::exit;
use crate::admin::inbox::wire::InboxMessage;
use crate::cli::keys::format::age;
use crate::cli::outbox::place::Place;
use crate::cli::outbox::table;
use crate::cli::{Exit, text};

/// Messages in one page.
const PAGE: u32 = 1000;

/// List messages that were parked instead of applied, in the order in which they were parked.
///
/// Exit code 1 if there are none. The columns: consumer, id, state, cause, topic, key, how long it
/// has been parked, attempts, and the reason.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Only of this consumer
    #[arg(long, value_name = "NAME")]
    consumer: Option<String>,
    /// Only in this state: parked for an operator; trying, which failed and is still tried; again,
    /// which an operator has released and is tried again
    #[arg(long, value_enum, default_value = "parked")]
    state: State,
    /// At most so many
    #[arg(long, default_value_t = 100)]
    limit: u32,
    /// One JSON object a line
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    place: Place,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum State {
    Trying,
    Parked,
    Again,
}

impl State {
    fn meant(self) -> ParkedState {
        match self {
            State::Trying => ParkedState::Trying,
            State::Parked => ParkedState::Parked,
            State::Again => ParkedState::Again,
        }
    }
}

pub(super) async fn run(args: &Args) -> Result<(), Exit> {
    let inbox = args.place.open_inbox()?;
    let (mut shown, mut after) = (0, None);
    loop {
        let query = ParkedQuery {
            consumer: args.consumer.clone(),
            state: Some(args.state.meant()),
            after,
            limit: PAGE.min(args.limit - shown),
        };
        let page = inbox.parked(&query).await.map_err(exit)?;
        let count = u32::try_from(page.len()).unwrap_or(u32::MAX);
        shown += count;
        if !page.is_empty() && !text::emit(&args.print(&page)) {
            return Ok(());
        }
        let is_end = count < query.limit;
        after = page.last().map(|last| last.head.number);
        if is_end || shown >= args.limit {
            if shown == 0 {
                return Err(Exit::failed("no message is parked like that"));
            }
            if !is_end {
                eprintln!("there may be more: raise --limit");
            }
            return Ok(());
        }
    }
}

impl Args {
    fn print(&self, page: &[Listed]) -> String {
        if self.json {
            return page
                .iter()
                .map(|one| text::json_line(&InboxMessage::from(one)))
                .collect();
        }
        let now = Timestamp::from_system_time(std::time::SystemTime::now());
        let rows: Vec<_> = page.iter().map(|one| row(one, now)).collect();
        table::draw(NAMES, &rows)
    }
}

const NAMES: [&str; 9] = [
    "CONSUMER", "ID", "STATE", "CAUSE", "TOPIC", "KEY", "AGE", "ATTEMPTS", "REASON",
];

fn row(Listed { head, .. }: &Listed, now: Timestamp) -> [String; 9] {
    let or_none = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
    [
        head.consumer.clone(),
        head.id.clone(),
        head.state.word().to_owned(),
        head.cause.clone(),
        or_none(&head.topic),
        or_none(&head.key),
        age(now.since(head.parked_at)),
        head.attempts.to_string(),
        or_none(&head.reason),
    ]
}
