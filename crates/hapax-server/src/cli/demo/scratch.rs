//! A directory for the length of a run.

use std::io;
use std::path::{Path, PathBuf};

use super::super::Exit;

/// Gone, with all that is in it, when this is dropped.
pub(super) struct Scratch(PathBuf);

impl Scratch {
    pub(super) fn new() -> Result<Scratch, Exit> {
        let parent = std::env::temp_dir();
        let path = parent.join(format!("hapax-demo-{}", uuid::Uuid::new_v4().simple()));
        match make_private(&path) {
            Ok(()) => Ok(Scratch(path)),
            Err(error) => Err(Exit::failed(format!(
                "cannot make a directory for ledgers and store in {}: {error}. Set TMPDIR to a directory that can be written",
                parent.display()
            ))),
        }
    }

    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

fn make_private(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;

    std::fs::DirBuilder::new().mode(0o700).create(path)
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            eprintln!("hapax: cannot remove {}: {error}", self.0.display());
        }
    }
}
