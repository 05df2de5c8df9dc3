//! The `hapax` program. What it does is in the library beside it.

use std::process::ExitCode;

// Attempts are made and dropped by the thousand each second; the system's allocator is the slowest
// part of that.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    hapax_server::cli::main()
}
