//! The services in `examples/two-calls`, which call `hapax.start` and `hapax.complete` without a
//! gateway: the whole table of answers, from each of them.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use hapax_testkit::servers::{Port, Postgres};
use tokio::task::JoinHandle;

use super::files::example;
use super::harness::install::{self, File, Installed, Language};
use super::harness::{Answer, Client, ClientRequest, With, hapax, in_time, post, said, words};
use super::world::Node;

/// A service: its folder, its language, the files that pin its dependencies, and its sources, of
/// which the first is the program.
struct Service {
    folder: &'static str,
    language: Language,
    wanted: &'static [&'static str],
    sources: &'static [&'static str],
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_python_service_gives_every_answer() {
    gives_every_answer(Service {
        folder: "python",
        language: Language::Python,
        wanted: &["requirements.txt"],
        sources: &["orders.py"],
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_django_service_gives_every_answer() {
    gives_every_answer(Service {
        folder: "django",
        language: Language::Python,
        wanted: &["requirements.txt"],
        sources: &["orders.py", "once.py"],
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_node_service_gives_every_answer() {
    gives_every_answer(Service {
        folder: "node",
        language: Language::Node,
        wanted: &["package.json", "package-lock.json"],
        sources: &["server.js", "once.js"],
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_go_service_gives_every_answer() {
    gives_every_answer(Service {
        folder: "go",
        language: Language::Go,
        wanted: &["go.mod", "go.sum", "main.go"],
        sources: &[],
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_php_service_gives_every_answer() {
    gives_every_answer(Service {
        folder: "php",
        language: Language::Php,
        wanted: &[],
        sources: &["orders.php"],
    })
    .await;
}

async fn gives_every_answer(service: Service) {
    let Some(installed) = service.installed() else {
        return;
    };
    let Some(mut shop) = Shop::start(&service, &installed) else {
        return;
    };
    shop.refuses_what_is_no_order().await;
    shop.replays_orders_and_refusals().await;
    shop.tells_duplicates_in_flight_or_lets_them_wait().await;
    shop.answers_by_the_state_of_the_record().await;
    shop.survives_lost_connections_and_kills().await;
}

impl Service {
    fn installed(&self) -> Option<Installed> {
        let read = |files: &[&'static str]| -> Vec<File> {
            let folder = example("two-calls").join(self.folder);
            let text = |file| std::fs::read_to_string(folder.join(file)).unwrap();
            files.iter().map(|file| (*file, text(*file))).collect()
        };
        let name = format!("examples-installed/two-calls-{}", self.folder);
        install::install(
            &name,
            self.language,
            &read(self.wanted),
            &read(self.sources),
        )
    }

    /// The command of the page.
    fn program(&self, installed: &Installed, port: &Port) -> Command {
        let mut command = installed.interpreter();
        match self.language {
            Language::Go => {}
            Language::Php => drop(
                command
                    .arg("-S")
                    .arg(port.address().to_string())
                    .arg(self.sources[0])
                    .env("PHP_CLI_SERVER_WORKERS", "8")
                    // Its workers are processes of their own, and end with it.
                    .process_group(0),
            ),
            Language::Python | Language::Node => drop(command.arg(self.sources[0])),
        }
        command
    }
}

/// A service on its database.
struct Shop {
    service: Node,
    database: Database,
}

/// A database with the tables of the example, prepared by the commands of its page.
struct Database {
    postgres: Postgres,
    name: String,
}

impl Database {
    fn prepare() -> Option<Database> {
        let postgres = Postgres::in_memory(&[])?;
        let url = postgres.database();
        let name = url.rsplit_once('/').expect("a URL").1.to_owned();
        let database = Database { postgres, name };
        database.psql("CREATE ROLE orders LOGIN");
        let migrate = [
            "migrate",
            "--store",
            &url,
            "--user",
            "orders",
            "--namespace",
            "shop",
        ];
        // Twice: the second time changes nothing.
        for _ in 0..2 {
            let migrated = said(hapax().args(migrate));
            assert_eq!(migrated.code, 0, "{}", migrated.stderr);
            assert!(
                migrated.stdout.contains(
                    "the role orders may call hapax.start and hapax.complete; the namespace shop belongs to hapax.start"
                ),
                "{}",
                migrated.stdout
            );
        }
        let mut psql = database.client();
        psql.args(words("--quiet --set=ON_ERROR_STOP=1 --file"))
            .arg(example("two-calls").join("schema.sql"));
        let made = said(&mut psql);
        assert_eq!(made.code, 0, "{}", made.stderr);
        Some(database)
    }

    fn client(&self) -> Command {
        let mut client = self.postgres.client("psql");
        client.args(["--no-psqlrc", "--dbname", &self.name]);
        client
    }

    fn psql(&self, sql: &str) -> String {
        self.postgres.psql(&self.name, sql)
    }

    fn url(&self) -> String {
        format!(
            "postgresql://orders@{}/{}",
            self.postgres.address(),
            self.name
        )
    }

    /// Keeps everybody from writing orders until it is dropped.
    fn hold_orders(&self) -> Holder {
        let mut psql = self.client();
        let mut process = psql
            .args(words("--quiet --tuples-only --file=-"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("psql starts");
        let mut input = process.stdin.take().expect("piped");
        writeln!(
            input,
            "BEGIN; LOCK TABLE orders IN EXCLUSIVE MODE;\n\\echo held"
        )
        .unwrap();
        let mut line = String::new();
        let output = process.stdout.as_mut().expect("piped");
        BufReader::new(output).read_line(&mut line).unwrap();
        assert_eq!(line.trim(), "held");
        Holder {
            process,
            _input: input,
        }
    }

    /// Whether a transaction waits for such a lock.
    fn is_waiting(&self, wait_event: &str) -> bool {
        let sql = format!(
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND wait_event = '{wait_event}'"
        );
        self.psql(&sql) != "0"
    }
}

struct Holder {
    process: Child,
    _input: std::process::ChildStdin,
}

impl Drop for Holder {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

/// An order of this user, with this key.
fn order(user: &str, key: &str, body: &str) -> ClientRequest {
    post("/orders", body.to_owned())
        .key(key)
        .with("x-user", user)
        .with("content-type", "application/json")
}

const HAT: &str = r#"{"item": "hat"}"#;

impl Shop {
    fn start(service: &Service, installed: &Installed) -> Option<Shop> {
        let database = Database::prepare()?;
        let port = Port::free();
        let mut command = service.program(installed, &port);
        command
            .env("PORT", port.number().to_string())
            .env("DATABASE_URL", database.url())
            .env("NO_COLOR", "1");
        let word = match service.language {
            Language::Php => " started",
            _ => "listening on ",
        };
        Some(Shop {
            service: Node::start(command, word, port),
            database,
        })
    }

    fn client(&self) -> Client {
        Client::new(self.service.address())
    }

    async fn send(&self, request: ClientRequest) -> Answer {
        self.client().send(request).await
    }

    /// An order of Ann's for a hat.
    async fn hat(&self, key: &str) -> Answer {
        self.send(order("ann", key, HAT)).await
    }

    /// Sends a request, and returns when its transaction waits for such a lock. A service may find
    /// that the connection it has kept is gone, and ask to be asked again.
    async fn send_until_waiting(
        &self,
        request: impl Fn() -> ClientRequest,
        wait_event: &str,
    ) -> JoinHandle<Result<Answer, String>> {
        loop {
            let (client, request) = (self.client(), request());
            let sent = tokio::spawn(async move { client.try_send(request).await });
            while !sent.is_finished() {
                if tokio::task::block_in_place(|| self.database.is_waiting(wait_event)) {
                    return sent;
                }
            }
            let answer = sent.await.unwrap().expect("it runs");
            assert_refused(&answer, 503, "try again");
        }
    }

    fn orders(&self) -> usize {
        self.database
            .psql("SELECT count(*) FROM orders")
            .parse()
            .unwrap()
    }

    fn records(&self) -> usize {
        self.database
            .psql("SELECT count(*) FROM hapax.records")
            .parse()
            .unwrap()
    }

    async fn refuses_what_is_no_order(&self) {
        let without_key = post("/orders", HAT).with("x-user", "ann");
        assert_eq!(self.send(without_key).await.status, 400);
        let without_user = post("/orders", HAT).key("nobody");
        assert_eq!(self.send(without_user).await.status, 401);
        let malformed = self.send(order("ann", "malformed", "{\"item\": ")).await;
        assert_eq!(malformed.status, 400);
        assert_eq!((self.orders(), self.records()), (0, 0));
        // The key was not claimed.
        assert_eq!(self.hat("malformed").await.status, 201);
    }

    async fn replays_orders_and_refusals(&self) {
        let before = self.orders();
        let first = self.hat("order-17").await;
        assert_eq!(first.status, 201, "{}", first.text());
        // Express adds the charset.
        assert!(
            first
                .field("content-type")
                .is_some_and(|content_type| content_type.starts_with("application/json"))
        );
        assert_eq!(first.field("idempotent-replayed"), None);
        let id = first.json()["id"].to_string();
        assert_eq!(first.field("location"), Some(&*format!("/orders/{id}")));
        assert_eq!(first.json()["item"], "hat");
        for body in [HAT, r#"{ "item" : "\u0068at" }"#] {
            self.assert_replays(&self.send(order("ann", "order-17", body)).await, &first);
        }
        let other = self
            .send(order("ann", "order-17", r#"{"item": "coat"}"#))
            .await;
        assert_refused(&other, 422, "key-reused");
        assert_eq!(self.orders(), before + 1);
        // Another user's key is another key.
        let bobs = self.send(order("bob", "order-17", HAT)).await;
        assert_eq!((bobs.status, self.orders()), (201, before + 2));

        let unicorn = r#"{"item": "unicorn"}"#;
        let refused = self.send(order("ann", "unicorn", unicorn)).await;
        assert_refused(&refused, 404, "no such item");
        self.database.psql("INSERT INTO items VALUES ('unicorn')");
        self.assert_replays(&self.send(order("ann", "unicorn", unicorn)).await, &refused);
        assert_eq!(self.orders(), before + 2);
    }

    /// What the first answer said, and that it is a replay.
    fn assert_replays(&self, answer: &Answer, first: &Answer) {
        assert_eq!(
            (answer.status, answer.text()),
            (first.status, first.text()),
            "a replay says what the first answer said"
        );
        for name in ["content-type", "location"] {
            assert_eq!(answer.field(name), first.field(name), "{name}");
        }
        assert_eq!(answer.field("idempotent-replayed"), Some("true"));
    }

    async fn tells_duplicates_in_flight_or_lets_them_wait(&self) {
        let before = self.orders();
        let holder = self.database.hold_orders();
        let in_flight = || order("ann", "in-flight", HAT);
        let first = self.send_until_waiting(in_flight, "relation").await;
        let duplicate = self.hat("in-flight").await;
        assert_refused(&duplicate, 409, "in-flight");
        assert_eq!(duplicate.field("retry-after"), Some("1"));
        let waiting = || in_flight().with("prefer", "wait=30");
        let waiting = self.send_until_waiting(waiting, "advisory").await;
        drop(holder);
        let first = first.await.unwrap().expect("it runs");
        assert_eq!(first.status, 201, "{}", first.text());
        self.assert_replays(&waiting.await.unwrap().expect("it runs"), &first);
        self.assert_replays(&self.hat("in-flight").await, &first);
        assert_eq!(self.orders(), before + 1);
    }

    async fn answers_by_the_state_of_the_record(&self) {
        for (change, status, error) in [
            ("expires_at = 1", 410, "key-expired"),
            ("state = 5", 409, "outcome-unknown"),
            ("slot = NULL", 409, "answer-not-kept"),
        ] {
            let before = self.orders();
            assert_eq!(self.hat(error).await.status, 201);
            self.database.psql(&format!(
                "UPDATE hapax.heads SET {change} WHERE key = '{error}'"
            ));
            assert_refused(&self.hat(error).await, status, error);
            assert_eq!(self.orders(), before + 1);
        }
    }

    /// Nothing of a transaction that was cut off is left, and the same key runs.
    async fn survives_lost_connections_and_kills(&mut self) {
        let before = self.orders();
        let holder = self.database.hold_orders();
        let cut_off = || order("ann", "cut off", HAT);
        let cut_off = self.send_until_waiting(cut_off, "relation").await;
        let cut = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE usename = 'orders'";
        assert_ne!(self.database.psql(cut), "0");
        let cut_off = cut_off.await.unwrap().expect("it runs");
        assert_refused(&cut_off, 503, "try again");
        let killed = || order("ann", "killed", HAT);
        let killed = self.send_until_waiting(killed, "relation").await;
        tokio::task::block_in_place(|| self.service.kill_and_start_again());
        drop(killed.await.unwrap().expect_err("the service was killed"));
        drop(holder);
        for key in ["cut off", "killed"] {
            // What the killed service had open ends when its server notices.
            let answered = async {
                loop {
                    let answer = self.hat(key).await;
                    if ![409, 503].contains(&answer.status) {
                        return answer;
                    }
                }
            };
            let answer = in_time("the key is free again", answered).await;
            assert_eq!(answer.status, 201, "{key}: {}", answer.text());
            assert_eq!(self.hat(key).await.status, 201);
        }
        assert_eq!(self.orders(), before + 2);
    }
}

fn assert_refused(answer: &Answer, status: u16, error: &str) {
    assert_eq!(
        (answer.status, answer.json()["error"].as_str()),
        (status, Some(error)),
        "{}",
        answer.text()
    );
}

/// The script for psql, as its page says.
#[test]
fn the_script_for_psql_places_an_order_once() {
    let Some(database) = Database::prepare() else {
        return;
    };
    let place = |key: &str, item: &str| {
        let mut psql = Command::new(database.postgres.programs().join("psql"));
        psql.arg(database.url())
            .args(words("--no-psqlrc --quiet --file"))
            .arg(example("two-calls").join("psql/orders.sql"))
            .args(["-v", &format!("key={key}"), "-v", &format!("item={item}")]);
        said(&mut psql)
    };
    let first = place("order-17", "hat");
    assert_eq!(first.code, 0, "{}", first.stderr);
    let again = place("order-17", "hat");
    assert!(
        again.stdout.contains("201") && again.stdout.contains("hat"),
        "{}",
        again.stdout
    );
    let other = place("order-17", "coat");
    assert!(other.stderr.contains("key-reused"), "{}", other.stderr);
    assert_eq!(database.psql("SELECT count(*) FROM orders"), "1");
}

/// `hapax sweep`, for those who run no gateway, and the operators' commands.
#[test]
fn an_operator_lists_settles_and_sweeps_without_a_gateway() {
    let Some(database) = Database::prepare() else {
        return;
    };
    let url = format!(
        "postgres://postgres@{}/{}",
        database.postgres.address(),
        database.name
    );
    let order = |key: &str| {
        format!(
            "BEGIN; SELECT hapax.complete(operation_id, fence, 201, '{{}}', 'ordered')
             FROM hapax.start('shop', 'ann', 'POST /orders', '{key}', hapax.fingerprint('{{}}')) WHERE run; COMMIT;"
        )
    };
    for key in ["a", "b", "gone"] {
        database.psql(&order(key));
    }
    let listed = said(hapax().args(["keys", "list", "--store", &url, "--json"]));
    assert_eq!(listed.code, 0, "{}", listed.stderr);
    assert!(
        ["\"a\"", "\"b\"", "\"gone\""]
            .iter()
            .all(|key| listed.stdout.contains(key)),
        "{}",
        listed.stdout
    );
    let shown = said(hapax().args(["keys", "show", "--store", &url, "--key", "a"]));
    assert_eq!(shown.code, 0, "{}", shown.stderr);
    assert!(shown.stdout.contains("completed"), "{}", shown.stdout);

    database.psql("UPDATE hapax.heads SET state = 5, lost = true, slot = NULL WHERE key = 'b'");
    let id = database.psql("SELECT id FROM hapax.records WHERE key = 'b'");
    let settled = said(hapax().args([
        "keys",
        "settle",
        &id,
        "--store",
        &url,
        "--outcome",
        "not-done",
        "--by",
        "ada",
        "--reason",
        "no order",
    ]));
    assert_eq!(settled.code, 0, "{}{}", settled.stdout, settled.stderr);
    let run = database.psql(
        "BEGIN; SELECT run FROM hapax.start('shop', 'ann', 'POST /orders', 'b', hapax.fingerprint('{}')); ROLLBACK",
    );
    assert_eq!(run, "t", "what was not done runs");

    database.psql(
        "UPDATE hapax.heads SET expires_at = 1, tombstone_until = 1, finished_at = 1 WHERE key = 'gone'",
    );
    let swept = said(hapax().args(["sweep", "--store", &url]));
    assert_eq!(swept.code, 0, "{}", swept.stderr);
    assert!(
        swept.stdout.contains("removed 1 records"),
        "{}",
        swept.stdout
    );
    assert_eq!(
        database.psql("SELECT count(*) FROM hapax.records WHERE key = 'gone'"),
        "0"
    );
    let stats = database.psql("SELECT state, records FROM hapax.stats() ORDER BY 1");
    assert_eq!(stats, "completed|1\nretryable|1");

    for (arguments, code, word) in [
        (&["sweep", "--store", "memory:"][..], 2, "only a Postgres"),
        (&["sweep"], 2, "which database?"),
        (
            &["sweep", "--store", "postgres://postgres@127.0.0.1:1/shop"],
            3,
            "could not",
        ),
    ] {
        let said = said(hapax().args(arguments).env_remove("HAPAX__STORE"));
        assert_eq!(said.code, code, "{arguments:?}: {}", said.stderr);
        assert!(said.stderr.contains(word), "{arguments:?}: {}", said.stderr);
    }
}
