//! One Redis or Valkey server.

use std::ffi::{OsStr, OsString};
use std::fmt::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use super::protocol::{Connection, Reply};
use crate::servers::directory::Directory;
use crate::servers::port::Port;
use crate::servers::process::{GUARD, Process, User, listening, wait_until};
use crate::servers::programs::{program, tool};
use crate::skipped;

/// A server that does not answer a simple question for this long is called down.
const PATIENCE: Duration = Duration::from_secs(1);

/// Settings of every server, unless a test overrides them. The other settings have the server's own
/// defaults.
const SETTINGS: &[(&str, &str)] = &[
    ("bind", "127.0.0.1"),
    // Nothing is kept unless a test asks for it.
    ("save", ""),
    ("appendonly", "no"),
];

/// The program that a server runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RedisProgram {
    /// `redis-server`.
    Redis,
    /// The oldest that Hapax supports, 6.2, which `./check needs` puts beside the build.
    OldestRedis,
    /// `valkey-server`, which `./check needs` puts beside the build.
    Valkey,
}

impl RedisProgram {
    fn name(self) -> &'static str {
        match self {
            RedisProgram::Redis => "redis-server",
            RedisProgram::OldestRedis => "redis-server-6.2",
            RedisProgram::Valkey => "valkey-server",
        }
    }

    /// Prints `SKIPPED` and returns `None` if it is not installed.
    pub(super) fn find(self) -> Option<PathBuf> {
        let found = tool(self.name()).or_else(|| program(self.name()));
        if found.is_none() {
            skipped(match self {
                RedisProgram::Redis => {
                    "there is no redis-server here (Debian: apt-get install redis-server)"
                }
                RedisProgram::OldestRedis => {
                    "there is no redis-server-6.2 here (./check needs fetches it)"
                }
                RedisProgram::Valkey => "there is no valkey-server here (./check needs fetches it)",
            });
        }
        found
    }
}

/// A running server. Ended when dropped, and when the process ends.
///
/// By default it keeps nothing on disk. With the setting `appendonly` a killed server keeps every
/// write that it has confirmed only if `appendfsync` is `always`: with `everysec`, the default, it
/// may confirm a write up to two seconds before the system has it.
pub struct Redis {
    // In this order: the server ends before its directory is removed.
    process: Option<Process>,
    directory: Directory,
    port: Port,
    /// The server's program and arguments, for `env`.
    command: Vec<OsString>,
    password: Option<String>,
}

impl Redis {
    /// Starts one with further settings, as in `redis.conf`. Prints `SKIPPED` and returns `None` if
    /// Redis is not installed.
    ///
    /// # Panics
    ///
    /// If it does not start; the message has its log.
    pub fn start(settings: &[(&str, &str)]) -> Option<Redis> {
        Redis::start_with(RedisProgram::Redis, settings, &[])
    }

    /// Starts a certain program, with further variables in its environment. Those of
    /// [`faketime`](crate::servers::faketime) give it another clock.
    pub fn start_with(
        program: RedisProgram,
        settings: &[(&str, &str)],
        environment: &[(String, String)],
    ) -> Option<Redis> {
        let variables = environment.iter().map(variable);
        let command = variables.chain([program.find()?.into()]).collect();
        let mut redis = Redis::launch(command, &[], |port| configuration(port, settings));
        redis.password = password(settings);
        redis.wait_until_ready();
        Some(redis)
    }

