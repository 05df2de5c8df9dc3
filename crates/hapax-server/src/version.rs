//! What was built, as `build.rs` found it out.

/// The commit, seven digits of it, or `unknown`.
pub const COMMIT: &str = env!("HAPAX_BUILD_COMMIT");

/// The day of that commit, as in `2026-11-15`, or `undated`.
pub const DATE: &str = env!("HAPAX_BUILD_DATE");

/// The release, for those who compare: `0.1.0`.
pub const SHORT: &str = env!("CARGO_PKG_VERSION");

/// The release, the commit and its day, for those who ask what runs here: `0.1.0 (commit 1234567,
/// 2026-11-15)`.
pub const LONG: &str = env!("HAPAX_BUILD_VERSION");
