//! strace, attached to a process that runs already: from that moment on its system calls are
//! counted.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

/// Long enough for a slow machine, short enough for a person: only a broken test waits so long.
const GUARD: Duration = Duration::from_secs(60);

/// A strace that is attached to a process. Dropped, it lets go of it.
pub struct Strace {
    process: Child,
    /// What it says about itself, line by line.
    said: Receiver<String>,
    log: PathBuf,
}

impl Strace {
    /// Attaches to a thread, or with the option `-f` to all threads of a process, and returns when
    /// every system call from now on is seen. What it sees goes into the file `log`.
    ///
    /// # Errors
    ///
    /// When there is no strace, or it may not attach: with what it said.
    pub fn attach(id: u32, options: &[&str], log: &Path) -> Result<Strace, String> {
        let mut process = Command::new("strace")
            .args(options)
            .arg("-o")
            .arg(log)
            .args(["-p", &id.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("strace cannot be started: {error}"))?;
        let stderr = process.stderr.take().expect("piped");
        let (sender, said) = mpsc::channel();
        thread::spawn(move || read_lines(stderr, &sender));
        let mut strace = Strace {
            process,
            said,
            log: log.to_owned(),
        };
        strace.wait_until_attached()?;
        Ok(strace)
    }

    /// What it has seen so far.
    pub fn log(&self) -> String {
        // Of a process that is being written about the last line may be cut in the middle of a
        // character.
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// How many calls it has made fail so far.
    pub fn injected(&self) -> usize {
        self.log().matches("(INJECTED)").count()
    }

    /// Lets go of the process, which lives on and makes its calls undisturbed. Returns all that was
    /// seen.
    pub fn detach(mut self) -> String {
        self.end();
        self.log()
    }

    /// Waits until it ends by itself, as it does when the process has ended. Returns all that was
    /// seen.
    ///
    /// For a process that is being killed: told to let go of one that is dying, strace may wait for
    /// ever.
    pub fn ended(mut self) -> String {
        if !self.has_ended() {
            drop(self.process.kill());
        }
        drop(self.process.wait());
        self.log()
    }

    fn wait_until_attached(&mut self) -> Result<(), String> {
        let mut heard = Vec::new();
        loop {
            match self.said.recv_timeout(GUARD) {
                // Said after the last thread was seized: from there on none can make a call that is
                // not seen.
                Ok(line) if line.contains(" attached") => return Ok(()),
                Ok(line) => heard.push(line),
                Err(_) => return Err(format!("strace cannot attach ({})", heard.join("; "))),
            }
        }
    }

    fn end(&mut self) {
        // The id is still its own: nobody has reaped it. By the command, since the system call
        // would need unsafe code.
        let interrupted = Command::new("kill")
            .args(["-s", "INT", &self.process.id().to_string()])
            .status();
        if !interrupted.is_ok_and(|status| status.success()) || !self.has_ended() {
            drop(self.process.kill());
        }
        drop(self.process.wait());
    }

    /// Waits for its last word: it closes its output when it ends.
    fn has_ended(&self) -> bool {
        loop {
            match self.said.recv_timeout(GUARD) {
                Ok(_) => {}
                Err(why) => return why == RecvTimeoutError::Disconnected,
            }
        }
    }
}

impl Drop for Strace {
    fn drop(&mut self) {
        if !matches!(self.process.try_wait(), Ok(Some(_))) {
            self.end();
        }
    }
}

/// The threads of a process, with their names.
pub fn threads(process: u32) -> Vec<(u32, String)> {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{process}/task")) else {
        return Vec::new();
    };
    let named = tasks.flatten().filter_map(|task| {
        let id = task.file_name().to_str()?.parse().ok()?;
        let name = std::fs::read_to_string(task.path().join("comm")).ok()?;
        Some((id, name.trim().to_owned()))
    });
    named.collect()
}

/// On a thread of its own, since a pipe cannot be read with a deadline.
fn read_lines(stderr: ChildStderr, sender: &Sender<String>) {
    for line in BufReader::new(stderr).lines().map_while(Result::ok) {
        if sender.send(line).is_err() {
            return;
        }
    }
}
