//! Starts this program again as a child process: to be killed, or to be measured apart from the
//! parent.

use std::io::{BufRead, BufReader, Read};
use std::process::{ChildStdout, Command, Stdio};

use crate::Error;

/// A child, killed and reaped when dropped.
pub(crate) struct Child {
    process: std::process::Child,
    output: BufReader<ChildStdout>,
}

impl Child {
    pub(crate) fn spawn(arguments: &[&str]) -> Result<Child, Error> {
        let mut command = Command::new(std::env::current_exe()?);
        let mut process = command
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let output = BufReader::new(process.stdout.take().expect("piped"));
        Ok(Child { process, output })
    }

    /// Reads the next line that the child prints.
    pub(crate) fn line(&mut self) -> Result<String, Error> {
        let mut line = String::new();
        if self.output.read_line(&mut line)? == 0 {
            return Err("a child ended before it had said all".into());
        }
        Ok(line.trim_end().to_owned())
    }

    /// Kills the child and reaps it.
    pub(crate) fn kill(mut self) -> Result<(), Error> {
        self.process.kill()?;
        self.process.wait()?;
        Ok(())
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

/// In a child: ends this process when its parent has ended, for whatever reason.
pub(crate) fn end_with_parent() {
    std::thread::spawn(|| {
        // The parent never writes to it; it is closed when the parent has ended.
        drop(std::io::stdin().read(&mut [0]));
        std::process::exit(1);
    });
}

/// The processor time a process has used so far, in microseconds.
pub(crate) fn cpu_micros(pid: u32) -> Result<u64, Error> {
    cpu_fields(pid, 11)
}

/// The processor time of the children of a process that have ended, in microseconds.
pub(crate) fn cpu_micros_of_ended(pid: u32) -> Result<u64, Error> {
    cpu_fields(pid, 13)
}

/// User and system time, from this field on after the command's name.
fn cpu_fields(pid: u32, first: usize) -> Result<u64, Error> {
    // The unit of these counters in user space, on every Linux.
    const TICKS_PER_SECOND: u64 = 100;
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name is in parentheses and may contain any character.
    let (_, rest) = stat
        .rsplit_once(')')
        .ok_or("/proc/PID/stat has no name in it")?;
    let ticks = rest
        .split_whitespace()
        .skip(first)
        .take(2)
        .map(str::parse::<u64>)
        .sum::<Result<u64, _>>()?;
    Ok(ticks * (1_000_000 / TICKS_PER_SECOND))
}

/// The resident memory of this process, in bytes.
pub(crate) fn resident_bytes() -> Result<u64, Error> {
    resident_bytes_of(std::process::id())
}

/// The resident memory of a process, in bytes.
pub(crate) fn resident_bytes_of(pid: u32) -> Result<u64, Error> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .ok_or("/proc/PID/status has no VmRSS")?;
    let kibibytes: u64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kibibytes << 10)
}
