//! A small private file system that a test can fill up.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The unit in which a tmpfs allocates space.
const PAGE_BYTES: u64 = 4096;

/// Set in a process that already has its own mount namespace.
const UNSHARED: &str = "HAPAX_DISK_UNSHARED";

/// A mounted tmpfs. Unmounted when dropped.
pub struct Tmpfs {
    path: PathBuf,
}

impl Tmpfs {
    /// Mounts one of this size on an empty directory.
    ///
    /// # Errors
    ///
    /// If this process may not mount: the output of the command.
    pub fn mount(path: &Path, bytes: u64) -> Result<Tmpfs, String> {
        let size = format!("size={bytes},mode=0700");
        let mut mount = Command::new("mount");
        mount
            .args(["-t", "tmpfs", "-o", &size, "hapax-test"])
            .arg(path);
        run(&mut mount)?;
        Ok(Tmpfs {
            path: path.to_owned(),
        })
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Fills the file system so that exactly `pages` pages stay free.
    pub fn leave_free(&self, pages: u64) -> Filler {
        let path = self.path.join("filler");
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&path)
            .expect("a filler can be begun");
        // In small pieces at the end, since a large write may fail without using the remaining
        // space.
        for piece in [vec![0; 1 << 20], vec![0; PAGE_BYTES as usize]] {
            while file.write_all(&piece).is_ok() {}
        }
        shrink(&file, pages);
        Filler { path }
    }
}

/// Frees whole pages. The last, incomplete piece does not count.
fn shrink(file: &File, pages: u64) {
    let used = file
        .metadata()
        .expect("an open file")
        .len()
        .div_ceil(PAGE_BYTES);
    file.set_len(used.saturating_sub(pages) * PAGE_BYTES)
        .expect("a file can be cut off");
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        // Lazily, because a process that still has a file open there, such as a dying child, must
        // not block the unmount.
        drop(run(Command::new("umount").arg("--lazy").arg(&self.path)));
    }
}

/// A file that takes up the space. Frees it when dropped.
pub struct Filler {
    path: PathBuf,
}

impl Drop for Filler {
    fn drop(&mut self) {
        // Emptied first: a process that was just forked elsewhere may briefly have it open.
        let file = File::options().write(true).open(&self.path);
        file.and_then(|file| file.set_len(0))
            .and_then(|()| std::fs::remove_file(&self.path))
            .expect("a filler can be removed");
    }
}

/// Runs a test of this binary again as root of a new user namespace, in which it may mount. `Err`
/// if that is not possible here, or if this process is already in such a namespace.
///
/// # Panics
///
/// If the test fails there.
pub fn run_unshared(test: &str) -> Result<(), String> {
    if std::env::var_os(UNSHARED).is_some() {
        return Err("not even root of a user namespace may mount".to_owned());
    }
    let unshare = |program: &Path| {
        let mut command = Command::new("unshare");
        command
            .args(["--user", "--map-root-user", "--mount"])
            .arg(program)
            .env(UNSHARED, "1");
        command
    };
    run(&mut unshare(Path::new("true")))?;
    let mut again = unshare(&std::env::current_exe().expect("this test binary"));
    let status = again
        .args([test, "--exact", "--nocapture"])
        .status()
        .expect("what ran just now runs again");
    assert!(status.success(), "{test} failed in a user namespace");
    Ok(())
}

fn run(command: &mut Command) -> Result<(), String> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("{:?}: {error}", command.get_program()))?;
    if output.status.success() {
        Ok(())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
    }
}
