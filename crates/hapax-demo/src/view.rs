//! The view for a person: the storm while it lasts, side by side, and the verdict.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use crate::ledger::Ledger;
use crate::plan::{Fault, Plan};
use crate::requests::Tally;
use crate::screen::{Line, Screen, Style};
use crate::service::PATH;
use crate::supervisor::Supervisor;
use crate::verdict::{Count, Verdict};

use Style::{Bad, Bold, Dim, Good, Plain};

/// The current state of one side of the storm.
pub(crate) struct Side<'a> {
    pub(crate) tally: &'a Tally,
    pub(crate) ledger: &'a Ledger,
    pub(crate) service: &'a Supervisor,
}

/// One side, read at one moment.
struct Reading {
    sent: u64,
    charged: u64,
    again: u64,
    replayed: u64,
    told_to_wait: u64,
    refused: u64,
    held: u64,
    faults: u64,
}

impl Side<'_> {
    fn read(&self) -> Reading {
        // A ledger that is just being created counts as empty.
        let (charged, orders) = self.ledger.count().unwrap_or_default();
        Reading {
            sent: self.tally.sent.get(),
            charged,
            again: charged - orders,
            replayed: self.tally.replayed.get(),
            told_to_wait: self.tally.told_to_wait.get(),
            refused: self.tally.refused.get(),
            held: self.tally.held.get(),
            faults: Fault::ALL
                .into_iter()
                .map(|fault| self.service.struck(fault))
                .sum(),
        }
    }
}

const BAR_WIDTH_MAX: usize = 58;

/// The widths of a table. The narrow layout fits forty columns.
struct Layout {
    label: usize,
    column: usize,
    names: [&'static str; 3],
}

const WIDE: Layout = Layout {
    label: 30,
    column: 16,
    names: ["without Hapax", "with Hapax", "once settled"],
};
const NARROW: Layout = Layout {
    label: 23,
    column: 8,
    names: ["without", "with", "settled"],
};

impl Layout {
    /// The layout for `columns` columns of numbers.
    fn for_width(width: usize, columns: usize) -> &'static Layout {
        if width > WIDE.label + columns * WIDE.column {
            &WIDE
        } else {
            &NARROW
        }
    }

    fn header(&self, columns: usize) -> Line {
        let names: String = self.names[..columns]
            .iter()
            .map(|name| format!("{name:>width$}", width = self.column))
            .collect();
        Line::new(Plain, " ".repeat(self.label)).and(Bold, names)
    }

    fn row(&self, label: &str, cells: &[(Style, String)]) -> Line {
        let line = Line::new(Plain, format!("  {label:<width$}", width = self.label - 2));
        cells.iter().fold(line, |line, (style, cell)| {
            line.and(*style, format!("{cell:>width$}", width = self.column))
        })
    }
}

/// The number of lines in the live block.
pub(crate) const BLOCK_LINES: usize = 11;

pub(crate) fn introduce(screen: &mut Screen, plan: &Plan) {
    let (seed, customers, orders) = (plan.seed, plan.customers.len(), plan.orders().count());
    let balanced = plan
        .customers
        .iter()
        .filter(|customer| customer.balanced)
        .count();
    let twice = plan
        .orders()
        .filter(|order| order.second_click.is_some())
        .count();
    screen.say(&Line::default());
    screen.say(&Line::new(Bold, "  hapax demo").and(Dim, format!("  --seed {seed}")));
    screen.say(&Line::default());
    screen.tell(
        Plain,
        &format!(
            "{customers} customers place {orders} orders with a payments service that charges and then says 500, loses its answer, stalls, \
             breaks off, or dies. They time out and try again; {twice} orders are clicked twice; {balanced} customers sit behind a load balancer that \
             sends again by itself. The same storm twice at once: straight to the service, and through Hapax."
        ),
    );
    screen.say(&Line::default());
}

