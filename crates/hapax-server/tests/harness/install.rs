//! Programs in other languages, in the build directory of these tests.

use std::path::Path;

pub use hapax_testkit::harness::install::{File, Installed, Language};

/// Like [`hapax_testkit::harness::install::install`], under the build directory.
pub fn install(
    name: &str,
    language: Language,
    wanted: &[File],
    sources: &[File],
) -> Option<Installed> {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name(name);
    hapax_testkit::harness::install::install(directory, language, wanted, sources)
}
