//! Clients that are slow, silent or endless: they are refused, in bounded memory, without any
//! effect on others.
//!
//! The gateway runs as the real program, so that its memory can be measured. Beside each attack a
//! good client keeps sending requests. The test prints a table: how each attack ended, the good
//! client's results, and the gateway's highest memory use.

#![allow(unreachable_pub, reason = "modules of one test binary")]

mod crowd;
mod good;
#[path = "../harness/mod.rs"]
mod harness;
mod http1;
mod http2;
mod service;
mod tls;

use std::fs;
use std::time::{Duration, Instant};

use good::{GOOD_MAX, Good, Went};
use harness::{Program, serve_anybody};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use service::Service;

/// The highest resident memory of the gateway under any of these attacks.
const RESIDENT_MIB_MAX: u64 = 128;

/// The good client has another address: an attack uses up only the limits of its own address.
const GOOD_ADDRESS: &str = "10.9.9.9";

/// Short timeouts, so that the tests are short.
const SETTINGS: &str = r#"
[timeouts]
first_byte = "2s"
handshake = "2s"
header = "2s"
stall = "2s"
keep_alive = "2s"
[limits]
connections_max = 20000
[[routes]]
path = "/**"
body_bytes_max = "8MiB"
"#;

/// What an attack is directed at.
pub struct Target<'a> {
    pub(crate) gateway: &'a Program,
    pub(crate) service: &'a Service,
    pub(crate) trusted: Option<&'a tls::Trusted>,
}

/// Runs an attack and returns how it ended. Panics if it was not refused.
struct Attack {
    name: &'static str,
    is_tls: bool,
    run: fn(&Target<'_>) -> String,
}

const fn plain(name: &'static str, run: fn(&Target<'_>) -> String) -> Attack {
    Attack {
        name,
        is_tls: false,
        run,
    }
}

const fn over_tls(name: &'static str, run: fn(&Target<'_>) -> String) -> Attack {
    Attack {
        name,
        is_tls: true,
        run,
    }
}

const ATTACKS: &[Attack] = &[
    plain("10,000 silent connections", http1::silent),
    plain("1,000 heads, a byte at a time", http1::slow_heads),
    plain("1,000 heads that stop", http1::stopped_heads),
    plain("heads without end", http1::endless_heads),
    plain("fields without number", http1::endless_fields),
    plain(
        "1,000 bodies, a byte at a time, with a key",
        http1::slow_guarded_bodies,
    ),
    plain(
        "1,000 bodies, a byte at a time, without",
        http1::slow_bodies,
    ),
    plain("1,000 bodies that stop", http1::stopped_bodies),
    plain("600 bodies of 1 MiB, half of each", http1::half_bodies),
    plain(
        "chunks without end, with a key",
        http1::endless_guarded_bodies,
    ),
    plain("a chunk of one byte, again and again", http1::tiny_chunks),
    plain("100 answers that nobody reads", http1::unread_answers),
    plain("100 answers read a byte at a time", http1::sipped_answers),
    plain("1,000 connections kept without use", http1::unused),
    over_tls("1,000 handshakes, a byte at a time", http1::slow_handshakes),
    over_tls("1,000 handshakes that never begin", http1::silent),
    plain("h2: streams begun and reset", http2::rapid_reset),
    plain(
        "h2: a head continued without end",
        http2::continuation_flood,
    ),
    plain("h2: fields that unpack to much", http2::hpack_bomb),
    plain("h2: settings without end", http2::settings_flood),
    plain("h2: pings without end", http2::ping_flood),
    plain("h2: empty data without end", http2::empty_data),
    plain("h2: more streams than allowed", http2::many_streams),
    plain("h2: 100 answers without a window", http2::no_window),
    plain("h2: 100 answers that nobody reads", http2::unread_answers),
    plain("h2: 1,000 heads that stop", http2::stopped_heads),
    plain("h2: 1,000 connections without use", http2::unused),
];

