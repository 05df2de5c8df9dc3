//! The parent's side.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use super::{MARK, ROLE, role};

/// A process that plays a role. Killed and reaped when dropped.
pub struct Child {
    process: std::process::Child,
    input: ChildStdin,
    output: Receiver<String>,
    /// The latest lines of its output, to be told when it does not say what it should.
    heard: VecDeque<String>,
}

/// Long enough for a slow machine, short enough for a person: only a broken test waits so long.
const GUARD: Duration = Duration::from_secs(60);
const HEARD_MAX: usize = 50;

impl Child {
    /// Starts this test binary again, to run only `test` (its full path, as `--list` prints it)
    /// under `role`.
    ///
    /// # Panics
    ///
    /// When the process cannot be started, and in a child: a test that forgot to look at its role
    /// would start itself for ever.
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

    /// The next line it announces; `None` when it has ended or `timeout` is over.
    pub fn line(&mut self, timeout: Duration) -> Option<String> {
        self.next(Instant::now() + timeout).ok()
    }

    /// The rest of the next announced line that begins with `prefix`; lines before it are passed
    /// over.
    ///
    /// # Panics
    ///
    /// When it ends without saying so, or says nothing for a minute.
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

    /// Says a line to it, for it to [`hear`](super::hear).
    ///
    /// # Panics
    ///
    /// When it has ended.
    pub fn say(&mut self, line: &str) {
        assert!(self.try_say(line), "the child listens");
    }

    /// Says a line to it, unless it has ended.
    pub fn try_say(&mut self, line: &str) -> bool {
        self.input.write_all(format!("{line}\n").as_bytes()).is_ok()
    }

    /// Kills it where it stands (SIGKILL), stopped or not, and reaps it. What it announced before
    /// can still be read.
    pub fn kill(&mut self) -> ExitStatus {
        self.process
            .kill()
            .expect("a child can be killed, even one that has ended");
        self.process.wait().expect("a child can be reaped")
    }

    /// Waits until it ends by itself.
    ///
    /// # Panics
    ///
    /// When it is still there after a minute.
    pub fn ended(&mut self) -> ExitStatus {
        let deadline = Instant::now() + GUARD;
        loop {
            match self.next(deadline) {
                Ok(_) => continue,
                // Its output is at an end, so it is too, or as good as.
                Err(RecvTimeoutError::Disconnected) => {
                    return self.process.wait().expect("a child can be reaped");
                }
                Err(RecvTimeoutError::Timeout) => {
                    panic!("the child does not end; its last lines: {:#?}", self.heard)
                }
            }
        }
    }

    /// Stops it (SIGSTOP): it keeps all it has and does nothing. Returns when no thread of it runs
    /// any more.
    pub fn stop(&self) {
        self.signal("STOP");
        let deadline = Instant::now() + GUARD;
        while !self.is_stopped() {
            assert!(Instant::now() < deadline, "the child does not stop");
            thread::yield_now();
        }
    }

    /// Lets it go on (SIGCONT), as if no time had passed.
    pub fn cont(&self) {
        self.signal("CONT");
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    fn signal(&self, name: &str) {
        // By the command, since the system call would need unsafe code. The id is still ours:
        // nobody has reaped the child.
        let status = Command::new("kill")
            .args(["-s", name, &self.pid().to_string()])
            .status()
            .expect("the kill command");
        assert!(status.success(), "kill -s {name}: {status}");
    }

    /// Whether every thread is stopped, where the system can tell; elsewhere the signal is trusted.
    fn is_stopped(&self) -> bool {
        let Ok(tasks) = std::fs::read_dir(format!("/proc/{}/task", self.pid())) else {
            return true;
        };
        let stats = tasks
            .flatten()
            .filter_map(|task| std::fs::read_to_string(task.path().join("stat")).ok());
        // The state is the first word after the command's name, which is in parentheses and may
        // hold anything.
        let mut states = stats.filter_map(|stat| {
            stat.rsplit_once(") ")
                .and_then(|(_, rest)| rest.chars().next())
        });
        states.all(|state| state == 'T')
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
        // Not `kill`, whose panics would hide the one that is perhaps under way. Reaped either way.
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

/// On a thread of its own, since a pipe cannot be read with a deadline.
fn read_lines(stdout: ChildStdout, sender: &Sender<String>) {
    for line in BufReader::new(stdout).lines().map_while(Result::ok) {
        if sender.send(line).is_err() {
            return;
        }
    }
}
