//! `--keep`: everything stays up, with lines to try.

use std::net::SocketAddr;
use std::path::Path;

use super::screen::{Line, Screen, Style};
use super::service::PATH;

/// What to try, in the order in which it makes sense.
pub(super) fn invite(
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
    say(
        screen,
        "Gateway and service stay up until Ctrl-C. Charge something:",
        &charge(1_250),
    );
    say(
        screen,
        "Repeat it: the same answer, with Idempotent-Replayed, and no second charge:",
        &charge(1_250),
    );
    say(
        screen,
        "The same key for something else is refused with 422:",
        &charge(9_900),
    );
    if let Some(admin) = admin {
        say(
            screen,
            "What Hapax remembers:",
            &format!("{} keys list --admin http://{admin}", program()),
        );
    }
    let query =
        "SELECT order_id, count(*) FROM charges GROUP BY order_id ORDER BY max(id) DESC LIMIT 5";
    say(
        screen,
        "What was charged:",
        &format!("sqlite3 {} '{query}'", ledger.display()),
    );
}

fn say(screen: &mut Screen, what: &str, line: &str) {
    screen.say(&Line::new(Style::Bold, format!("  {what}")));
    screen.say(&Line::new(Style::Plain, format!("    {line}")));
}

/// As it was called, so that the line works where this is not installed.
fn program() -> String {
    std::env::args()
        .next()
        .unwrap_or_else(|| "hapax".to_owned())
}
