//! The child's side.

use std::io::{self, Write};

use super::{MARK, ROLE};

/// The part this process was started to play; `None` in a test run as such.
pub fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// Says a line to the parent. It has left this process when this returns.
///
/// Written to standard output itself, because `println!` goes through the test framework, which may
/// hold it back.
pub fn announce(line: impl AsRef<str>) {
    let mut out = io::stdout().lock();
    let said = format!("{MARK}{}\n", line.as_ref());
    out.write_all(said.as_bytes())
        .and_then(|()| out.flush())
        .expect("the parent listens");
}

/// The next line the parent says; `None` when it has gone.
pub fn hear() -> Option<String> {
    let mut line = String::new();
    let bytes = io::stdin()
        .read_line(&mut line)
        .expect("the parent speaks UTF-8");
    (bytes > 0).then(|| line.trim_end_matches('\n').to_owned())
}

/// Waits to be killed. Ends by itself only when the parent is gone, so that no child is left
/// behind.
pub fn pause_forever() -> ! {
    // Standard input ends when the parent does.
    drop(io::copy(&mut io::stdin().lock(), &mut io::sink()));
    std::process::exit(1)
}
