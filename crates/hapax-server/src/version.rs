//! The version, as `build.rs` determined it.

/// The first seven digits of the commit, or `unknown`.
pub const COMMIT: &str = env!("HAPAX_BUILD_COMMIT");

/// The date of that commit, as in `2026-11-15`, or `undated`.
pub const DATE: &str = env!("HAPAX_BUILD_DATE");

/// The release, for comparing: `0.1.0`.
pub const SHORT: &str = env!("CARGO_PKG_VERSION");

/// The release, the commit and its date, for showing: `0.1.0 (commit 1234567, 2026-11-15)`.
pub const LONG: &str = env!("HAPAX_BUILD_VERSION");
