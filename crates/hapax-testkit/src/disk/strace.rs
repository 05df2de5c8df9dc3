//! Attaches strace to a running process. From then on, its system calls are recorded.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

/// Long enough for a slow machine. Only a broken test waits this long.
const GUARD: Duration = Duration::from_secs(60);

/// A strace that is attached to a process. Detaches when dropped.
pub struct Strace {
    process: Child,
    /// The lines of its own messages.
    said: Receiver<String>,
    log: PathBuf,
}

impl Strace {
    /// Attaches to a thread, or with the option `-f` to all threads of a process. Returns when
    /// strace sees every further system call. Its log goes into the file `log`.
    ///
    /// # Errors
    ///
    /// If there is no strace, or it may not attach: its messages.
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

    /// The log so far.
    pub fn log(&self) -> String {
        // While strace is writing, the last line may end in the middle of a character.
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// How many calls it has made fail so far.
    pub fn injected(&self) -> usize {
        self.log().matches("(INJECTED)").count()
    }

    /// Detaches from the process, which continues undisturbed. Returns the whole log.
    pub fn detach(mut self) -> String {
        self.end();
        self.log()
    }

    /// Waits until strace ends by itself, which it does when the process has ended. Returns the
    /// whole log.
    ///
    /// For a process that is being killed: strace may wait forever if it is told to detach from one
    /// that is dying.
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
                // Printed after the last thread was seized: from then on every call is seen.
                Ok(line) if line.contains(" attached") => return Ok(()),
                Ok(line) => heard.push(line),
                Err(_) => return Err(format!("strace cannot attach ({})", heard.join("; "))),
            }
        }
    }

    fn end(&mut self) {
        // The id is still valid, since strace has not been reaped. Uses the command, since the
        // system call would need unsafe code.
        let interrupted = Command::new("kill")
            .args(["-s", "INT", &self.process.id().to_string()])
            .status();
        if !interrupted.is_ok_and(|status| status.success()) || !self.has_ended() {
            drop(self.process.kill());
        }
        drop(self.process.wait());
    }

    /// Waits until strace closes its output, which it does at its end.
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

/// Runs on its own thread, since a pipe cannot be read with a deadline.
fn read_lines(stderr: ChildStderr, sender: &Sender<String>) {
    for line in BufReader::new(stderr).lines().map_while(Result::ok) {
        if sender.send(line).is_err() {
            return;
        }
    }
}
