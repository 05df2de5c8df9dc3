//! The child's side of the crash harness.

use std::io::{self, Write};

use super::{MARK, ROLE};

/// The role of this process; `None` in an ordinary test run.
pub fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// Sends a line to the parent. The line has left this process when this returns.
///
/// Writes to standard output directly, because `println!` goes through the test framework, which
/// may hold it back.
pub fn announce(line: impl AsRef<str>) {
    let mut out = io::stdout().lock();
    let said = format!("{MARK}{}\n", line.as_ref());
    out.write_all(said.as_bytes())
        .and_then(|()| out.flush())
        .expect("the parent listens");
}

/// The next line from the parent; `None` if the parent is gone.
pub fn hear() -> Option<String> {
    let mut line = String::new();
    let bytes = io::stdin()
        .read_line(&mut line)
        .expect("the parent speaks UTF-8");
    (bytes > 0).then(|| line.trim_end_matches('\n').to_owned())
}

/// Waits to be killed. Ends by itself only if the parent is gone, so that no child is left behind.
pub fn pause_forever() -> ! {
    // Standard input ends when the parent does.
    drop(io::copy(&mut io::stdin().lock(), &mut io::sink()));
    std::process::exit(1)
}
