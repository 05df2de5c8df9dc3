//! axum-idempotent with its sessions in Postgres: a layer for axum that keeps answers by key, built
//! from crates.io.

use std::path::{Path, PathBuf};

use crate::Error;
use crate::client::Request;
use crate::directory::Directory;
use crate::load::ANSWER_BYTES;

use super::install::{peers, run};
use super::process::{Process, cargo, command, free_address};
use super::server::{ORDERS, Server};

const MANIFEST: &str = include_str!("axum_idempotent.toml");
const PROGRAM: &str = include_str!("axum_idempotent.peer.rs");
/// Connections to the database.
const CONNECTIONS: &str = "16";
/// The layer keeps answers by session, and keeps nothing without one. All requests share one
/// session: answers are found by session and key.
const SESSION: &str = "cookie: session=AAAAAAAAAAAAAAAAAAAAAA\r\n";

/// The built program.
pub(super) struct Installed(PathBuf);

impl Installed {
    /// Builds it once, into a directory beside this program.
    pub(super) fn get() -> Result<Installed, Error> {
        let directory = peers("axum-idempotent", &format!("{MANIFEST}{PROGRAM}"), build)?;
        Ok(Installed(
            directory.join("target/release/axum-idempotent-peer"),
        ))
    }

    /// Starts it on an empty database.
    pub(super) async fn serve(&self, database: &str) -> Result<Server, Error> {
        let (directory, address) = (Directory::temporary()?, free_address()?);
        let mut program = command(&self.0)?;
        program.args([&address, database, CONNECTIONS, &ANSWER_BYTES.to_string()]);
        let mut process = Process::start("axum-idempotent", program, directory.path())?;
        process.ready(&address).await?;
        let order = Request::order(ORDERS, 201).with_field(SESSION);
        let without_key = Request::order_without_key(ORDERS, 201);
        let server = Server {
            process,
            service: None,
            address,
            order,
            without_key,
            _directory: Some(directory),
        };
        server.replays("axum-idempotent").await?;
        Ok(server)
    }
}

fn build(directory: &Path) -> Result<(), Error> {
    std::fs::create_dir_all(directory.join("src"))?;
    std::fs::write(directory.join("Cargo.toml"), MANIFEST)?;
    std::fs::write(directory.join("src/main.rs"), PROGRAM)?;
    let mut build = command(cargo())?;
    // Uses its own target directory, even if this workspace's is elsewhere.
    build
        .args(["build", "--release", "--target-dir"])
        .arg(directory.join("target"))
        .current_dir(directory);
    run(&mut build)
}
