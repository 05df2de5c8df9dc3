//! Tests the servers that other tests use.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use hapax_testkit::crash;
use hapax_testkit::origin::{Origin, Step, answer};
use hapax_testkit::servers::{HaProxy, PgBouncer, Postgres, faketime, faketime_file};

#[test]
fn a_database_of_its_own_answers() {
    let Some(postgres) = Postgres::shared() else {
        return;
    };
    let (first, second) = (postgres.database(), postgres.database());
    assert_ne!(first, second);
    let name = first.rsplit_once('/').unwrap().1;
    assert_eq!(
        postgres.psql(
            name,
            "CREATE TABLE t (n int, s text); INSERT INTO t VALUES (1, 'a'), (2, NULL); TABLE t"
        ),
        "1|a\n2|"
    );
    assert_eq!(
        postgres.psql(
            name,
            "SELECT current_setting('fsync'), current_setting('synchronous_commit')"
        ),
        "on|on"
    );
    let error = postgres
        .try_psql(name, "SELECT 1; TABLE nothing; SELECT 2")
        .unwrap_err();
    assert!(
        error.contains("relation \"nothing\" does not exist"),
        "{error}"
    );
}

#[test]
fn what_was_committed_is_there_after_a_kill() {
    let Some(mut postgres) = Postgres::with(&[("max_connections", "20")]) else {
        return;
    };
    let (port, pid) = (postgres.port(), postgres.pid());
    postgres.psql(
        "postgres",
        "CREATE TABLE t (n int); INSERT INTO t SELECT generate_series(1, 1000)",
    );
    postgres.kill();
    assert!(postgres.try_psql("postgres", "SELECT 1").is_err());
    postgres.start_again();
    assert_eq!(
        postgres.psql(
            "postgres",
            "SELECT count(*), current_setting('max_connections') FROM t"
        ),
        "1000|20"
    );
    assert_eq!(postgres.port(), port);
    assert_ne!(postgres.pid(), pid);
    assert!(
        postgres.log().contains("automatic recovery in progress"),
        "{}",
        postgres.log()
    );
    postgres.stop();
    postgres.start_again();
    assert_eq!(postgres.psql("postgres", "SELECT count(*) FROM t"), "1000");
}

#[test]
fn a_dropped_server_leaves_nothing_behind() {
    let Some(postgres) = Postgres::start() else {
        return;
    };
    let (data, pid) = (postgres.data().to_owned(), postgres.pid());
    assert!(data.is_dir());
    drop(postgres);
    assert!(!data.parent().unwrap().exists());
    assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
}

#[test]
fn what_a_primary_confirmed_its_promoted_standby_has() {
    let Some(mut primary) = Postgres::in_memory(&[]) else {
        return;
    };
    primary.psql(
        "postgres",
        "CREATE TABLE t (n int); INSERT INTO t VALUES (1)",
    );
    let mut standby = primary.synchronous_standby();
    assert!(standby.is_standby() && !primary.is_standby());
    primary.psql("postgres", "INSERT INTO t VALUES (2)");
    primary.kill();
    standby.promote();
    assert_eq!(
        standby.psql(
            "postgres",
            "INSERT INTO t VALUES (3); SELECT array_agg(n ORDER BY n) FROM t"
        ),
        "{1,2,3}"
    );
    let timeline = "SELECT timeline_id FROM pg_control_checkpoint()";
    standby.psql("postgres", "CHECKPOINT");
    assert_eq!(standby.psql("postgres", timeline), "2");

    // Switches the roles back.
    primary.follow(&standby);
    standby.psql("postgres", "INSERT INTO t VALUES (4)");
    standby.kill();
    primary.promote();
    assert_eq!(
        primary.psql(
            "postgres",
            "INSERT INTO t VALUES (5); SELECT array_agg(n ORDER BY n) FROM t"
        ),
        "{1,2,3,4,5}"
    );
}

