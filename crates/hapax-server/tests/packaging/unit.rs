//! The systemd unit: valid, hardened, and not so restricted that the program cannot run in it.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use hapax_server::config::file;
use hapax_testkit::origin::Origin;
use hapax_testkit::skipped;

use super::harness::{Program, Signal, hapax, words};
use super::tools::{ended, is_root, needed, ran, root, run, text};

const UNIT: &str = "packaging/systemd/hapax.service";

/// The largest exposure that `systemd-analyze security` may report, in tenths. Network access,
/// which a gateway needs, counts most.
const EXPOSURE_MAX: &str = "12";

fn settings(name: &str) -> Vec<String> {
    let prefix = format!("{name}=");
    text(UNIT)
        .lines()
        .filter_map(|line| line.strip_prefix(&prefix))
        .map(str::to_owned)
        .collect()
}

#[test]
fn systemd_reads_the_unit_without_a_word() {
    let Some(analyze) = needed("systemd-analyze") else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let unit = directory.path().join("hapax.service");
    // systemd-analyze checks that the program exists.
    std::fs::write(
        &unit,
        text(UNIT).replace("/usr/bin/hapax", env!("CARGO_BIN_EXE_hapax")),
    )
    .unwrap();
    let said = run(
        &analyze,
        ["verify".as_ref(), "--man=no".as_ref(), unit.as_os_str()],
    );
    assert!(!said.contains("hapax"), "{said}");
}

#[test]
fn the_unit_exposes_little() {
    let Some(analyze) = needed("systemd-analyze") else {
        return;
    };
    let mut command = Command::new(analyze);
    command
        .args([
            "security",
            "--offline=true",
            "--no-pager",
            "--threshold",
            EXPOSURE_MAX,
        ])
        .arg(root().join(UNIT));
    let (is_well, said) = ended(&mut command);
    let score = said
        .lines()
        .find(|line| line.contains("Overall exposure"))
        .unwrap_or_default();
    hapax_testkit::report!("{score}");
    assert!(is_well, "over {EXPOSURE_MAX} tenths: {said}");
}

#[test]
fn the_unit_waits_longer_than_a_drain_and_runs_what_the_program_takes() {
    let config = file::read(&root().join("packaging/hapax.toml")).unwrap();
    let stop: u64 = settings("TimeoutStopSec")[0].parse().unwrap();
    assert!(
        stop > (config.drain.notice + config.drain.deadline).as_secs(),
        "{stop} s"
    );
    assert_eq!(settings("Type"), ["notify"]);
    assert_eq!(settings("ExecReload"), ["/bin/kill -HUP $MAINPID"]);
    let start = settings("ExecStart");
    let words: Vec<_> = start[0].split(' ').collect();
    let help = ran(hapax().args(["serve", "--help"]));
    for flag in words.iter().filter(|word| word.starts_with("--")) {
        assert!(help.contains(flag), "hapax serve has no {flag}");
    }
    assert!(words.contains(&"/etc/hapax/hapax.toml"));
}

/// At boot a network address may appear after the gateway starts. That start then fails like one
/// with an invalid configuration.
#[test]
fn the_unit_goes_on_trying_for_a_minute() {
    let number = |name: &str| settings(name)[0].parse::<u64>().unwrap();
    assert_eq!(
        (settings("Restart"), settings("RestartPreventExitStatus")),
        (vec!["on-failure".to_owned()], vec![])
    );
    let tries = number("StartLimitBurst") * number("RestartSec");
    assert!(
        (60..number("StartLimitIntervalSec")).contains(&tries),
        "{tries} s, and then it stays down"
    );
}

/// The configuration as installed, and with every example in it enabled.
#[test]
fn the_sample_configuration_is_good_and_so_are_its_examples() {
    let sample = text("packaging/hapax.toml");
    file::read(&root().join("packaging/hapax.toml")).unwrap();
    file::read(&root().join("packaging/docker/hapax.toml")).unwrap();
    let is_setting = |line: &str| {
        line.starts_with('[')
            || line
                .split_once(" = ")
                .is_some_and(|(name, _)| !name.contains(' '))
    };
    let used: Vec<_> = sample
        .lines()
        .map(|line| {
            line.strip_prefix('#')
                .filter(|rest| is_setting(rest))
                .unwrap_or(line)
        })
        .collect();
    let examples = used.len()
        - sample
            .lines()
            .zip(&used)
            .filter(|(line, used)| line == *used)
            .count();
    assert!(examples >= 15, "{examples} examples");
    let directory = tempfile::tempdir().unwrap();
    // The files that the examples name.
    for name in ["certificate.pem", "key.pem", "admin-token", "settle-token"] {
        std::fs::write(
            directory.path().join(name),
            format!("a-{name}-as-long-as-it-has-to-be"),
        )
        .unwrap();
        std::fs::set_permissions(
            directory.path().join(name),
            std::os::unix::fs::PermissionsExt::from_mode(0o600),
        )
        .unwrap();
    }
    let path = directory.path().join("hapax.toml");
    std::fs::write(
        &path,
        used.join("\n")
            .replace("/etc/hapax/", "")
            .replace("/run/credentials/hapax.service/", ""),
    )
    .unwrap();
    file::read(&path).unwrap();
}

