//! A private PostgreSQL cluster.

use std::ffi::OsStr;
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use super::directory::Directory;
use super::port::{IN_USE, PORTS_MAX, Port};
use super::process::{Process, User, run, signal, wait_until};
use super::programs::{OLDEST, postgres_programs};
use super::template;
use crate::skipped;

/// A running cluster, with the superuser `postgres`, who needs no password. Everything is as
/// durable as in production, because tests kill it.
///
/// Ended when dropped, and when the process ends.
pub struct Postgres {
    // In this order: the server ends before its directory is removed.
    process: Option<Process>,
    pub(super) programs: PathBuf,
    pub(super) user: User,
    /// Makes the directories of this cluster and of its standbys.
    pub(super) place: fn() -> Directory,
    directory: Directory,
    data: PathBuf,
    port: Port,
    databases: AtomicU32,
}

/// The settings of every cluster, unless a test overrides them.
const SETTINGS: &[(&str, &str)] = &[
    ("fsync", "on"),
    ("synchronous_commit", "on"),
    ("shared_buffers", "64MB"),
    ("max_connections", "200"),
    ("max_wal_senders", "10"),
    // For standbys that fall behind or come back.
    ("wal_keep_size", "256MB"),
    // In the cluster's own directory, so that a killed server leaves no shared memory behind.
    ("dynamic_shared_memory_type", "mmap"),
    ("log_line_prefix", "%m [%p] %q%u@%d "),
];

impl Postgres {
    /// Starts one. Prints `SKIPPED` and returns `None` if PostgreSQL is not installed.
    ///
    /// Clusters are copies of one that is made once per machine and version, so they have the same
    /// system identifier. See [`made_anew`](Postgres::made_anew).
    ///
    /// # Panics
    ///
    /// If it does not start; the message has its log.
    pub fn start() -> Option<Postgres> {
        Postgres::with(&[])
    }

    /// Starts one with further settings, as in `postgresql.conf`.
    pub fn with(settings: &[(&str, &str)]) -> Option<Postgres> {
        Postgres::built(settings, Directory::new, template::copy)
    }

    /// Starts one whose disk is memory, as are those of its standbys. A killed server finds the
    /// same data there as on disk, though a restarted machine would not, and it restarts in a tenth
    /// of a second. Not for measurements. Uses the disk if there is too little memory.
    pub fn in_memory(settings: &[(&str, &str)]) -> Option<Postgres> {
        let bounded = [
            &[("max_wal_size", "128MB"), ("wal_keep_size", "64MB")],
            settings,
        ]
        .concat();
        Postgres::built(&bounded, Directory::in_memory, template::copy)
    }

    /// Starts one with its own system identifier. Takes a second longer.
    pub fn made_anew() -> Option<Postgres> {
        Postgres::built(&[], Directory::new, template::make)
    }