#[test]
fn a_primary_confirms_nothing_without_its_synchronous_standby() {
    let Some(primary) = Postgres::in_memory(&[]) else {
        return;
    };
    let mut standby = primary.synchronous_standby();
    standby.kill();
    std::thread::scope(|scope| {
        let committing = scope.spawn(|| primary.psql("postgres", "CREATE TABLE t ()"));
        while primary.psql(
            "postgres",
            "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'",
        ) != "1"
        {}
        assert!(!committing.is_finished());
        primary.alone();
        committing.join().unwrap();
    });
}

#[test]
fn clusters_have_a_system_identifier_of_their_own_when_made_anew() {
    let (Some(copy), Some(anew)) = (Postgres::shared(), Postgres::made_anew()) else {
        return;
    };
    let identifier = "SELECT system_identifier FROM pg_control_system()";
    assert_ne!(
        copy.psql("postgres", identifier),
        anew.psql("postgres", identifier)
    );
}

#[test]
fn terminated_backends_are_counted() {
    let Some(postgres) = Postgres::shared() else {
        return;
    };
    let url = postgres.database();
    let name = url.rsplit_once('/').unwrap().1;
    std::thread::scope(|scope| {
        let sleeping = scope.spawn(|| postgres.try_psql(name, "SELECT pg_sleep(60)"));
        while postgres.psql(
            "postgres",
            &format!(
                "SELECT 1 FROM pg_stat_activity WHERE datname = '{name}' AND wait_event = 'PgSleep'"
            ),
        ) != "1"
        {}
        assert_eq!(postgres.terminate_backends(name), 1);
        let error = sleeping.join().unwrap().unwrap_err();
        assert!(
            error.contains("terminating connection due to administrator command"),
            "{error}"
        );
    });
}

#[test]
fn pgbouncer_hands_a_connection_to_another_client_after_each_transaction() {
    let Some(postgres) = Postgres::shared() else {
        return;
    };
    let Some(pool) = PgBouncer::with(postgres, &[("default_pool_size", "1")]) else {
        return;
    };
    postgres.psql("postgres", "CREATE ROLE application LOGIN");
    let psql = |sql: &str, user: &str| {
        let mut command = Command::new(postgres.programs().join("psql"));
        command.args([
            "--no-psqlrc",
            "--quiet",
            "--no-align",
            "--tuples-only",
            "--command",
            sql,
            "--dbname",
        ]);
        let output = command
            .arg(
                pool.url("postgres")
                    .replace("postgres@", &format!("{user}@")),
            )
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{}{}",
            String::from_utf8_lossy(&output.stderr),
            pool.log()
        );
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    let (first, second) = (
        psql("SELECT pg_backend_pid()", "postgres"),
        psql("SELECT pg_backend_pid()", "postgres"),
    );
    assert_eq!(first, second);
    // The pool resets nothing between clients: one client sees the session settings of another.
    psql("SET statement_timeout = '12345ms'", "postgres");
    assert_eq!(psql("SHOW statement_timeout", "postgres"), "12345ms");
    // A user that only the server knows.
    assert_eq!(psql("SELECT current_user", "application"), "application");
}

