//! A program of this test's own, which says where it listens and can be killed.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

/// Only a broken test waits so long.
const GUARD: Duration = Duration::from_secs(60);

/// Killed and reaped when dropped.
pub struct Program(Child);

impl Program {
    /// Starts it and waits until it has said a line that begins so.
    pub fn start(command: &mut Command, word: &str) -> Program {
        let mut process = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let said = lines(&mut process);
        let program = Program(process);
        loop {
            let line = said
                .recv_timeout(GUARD)
                .unwrap_or_else(|error| panic!("{command:?} never said {word:?}: {error}"));
            if line.starts_with(word) {
                return program;
            }
        }
    }

    /// Kills it where it stands (SIGKILL).
    pub fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    /// Waits until it has ended by itself.
    pub fn wait(&mut self) {
        self.0.wait().unwrap();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// On a thread of its own, to the end even when nobody listens any more, so that it never writes
/// into a closed pipe.
fn lines(process: &mut Child) -> Receiver<String> {
    let (stdout, (sender, said)) = (process.stdout.take().unwrap(), mpsc::channel());
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            let _ = sender.send(line);
        }
    });
    said
}