    /// One cluster for all tests of this process. Each test should use its own
    /// [`database`](Postgres::database).
    pub fn shared() -> Option<&'static Postgres> {
        static SHARED: OnceLock<Option<Postgres>> = OnceLock::new();
        let shared = SHARED
            .get_or_init(|| postgres_programs().and_then(|_| Postgres::start()))
            .as_ref();
        if shared.is_none() {
            skipped(missing());
        }
        shared
    }

    fn built(
        settings: &[(&str, &str)],
        place: fn() -> Directory,
        fill: fn(&Path, User, &Path),
    ) -> Option<Postgres> {
        let Some(programs) = postgres_programs() else {
            skipped(missing());
            return None;
        };
        let mut postgres = Postgres::empty(programs, place);
        fill(&postgres.programs, postgres.user, postgres.data());
        postgres.write_settings(settings);
        postgres.launch();
        Some(postgres)
    }

    /// A cluster without data.
    pub(super) fn empty(programs: PathBuf, place: fn() -> Directory) -> Postgres {
        let (user, directory) = (User::other_than_root(&["postgres", "nobody"]), place());
        let sockets = directory.path().join("sockets");
        std::fs::create_dir(&sockets).expect("a directory of our own");
        user.give(&sockets);
        // The server makes its data directory here, or a program that runs as its user does.
        user.give(directory.path());
        let data = directory.path().join("data");
        Postgres {
            process: None,
            programs,
            user,
            place,
            directory,
            data,
            port: Port::free(),
            databases: AtomicU32::new(0),
        }
    }

    /// Makes a new, empty database.
    ///
    /// # Returns
    ///
    /// Its URL.
    pub fn database(&self) -> String {
        let name = format!("test_{}", self.databases.fetch_add(1, Ordering::Relaxed));
        self.psql("postgres", &format!("CREATE DATABASE {name}"));
        self.url(&name)
    }

    /// The URL of a database.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://postgres@{}/{database}", self.address())
    }

    /// The address it listens on.
    pub fn address(&self) -> SocketAddr {
        self.port.address()
    }

    /// The port it listens on, on the loopback interface.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// The directory of its Unix socket.
    pub fn sockets(&self) -> PathBuf {
        self.directory.path().join("sockets")
    }

    /// Its data directory.
    pub fn data(&self) -> &Path {
        &self.data
    }

    /// The process id of the postmaster.
    ///
    /// # Panics
    ///
    /// If it does not run.
    pub fn pid(&self) -> u32 {
        self.process.as_ref().expect("it runs").id()
    }

    /// The end of its log.
    pub fn log(&self) -> String {
        self.directory.log_tail()
    }

    /// Where its programs are, such as `pgbench`.
    pub fn programs(&self) -> &Path {
        &self.programs
    }

    /// Runs statements, each in its own transaction.
    ///
    /// # Returns
    ///
    /// Their results: a line per row, columns separated by `|`.
    ///
    /// # Panics
    ///
    /// If one fails.
    pub fn psql(&self, database: &str, sql: &str) -> String {
        self.try_psql(database, sql)
            .unwrap_or_else(|error| panic!("{error}\nin: {sql}"))
    }

    /// Runs statements as [`psql`](Postgres::psql) does, up to the first that fails.
    ///
    /// # Errors
    ///
    /// The message of psql.
    pub fn try_psql(&self, database: &str, sql: &str) -> Result<String, String> {
        let mut command = self.client("psql");
        command.args([
            "--no-psqlrc",
            "--quiet",
            "--no-align",
            "--tuples-only",
            "--set=ON_ERROR_STOP=1",
            "--file=-",
            "--dbname",
            database,
        ]);
        let mut psql = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("psql starts");
        let mut input = psql.stdin.take().expect("piped");
        let output = thread::scope(|scope| {
            // Writes while the output is read, since psql may answer before it has read everything.
            // If it ends early, its exit status shows that.
            scope.spawn(move || input.write_all(sql.as_bytes()));
            psql.wait_with_output().expect("psql can be read")
        });
        if output.status.success() {
            Ok(String::from_utf8_lossy(&output.stdout)
                .trim_end_matches('\n')
                .to_owned())
        } else {
            Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
        }
    }

    /// A PostgreSQL client program that connects to this server as its superuser, whatever the
    /// environment says.
    pub fn client(&self, name: &str) -> Command {
        let mut command = Command::new(self.programs.join(name));
        without_pg_variables(&mut command);
        command.env("PGCONNECT_TIMEOUT", "10");
        command.args([
            "--host=127.0.0.1",
            &format!("--port={}", self.port()),
            "--username=postgres",
        ]);
        command
    }

    /// Changes a setting permanently, without a restart.
    pub fn set(&self, name: &str, value: &str) {
        let value = value.replace('\'', "''");
        self.psql(
            "postgres",
            &format!("ALTER SYSTEM SET {name} = '{value}'; SELECT pg_reload_conf()"),
        );
    }

    /// Ends all connections to a database.
    ///
    /// # Returns
    ///
    /// How many there were.
    pub fn terminate_backends(&self, database: &str) -> usize {
        let sql = format!(
            "SELECT count(*) FILTER (WHERE pg_terminate_backend(pid)) FROM pg_stat_activity
             WHERE datname = '{database}' AND pid <> pg_backend_pid()"
        );
        self.psql("postgres", &sql).parse().expect("a count")
    }

    /// Kills all processes of the server (SIGKILL), as the loss of the machine would. Returns when
    /// none of them runs.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            // The postmaster first: it would treat the death of a child as a crash, and recover.
            process.kill();
        }
        let data = self.data().to_owned();
        wait_until("a killed server is gone", || {
            let left = working_in(&data);
            left.iter().for_each(|id| signal(*id, "KILL"));
            left.is_empty()
        });
    }

    /// Shuts it down in order, without waiting for its clients. With a standby, it waits until the
    /// standby has everything.
    pub fn stop(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.signal("INT");
            process.wait("PostgreSQL has shut down");
        }
    }

    /// Starts it again with the same data and port, after [`kill`](Postgres::kill) or
    /// [`stop`](Postgres::stop).
    ///
    /// # Panics
    ///
    /// If it runs, or does not start.
    pub fn start_again(&mut self) {
        self.assert_stopped();
        assert!(self.comes_up(), "PostgreSQL does not start: {}", self.log());
    }

    /// Starts it for the first time, on another port if the first one is in use.
    pub(super) fn launch(&mut self) {
        for _ in 0..PORTS_MAX {
            if self.comes_up() {
                return;
            }
            assert!(
                self.log().contains(IN_USE),
                "PostgreSQL does not start: {}",
                self.log()
            );
            self.port = Port::free();
        }
        panic!("no port is free for PostgreSQL: {}", self.log());
    }

    pub(super) fn assert_stopped(&self) {
        assert!(self.process.is_none(), "it runs: kill or stop it first");
    }

    fn comes_up(&mut self) -> bool {
        let (data, sockets) = (
            self.data.clone(),
            format!("unix_socket_directories={}", self.sockets().display()),
        );
        let port = format!("port={}", self.port());
        // On the command line and not in the configuration file, which is copied to standbys.
        let own = [
            "-c",
            "listen_addresses=127.0.0.1",
            "-c",
            &port,
            "-c",
            &sockets,
            "-D",
        ]
        .map(OsStr::new);
        let arguments = [own.as_slice(), &[data.as_os_str()]].concat();
        // On SIGQUIT it ends at once, together with its children.
        let mut process = Process::start(
            &self.programs.join("postgres"),
            &arguments,
            self.user,
            "QUIT",
            &self.directory,
        );
        let mut up = false;
        wait_until("PostgreSQL is up", || {
            up = is_ready(&data, process.id());
            up || process.ended().is_some()
        });
        self.process = up.then_some(process);
        up
    }

    fn write_settings(&self, settings: &[(&str, &str)]) {
        let path = self.data().join("postgresql.conf");
        let mut file = std::fs::File::options()
            .append(true)
            .open(path)
            .expect("a cluster has its settings");
        for (name, value) in SETTINGS.iter().chain(settings) {
            let value = value.replace('\'', "''");
            writeln!(file, "{name} = '{value}'").expect("a file can be written");
        }
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // Not an orderly shutdown, which can take seconds: its data is about to be removed.
        self.kill();
        remove_shared_memory(&self.data);
    }
}

