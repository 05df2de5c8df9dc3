//! `hapax outbox list`

use hapax::core::time::Timestamp;
use hapax_flow::outbox::operate::{AsideQuery, AsideState, Listed, Operators};
use serde_json::{Value, json};

use super::place::{Place, exit};
use super::{table, watch};
use crate::admin::outbox::wire::{OutboxMessage, Time};
use crate::cli::keys::format::{age, count};
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
    /// Look again each second: a table that is drawn anew on a terminal; with --json one object
    /// with all messages for each look
    #[arg(long)]
    watch: bool,
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
    if args.watch {
        let look = async || {
            let mut messages = Vec::new();
            let is_all = args
                .each_page(&*outbox, |page| {
                    messages.extend(page);
                    true
                })
                .await?;
            Ok(Watched { messages, is_all })
        };
        return watch::run(args.json, look).await;
    }
    let mut shown = 0;
    let is_all = args
        .each_page(&*outbox, |page| {
            shown += page.len();
            page.is_empty() || text::emit(&args.print(&page))
        })
        .await?;
    if shown == 0 {
        return Err(Exit::failed("no message is set aside like that"));
    }
    if !is_all {
        eprintln!("there may be more: raise --limit");
    }
    Ok(())
}

impl Args {
    /// Reads pages up to the limit, for as long as `take` wants more. Returns whether there are no
    /// more beyond the limit.
    async fn each_page(
        &self,
        outbox: &dyn Operators,
        mut take: impl FnMut(Vec<Listed>) -> bool,
    ) -> Result<bool, Exit> {
        let (mut taken, mut after) = (0, None);
        loop {
            let query = AsideQuery {
                reader: self.reader.clone(),
                state: self.state.map(State::meant),
                after: after.take(),
                limit: PAGE.min(self.limit - taken),
            };
            let page = outbox.set_aside(&query).await.map_err(exit)?;
            let count = u32::try_from(page.len()).unwrap_or(u32::MAX);
            let is_end = count < query.limit;
            taken += count;
            after = page
                .last()
                .map(|last| (last.aside.reader.clone(), last.sequence));
            if !take(page) || is_end || taken >= self.limit {
                return Ok(is_end);
            }
        }
    }

    fn print(&self, page: &[Listed]) -> String {
        match self.json {
            true => page
                .iter()
                .map(|one| text::json_line(&OutboxMessage::from(one)))
                .collect(),
            false => table(page),
        }
    }
}

fn table(page: &[Listed]) -> String {
    let now = Timestamp::from_system_time(std::time::SystemTime::now());
    let rows: Vec<_> = page.iter().map(|one| row(one, now)).collect();
    table::draw(NAMES, &rows)
}

/// Messages that are watched.
struct Watched {
    messages: Vec<Listed>,
    is_all: bool,
}

impl watch::Seen for Watched {
    fn count(&self) -> usize {
        self.messages.len()
    }

    fn title(&self) -> String {
        let or_more = if self.is_all { "" } else { " or more" };
        format!(
            "{}{or_more} set aside",
            count(self.messages.len(), "message")
        )
    }

    fn object(&self, at: Time) -> Value {
        let messages: Vec<_> = self.messages.iter().map(OutboxMessage::from).collect();
        json!({ "at": at, "messages": messages, "is_all": self.is_all })
    }

    fn table(&self, rows: usize) -> String {
        table(&self.messages[..rows])
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
