//! `--watch`: looks again each second, until it is interrupted or its output is closed.

use std::time::Duration;

use super::signals::Stop;
use super::{Exit, text};

/// The time between two looks.
pub(super) const PAUSE: Duration = Duration::from_secs(1);

/// Looks each second and prints what it shows. On a `screen` that is drawn anew each time, and the
/// terminal is as it was when this ends: after Ctrl-C, SIGTERM or an error.
pub(super) async fn each_second<T>(
    is_screen: bool,
    look: impl AsyncFn() -> Result<T, Exit>,
    mut show: impl FnMut(T) -> String,
) -> Result<(), Exit> {
    // Elsewhere a signal ends the process by itself, also while nobody reads its output.
    let mut stop = match is_screen {
        true => Some(Stop::new()?),
        false => None,
    };
    let screen = is_screen.then(Screen::open);
    let mut patience = Patience::default();
    loop {
        let looked = tokio::select! {
            looked = look() => looked,
            () = stopped(&mut stop) => return Ok(()),
        };
        if let Some(seen) = patience.accept(looked)? {
            let shown = show(seen);
            let output = match &screen {
                Some(_) => Screen::frame(&shown),
                None => shown,
            };
            if !text::emit(&output) {
                return Ok(());
            }
        }
        tokio::select! {
            () = tokio::time::sleep(PAUSE) => {}
            () = stopped(&mut stop) => return Ok(()),
        }
    }
}

async fn stopped(stop: &mut Option<Stop>) {
    match stop {
        Some(stop) => stop.next().await,
        None => std::future::pending().await,
    }
}

/// The second screen of a terminal, without a cursor. What was on the first is there again when
/// this is dropped.
struct Screen;

impl Screen {
    fn open() -> Screen {
        text::emit("\u{1b}[?1049h\u{1b}[?25l");
        Screen
    }

    /// Draws over what is there. Clearing it all first would flicker.
    fn frame(content: &str) -> String {
        let lines: String = content
            .lines()
            .map(|line| format!("{line}\u{1b}[K\r\n"))
            .collect();
        format!("\u{1b}[H{lines}\u{1b}[J")
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        text::emit("\u{1b}[?25h\u{1b}[?1049l");
    }
}

/// Tolerates a source that is away for a while, and prints that once.
#[derive(Default)]
pub(super) struct Patience {
    is_tried: bool,
    was_there: bool,
}

impl Patience {
    /// The result; `None` if the source does not answer at the moment. If it has never answered,
    /// that is an error at once.
    pub(super) fn accept<T>(&mut self, found: Result<T, Exit>) -> Result<Option<T>, Exit> {
        match found {
            Ok(found) => {
                if self.is_tried {
                    eprintln!("it answers again");
                }
                (self.is_tried, self.was_there) = (false, true);
                Ok(Some(found))
            }
            Err(exit) if exit.is_unreachable() && self.was_there => {
                if !self.is_tried {
                    eprintln!("{}; asking again until it does", exit.message());
                }
                self.is_tried = true;
                Ok(None)
            }
            Err(exit) => Err(exit),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_leaves_nothing_of_the_one_before() {
        assert_eq!(
            Screen::frame("a\nb\n"),
            "\u{1b}[Ha\u{1b}[K\r\nb\u{1b}[K\r\n\u{1b}[J"
        );
    }
}
