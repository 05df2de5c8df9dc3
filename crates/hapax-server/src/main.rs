//! The `hapax` program. Its code is in the library of this package.

use std::process::ExitCode;

// Attempts are created and dropped thousands of times per second; the system's allocator would be
// the slowest part of that.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    hapax_server::cli::main()
}