fn missing() -> String {
    format!("there is no PostgreSQL {OLDEST} or newer here (Debian: apt-get install postgresql)")
}

/// Variables in the environment that are meant for another server must not apply to this one.
pub(super) fn without_pg_variables(command: &mut Command) {
    for (name, _) in
        std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("PG"))
    {
        command.env_remove(name);
    }
}

/// Whether the postmaster with this id accepts connections, according to its pid file: another
/// process may listen on its port.
fn is_ready(data: &Path, id: u32) -> bool {
    let Ok(file) = std::fs::read_to_string(data.join("postmaster.pid")) else {
        return false;
    };
    let mut lines = file.lines();
    lines.next() == Some(id.to_string().as_str())
        && lines.last().is_some_and(|status| status.trim() == "ready")
}

/// Removes the shared memory that a killed server leaves behind, which its next start would remove.
/// Its number is the last one on the line before the status.
fn remove_shared_memory(data: &Path) {
    let file = std::fs::read_to_string(data.join("postmaster.pid")).unwrap_or_default();
    if let Some(number) = file
        .lines()
        .nth(6)
        .and_then(|line| line.split_whitespace().last())
    {
        drop(run(Command::new("ipcrm").args(["--shmem-id", number])));
    }
}

/// The processes whose working directory is this one: every process of a server works in its data
/// directory.
fn working_in(data: &Path) -> Vec<u32> {
    // If the directory does not exist, no process is in it.
    let Ok(data) = data.canonicalize() else {
        return Vec::new();
    };
    let ids = std::fs::read_dir("/proc")
        .expect("a Linux system")
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    ids.filter(|id: &u32| {
        std::fs::read_link(format!("/proc/{id}/cwd")).is_ok_and(|directory| directory == data)
    })
    .collect()
}