/// The current state of the storm as a block to redraw.
pub(crate) fn block(
    elapsed: Duration,
    expected: Duration,
    without: &Side<'_>,
    with: &Side<'_>,
    width: usize,
) -> Vec<Line> {
    let (a, b) = (without.read(), with.read());
    let layout = Layout::for_width(width, 2);
    let row = |label: &str, read: fn(&Reading) -> u64| {
        layout.row(label, &[&a, &b].map(|side| (Plain, read(side).to_string())))
    };
    let again = [&a, &b].map(|side| {
        (
            if side.again > 0 { Bad } else { Good },
            side.again.to_string(),
        )
    });
    let block = vec![
        bar(elapsed, expected, width),
        Line::default(),
        layout.header(2),
        row("requests sent", |side| side.sent),
        row("charged", |side| side.charged),
        layout.row("of these, once more", &again),
        row("replayed", |side| side.replayed),
        row("told to wait", |side| side.told_to_wait),
        row("refused by the bank", |side| side.refused),
        row("held: outcome unknown", |side| side.held),
        row("faults of the service", |side| side.faults),
    ];
    debug_assert_eq!(block.len(), BLOCK_LINES);
    block
}

/// The same in one line, for logs.
pub(crate) fn plain(elapsed: Duration, without: &Side<'_>, with: &Side<'_>) -> Line {
    let (a, b) = (without.read(), with.read());
    let text = format!(
        "{:>4} s  without Hapax: sent {}, charged {} ({} again), refused {}, faults {} | with Hapax: sent {}, charged {} ({} again), \
         replayed {}, told to wait {}, refused {}, held {}, faults {}",
        elapsed.as_secs(),
        a.sent,
        a.charged,
        a.again,
        a.refused,
        a.faults,
        b.sent,
        b.charged,
        b.again,
        b.replayed,
        b.told_to_wait,
        b.refused,
        b.held,
        b.faults
    );
    Line::new(Plain, text)
}

fn bar(elapsed: Duration, expected: Duration, width: usize) -> Line {
    let room = width.saturating_sub(14).clamp(8, BAR_WIDTH_MAX);
    let done = (elapsed.as_secs_f64() / expected.as_secs_f64()).min(1.0);
    let full = (done * room as f64) as usize;
    Line::new(Good, format!("  {}", "━".repeat(full)))
        .and(Dim, "─".repeat(room - full))
        .and(Plain, format!(" {:>4.1} s", elapsed.as_secs_f64()))
}

/// Shows all results to a person.
pub(crate) fn show(screen: &mut Screen, verdict: &Verdict) {
    let layout = Layout::for_width(screen.width(), 3);
    screen.say(&Line::default());
    screen.tell(Plain, &reconciliation(verdict));
    screen.say(&Line::default());
    screen.say(&layout.header(3));
    table(
        layout,
        [
            &verdict.without_hapax,
            &verdict.with_hapax,
            &verdict.once_settled,
        ],
    )
    .iter()
    .for_each(|line| screen.say(line));
    screen.say(&Line::default());
    tell_faults(screen, verdict);
    screen.say(&Line::default());
    conclude(screen, verdict);
    screen.say(&Line::default());
}

fn reconciliation(verdict: &Verdict) -> String {
    let found = &verdict.reconciled;
    let again = match found.held_again {
        0 => String::new(),
        again => format!(" and {again} more on being retried"),
    };
    format!(
        "{} held{again}: lost on the way, so that only the ledger knows. {} found in the ledger, settled as done: their customers get the \
         receipt. {} not there, settled as not done and retried under the same key.",
        found.held, found.found, found.not_there
    )
}

fn table(layout: &Layout, counts: [&Count; 3]) -> Vec<Line> {
    let cells = |read: fn(&Count) -> u64| counts.map(|count| (Plain, read(count).to_string()));
    let none = |read: fn(&Count) -> u64| {
        counts.map(|count| {
            (
                if read(count) == 0 { Good } else { Bad },
                read(count).to_string(),
            )
        })
    };
    let overcharged = counts.map(|count| {
        let style = if count.overcharged_cents == 0 {
            Good
        } else {
            Bad
        };
        (
            style,
            format!(
                "${}.{:02}",
                count.overcharged_cents / 100,
                count.overcharged_cents % 100
            ),
        )
    });
    vec![
        layout.row("orders to be charged", &cells(|count| count.orders)),
        layout.row("charges made", &cells(|count| count.charges)),
        layout.row("charged once", &cells(|count| count.charged_once)),
        layout.row("charged twice or more", &none(|count| count.charged_more)),
        layout.row("not charged", &cells(|count| count.not_charged)),
        layout.row(
            "receipts, no charge",
            &none(|count| count.confirmed_but_missing),
        ),
        layout.row("overcharged", &overcharged),
    ]
}