/// systemd cannot run here, so the system calls of the program are compared with those that the
/// unit allows.
#[tokio::test(flavor = "multi_thread")]
async fn the_program_needs_nothing_that_the_unit_forbids() {
    let (Some(strace), Some(analyze), Some(setpriv)) = (
        needed("strace"),
        needed("systemd-analyze"),
        needed("setpriv"),
    ) else {
        return;
    };
    if !is_root() {
        return skipped("only root can become the account of the service");
    }
    let directory = tempfile::tempdir().unwrap();
    let upstream = Origin::start().await;
    let (state, trace) = (
        directory.path().join("state"),
        directory.path().join("trace"),
    );
    std::fs::create_dir(&state).unwrap();
    for path in [directory.path(), &state] {
        std::os::unix::fs::chown(path, Some(65_534), Some(65_534)).unwrap();
    }
    let program = directory.path().join("hapax");
    std::fs::copy(env!("CARGO_BIN_EXE_hapax"), &program).unwrap();
    let mut command = Command::new(setpriv);
    command
        .args(words(
            "--reuid=65534 --regid=65534 --clear-groups --no-new-privs",
        ))
        .arg(strace);
    command
        .args(words("--follow-forks --quiet=all --signal=none --output"))
        .arg(&trace)
        .arg(&program);
    let config = directory.path().join("hapax.toml");
    std::fs::write(
        &config,
        format!("[upstream]\nurl = \"http://{}\"\n", upstream.address()),
    )
    .unwrap();
    command
        .args(words(
            "serve --listen 127.0.0.1:0 --admin 127.0.0.1:0 --log text --config",
        ))
        .arg(&config);
    command.args(["--store", "sqlite:hapax.db"]);
    let mut program = Program::serve(command.current_dir(&state).env("TMPDIR", &state));
    assert!(
        program
            .charge("small", b"amount=1")
            .starts_with("HTTP/1.1 200")
    );
    assert!(
        program
            .charge("small", b"amount=1")
            .contains("idempotent-replayed: true")
    );
    assert!(
        program
            .charge("spilled", &[b'x'; 2 << 20])
            .starts_with("HTTP/1.1 200")
    );
    assert!(program.ask("/metrics").contains("hapax_build_info"));
    ran(hapax().args(["reload", "--admin", &format!("http://{}", program.admin)]));
    // strace ends with the program and does not forward signals, so the signal goes to the traced
    // process.
    signal_tracee(&trace);
    assert!(program.ended().success());

    let traced = std::fs::read_to_string(&trace).unwrap();
    let used: BTreeSet<_> = traced
        .lines()
        .filter_map(call)
        .map(|(name, _)| name)
        .collect();
    assert!(used.contains("fsync") && used.len() > 30, "{used:?}");
    let allowed = allowed(&analyze);
    let missing: Vec<_> = used
        .iter()
        .filter(|name| !allowed.contains(**name))
        .collect();
    assert!(missing.is_empty(), "the unit forbids {missing:?}");
    let families = settings("RestrictAddressFamilies").join(" ");
    for (name, rest) in traced.lines().filter_map(call) {
        assert!(
            !(rest.contains("PROT_WRITE") && rest.contains("PROT_EXEC")),
            "MemoryDenyWriteExecute: {name}{rest}"
        );
        if let ("socket", Some(family)) = (
            name,
            rest.strip_prefix('(')
                .and_then(|rest| rest.split(',').next()),
        ) {
            assert!(
                families.split(' ').any(|allowed| allowed == family),
                "RestrictAddressFamilies: {family}"
            );
        }
    }
    hapax_testkit::report!("{} system calls in use, all allowed", used.len());
}

/// Sends SIGTERM to the first process of the trace.
fn signal_tracee(trace: &Path) {
    let traced = std::fs::read_to_string(trace).unwrap();
    let pid: i32 = traced
        .split_whitespace()
        .next()
        .and_then(|pid| pid.parse().ok())
        .expect("a process id");
    rustix::process::kill_process(rustix::process::Pid::from_raw(pid).unwrap(), Signal::TERM)
        .unwrap();
}

/// Splits `4711  openat(AT_FDCWD, …) = 3` into the name and the rest.
fn call(line: &str) -> Option<(&str, &str)> {
    let line = line.split_once(' ')?.1.trim_start();
    let line = line.strip_prefix("<... ").unwrap_or(line);
    let end = line.find(|c: char| !c.is_ascii_alphanumeric() && c != '_')?;
    (end > 0 && line.as_bytes()[0].is_ascii_lowercase()).then(|| line.split_at(end))
}

/// The system calls that the unit's `SystemCallFilter` lines allow, applied in order.
fn allowed(analyze: &Path) -> BTreeSet<String> {
    let mut allowed = expanded(analyze, "@default");
    for filter in settings("SystemCallFilter") {
        let (is_denied, names) = filter
            .strip_prefix('~')
            .map_or((false, filter.as_str()), |names| (true, names));
        for name in names.split(' ') {
            let calls = if name.starts_with('@') {
                expanded(analyze, name)
            } else {
                [name.to_owned()].into()
            };
            if is_denied {
                allowed.retain(|call| !calls.contains(call));
            } else {
                allowed.extend(calls);
            }
        }
    }
    allowed
}

/// The system calls of a group, including those of its nested groups.
fn expanded(analyze: &Path, group: &str) -> BTreeSet<String> {
    let mut calls = BTreeSet::new();
    for line in run(analyze, ["syscall-filter", "--no-pager", group])
        .lines()
        .skip(1)
        .map(str::trim)
    {
        match line.chars().next() {
            Some('@') => calls.extend(expanded(analyze, line)),
            Some('#') | None => {}
            Some(_) => drop(calls.insert(line.to_owned())),
        }
    }
    calls
}
