//! A private disk that can be filled.

use std::path::Path;

use hapax_testkit::disk::{Filler, Tmpfs, run_unshared};
use tempfile::TempDir;

/// Too small for a checkpoint to fall due, so that the log only grows.
const BYTES: u64 = 16 << 20;

/// A small disk. The fields are dropped in this order: the filler, the disk, its mount point.
pub struct Disk {
    filler: Option<Filler>,
    tmpfs: Tmpfs,
    _mount_point: TempDir,
}

impl Disk {
    /// `Err` says why it cannot be mounted.
    pub fn mount() -> Result<Disk, String> {
        let mount_point = tempfile::tempdir().unwrap();
        let tmpfs = Tmpfs::mount(&std::fs::canonicalize(mount_point.path()).unwrap(), BYTES)?;
        Ok(Disk {
            filler: None,
            tmpfs,
            _mount_point: mount_point,
        })
    }

    pub fn path(&self) -> &Path {
        self.tmpfs.path()
    }

    /// Leaves no free byte.
    pub fn fill(&mut self) {
        self.filler = Some(self.tmpfs.leave_free(0));
    }

    pub fn free(&mut self) {
        self.filler = None;
    }
}

/// Where a test that needs such a disk can run.
pub enum Place {
    Here,
    /// In a separate mount namespace, where it has just passed.
    Elsewhere,
    /// Nowhere on this machine, for this reason.
    Nowhere(String),
}

/// If this process may not mount, runs the test of this name again where it may.
pub async fn place(test: &'static str) -> Place {
    let Err(why) = Disk::mount() else {
        return Place::Here;
    };
    match tokio::task::spawn_blocking(move || run_unshared(test))
        .await
        .unwrap()
    {
        Ok(()) => Place::Elsewhere,
        Err(why_not) => Place::Nowhere(format!("cannot mount a disk ({why}; {why_not})")),
    }
}