/// Prints one number if both sides agree, otherwise both.
fn tell_faults(screen: &mut Screen, verdict: &Verdict) {
    let struck =
        verdict
            .faults
            .iter()
            .map(|struck| match (struck.without_hapax, struck.with_hapax) {
                (without, with) if without == with => format!("{} {with}", struck.fault),
                (without, with) => format!("{} {without} without and {with} with", struck.fault),
            });
    screen.tell(
        Dim,
        &format!(
            "Faults of the service: {}.",
            struck.collect::<Vec<_>>().join(", ")
        ),
    );
    let missed = verdict.missed();
    if !missed.is_empty() {
        screen.tell(
            Bad,
            &format!(
                "Never struck on one side: {}. This run shows less than it should.",
                missed.join(", ")
            ),
        );
    }
}

fn conclude(screen: &mut Screen, verdict: &Verdict) {
    let (without, settled) = (&verdict.without_hapax, &verdict.once_settled);
    let (more, orders) = (without.charged_more, without.orders);
    screen.tell(
        if more > 0 { Bad } else { Plain },
        &format!("Without Hapax {more} of {orders} orders were charged more than once."),
    );
    if verdict.kept {
        screen.tell(Good, &format!(
            "With Hapax no order was charged twice. Once the {} held orders were settled, each of the {} orders was charged exactly once.",
            verdict.reconciled.held, settled.orders
        ));
        tell_ways_to_hold_none(screen, verdict.reconciled.held);
    } else {
        screen.tell(
            Bad,
            "With Hapax not every order was charged exactly once: see the table.",
        );
    }
}

/// Explains how to avoid held orders. Hapax holds them because this service does not cooperate.
fn tell_ways_to_hold_none(screen: &mut Screen, held: u64) {
    screen.say(&Line::default());
    screen.tell(
        Dim,
        &format!(
            "{held} orders were held because this service does nothing for its part. Three ways to have none held: it completes the record in \
             the transaction of its charge (mode \"transaction\"), it answers what became of an operation (mode \"probe\"), or a job of its own \
             settles what is unknown, as this demo did (hapax keys settle). See docs/modes.md."
        ),
    );
}

/// For `--keep`: prints commands to try, in a sensible order.
pub(crate) fn invite(
    screen: &mut Screen,
    gateway: SocketAddr,
    admin: Option<SocketAddr>,
    ledger: &Path,
) {
    let url = format!("http://{gateway}{PATH}");
    let charge = |amount: u32| {
        format!(
            "curl -i {url} -H 'Idempotency-Key: my-first' -H 'Content-Type: application/json' -d '{{\"order\":\"my-first\",\"amount_cents\":{amount}}}'"
        )
    };
    suggest(
        screen,
        "Gateway and service stay up until Ctrl-C. Charge something:",
        &charge(1_250),
    );
    suggest(
        screen,
        "Repeat it: the same answer, with Idempotent-Replayed, and no second charge:",
        &charge(1_250),
    );
    suggest(
        screen,
        "The same key for something else is refused with 422:",
        &charge(9_900),
    );
    if let Some(admin) = admin {
        suggest(
            screen,
            "What Hapax remembers:",
            &format!("{} keys list --admin http://{admin}", program()),
        );
    }
    let query =
        "SELECT order_id, count(*) FROM charges GROUP BY order_id ORDER BY max(id) DESC LIMIT 5";
    suggest(
        screen,
        "What was charged:",
        &format!("sqlite3 {} '{query}'", ledger.display()),
    );
}

fn suggest(screen: &mut Screen, what: &str, line: &str) {
    screen.say(&Line::new(Style::Bold, format!("  {what}")));
    screen.say(&Line::new(Style::Plain, format!("    {line}")));
}

/// The program as it was called, so that the printed line works even if it is not installed.
fn program() -> String {
    std::env::args()
        .next()
        .unwrap_or_else(|| "hapax".to_owned())
}
