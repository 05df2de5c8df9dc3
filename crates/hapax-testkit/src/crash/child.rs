//! The parent's side of the crash harness.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use super::{MARK, ROLE, role};

/// A child process with a role. Killed and reaped when dropped.
pub struct Child {
    process: std::process::Child,
    input: ChildStdin,
    output: Receiver<String>,
    /// The latest lines of its output, for the message if an expected line does not come.
    heard: VecDeque<String>,
}

/// Long enough for a slow machine. Only a broken test waits this long.
const GUARD: Duration = Duration::from_secs(60);
const HEARD_MAX: usize = 50;

impl Child {
    /// Starts this test binary again, to run only `test` (its full path, as `--list` prints it)
    /// under `role`.
    ///
    /// # Panics
    ///
    /// If the process cannot be started. Also if this process is itself a child: a test that forgot
    /// to check its role would start itself forever.
    pub fn spawn(test: &str, role_of_child: &str, envs: &[(&str, &str)]) -> Child {
        assert_eq!(
            role(),
            None,
            "a child does not start children: {test} must look at its role first"
        );
        let mut process = Command::new(std::env::current_exe().expect("this test binary"))
            .args([test, "--exact", "--nocapture", "--test-threads=1"])
            .envs(envs.iter().copied())
            .env(ROLE, role_of_child)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("this test binary starts");
        let (input, stdout) = (
            process.stdin.take().expect("piped"),
            process.stdout.take().expect("piped"),
        );
        let (sender, output) = mpsc::channel();
        thread::spawn(move || read_lines(stdout, &sender));
        Child {
            process,
            input,
            output,
            heard: VecDeque::new(),
        }
    }

    /// The next line that the child announces; `None` if it has ended or `timeout` is over.
    pub fn line(&mut self, timeout: Duration) -> Option<String> {
        self.next(Instant::now() + timeout).ok()
    }

    /// Waits for an announced line that begins with `prefix` and returns the rest of it. Skips
    /// other lines.
    ///
    /// # Panics
    ///
    /// If the child ends first, or announces no line for a minute.
    pub fn wait_for(&mut self, prefix: &str) -> String {
        let deadline = Instant::now() + GUARD;
        loop {
            match self.next(deadline) {
                Ok(line) => match line.strip_prefix(prefix) {
                    Some(rest) => return rest.to_owned(),
                    None => continue,
                },
                Err(why) => panic!(
                    "the child never said {prefix:?} ({why}); its last lines: {:#?}",
                    self.heard
                ),
            }
        }
    }

    /// Sends a line to the child, which it can [`hear`](super::hear).
    ///
    /// # Panics
    ///
    /// If the child has ended.
    pub fn say(&mut self, line: &str) {
        assert!(self.try_say(line), "the child listens");
    }

    /// Sends a line to the child. Returns whether the child could receive it.
    pub fn try_say(&mut self, line: &str) -> bool {
        self.input.write_all(format!("{line}\n").as_bytes()).is_ok()
    }

    /// Kills the child (SIGKILL), stopped or not, and reaps it. Lines that it announced before can
    /// still be read.
    pub fn kill(&mut self) -> ExitStatus {
        self.process
            .kill()
            .expect("a child can be killed, even one that has ended");
        self.process.wait().expect("a child can be reaped")
    }

    /// Waits until the child ends by itself.
    ///
    /// # Panics
    ///
    /// If it has not ended after a minute.
    pub fn ended(&mut self) -> ExitStatus {
        let deadline = Instant::now() + GUARD;
        loop {
            match self.next(deadline) {
                Ok(_) => continue,
                // Its output has ended, so the process has ended or is about to.
                Err(RecvTimeoutError::Disconnected) => {
                    return self.process.wait().expect("a child can be reaped");
                }
                Err(RecvTimeoutError::Timeout) => {
                    panic!("the child does not end; its last lines: {:#?}", self.heard)
                }
            }
        }
    }

    /// Whether the child has ended by itself, or was killed.
    pub fn has_ended(&mut self) -> bool {
        let status = self.process.try_wait();
        status.expect("a child can be asked for").is_some()
    }

    /// Stops the child (SIGSTOP): it keeps its state and does nothing. Returns when none of its
    /// threads runs, also because it has just ended.
    pub fn stop(&self) {
        self.signal("STOP");
        let deadline = Instant::now() + GUARD;
        while !self.is_stopped() {
            assert!(Instant::now() < deadline, "the child does not stop");
            thread::yield_now();
        }
    }

    /// Resumes the child (SIGCONT).
    pub fn cont(&self) {
        self.signal("CONT");
    }

    /// The child's process id.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    fn signal(&self, name: &str) {
        // Uses the command, since the system call would need unsafe code. The id is still valid,
        // since the child has not been reaped.
        let status = Command::new("kill")
            .args(["-s", name, &self.pid().to_string()])
            .status()
            .expect("the kill command");
        assert!(status.success(), "kill -s {name}: {status}");
    }

    /// Whether every thread is stopped. Where the system cannot tell, the signal is trusted.
    fn is_stopped(&self) -> bool {
        let Ok(tasks) = std::fs::read_dir(format!("/proc/{}/task", self.pid())) else {
            return true;
        };
        let stats = tasks
            .flatten()
            .filter_map(|task| std::fs::read_to_string(task.path().join("stat")).ok());
        // The state is the first word after the command's name, which is in parentheses and may
        // contain any character.
        let mut states = stats.filter_map(|stat| {
            stat.rsplit_once(") ")
                .and_then(|(_, rest)| rest.chars().next())
        });
        states.all(|state| matches!(state, 'T' | 'Z'))
    }

    fn next(&mut self, deadline: Instant) -> Result<String, RecvTimeoutError> {
        loop {
            let line = self
                .output
                .recv_timeout(deadline.saturating_duration_since(Instant::now()))?;
            let announced = line.split_once(MARK).map(|(_, said)| said.to_owned());
            self.heard.push_back(line);
            if self.heard.len() > HEARD_MAX {
                self.heard.pop_front();
            }
            if let Some(said) = announced {
                return Ok(said);
            }
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // Does not call `kill`, whose panics would hide one that may be in progress. The child is
        // reaped either way.
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

/// Runs on its own thread, since a pipe cannot be read with a deadline.
fn read_lines(stdout: ChildStdout, sender: &Sender<String>) {
    for line in BufReader::new(stdout).lines().map_while(Result::ok) {
        if sender.send(line).is_err() {
            return;
        }
    }
}
