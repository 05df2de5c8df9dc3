//! This program started again as a child: for what must be killed, or measured apart from who
//! measures it.

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

    /// The next line it prints.
    pub(crate) fn line(&mut self) -> Result<String, Error> {
        let mut line = String::new();
        if self.output.read_line(&mut line)? == 0 {
            return Err("a child ended before it had said all".into());
        }
        Ok(line.trim_end().to_owned())
    }

    /// Kills it where it stands, and reaps it.
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

/// In a child: ends this process when its parent has ended, however that came about.
pub(crate) fn end_with_parent() {
    std::thread::spawn(|| {
        // Nobody ever writes to it; it is closed when the parent is gone.
        drop(std::io::stdin().read(&mut [0]));
        std::process::exit(1);
    });
}

/// The processor time a process has used so far, in microseconds.
pub(crate) fn cpu_micros(pid: u32) -> Result<u64, Error> {
    // What the kernel counts in for user space, on every Linux there is.
    const TICKS_PER_SECOND: u64 = 100;
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The command's name is in parentheses and may hold anything. Of what follows it, these are
    // user and system time.
    let (_, rest) = stat
        .rsplit_once(')')
        .ok_or("/proc/PID/stat has no name in it")?;
    let ticks = rest
        .split_whitespace()
        .skip(11)
        .take(2)
        .map(str::parse::<u64>)
        .sum::<Result<u64, _>>()?;
    Ok(ticks * (1_000_000 / TICKS_PER_SECOND))
}

/// The memory of this process that is resident, in bytes.
pub(crate) fn resident_bytes() -> Result<u64, Error> {
    resident_bytes_of(std::process::id())
}

/// The memory of a process that is resident, in bytes.
pub(crate) fn resident_bytes_of(pid: u32) -> Result<u64, Error> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .ok_or("/proc/PID/status has no VmRSS")?;
    let kibibytes: u64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kibibytes << 10)
}
