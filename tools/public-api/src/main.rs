//! Prints the public items of a library, a line each, from the JSON that rustdoc has written.
//!
//! `./check api` compares them with `api.txt` beside the library's manifest.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let json = std::env::args_os()
        .nth(1)
        .ok_or("usage: list-public-api RUSTDOC.json")?;
    // What derives and the compiler add is told by the type's own line, or is the same for all.
    let api = public_api::Builder::from_rustdoc_json(json)
        .omit_blanket_impls(true)
        .omit_auto_trait_impls(true)
        .omit_auto_derived_impls(true)
        .build()?;
    print!("{api}");
    Ok(())
}
