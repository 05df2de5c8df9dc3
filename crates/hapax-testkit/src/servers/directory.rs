//! A directory that is removed when its owner ends, even if the owner was killed.

use std::fs::{DirBuilder, File};
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use super::process::run;

/// Waits for the end of its input, which comes when the owner closes it or dies, and removes the
/// directory. It tries more than once, because a server that is ending may still write there.
const CLEANUP_SCRIPT: &str = r#"
read -r nothing
tries=0
until rm -rf -- "$0" 2>/dev/null; do
    tries=$((tries + 1))
    [ $tries -lt 200 ] || exit 1
    sleep 0.05
done"#;

/// A temporary directory.
pub(super) struct Directory {
    path: PathBuf,
    undertaker: Child,
}

impl Directory {
    pub(super) fn new() -> Directory {
        Directory::under(&std::env::temp_dir())
    }

    /// In memory if there is room for a gigabyte, otherwise on disk.
    pub(super) fn in_memory() -> Directory {
        let memory = Path::new("/dev/shm");
        let free = run(Command::new("df")
            .args(["--output=avail", "--block-size=M"])
            .arg(memory))
        .unwrap_or_default();
        let megabytes = free
            .lines()
            .last()
            .and_then(|line| line.trim().trim_end_matches('M').parse().ok())
            .unwrap_or(0);
        if megabytes > 1024 {
            Directory::under(memory)
        } else {
            Directory::new()
        }
    }

    fn under(parent: &Path) -> Directory {
        let path = made(parent);
        let undertaker = Command::new("sh")
            .args(["-c", CLEANUP_SCRIPT])
            .arg(&path)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // An interrupt from the keyboard goes to the whole process group. It must not end the
            // process that cleans up.
            .process_group(0)
            .spawn()
            .expect("there is a shell");
        Directory { path, undertaker }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Opens a file in it for the output of a server.
    pub(super) fn log(&self) -> File {
        File::options()
            .create(true)
            .append(true)
            .open(self.log_path())
            .expect("a log file can be opened")
    }

    /// The end of the log, for messages about failures.
    pub(super) fn log_tail(&self) -> String {
        let log = std::fs::read(self.log_path()).unwrap_or_default();
        let log = String::from_utf8_lossy(&log[log.len().saturating_sub(4000)..]).into_owned();
        if log.is_empty() {
            "its log is empty".to_owned()
        } else {
            log
        }
    }

    fn log_path(&self) -> PathBuf {
        self.path.join("log")
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        drop(self.undertaker.stdin.take());
        drop(self.undertaker.wait());
    }
}

/// Makes a new directory that other users can enter, because a server may have to run as one of
/// them.
fn made(parent: &Path) -> PathBuf {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    loop {
        let name = format!(
            "hapax-{}-{}",
            std::process::id(),
            NUMBER.fetch_add(1, Ordering::Relaxed)
        );
        let path = parent.join(name);
        match DirBuilder::new().mode(0o755).create(&path) {
            Ok(()) => return path,
            // Left by an earlier process with the same process id.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => panic!("{}: {error}", path.display()),
        }
    }
}
