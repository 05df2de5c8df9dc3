//! PgBouncer in transaction mode.

use std::ffi::OsStr;
use std::fmt::Write;
use std::net::SocketAddr;

use super::Postgres;
use super::directory::Directory;
use super::port::Port;
use super::process::{Process, User, listening};
use super::programs::program;
use crate::skipped;

/// A pool in front of a [`Postgres`], which gives a connection to another client after every
/// transaction. Ended when dropped.
pub struct PgBouncer {
    // In this order: the process ends before its directory is removed.
    _process: Process,
    directory: Directory,
    port: Port,
}

impl PgBouncer {
    /// Starts one. Prints `SKIPPED` and returns `None` if it is not installed.
    pub fn in_front_of(postgres: &Postgres) -> Option<PgBouncer> {
        PgBouncer::with(postgres, &[])
    }

    /// Starts one with further settings of the section `[pgbouncer]`.
    pub fn with(postgres: &Postgres, settings: &[(&str, &str)]) -> Option<PgBouncer> {
        let Some(program) = program("pgbouncer") else {
            skipped("there is no pgbouncer here (Debian: apt-get install pgbouncer)");
            return None;
        };
        let directory = Directory::new();
        let (user, file) = (
            User::other_than_root(&["postgres", "nobody"]),
            directory.path().join("pgbouncer.ini"),
        );
        std::fs::write(directory.path().join("users"), "\"postgres\" \"\"\n")
            .expect("a directory of our own");
        let (process, port) = listening("PgBouncer", &directory, |port| {
            std::fs::write(&file, configuration(postgres, port, &directory, settings))
                .expect("a directory of our own");
            Process::start(
                &program,
                &[OsStr::new("--quiet"), file.as_os_str()],
                user,
                "KILL",
                &directory,
            )
        });
        Some(PgBouncer {
            _process: process,
            directory,
            port,
        })
    }

    /// The URL of a database, through the pool.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://postgres@{}/{database}", self.address())
    }

    /// The address it listens on.
    pub fn address(&self) -> SocketAddr {
        self.port.address()
    }

    /// The end of its log.
    pub fn log(&self) -> String {
        self.directory.log_tail()
    }
}

/// Asks the server for unknown users, and trusts them as the server does.
fn configuration(
    postgres: &Postgres,
    port: &Port,
    directory: &Directory,
    settings: &[(&str, &str)],
) -> String {
    let mut text = format!(
        "[databases]\n\
         * = host=127.0.0.1 port={} auth_user=postgres\n\
         [pgbouncer]\n\
         listen_addr = 127.0.0.1\n\
         listen_port = {}\n\
         unix_socket_dir =\n\
         auth_type = trust\n\
         auth_file = {}\n\
         admin_users = postgres\n\
         pool_mode = transaction\n\
         max_client_conn = 1000\n",
        postgres.port(),
        port.number(),
        directory.path().join("users").display(),
    );
    for (name, value) in settings {
        writeln!(text, "{name} = {value}").expect("a string takes everything");
    }
    text
}