    /// One server for all tests of this process. Each test should use keys of its own.
    pub fn shared() -> Option<&'static Redis> {
        static SHARED: OnceLock<Option<Redis>> = OnceLock::new();
        // Asked by every test, so that every test prints that it was skipped.
        RedisProgram::Redis.find()?;
        SHARED.get_or_init(|| Redis::start(&[])).as_ref()
    }

    /// Starts a server of a group.
    pub(super) fn in_group(
        program: &Path,
        options: &[&str],
        configuration: impl FnMut(&Port) -> String,
    ) -> Redis {
        let mut redis = Redis::launch(vec![program.into()], options, configuration);
        redis.wait_until_ready();
        redis
    }

    fn launch(
        mut command: Vec<OsString>,
        options: &[&str],
        mut configuration: impl FnMut(&Port) -> String,
    ) -> Redis {
        let directory = Directory::new();
        let file = directory.path().join("redis.conf");
        command.push(file.clone().into());
        command.extend(options.iter().map(OsString::from));
        let (process, port) = listening("Redis", &directory, |port| {
            std::fs::write(&file, configuration(port)).expect("a directory of our own");
            start(&command, &directory)
        });
        Redis {
            process: Some(process),
            directory,
            port,
            command,
            password: None,
        }
    }

    /// The URL, with the password of the setting `requirepass`, if there is one.
    pub fn url(&self) -> String {
        match &self.password {
            Some(password) => format!("redis://:{password}@{}", self.address()),
            None => format!("redis://{}", self.address()),
        }
    }

    /// The address it listens on.
    pub fn address(&self) -> SocketAddr {
        self.port.address()
    }

    /// The port it listens on, on the loopback interface.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// The directory of its data. The append-only files are in its directory `appendonlydir`.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// The process id.
    ///
    /// # Panics
    ///
    /// If it does not run.
    pub fn pid(&self) -> u32 {
        self.process().id()
    }

    /// The end of its log.
    pub fn log(&self) -> String {
        self.directory.log_tail()
    }

    /// Runs a command, on a connection of its own. So `WAIT` does not wait for an earlier command:
    /// use [`wait_for_replicas`](Redis::wait_for_replicas).
    ///
    /// # Returns
    ///
    /// A line per value, as redis-cli prints it into a pipe. A null is an empty line.
    ///
    /// # Panics
    ///
    /// If it fails.
    pub fn cli(&self, command: &[&str]) -> String {
        self.try_cli(command)
            .unwrap_or_else(|error| panic!("{error}\nin: {command:?}"))
    }

    /// Runs a command as [`cli`](Redis::cli) does.
    ///
    /// # Errors
    ///
    /// The server's error message, or why it could not be asked.
    pub fn try_cli(&self, command: &[&str]) -> Result<String, String> {
        self.call(command, GUARD).map(|reply| reply.text())
    }

    /// Runs a command that takes no time, and gives up soon: the server may be paused.
    pub(super) fn ask(&self, command: &[&str]) -> Result<Reply, String> {
        self.call(command, PATIENCE)
    }

    /// Runs a command whose arguments may be any bytes.
    pub(super) fn call(
        &self,
        command: &[impl AsRef<[u8]>],
        patience: Duration,
    ) -> Result<Reply, String> {
        self.connect(patience)?.call(command)
    }

    fn connect(&self, patience: Duration) -> Result<Connection, String> {
        let mut connection =
            Connection::open(self.address(), patience).map_err(|error| error.to_string())?;
        if let Some(password) = &self.password {
            connection.call(&["AUTH", password])?;
        }
        Ok(connection)
    }

    /// Returns when this many replicas have everything that was written here so far. Then they also
    /// get what is written from now on: a replica that calls itself in sync may wait up to a second
    /// for that.
    ///
    /// # Panics
    ///
    /// If they do not have it within a minute.
    pub fn wait_for_replicas(&self, count: usize) {
        // WAIT waits for what was written before the last command of its own connection.
        let mut connection = self.connect(2 * GUARD).expect("it is up");
        let mut wait = |count: usize, patience: Duration| -> usize {
            let patience = patience.as_millis().to_string();
            connection.call(&["PING"]).expect("it is up");
            let command = ["WAIT", &count.to_string(), &patience];
            let replicas = connection.call(&command).expect("it is up").text();
            replicas.parse().expect("a count")
        };
        // Waits in vain for more replicas than there are. That sends the replicas something new to
        // confirm, the question what they have, and writes nothing to the data.
        wait(usize::from(u16::MAX), Duration::from_millis(1));
        let replicas = wait(count, GUARD);
        assert!(replicas >= count, "{replicas} replicas of {count}");
    }

    /// Whether it answers within a second. It does not while it is paused or reads its data.
    pub fn is_up(&self) -> bool {
        self.ask(&["PING"])
            .is_ok_and(|reply| reply.bytes() == b"PONG")
    }

    /// Whether it has a process, which may be paused.
    pub(super) fn is_running(&self) -> bool {
        self.process.is_some()
    }

    /// Kills it (SIGKILL), also if it is paused.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill();
            remove_faketime_memory(process.id());
        }
    }

    /// Starts it again after [`kill`](Redis::kill), with the same port, directory and settings.
    /// Settings that were changed meanwhile are lost, unless `CONFIG REWRITE` has written them.
    ///
    /// # Panics
    ///
    /// If it runs, or does not start.
    pub fn restart(&mut self) {
        assert!(self.process.is_none(), "it runs: kill it first");
        self.process = Some(start(&self.command, &self.directory));
        self.wait_until_ready();
    }

    /// Stops all its threads (SIGSTOP). Its connections stay open. Returns when nothing runs.
    pub fn pause(&self) {
        self.process().pause();
    }

    /// Continues after [`pause`](Redis::pause) (SIGCONT).
    pub fn resume(&self) {
        self.process().resume();
    }

    fn process(&self) -> &Process {
        self.process.as_ref().expect("it runs")
    }

    /// Returns when it has read its data.
    fn wait_until_ready(&mut self) {
        let id = self.pid();
        wait_until("Redis is ready", || {
            let ended = self.process.as_mut().and_then(Process::ended);
            assert!(ended.is_none(), "Redis does not start: {}", self.log());
            self.is_ready(id)
        });
    }

    /// Whether the server with this process id answers: another process may listen on its port.
    fn is_ready(&self, id: u32) -> bool {
        let Ok(information) = self.ask(&["INFO"]) else {
            return false;
        };
        let information = information.text();
        let mut lines = information.lines();
        let is_own = lines.any(|line| line == format!("process_id:{id}"));
        is_own && !lines.any(|line| line == "loading:1")
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Sets the variables by `env` and not for this call: they must not apply to the program that
/// starts the server. libfaketime names its shared memory after the process id, which both have.
fn start(command: &[OsString], directory: &Directory) -> Process {
    let arguments: Vec<&OsStr> = command.iter().map(OsString::as_os_str).collect();
    Process::start(
        Path::new("env"),
        &arguments,
        // Redis does not refuse to run as root. It can read the files that a test names in its
        // settings, and the program beside the build, wherever they are.
        User::current(),
        "KILL",
        directory,
    )
}

/// A variable as `env` takes it.
///
/// Debian's Redis allocates by jemalloc, which asks for the time in its first call. That first call
/// comes from libfaketime while it starts, and both would wait for each other. So the allocator of
/// the C library comes first.
fn variable((name, value): &(String, String)) -> OsString {
    if name == "LD_PRELOAD" {
        format!("{name}={value}:libc.so.6").into()
    } else {
        format!("{name}={value}").into()
    }
}

/// The text of a configuration file. The last line with a name counts.
pub(super) fn configuration(port: &Port, settings: &[(&str, &str)]) -> String {
    let mut text = format!("port {}\n", port.number());
    for (name, value) in SETTINGS.iter().chain(settings) {
        let value = if value.is_empty() { "\"\"" } else { value };
        writeln!(text, "{name} {value}").expect("a string takes everything");
    }
    text
}

fn password(settings: &[(&str, &str)]) -> Option<String> {
    let (_, password) = settings
        .iter()
        .rev()
        .find(|(name, _)| *name == "requirepass")?;
    Some((*password).to_owned())
}

/// Removes the shared memory that libfaketime leaves behind in a killed process.
fn remove_faketime_memory(id: u32) {
    for name in ["faketime_shm", "sem.faketime_sem"] {
        drop(std::fs::remove_file(format!("/dev/shm/{name}_{id}")));
    }
}
