//! A service that makes the two calls is killed at every step, and so is its server. Afterwards
//! each key has its order and its answer, or neither.
//!
//! The service is `psql`: a program of its own, on a connection of its own, that dies as any other.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use hapax_testkit::servers;
use tokio_postgres::Client;

use super::world::{Server, name, prepared, session};

/// Kills at each step: of the service, and of the server. `HAPAX_KILLS` sets the total instead, of
/// which every tenth hits the server.
const SERVICE_KILLS: usize = 12;
const SERVER_KILLS: usize = 1;

/// The service's transaction, a statement for each step. It is killed after a step has ended, or,
/// at the last one, when the commit was sent.
const STEPS: [&str; 5] = ["begin", "claim", "effect", "complete", "commit"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    Service,
    Server,
}

/// What was found after the kills of one victim at one step.
#[derive(Clone, Copy, Debug, Default)]
struct Found {
    kills: usize,
    committed: usize,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn order_and_answer_agree_whenever_the_service_or_the_server_is_killed() {
    let Some(mut server) = Server::start() else {
        return;
    };
    let url = prepared(&server).await;
    session(&url)
        .await
        .batch_execute(
            "SELECT hapax.set_namespace('shop'); CREATE TABLE public.orders (id bigint GENERATED ALWAYS AS IDENTITY, key text NOT NULL)",
        )
        .await
        .expect("a shop");
    let (of_service, of_server) = kills();
    let mut found = BTreeMap::<(bool, usize), Found>::new();
    let mut answers = BTreeMap::new();
    for (victim, kills) in [(Victim::Service, of_service), (Victim::Server, of_server)] {
        for round in 0..kills {
            for (step, name_of_step) in STEPS.iter().enumerate() {
                let key = format!("{victim:?}-{round}-{name_of_step}");
                kill_at(&mut server, &url, &key, step, victim);
                let client = session(&url).await;
                let orders = orders(&client, &key).await;
                let row = found.entry((victim == Victim::Server, step)).or_default();
                row.kills += 1;
                row.committed += usize::from(orders == 1);
                // The client repeats its request: it gets the answer iff there is an order.
                let (ran, answer) = order(&client, &key).await;
                assert_eq!(
                    (ran, orders),
                    (orders == 0, i64::from(!ran)),
                    "{key}: an order without its answer, or an answer without its order"
                );
                answers.insert(key, answer);
            }
        }
    }
    // In the end each key has one order, and its answer is about that order.
    let client = session(&url).await;
    for (key, answer) in &answers {
        assert_eq!(orders(&client, key).await, 1, "{key}");
        assert_eq!(order(&client, key).await, (false, answer.clone()), "{key}");
    }
    hapax_testkit::report!(
        "{:>9} {:>9} {:>6} {:>10}",
        "victim",
        "step",
        "kills",
        "committed"
    );
    for ((is_server, step), Found { kills, committed }) in &found {
        let victim = if *is_server { "server" } else { "service" };
        hapax_testkit::report!("{victim:>9} {:>9} {kills:>6} {committed:>10}", STEPS[*step]);
        let is_open = *step + 1 < STEPS.len();
        assert!(
            !is_open || *committed == 0,
            "void: the transaction was not open when it was killed"
        );
    }
    hapax_testkit::report!(
        "{} kills, {} keys",
        found.values().map(|found| found.kills).sum::<usize>(),
        answers.len()
    );
}

fn kills() -> (usize, usize) {
    match std::env::var("HAPAX_KILLS") {
        Ok(total) => {
            let total: usize = total.parse().expect("a number");
            (
                (total * 9 / 10).div_ceil(STEPS.len()),
                (total / 10).div_ceil(STEPS.len()),
            )
        }
        Err(_) => (SERVICE_KILLS, SERVER_KILLS),
    }
}

/// Runs an order up to a step, and kills the service or the server there. Returns when both are as
/// they were, and nothing of the transaction is open any more.
fn kill_at(server: &mut servers::Postgres, url: &str, key: &str, step: usize, victim: Victim) {
    let mut service = Service::start(server, name(url));
    for (place, name) in STEPS.iter().enumerate().take(step + 1) {
        let is_commit = place + 1 == STEPS.len();
        service.send(&statement(name, key));
        if !is_commit {
            service.until_done();
        }
    }
    match victim {
        Victim::Service => service.kill(),
        Victim::Server => {
            server.kill();
            service.kill();
            server.start_again();
        }
    }
    // A backend notices that its client is gone when it next reads or writes.
    let open = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'victim'";
    while server.psql("postgres", open) != "0" {
        std::thread::yield_now();
    }
}

fn statement(step: &str, key: &str) -> String {
    match step {
        "begin" => "BEGIN;".to_owned(),
        "claim" => format!(
            "SELECT operation_id, fence FROM hapax.start('shop', 'ada', 'POST /orders', '{key}', hapax.fingerprint('{{}}')) \\gset"
        ),
        "effect" => {
            format!("INSERT INTO public.orders (key) VALUES ('{key}') RETURNING id \\gset")
        }
        "complete" => {
            "SELECT hapax.complete(:'operation_id', :fence, 201, '{}', :'id');".to_owned()
        }
        "commit" => "COMMIT;".to_owned(),
        other => panic!("no step is called {other}"),
    }
}

/// A whole order: whether it ran, and its answer.
async fn order(client: &Client, key: &str) -> (bool, String) {
    client.batch_execute("BEGIN").await.expect("begun");
    let sql = "SELECT run, operation_id, fence, convert_from(body, 'UTF8')
               FROM hapax.start('shop', 'ada', 'POST /orders', $1, hapax.fingerprint('{}'))";
    let row = client
        .query_one(sql, &[&key])
        .await
        .unwrap_or_else(|error| panic!("{key}: {error:?}"));
    let ran: bool = row.get(0);
    let answer = if ran {
        let (operation_id, fence): (String, i64) = (row.get(1), row.get(2));
        let sql = "INSERT INTO public.orders (key) VALUES ($1) RETURNING id::text";
        let id: String = client
            .query_one(sql, &[&key])
            .await
            .expect("an order")
            .get(0);
        let sql = "SELECT hapax.complete($1, $2, 201, '{}', $3::text)";
        client
            .execute(sql, &[&operation_id, &fence, &id])
            .await
            .expect("completed");
        id
    } else {
        row.get(3)
    };
    client.batch_execute("COMMIT").await.expect("committed");
    (ran, answer)
}

async fn orders(client: &Client, key: &str) -> i64 {
    let sql = "SELECT count(*) FROM public.orders WHERE key = $1";
    client.query_one(sql, &[&key]).await.expect("asked").get(0)
}

/// A `psql` that reads statements from its standard input.
struct Service {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Service {
    fn start(server: &servers::Postgres, database: &str) -> Service {
        let mut command = server.client("psql");
        command.args([
            "--no-psqlrc",
            "--quiet",
            "--no-align",
            "--tuples-only",
            "--file=-",
            "--dbname",
            database,
        ]);
        let mut process = command
            .env("PGAPPNAME", "victim")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("psql starts");
        Service {
            input: process.stdin.take().expect("piped"),
            output: BufReader::new(process.stdout.take().expect("piped")),
            process,
        }
    }

