//! Runs the commands on the pages of the examples, in their order, and checks the stated results.

use std::process::{Command, Stdio};

use super::files::example;
use super::install::{self, Language};
use super::world::World;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_page_of_the_python_service_says_what_happens() {
    says_what_happens(Language::Python);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_page_of_the_node_service_says_what_happens() {
    says_what_happens(Language::Node);
}

fn says_what_happens(language: Language) {
    if Command::new("curl").arg("--version").output().is_err() {
        return hapax_testkit::skipped("there is no curl here (Debian: apt-get install curl)");
    }
    let Some(installed) = install::installed(language) else {
        return;
    };
    let Some(mut world) = World::start(&installed, &[]) else {
        return;
    };
    let page = std::fs::read_to_string(example(install::name(language)).join("README.md")).unwrap();
    let block = page
        .split("## Try")
        .nth(1)
        .and_then(|rest| rest.split("```sh\n").nth(1)?.split("```").next())
        .expect("lines to try");
    let (functions, lines) = block
        .split_once("\n\n")
        .expect("functions, and lines that call them");
    let functions = functions.replace("127.0.0.1:4000", &world.gateway(0).to_string());
    let mut tried = 0;
    for line in lines
        .lines()
        .filter(|line| line.starts_with("send ") || line.starts_with("post "))
    {
        let (command, expected) = line
            .split_once("   # ")
            .unwrap_or_else(|| panic!("{line} does not say what comes of it"));
        check(&run(&functions, command), expected, line);
        if command.contains("killed") {
            world.services[0].wait_and_start_again();
        }
        tried += 1;
    }
    assert!(tried >= 20, "{tried} lines");
    let counts = world
        .database
        .psql("SELECT item, count(*) FROM orders GROUP BY item ORDER BY item");
    assert_eq!(
        counts, "bag|1\ncap|1\nhat|2\ntie|1",
        "of hats one with a key and one without; of the ties only the one that was not joined"
    );
    assert_eq!(world.database.psql("SELECT count(*) FROM parcels"), "1");
    world.database.assert_each_order_has_its_message();
    hapax_testkit::report!(
        "{}: {tried} lines of its page tried",
        install::name(language)
    );
}

/// Runs a command in a shell. Returns its output.
fn run(functions: &str, command: &str) -> String {
    let ran = Command::new("sh")
        .args(["-c", &format!("{functions}\n{command}")])
        .env("NO_PROXY", "127.0.0.1")
        .stdin(Stdio::null())
        .output();
    let ran = ran.expect("a shell");
    assert!(
        ran.status.success() && !ran.stdout.is_empty(),
        "{command}: {}",
        String::from_utf8_lossy(&ran.stderr)
    );
    String::from_utf8(ran.stdout).unwrap()
}

/// Checks the status, the problem if the page names one, and the fields it names.
fn check(printed: &str, expected: &str, line: &str) {
    let (said, _) = expected.split_once(": ").unwrap_or((expected, ""));
    let mut words = said.split(' ');
    let status = words.next().unwrap().trim_end_matches(',');
    assert!(
        printed.starts_with(&format!("HTTP/1.1 {status} ")),
        "{line}\n{printed}"
    );
    if let Some(problem) = words
        .next()
        .filter(|word| word.chars().all(|c| c.is_ascii_lowercase() || c == '-'))
    {
        assert!(
            printed.contains(&format!("\"code\":\"{problem}\"")),
            "{line}\n{printed}"
        );
    }
    for field in ["Idempotent-Replayed: true", "ETag: \"2\""] {
        let is_there = printed
            .to_ascii_lowercase()
            .contains(&field.to_ascii_lowercase());
        assert!(is_there || !expected.contains(field), "{line}\n{printed}");
    }
}
