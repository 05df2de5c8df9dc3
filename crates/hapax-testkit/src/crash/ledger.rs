//! The ledger: records which effects took place, independently of Hapax and of crashes.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

/// An append-only file of effects, one per line, shared by any number of processes.
pub struct Ledger {
    path: PathBuf,
    file: File,
}

impl Ledger {
    /// Opens the ledger at this path, or creates it.
    pub fn open(path: impl AsRef<Path>) -> Ledger {
        let path = path.as_ref().to_owned();
        let file = OpenOptions::new().append(true).create(true).open(&path);
        Ledger {
            file: file.unwrap_or_else(|error| panic!("{}: {error}", path.display())),
            path,
        }
    }

    /// Records an effect. After this returns, the death of the process cannot remove it.
    pub fn append(&self, line: &str) {
        assert!(!line.contains('\n'), "one effect, one line: {line:?}");
        let entry = format!("{line}\n");
        // One write to an append-only file: entries of several processes never mix, and a killed
        // process leaves a whole entry or none.
        let written = (&self.file)
            .write(entry.as_bytes())
            .expect("the ledger takes entries");
        assert_eq!(written, entry.len(), "the ledger took half an entry");
    }

    /// How often each effect took place.
    pub fn counts(&self) -> BTreeMap<String, usize> {
        let text = std::fs::read_to_string(&self.path).expect("the ledger can be read");
        let mut counts = BTreeMap::new();
        for line in text.lines() {
            *counts.entry(line.to_owned()).or_default() += 1;
        }
        counts
    }
}
