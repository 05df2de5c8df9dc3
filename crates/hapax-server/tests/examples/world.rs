//! The database, and two gateways with a service behind each, as the pages of the examples say.

use std::net::SocketAddr;
use std::process::{Command, Stdio};

use hapax_testkit::servers::{Port, Postgres};

use super::files::example;
use super::install::Installed;
use super::program::Program;

pub const NODES: usize = 2;

/// What a gateway says when it serves, and a service.
const SERVES: &str = "  clients ";
const LISTENS: &str = "orders: listening on ";

/// A database with the tables of the orders and the records of Hapax, and a role for each.
pub struct Database {
    postgres: Postgres,
    name: String,
}

impl Database {
    /// By the commands of the page. `None`, after saying so, without PostgreSQL.
    pub fn prepare(example_name: &str) -> Option<Database> {
        let postgres = Postgres::in_memory(&[])?;
        let url = postgres.database();
        let name = url.rsplit_once('/').expect("a URL").1.to_owned();
        let database = Database { postgres, name };
        database.psql("CREATE ROLE hapax LOGIN");
        let schema = example(example_name).join("schema.sql");
        let made = database
            .client()
            .args(["--quiet", "--set=ON_ERROR_STOP=1", "--file"])
            .arg(schema)
            .output()
            .unwrap();
        assert!(
            made.status.success(),
            "{}",
            String::from_utf8_lossy(&made.stderr)
        );
        let mut migrate = Command::new(env!("CARGO_BIN_EXE_hapax"));
        let migrated = migrate
            .args([
                "migrate",
                "--store",
                &url,
                "--role",
                "hapax",
                "--completer",
                "orders",
            ])
            .output()
            .unwrap();
        assert!(
            migrated.status.success(),
            "{}",
            String::from_utf8_lossy(&migrated.stderr)
        );
        Some(database)
    }

    /// How this role reaches it.
    pub fn url(&self, role: &str) -> String {
        format!(
            "postgres://{role}@{}/{}",
            self.postgres.address(),
            self.name
        )
    }

    /// psql on it, as its owner unless told otherwise.
    pub fn client(&self) -> Command {
        let mut client = self.postgres.client("psql");
        client.args(["--no-psqlrc", "--dbname", &self.name]);
        client
    }

    pub fn psql(&self, sql: &str) -> String {
        self.postgres.psql(&self.name, sql)
    }

    /// How many orders there are of an item.
    pub fn orders_of(&self, item: &str) -> usize {
        self.psql(&format!(
            "SELECT count(*) FROM orders WHERE item = '{item}'"
        ))
        .parse()
        .unwrap()
    }
}

/// A gateway as the example's own file has it, but for the addresses and what is said besides. It
/// comes back where it was.
pub struct Gateway {
    command: Command,
    program: Program,
    port: Port,
}

impl Gateway {
    pub fn start(
        example_name: &str,
        database: &Database,
        upstream: SocketAddr,
        more: &[(&str, &str)],
    ) -> Gateway {
        let port = Port::free();
        let mut command = Command::new(env!("CARGO_BIN_EXE_hapax"));
        command
            .args(["serve", "--log", "text", "--config"])
            .arg(example(example_name).join("hapax.toml"))
            .env("HAPAX__LISTEN", port.address().to_string())
            .env("HAPAX__ADMIN", "off")
            .env("HAPAX__STORE", database.url("hapax"))
            .env("HAPAX__UPSTREAM__URL", format!("http://{upstream}"))
            .envs(more.iter().copied())
            .stderr(Stdio::null());
        let program = Program::start(&mut command, SERVES);
        Gateway {
            command,
            program,
            port,
        }
    }

    pub fn address(&self) -> SocketAddr {
        self.port.address()
    }

    pub fn kill_and_start_again(&mut self) {
        self.program.kill();
        self.program = Program::start(&mut self.command, SERVES);
    }
}

/// A service, which comes back where it was.
pub struct Service {
    command: Command,
    program: Program,
    port: Port,
}

impl Service {
    pub fn start(installed: &Installed, database: &Database) -> Service {
        let port = Port::free();
        let mut command = installed.program();
        command
            .env("LISTEN", port.address().to_string())
            .env("DATABASE_URL", database.url("orders"))
            .env("ORDERS_MISCHIEF", "1")
            .env("NO_COLOR", "1");
        let program = Program::start(&mut command, LISTENS);
        Service {
            command,
            program,
            port,
        }
    }

    pub fn address(&self) -> SocketAddr {
        self.port.address()
    }

    pub fn kill_and_start_again(&mut self) {
        self.program.kill();
        self.start_again();
    }

    /// After it has ended by itself.
    pub fn wait_and_start_again(&mut self) {
        self.program.wait();
        self.start_again();
    }

    fn start_again(&mut self) {
        self.program = Program::start(&mut self.command, LISTENS);
    }
}

/// Two of each on one database: the first gateway has the first service behind it, and so on.
pub struct World {
    pub gateways: Vec<Gateway>,
    pub services: Vec<Service>,
    // The last to go.
    pub database: Database,
}

impl World {
    /// `None`, after saying so, if there is something to it that cannot be had.
    pub fn start(installed: &Installed, more: &[(&str, &str)]) -> Option<World> {
        let example_name = installed.language.example();
        let database = Database::prepare(example_name)?;
        let services: Vec<_> = (0..NODES)
            .map(|_| Service::start(installed, &database))
            .collect();
        let start =
            |service: &Service| Gateway::start(example_name, &database, service.address(), more);
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
