//! `hapax outbox list`

use hapax::core::time::Timestamp;
use hapax_flow::outbox::operate::{AsideQuery, AsideState, Listed};

use super::place::{Place, exit};
use super::table;
use crate::admin::outbox::wire::OutboxMessage;
use crate::cli::keys::format::age;
use crate::cli::{Exit, text};

/// Messages in one page.
const PAGE: u32 = 1000;

/// List messages that are set aside, by reader and in their order.
///
/// Exit code 1 if there are none. The columns: id, reader, state, topic, key, age, attempts, and
/// what the destination said.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Only of this reader
    #[arg(long, value_name = "NAME")]
    reader: Option<String>,
    /// Only in this state: waiting to be sent, held for an operator with the later ones of its key,
    /// or dead, which holds up nobody
    #[arg(long, value_enum)]
    state: Option<State>,
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
    Waiting,
    Held,
    Dead,
}

impl State {
    fn meant(self) -> AsideState {
        match self {
            State::Waiting => AsideState::Waiting,
            State::Held => AsideState::Held,
            State::Dead => AsideState::Dead,
        }
    }
}

pub(super) async fn run(args: &Args) -> Result<(), Exit> {
    let outbox = args.place.open()?;
    let (mut shown, mut after) = (0, None);
    loop {
        let query = AsideQuery {
            reader: args.reader.clone(),
            state: args.state.map(State::meant),
            after: after.take(),
            limit: PAGE.min(args.limit - shown),
        };
        let page = outbox.set_aside(&query).await.map_err(exit)?;
        let count = u32::try_from(page.len()).unwrap_or(u32::MAX);
        shown += count;
        if !page.is_empty() && !text::emit(&args.print(&page)) {
            return Ok(());
        }
        let is_end = count < query.limit;
        after = page
            .last()
            .map(|last| (last.aside.reader.clone(), last.sequence));
        if is_end || shown >= args.limit {
            if shown == 0 {
                return Err(Exit::failed("no message is set aside like that"));
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
                .map(|one| text::json_line(&OutboxMessage::from(one)))
                .collect();
        }
        let now = Timestamp::from_system_time(std::time::SystemTime::now());
        table::draw(
            NAMES,
            &page.iter().map(|one| row(one, now)).collect::<Vec<_>>(),
        )
    }
}

const NAMES: [&str; 8] = [
    "ID", "READER", "STATE", "TOPIC", "KEY", "AGE", "ATTEMPTS", "REASON",
];

fn row(Listed { aside, head, .. }: &Listed, now: Timestamp) -> [String; 8] {
    [
        head.id.to_string(),
        aside.reader.clone(),
        aside.state.word().to_owned(),
        head.topic.clone(),
        head.key.clone().unwrap_or_else(|| "-".to_owned()),
        age(now.since(head.at)),
        aside.attempts.to_string(),
        aside.reason.clone().unwrap_or_else(|| "-".to_owned()),
    ]
}
