//! The gateway itself: `hapax serve`. This command builds it, so that it is never outdated.

use std::path::{Path, PathBuf};

use crate::Error;
use crate::client::Request;
use crate::directory::Directory;

use super::process::{Process, cargo, command, free_address};
use super::server::{ORDERS, Server};

/// The program, freshly built.
pub(crate) struct Program(PathBuf);

impl Program {
    pub(crate) fn build() -> Result<Program, Error> {
        let workspace = Path::new(env!("CARGO_MANIFEST_DIR"))
            .ancestors()
            .nth(2)
            .ok_or("the workspace has no directory")?;
        let built = command(cargo())?
            .args(["build", "--release", "--package", "hapax-server"])
            .current_dir(workspace)
            .status()?;
        if !built.success() {
            return Err(
                "the gateway could not be built (cargo build --release --package hapax-server)"
                    .into(),
            );
        }
        let program = std::env::current_exe()?.with_file_name("hapax");
        if !program.is_file() {
            return Err(format!(
                "{} is not there: run this command with cargo run --release",
                program.display()
            )
            .into());
        }
        Ok(Program(program))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Starts it in front of the upstream, with this store.
    pub(super) async fn serve(&self, upstream: &str, store: &str) -> Result<Server, Error> {
        self.serve_with(upstream, store, &[]).await
    }

    /// Starts it with further settings, as variables of its environment.
    pub(super) async fn serve_with(
        &self,
        upstream: &str,
        store: &str,
        settings: &[(&str, &str)],
    ) -> Result<Server, Error> {
        let (directory, address) = (Directory::temporary()?, free_address()?);
        let mut hapax = command(&self.0)?;
        hapax.args([
            "serve",
            "--upstream",
            &format!("http://{upstream}"),
            "--listen",
            &address,
            "--admin",
            "off",
        ]);
        hapax
            .args(["--store", store, "--principal", "none"])
            .envs(settings.iter().copied())
            .current_dir(directory.path());
        let mut process = Process::start("hapax", hapax, directory.path())?;
        process.ready(&address).await?;
        Ok(Server {
            process,
            service: None,
            address,
            order: Request::order(ORDERS, 201),
            without_key: Request::order_without_key(ORDERS, 201),
            _directory: Some(directory),
        })
    }
}
