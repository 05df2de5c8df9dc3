//! Tests that each fault of the proxy occurs at the intended place and time.

use std::io::Write;
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::thread;

use hapax_testkit::servers::{FaultProxy, Postgres};

/// A database with the table `t`, and a proxy in front of it.
struct Bench {
    postgres: &'static Postgres,
    database: String,
    proxy: FaultProxy,
}

const INSERT: &str = "INSERT INTO t VALUES (1)";

impl Bench {
    async fn new() -> Option<Bench> {
        let postgres = Postgres::shared()?;
        let database = postgres.database().rsplit_once('/').unwrap().1.to_owned();
        postgres.psql(&database, "CREATE TABLE t (n int)");
        Some(Bench {
            postgres,
            database,
            proxy: FaultProxy::in_front_of(postgres.address()).await,
        })
    }

    /// Runs statements through the proxy, on one connection.
    fn through(&self, sql: &[&str]) -> Result<String, String> {
        psql(self.postgres, self.proxy.address(), &self.database, sql)
    }

    /// The number of rows, read without the proxy.
    fn rows(&self) -> usize {
        self.postgres
            .psql(&self.database, "SELECT count(*) FROM t")
            .parse()
            .unwrap()
    }

    /// Whether the server still executes the `pg_sleep`.
    fn is_asleep(&self) -> bool {
        let sleeping = format!(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = '{}' AND wait_event = 'PgSleep'",
            self.database
        );
        self.postgres.psql("postgres", &sleeping) != "0"
    }

    fn wait(&self, until: impl Fn(&FaultProxy) -> bool) {
        while !until(&self.proxy) {
            thread::yield_now();
        }
    }
}

fn psql(
    postgres: &Postgres,
    address: SocketAddr,
    database: &str,
    sql: &[&str],
) -> Result<String, String> {
    let mut command = Command::new(postgres.programs().join("psql"));
    command.args([
        "--no-psqlrc",
        "--quiet",
        "--no-align",
        "--tuples-only",
        "--set=ON_ERROR_STOP=1",
    ]);
    command
        .args(sql.iter().flat_map(|sql| ["--command", sql]))
        .arg(format!("postgres://postgres@{address}/{database}"));
    let output = command.output().unwrap();
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() {
        Ok(said(&output.stdout))
    } else {
        Err(said(&output.stderr))
    }
}

const CLOSED: &str = "server closed the connection unexpectedly";

#[tokio::test]
async fn without_a_fault_everything_passes() {
    let Some(bench) = Bench::new().await else {
        return;
    };
    // Large data in both directions.
    let large = format!(
        "SELECT md5(repeat('x', 1000000)) = md5('{}'), repeat('y', 1000000)",
        "x".repeat(100_000)
    );
    let said = bench.through(&[INSERT, &large]).unwrap();
    assert_eq!(
        (said.len(), bench.rows(), bench.proxy.faults()),
        (1_000_002, 1, 0)
    );
    bench.wait(|proxy| proxy.connections() == 0);
}

#[tokio::test]
async fn a_reply_can_be_lost_after_the_commit() {
    let Some(bench) = Bench::new().await else {
        return;
    };
    for bytes in [0, 1, 7] {
        bench.proxy.cut_next_statement_after(bytes);
        let error = bench.through(&[INSERT, INSERT]).unwrap_err();
        assert!(error.contains(CLOSED), "{error}");
        assert!(!bench.proxy.is_armed());
    }
    assert_eq!((bench.rows(), bench.proxy.faults()), (3, 3));
}

#[tokio::test]
async fn a_statement_can_be_lost_before_it_reaches_the_server() {
    let Some(bench) = Bench::new().await else {
        return;
    };
    bench.proxy.lose_next_statement();
    let error = bench.through(&[INSERT]).unwrap_err();
    assert!(error.contains(CLOSED), "{error}");
    assert_eq!((bench.rows(), bench.proxy.faults()), (0, 1));
}

#[tokio::test]
async fn a_cut_after_reply_bytes_may_come_in_the_greeting_or_in_a_large_answer() {
    let Some(bench) = Bench::new().await else {
        return;
    };
    bench.proxy.cut_after_reply_bytes(3);
    assert!(bench.through(&[INSERT]).is_err());
    assert_eq!((bench.rows(), bench.proxy.faults()), (0, 0));
    bench.proxy.cut_after_reply_bytes(500_000);
    let error = bench
        .through(&[INSERT, "SELECT repeat('y', 1000000)"])
        .unwrap_err();
    assert!(error.contains(CLOSED), "{error}");
    assert_eq!((bench.rows(), bench.proxy.faults()), (1, 1));
}