    fn send(&mut self, statement: &str) {
        writeln!(self.input, "{statement}").expect("psql reads");
        self.input.flush().expect("psql reads");
    }

    /// Returns when the statements sent so far have ended.
    fn until_done(&mut self) {
        self.send("\\echo done");
        let mut line = String::new();
        while line.trim() != "done" {
            line.clear();
            assert!(
                self.output.read_line(&mut line).expect("psql writes") > 0,
                "psql has ended"
            );
        }
    }

    fn kill(&mut self) {
        // It may have ended by itself, with its server.
        drop(self.process.kill());
        self.process.wait().expect("it has ended");
    }
}

/// After a failover to a synchronous standby every order has its answer still, and no key runs
/// again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_failover_every_order_has_its_answer() {
    let Some(mut primary) = Server::start() else {
        return;
    };
    let url = prepared(&primary).await;
    session(&url)
        .await
        .batch_execute(
            "SELECT hapax.set_namespace('shop'); CREATE TABLE public.orders (id bigint GENERATED ALWAYS AS IDENTITY, key text NOT NULL)",
        )
        .await
        .expect("a shop");
    let mut standby = tokio::task::block_in_place(|| primary.synchronous_standby());
    let client = session(&url).await;
    let mut answers = Vec::new();
    for number in 0..20 {
        let key = format!("key-{number}");
        let (ran, answer) = order(&client, &key).await;
        assert!(ran);
        answers.push((key, answer));
    }
    // One is in the middle of its transaction.
    client
        .batch_execute(
            "BEGIN; SELECT * FROM hapax.start('shop', 'ada', 'POST /orders', 'open', hapax.fingerprint('{}'));
             INSERT INTO public.orders (key) VALUES ('open')",
        )
        .await
        .expect("an open order");
    tokio::task::block_in_place(|| {
        primary.kill();
        standby.promote();
        standby.alone();
    });
    let client = session(&standby.url(name(&url))).await;
    for (key, answer) in answers {
        assert_eq!(order(&client, &key).await, (false, answer), "{key}");
        assert_eq!(orders(&client, &key).await, 1, "{key}");
    }
    assert_eq!(orders(&client, "open").await, 0);
    assert!(order(&client, "open").await.0, "what was open runs anew");
}