#[test]
fn slow_silent_and_endless_clients_are_refused_and_good_ones_unaffected() {
    raise_open_files();
    hapax_testkit::report!(
        "{:44}  {:34}  {:>14}  {:>9}  {:>10}",
        "attack",
        "ended",
        "good requests",
        "slowest",
        "memory"
    );
    let failures: Vec<String> = ATTACKS
        .iter()
        .filter_map(|attack| run_attack(attack).err())
        .collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Runs one attack on a new gateway.
fn run_attack(attack: &Attack) -> Result<(), String> {
    let directory = tempfile::tempdir().unwrap();
    let (tls, trusted) = tls::certificate(directory.path());
    let (settings, trusted) = if attack.is_tls {
        (format!("{SETTINGS}{tls}"), Some(trusted))
    } else {
        (SETTINGS.to_owned(), None)
    };
    let service = Service::start();
    let mut gateway = serve_anybody(
        service.upstream.address,
        "trusted_proxies = [\"127.0.0.1\"]\n",
        &settings,
    );
    let good = Good::start(gateway.clients, trusted.clone());
    let target = Target {
        gateway: &gateway,
        service: &service,
        trusted: trusted.as_ref(),
    };
    let started = Instant::now();
    let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| (attack.run)(&target)));
    let took = started.elapsed();
    let went = good.end();
    let resident = resident_mib_max(gateway.id());
    let said = ended.as_ref().map_or("NOT REFUSED", String::as_str);
    hapax_testkit::report!(
        "{:44}  {said:34}  {:>14}  {:>6} ms  {resident:>6} MiB  {took:.1?}",
        attack.name,
        went.requests,
        went.slowest.as_millis()
    );
    judge(&went, resident, gateway.is_running())
        .and(ended.map(drop).map_err(|_| "it is not refused".to_owned()))
        .map_err(|error| format!("{}: {error}", attack.name))
}

fn judge(went: &Went, resident: u64, is_running: bool) -> Result<(), String> {
    if !is_running {
        return Err("the gateway has ended".to_owned());
    }
    if went.slowest > GOOD_MAX {
        return Err(format!("a good request took {:?}", went.slowest));
    }
    if resident > RESIDENT_MIB_MAX {
        return Err(format!(
            "the gateway took {resident} MiB, over {RESIDENT_MIB_MAX}"
        ));
    }
    Ok(())
}

/// The peak resident memory of a process.
fn resident_mib_max(process: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmHWM:"))
        .unwrap();
    line.split_whitespace()
        .nth(1)
        .unwrap()
        .parse::<u64>()
        .unwrap()
        >> 10
}

/// Waits until the gateway has given up `count` endless answers of the service.
pub fn wait_given_up(target: &Target<'_>, count: usize, meanwhile: &mut dyn FnMut()) {
    let deadline = Instant::now() + crowd::GONE_MAX;
    for left in (0..count).rev() {
        while target
            .service
            .given_up
            .recv_timeout(Duration::from_millis(10))
            .is_err()
        {
            assert!(
                Instant::now() < deadline,
                "{} answers are still being sent",
                left + 1
            );
            meanwhile();
        }
    }
}

/// Each connection is an open file, and there are ten thousand of them.
fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limit.maximum,
            ..limit
        },
    )
    .unwrap();
    if let Some(files) = limit.maximum.filter(|files| *files < 12_000) {
        hapax_testkit::report!(
            "SKIPPED some of the 10,000 silent connections: they need 12,000 open files, and there may be {files} (ulimit -Hn)"
        );
    }
}

/// The number of connections asked for, or as many as the limit of open files allows.
pub fn at_most(connections: usize) -> usize {
    let files = getrlimit(Resource::Nofile)
        .current
        .and_then(|files| usize::try_from(files).ok());
    files.map_or(connections, |files| {
        connections.min(files.saturating_sub(2_000))
    })
}