#[tokio::test]
async fn every_connection_can_be_cut_at_once() {
    let Some(bench) = Bench::new().await else {
        return;
    };
    thread::scope(|scope| {
        let sleeping = [0, 1].map(|_| scope.spawn(|| bench.through(&["SELECT pg_sleep(60)"])));
        bench.wait(|proxy| proxy.in_flight() == 2);
        bench.proxy.cut_now();
        assert_eq!((bench.proxy.faults(), bench.proxy.in_flight()), (2, 0));
        for psql in sleeping {
            let error = psql.join().unwrap().unwrap_err();
            assert!(error.contains(CLOSED), "{error}");
        }
    });
    bench.through(&[INSERT]).unwrap();
}

#[tokio::test]
async fn a_black_hole_swallows_and_cuts_when_it_closes() {
    let Some(bench) = Bench::new().await else {
        return;
    };
    thread::scope(|scope| {
        let psql = scope.spawn(|| bench.through(&["SELECT pg_sleep(0.5)", INSERT]));
        bench.wait(|proxy| proxy.in_flight() == 1);
        bench.proxy.blackhole(true);
        assert_eq!(bench.proxy.faults(), 1);
        // A new connection during the blackhole.
        let new = scope.spawn(|| bench.through(&[INSERT]));
        bench.wait(|proxy| proxy.connections() == 2);
        // Waits until the reply was sent and dropped.
        while bench.is_asleep() {}
        assert!(!psql.is_finished() && !new.is_finished());
        bench.proxy.blackhole(false);
        assert!(psql.join().unwrap().unwrap_err().contains(CLOSED));
        assert!(new.join().unwrap().is_err());
    });
    assert_eq!(bench.rows(), 0);
    bench.through(&[INSERT]).unwrap();
}

#[tokio::test]
async fn what_was_stalled_comes_late() {
    let Some(bench) = Bench::new().await else {
        return;
    };
    thread::scope(|scope| {
        let psql = scope.spawn(|| bench.through(&["SELECT pg_sleep(0.3)", INSERT]));
        bench.wait(|proxy| proxy.in_flight() == 1);
        bench.proxy.stall(true);
        while bench.is_asleep() {}
        assert_eq!(
            (bench.rows(), bench.proxy.faults(), psql.is_finished()),
            (0, 1, false)
        );
        bench.proxy.stall(false);
        psql.join().unwrap().unwrap();
    });
    assert_eq!(bench.rows(), 1);
}

#[tokio::test]
async fn what_was_stalled_lands_although_its_sender_is_gone() {
    let Some(bench) = Bench::new().await else {
        return;
    };
    let mut command = Command::new(bench.postgres.programs().join("psql"));
    command.args(["--no-psqlrc", "--quiet"]).arg(format!(
        "postgres://postgres@{}/{}",
        bench.proxy.address(),
        bench.database
    ));
    let mut sender = command.stdin(Stdio::piped()).spawn().unwrap();
    let mut input = sender.stdin.take().unwrap();
    writeln!(input, "{INSERT};").unwrap();
    while bench.rows() < 1 {}
    bench.wait(|proxy| proxy.in_flight() == 0);
    bench.proxy.stall(true);
    writeln!(input, "{INSERT};").unwrap();
    bench.wait(|proxy| proxy.faults() == 1);
    sender.kill().unwrap();
    sender.wait().unwrap();
    assert_eq!(bench.rows(), 1);
    bench.proxy.stall(false);
    while bench.rows() < 2 {}
}

#[tokio::test]
async fn new_connections_can_be_refused_and_sent_elsewhere() {
    let Some(bench) = Bench::new().await else {
        return;
    };
    bench.proxy.refuse(true);
    let error = bench.through(&[INSERT]).unwrap_err();
    assert!(error.contains("Connection refused"), "{error}");
    bench.proxy.refuse(false);
    bench.proxy.refuse(false);
    bench.through(&[INSERT]).unwrap();

    let Some(other) = Postgres::in_memory(&[]) else {
        return;
    };
    bench.proxy.retarget(other.address());
    let port = psql(
        bench.postgres,
        bench.proxy.address(),
        "postgres",
        &["SELECT current_setting('port')"],
    )
    .unwrap();
    assert_eq!(port, other.port().to_string());
}
