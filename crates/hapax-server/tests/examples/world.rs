//! The database, and two gateways with a service behind each, as the pages of the examples
//! describe.

use std::net::SocketAddr;
use std::process::Command;

use hapax::store::postgres::schema;
use hapax_testkit::servers::{Port, Postgres};

use super::files::example;
use super::harness::{Program, hapax, said, words};
use super::install::{self, Installed};

pub const NODES: usize = 2;

/// A database with the tables of the orders and the records of Hapax, and a role for each.
pub struct Database {
    postgres: Postgres,
    name: String,
}

impl Database {
    /// Runs the commands of the page. `None`, after printing why, without PostgreSQL.
    pub fn prepare(example_name: &str) -> Option<Database> {
        let postgres = Postgres::in_memory(&[])?;
        let url = postgres.database();
        let name = url.rsplit_once('/').expect("a URL").1.to_owned();
        let database = Database { postgres, name };
        database.psql("CREATE ROLE hapax LOGIN");
        let schema = example(example_name).join("schema.sql");
        let mut psql = database.client();
        psql.args(words("--quiet --set=ON_ERROR_STOP=1 --file"))
            .arg(schema);
        let made = said(&mut psql);
        assert_eq!(made.code, 0, "{}", made.stderr);
        let roles = ["--role", "hapax", "--completer", "orders"];
        let migrated = said(hapax().args(["migrate", "--store", &url]).args(roles));
        assert_eq!(migrated.code, 0, "{}", migrated.stderr);
        database.psql(&schema::emitter_grants("orders"));
        Some(database)
    }

    /// The URL of the database for this role.
    pub fn url(&self, role: &str) -> String {
        format!(
            "postgres://{role}@{}/{}",
            self.postgres.address(),
            self.name
        )
    }

    /// A psql command for the database, by default as its owner.
    pub fn client(&self) -> Command {
        let mut client = self.postgres.client("psql");
        client.args(["--no-psqlrc", "--dbname", &self.name]);
        client
    }

    pub fn psql(&self, sql: &str) -> String {
        self.postgres.psql(&self.name, sql)
    }

    /// The number of orders of an item.
    pub fn orders_of(&self, item: &str) -> usize {
        self.psql(&format!(
            "SELECT count(*) FROM orders WHERE item = '{item}'"
        ))
        .parse()
        .unwrap()
    }

    /// Every order has exactly one message, and every message its order. Orders that were put under
    /// a number of their own have none.
    pub fn assert_each_order_has_its_message(&self) {
        let strays = self.psql(
            "SELECT o.id, m.key, m.count FROM (SELECT id FROM orders WHERE id NOT LIKE 'A-%') AS o
             FULL JOIN (SELECT key, count(*) FROM hapax.outbox WHERE topic = 'orders' GROUP BY key) AS m ON m.key = o.id
             WHERE o.id IS NULL OR m.count IS DISTINCT FROM 1",
        );
        assert_eq!(strays, "", "order, message, how often");
    }
}

/// A program that is restarted at the same address.
pub struct Node {
    command: Command,
    /// The text it prints when it serves.
    word: &'static str,
    program: Program,
    port: Port,
}

impl Node {
    pub fn start(mut command: Command, word: &'static str, port: Port) -> Node {
        let program = started(&mut command, word);
        Node {
            command,
            word,
            program,
            port,
        }
    }

    /// A gateway with the example's configuration file, except for the addresses and the variables
    /// in `more`.
    pub fn gateway(
        example_name: &str,
        database: &Database,
        upstream: SocketAddr,
        more: &[(&str, &str)],
    ) -> Node {
        let port = Port::free();
        let mut command = hapax();
        command
            .args(words("serve --log text --config"))
            .arg(example(example_name).join("hapax.toml"))
            .env("HAPAX__LISTEN", port.address().to_string())
            .env("HAPAX__ADMIN", "off")
            .env("HAPAX__STORE", database.url("hapax"))
            .env("HAPAX__UPSTREAM__URL", format!("http://{upstream}"))
            .envs(more.iter().copied());
        Node::start(command, "  clients ", port)
    }

    fn service(installed: &Installed, database: &Database) -> Node {
        let port = Port::free();
        let mut command = install::program(installed);
        command
            .env("LISTEN", port.address().to_string())
            .env("DATABASE_URL", database.url("orders"))
            .env("ORDERS_MISCHIEF", "1")
            .env("NO_COLOR", "1");
        Node::start(command, "orders: listening on ", port)
    }

    pub fn address(&self) -> SocketAddr {
        self.port.address()
    }

    pub fn kill_and_start_again(&mut self) {
        self.program.kill();
        self.program = started(&mut self.command, self.word);
    }

    /// Waits until the program has ended by itself, and starts it again.
    pub fn wait_and_start_again(&mut self) {
        self.program.ended();
        self.program = started(&mut self.command, self.word);
    }
}

fn started(command: &mut Command, word: &str) -> Program {
    let mut program = Program::start(command);
    program.wait_for(word);
    program
}

/// Two services and two gateways on one database: each gateway has its own service behind it.
pub struct World {
    pub gateways: Vec<Node>,
    pub services: Vec<Node>,
    // Dropped last.
    pub database: Database,
}

impl World {
    /// `None`, after printing why, if something is missing here.
    pub fn start(installed: &Installed, more: &[(&str, &str)]) -> Option<World> {
        let example_name = install::name(installed.language);
        let database = Database::prepare(example_name)?;
        let services: Vec<_> = (0..NODES)
            .map(|_| Node::service(installed, &database))
            .collect();
        let start =
            |service: &Node| Node::gateway(example_name, &database, service.address(), more);
        let gateways = services.iter().map(start).collect();
        Some(World {
            gateways,
            services,
            database,
        })
    }

    pub fn gateway(&self, node: usize) -> SocketAddr {
        self.gateways[node].address()
    }
}
