//! Programs with a wrong clock.

use std::path::{Path, PathBuf};

use crate::skipped;

/// The environment in which a program sees the wall clock shifted by an offset, such as `+1h` or
/// `-3600s`. Prints `SKIPPED` and returns `None` if libfaketime is not installed.
///
/// Only the wall clock is shifted. The monotonic clock, which timers use, does not depend on how a
/// machine's clock is set.
pub fn faketime(offset: &str) -> Option<Vec<(String, String)>> {
    environment([("FAKETIME", offset)])
}

/// As [`faketime`], with the offset in a file that is read at each look at the clock. Changing the
/// file steps the clock of a running program. Replace the file by a rename, so that the program
/// never reads a half-written one.
pub fn faketime_file(file: &Path) -> Option<Vec<(String, String)>> {
    environment([
        ("FAKETIME_TIMESTAMP_FILE", file.to_str()?),
        ("FAKETIME_NO_CACHE", "1"),
    ])
}

fn environment<const N: usize>(settings: [(&str, &str); N]) -> Option<Vec<(String, String)>> {
    let Some(library) = library() else {
        skipped("there is no libfaketime here (Debian: apt-get install libfaketime)");
        return None;
    };
    let fixed = [
        ("LD_PRELOAD", library.to_str()?),
        ("DONT_FAKE_MONOTONIC", "1"),
    ];
    Some(
        fixed
            .into_iter()
            .chain(settings)
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect(),
    )
}

/// The library for programs with threads.
fn library() -> Option<PathBuf> {
    let multiarch = std::fs::read_dir("/usr/lib")
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path());
    let directories =
        multiarch.chain(["/usr/lib", "/usr/lib64", "/usr/local/lib"].map(PathBuf::from));
    directories
        .map(|directory| directory.join("faketime/libfaketimeMT.so.1"))
        .find(|library| library.is_file())
}
