//! DBOS, durable workflows on Postgres: its Python library from PyPI, in a FastAPI service.

use std::path::{Path, PathBuf};

use crate::Error;
use crate::client::Request;
use crate::directory::Directory;
use crate::load::ANSWER_BYTES;

use super::install::{peers, run};
use super::process::{Process, command, free_address, port};
use super::server::{ORDERS, Server};

const PACKAGES: [&str; 3] = [
    "dbos==3.3.0",
    "fastapi==0.162.4",
    "uvicorn[standard]==0.54.0",
];

/// The installed service.
pub(super) struct Installed {
    directory: PathBuf,
}

impl Installed {
    /// Installs it once from PyPI, into an environment beside this program.
    pub(super) fn get() -> Result<Installed, Error> {
        let directory = peers("dbos", &PACKAGES.join("\n"), install)?;
        std::fs::write(directory.join("service.py"), include_str!("dbos.py"))?;
        Ok(Installed { directory })
    }

    /// Starts it on an empty database, with as many workers as there are processors.
    pub(super) async fn serve(&self, database: &str) -> Result<Server, Error> {
        let (directory, address) = (Directory::temporary()?, free_address()?);
        // The migration runs first and alone: workers that created the tables at the same time
        // would conflict.
        let mut migrate = command(self.program("dbos"))?;
        run(migrate
            .args(["migrate", "--sys-db-url", database])
            .current_dir(directory.path()))?;
        let workers = std::thread::available_parallelism()?.to_string();
        let mut uvicorn = command(self.program("uvicorn"))?;
        uvicorn
            .args(["service:app", "--app-dir"])
            .arg(&self.directory)
            .args(["--port", port(&address), "--workers", &workers]);
        uvicorn
            .args(["--no-access-log", "--log-level", "warning"])
            .current_dir(directory.path());
        uvicorn
            .env("PEER_DATABASE", database)
            .env("PEER_ANSWER_BYTES", ANSWER_BYTES.to_string());
        let mut process = Process::start("uvicorn", uvicorn, directory.path())?;
        process.ready(&address).await?;
        let (order, without_key) = (
            Request::order(ORDERS, 201),
            Request::order_without_key(ORDERS, 201),
        );
        let server = Server {
            process,
            service: None,
            address,
            order,
            without_key,
            _directory: Some(directory),
        };
        server.replays("DBOS").await?;
        Ok(server)
    }

    fn program(&self, name: &str) -> PathBuf {
        self.directory.join("environment/bin").join(name)
    }
}

fn install(directory: &Path) -> Result<(), Error> {
    let environment = directory.join("environment");
    run(command("python3")?.args(["-m", "venv"]).arg(&environment))?;
    run(command(environment.join("bin/pip"))?
        .args(["install", "--quiet", "--disable-pip-version-check"])
        .args(PACKAGES))
}
