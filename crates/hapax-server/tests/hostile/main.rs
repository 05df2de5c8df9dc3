//! Hostile input over raw sockets, in front of real upstreams that record what they see: no
//! desynchronisation.
//!
//! Each input is followed, in the same write, by a second request. The upstream's record must show
//! nothing of the first request, or exactly what was meant, and of the second nothing, or itself.
//! Each answer must be the answer to its own request, and a probe on a new connection must get its
//! own answer. The test prints a table with the results.

#![allow(unreachable_pub, reason = "modules of one test binary")]

mod answers;
mod cases;

#[path = "../harness/mod.rs"]
mod harness;
mod upstreams;
mod verdict;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};

use answers::{Answer, Outcome};
use cases::{Case, Input, NONCE_BYTES, SECOND};
use hapax_testkit::harness::frames::{END_HEADERS, END_STREAM, Frame};
use harness::{Program, serve_anybody};
use upstreams::Upstream;
use verdict::{Run, Stragglers};

/// Short, because some inputs wait for the gateway to close; long enough for a busy machine to send
/// all bytes.
const SETTINGS: &str = r#"
[timeouts]
first_byte = "2s"
header = "2s"
stall = "2s"
keep_alive = "2s"
[[routes]]
path = "/**"
body_bytes_max = "8KiB"
"#;

/// The results by input and by whether it had a key: a cell for each upstream.
type Table = BTreeMap<(usize, bool), String>;

#[test]
fn hostile_input_desynchronises_no_upstream() {
    let cases = cases::all();
    assert!(cases.len() >= 100);
    let upstreams = upstreams::all();
    assert!(!upstreams.is_empty(), "not one upstream could be started");
    let names: Vec<_> = upstreams.iter().map(|upstream| upstream.name).collect();
    let tables: Vec<(Table, Vec<String>)> = std::thread::scope(|scope| {
        let cases = &cases;
        let threads: Vec<_> = upstreams
            .into_iter()
            .map(|upstream| scope.spawn(move || attack(&upstream, cases)))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    print(&cases, &names, &tables);
    let failures: Vec<_> = tables
        .into_iter()
        .flat_map(|(_, failures)| failures)
        .collect();
    assert!(
        failures.is_empty(),
        "{} of the runs went wrong:\n{}",
        failures.len(),
        failures.join("\n")
    );
}

/// Sends every input, one after another, in front of one upstream.
fn attack(upstream: &Upstream, cases: &[Case]) -> (Table, Vec<String>) {
    let mut gateway = serve_anybody(upstream.address, "", SETTINGS);
    let (mut table, mut failures, mut stragglers) =
        (Table::new(), Vec::new(), Stragglers::default());
    for (number, case) in cases.iter().enumerate() {
        for guarded in [true, false]
            .into_iter()
            .filter(|guarded| !guarded || case.takes_key())
        {
            let (cell, verdict) = match run(case, guarded, upstream, &gateway, &mut stragglers) {
                Ok(run) => (run.cell(), run.verdict()),
                Err(error) => ("?".to_owned(), Err(error)),
            };
            if let Err(error) = verdict {
                failures.push(format!(
                    "{} / {} / {}: {error}",
                    upstream.name,
                    case.name,
                    if guarded { "key" } else { "no key" }
                ));
            }
            table.insert((number, guarded), cell);
        }
    }
    if !gateway.is_running() {
        failures.push(format!("{}: the gateway has ended", upstream.name));
    }
    (table, failures)
}

fn run(
    case: &Case,
    guarded: bool,
    upstream: &Upstream,
    gateway: &Program,
    stragglers: &mut Stragglers,
) -> Result<Run, String> {
    let nonce = nonce();
    let key = guarded.then(|| format!("k-{nonce}"));
    let expect = if guarded {
        case.guarded.clone()
    } else {
        case.unguarded.clone()
    };
    let outcome = match &case.input {
        Input::Http1(template) => {
            answers::http1(gateway.clients, &http1(template, &nonce, key.as_deref()))
        }
        Input::Http2(frames) => {
            answers::http2(gateway.clients, &http2(frames, &nonce, key.as_deref()))
        }
    };
    // The probe separates the runs: everything that the upstream saw before it belongs to this run.
    let probed = probe(gateway, &nonce);
    let mut seen = upstream.seen_until(&format!("/probe-{nonce}"))?;
    seen.retain(|seen| !stragglers.forgive(seen));
    stragglers.expect(&expect, &nonce, &seen);
    probed?;
    Ok(Run {
        is_http2: matches!(case.input, Input::Http2(_)),
        nonce,
        key,
        outcome: outcome?,
        seen,
        expect,
    })
}

/// Another client's request, on its own connection, must get its own answer.
fn probe(gateway: &Program, nonce: &str) -> Result<(), String> {
    let outcome = answers::http1(
        gateway.clients,
        &fill(
            "GET /probe-{n} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
            nonce,
        ),
    )?;
    let expected = Answer {
        status: 200,
        body: format!("saw GET /probe-{nonce}\n"),
    };
    match outcome {
        Outcome {
            answers: [Some(answer), None],
            surplus: None,
            ..
        } if answer == expected => Ok(()),
        outcome => Err(format!("somebody else got {outcome:?}")),
    }
}

fn nonce() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let nonce = format!("{:08x}", NEXT.fetch_add(1, Ordering::Relaxed));
    assert_eq!(nonce.len(), NONCE_BYTES);
    nonce
}

fn http1(template: &str, nonce: &str, key: Option<&str>) -> Vec<u8> {
    let field = key
        .map(|key| format!("Idempotency-Key: {key}\r\n"))
        .unwrap_or_default();
    fill(
        &format!("{}{SECOND}", template.replace("{key}", &field)),
        nonce,
    )
}

fn http2(frames: &[Frame], nonce: &str, key: Option<&str>) -> Vec<u8> {
    let fields = [
        (":method", "GET"),
        (":scheme", "http"),
        (":authority", "h"),
        (":path", "/second-{n}"),
    ];
    let second = Frame::headers(3, END_HEADERS | END_STREAM, &fields);
    frames
        .iter()
        .chain([&second])
        .flat_map(|frame| frame.bytes(&|text| fill(text, nonce), key))
        .collect()
}

fn fill(template: &str, nonce: &str) -> Vec<u8> {
    template
        .replace("{n}", nonce)
        .chars()
        .map(|char| u8::try_from(char).expect("each character is a byte"))
        .collect()
}

fn print(cases: &[Case], names: &[&str], tables: &[(Table, Vec<String>)]) {
    let width = cases
        .iter()
        .map(|case| case.name.len())
        .max()
        .unwrap_or_default();
    hapax_testkit::report!(
        "Each cell: what the first and the second request were answered with, and which of them the upstream saw."
    );
    hapax_testkit::report!(
        "{:width$}  {:6}  {}",
        "input",
        "",
        names
            .iter()
            .map(|name| format!("{name:32}"))
            .collect::<String>()
    );
    for (number, case) in cases.iter().enumerate() {
        for guarded in [true, false] {
            let cells: String = tables
                .iter()
                .filter_map(|(table, _)| table.get(&(number, guarded)))
                .map(|cell| format!("{cell:32}"))
                .collect();
            if !cells.is_empty() {
                hapax_testkit::report!(
                    "{:width$}  {:6}  {}",
                    case.name,
                    if guarded { "key" } else { "no key" },
                    cells.trim_end()
                );
            }
        }
    }
    hapax_testkit::report!(
        "{} inputs, {} runs",
        cases.len(),
        tables.iter().map(|(table, _)| table.len()).sum::<usize>()
    );
}
