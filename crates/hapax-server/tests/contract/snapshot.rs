//! Answers as text, one file for each row.

use std::fmt::Write;
use std::path::PathBuf;

use http::HeaderMap;

use crate::harness::Answer;

/// Fields that differ by connection or by time.
const LEFT_OUT: [&str; 5] = [
    "connection",
    "date",
    "keep-alive",
    "transfer-encoding",
    "x-request-id",
];

/// For longer bodies only the length is shown.
const BODY_BYTES_MAX: usize = 4096;

/// Fields whose value depends on when the answer was given.
const DATES: [&str; 1] = ["idempotency-expires"];

/// Fields whose value may depend on how long the first request has been running, or on when new
/// keys are accepted again.
const PASSING: [&str; 2] = ["retry-after", "retry-after-ms"];

/// The answer as text, which does not depend on time or protocol.
pub fn text(got: &Answer) -> String {
    assert_eq!(
        got.headers.get_all("x-request-id").iter().count(),
        1,
        "every answer has the id of its request: {got:?}"
    );
    let mut text = format!("{}\n", got.status);
    let is_passing = matches!(
        got.problem().as_deref(),
        Some("in-flight" | "too-many-keys")
    );
    write_fields(&mut text, &got.headers, |name| {
        DATES.contains(&name) || is_passing && PASSING.contains(&name)
    });
    text.push('\n');
    match got.body.len() {
        ..=BODY_BYTES_MAX => text.push_str(&without_time(got.text())),
        length => writeln!(text, "({length} bytes)").unwrap(),
    }
    if let Some(trailers) = &got.trailers {
        text.push_str("\ntrailers\n");
        write_fields(&mut text, trailers, |_| false);
    }
    text
}

fn write_fields(text: &mut String, fields: &HeaderMap, is_masked: impl Fn(&str) -> bool) {
    let mut lines: Vec<_> = fields
        .iter()
        .filter(|(name, _)| !LEFT_OUT.contains(&name.as_str()))
        .map(|(name, value)| {
            (
                name.as_str(),
                if is_masked(name.as_str()) {
                    "…"
                } else {
                    value.to_str().unwrap()
                },
            )
        })
        .collect();
    // Sorted by name only, because the order of lines with the same name matters.
    lines.sort_by_key(|(name, _)| *name);
    for (name, value) in lines {
        writeln!(text, "{name}: {value}").unwrap();
    }
}

fn without_time(body: &str) -> String {
    const MEMBER: &str = "\"finished_at\":\"";
    match body.split_once(MEMBER) {
        None => body.to_owned(),
        Some((before, after)) => format!("{before}{MEMBER}…{}", &after[after.find('"').unwrap()..]),
    }
}

/// The snapshot files.
pub struct Snapshots {
    is_blessing: bool,
    directory: PathBuf,
}

impl Snapshots {
    pub fn open() -> Snapshots {
        let directory = PathBuf::from(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/tests/contract/snapshots"
        ));
        Snapshots {
            is_blessing: std::env::var_os("HAPAX_BLESS").is_some(),
            directory,
        }
    }

    /// Whether the text is what the file contains. Rewrites the file when blessing.
    pub fn check(&self, row: &str, text: &str) -> Result<(), String> {
        let path = self.directory.join(file_name(row));
        if self.is_blessing {
            std::fs::create_dir_all(&self.directory).unwrap();
            std::fs::write(path, text).unwrap();
            return Ok(());
        }
        match std::fs::read_to_string(&path) {
            Ok(kept) if kept == text => Ok(()),
            Ok(kept) => Err(format!(
                "{} says\n{kept}\nand the gateway\n{text}",
                path.display()
            )),
            Err(error) => Err(format!(
                "{}: {error}; HAPAX_BLESS=1 writes it",
                path.display()
            )),
        }
    }

    /// Files that belong to no row.
    pub fn strays<'a>(&self, rows: impl Iterator<Item = &'a str>) -> Vec<String> {
        let wanted: Vec<_> = rows.map(file_name).collect();
        let files = std::fs::read_dir(&self.directory)
            .unwrap()
            .map(|file| file.unwrap().file_name().into_string().unwrap());
        let strays: Vec<_> = files.filter(|file| !wanted.contains(file)).collect();
        if self.is_blessing {
            strays
                .iter()
                .for_each(|stray| std::fs::remove_file(self.directory.join(stray)).unwrap());
            return Vec::new();
        }
        strays
    }
}

fn file_name(row: &str) -> String {
    let words: Vec<_> = row
        .split(|c: char| !c.is_ascii_alphanumeric())
        .filter(|word| !word.is_empty())
        .collect();
    format!("{}.txt", words.join("-").to_ascii_lowercase())
}
