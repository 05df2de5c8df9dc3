//! Takes the program out of the README, so that what is built here is what users copy.

use std::path::PathBuf;

const README: &str = "../../crates/hapax/README.md";
const ADDRESS: &str = "\"127.0.0.1:3000\"";

fn main() {
    println!("cargo::rerun-if-changed={README}");
    let readme = std::fs::read_to_string(README).expect("the README can be read");
    let program = readme
        .split("```rust")
        .skip(1)
        .filter_map(|rest| rest.split_once('\n')?.1.split("```").next())
        .find(|block| block.contains("#[tokio::main]"))
        .expect("the README has a whole program");
    let program: String = program
        .lines()
        .filter(|line| !is_hidden(line))
        .flat_map(|line| [line, "\n"])
        .collect();
    assert!(
        program.contains(ADDRESS),
        "the program listens on {ADDRESS}"
    );
    // That port may be in use here.
    let program = program.replace(ADDRESS, "std::env::var(\"ADDRESS\")?");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo says where"));
    std::fs::write(out.join("program.rs"), program).expect("cargo's directory can be written");
}

/// Whether rustdoc compiles the line without showing it.
fn is_hidden(line: &str) -> bool {
    line.trim_start() == "#" || line.trim_start().starts_with("# ")
}