#[tokio::test(flavor = "multi_thread")]
async fn haproxy_sends_a_post_again_to_the_next_node() {
    let (first, second) = (Origin::start().await, Origin::start().await);
    for fault in [
        vec![Step::Read, Step::Close],
        vec![Step::Read, Step::Reset],
        vec![Step::Read, Step::Write(answer(503, "", "")), Step::Close],
    ] {
        let Some(balancer) = HaProxy::in_front_of(&[first.address(), second.address()]) else {
            return;
        };
        first.script(fault);
        let before = (first.ledger().count("k"), second.ledger().count("k"));
        let said = post(balancer.address());
        assert!(said.starts_with("HTTP/1.1 200"), "{said}");
        assert_eq!(
            (first.ledger().count("k"), second.ledger().count("k")),
            (before.0 + 1, before.1 + 1)
        );
        assert_eq!(balancer.sent_again(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn haproxy_passes_over_a_dead_node() {
    let (dead, alive) = (Origin::start().await, Origin::start().await);
    let Some(balancer) = HaProxy::in_front_of(&[dead.address(), alive.address()]) else {
        return;
    };
    drop(dead);
    for _ in 0..4 {
        let said = post(balancer.address());
        assert!(said.starts_with("HTTP/1.1 200"), "{said}");
    }
    assert_eq!(alive.ledger().count("k"), 4);
    assert!(balancer.sent_again() >= 2);
}

fn post(address: SocketAddr) -> String {
    let mut socket = TcpStream::connect(address).unwrap();
    socket
        .write_all(b"POST / HTTP/1.1\r\nhost: h\r\nidempotency-key: k\r\ncontent-length: 4\r\nconnection: close\r\n\r\nbody")
        .unwrap();
    let mut said = String::new();
    socket.read_to_string(&mut said).unwrap();
    said
}

#[test]
fn a_program_under_faketime_has_another_clock() {
    let seconds = |environment: Vec<(String, String)>| {
        let output = Command::new("date")
            .arg("+%s")
            .envs(environment)
            .output()
            .unwrap();
        String::from_utf8(output.stdout)
            .unwrap()
            .trim()
            .parse::<i64>()
            .unwrap()
    };
    let Some(hour_ahead) = faketime("+3600s") else {
        return;
    };
    let ahead = seconds(hour_ahead) - seconds(Vec::new());
    assert!((3595..=3605).contains(&ahead), "{ahead}");
}

#[test]
fn the_clock_of_a_running_program_steps() {
    let file = std::env::temp_dir().join(format!("hapax-faketime-{}", std::process::id()));
    let step = |offset: &str| {
        let new = file.with_extension("new");
        std::fs::write(&new, offset).unwrap();
        std::fs::rename(&new, &file).unwrap();
    };
    step("+0s");
    let Some(environment) = faketime_file(&file) else {
        return;
    };
    let clock = ["-e", "$| = 1; while (<STDIN>) { print time(), qq{\\n} }"];
    let mut program = Command::new("perl")
        .args(clock)
        .envs(environment)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut input, mut output) = (
        program.stdin.take().unwrap(),
        BufReader::new(program.stdout.take().unwrap()).lines(),
    );
    for (offset, expected) in [("-3600s", -3600), ("+60s", 60), ("+0s", 0)] {
        step(offset);
        writeln!(input).unwrap();
        let said: i64 = output.next().unwrap().unwrap().parse().unwrap();
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap()
            .as_secs() as i64;
        assert!(
            (expected - 5..=expected + 5).contains(&(said - now)),
            "{offset}: {}",
            said - now
        );
    }
    drop(input);
    program.wait().unwrap();
    std::fs::remove_file(&file).unwrap();
}

#[test]
fn a_server_ends_with_the_process_that_was_killed() {
    const NAME: &str = "a_server_ends_with_the_process_that_was_killed";
    if crash::role().is_some() {
        // Started on a thread that ends, like a test's thread, while its server keeps running.
        let postgres = std::thread::spawn(Postgres::start).join().unwrap();
        let Some(postgres) = postgres else {
            return crash::announce("none");
        };
        postgres.psql("postgres", "SELECT 1");
        crash::announce(format!("{} {}", postgres.pid(), postgres.data().display()));
        crash::hear();
        return;
    }
    let mut child = crash::Child::spawn(NAME, "owner", &[]);
    let said = child.wait_for("");
    let Some((pid, data)) = said.split_once(' ') else {
        return;
    };
    let (process, data) = (format!("/proc/{pid}"), Path::new(data));
    assert!(Path::new(&process).exists() && data.exists());
    child.kill();
    // This process cannot reap it, so it may stay as a zombie for a while.
    let is_gone = || std::fs::read_link(format!("{process}/cwd")).is_err();
    while !is_gone() || data.parent().unwrap().exists() {
        std::thread::yield_now();
    }
}
