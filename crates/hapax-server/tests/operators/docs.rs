//! Every command in `docs/keys.md` does what the page says.

use std::path::Path;
use std::process::Command;

use super::fixture::directory;
use super::harness::said;
use super::like::is_like;

#[tokio::test]
async fn every_command_of_the_page_does_what_it_says() {
    let directory = directory().await;
    let page = include_str!("../../../../docs/keys.md");
    let mut commands = 0;
    let mut blocks = page
        .split("```")
        .skip(1)
        .step_by(2)
        .map(|block| block.split_once('\n').expect("a language"));
    for (language, block) in &mut blocks {
        match language.split_once(' ') {
            Some(("http", name)) => {
                std::fs::write(directory.path().join(name), block).expect("written");
            }
            _ if language == "console" => commands += run(directory.path(), block),
            _ => {}
        }
    }
    assert!(commands >= 10, "{commands} commands");
}

/// Runs the commands of a block. The lines after each command are its expected output.
fn run(directory: &Path, block: &str) -> usize {
    let commands = block.split("$ ").skip(1);
    commands
        .map(|command| {
            let (line, expected) = command.split_once('\n').expect("a line");
            let program = Path::new(env!("CARGO_BIN_EXE_hapax"))
                .parent()
                .expect("a directory");
            let path = format!(
                "{}:{}",
                program.display(),
                std::env::var("PATH").unwrap_or_default()
            );
            let mut shell = Command::new("sh");
            shell
                .args(["-c", &format!("exec 2>&1; {line}")])
                .current_dir(directory)
                .env("PATH", path)
                .env("USER", "ada");
            let said = said(&mut shell);
            let printed = said.stdout.replace('\t', "  ");
            assert!(
                is_like(expected, &printed),
                "$ {line}\n{printed}\nexpected:\n{expected}"
            );
        })
        .count()
}
