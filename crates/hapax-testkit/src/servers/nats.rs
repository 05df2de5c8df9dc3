//! One NATS server with JetStream.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::directory::Directory;
use super::port::Port;
use super::process::{Process, User, listening, wait_until};
use super::programs::{program, tool};
use crate::skipped;

/// A server that does not answer a simple question for this long is called down.
const PATIENCE: Duration = Duration::from_secs(1);

/// A running server. Ended when dropped, and when the process ends.
///
/// It keeps its streams in files, and has them again after a [`kill`](Nats::kill).
pub struct Nats {
    // In this order: the server ends before its directory is removed.
    process: Option<Process>,
    directory: Directory,
    port: Port,
    program: PathBuf,
}

impl Nats {
    /// Starts one with further lines of its configuration, such as `max_payload: 2MB`. Prints
    /// `SKIPPED` and returns `None` if NATS is not installed.
    ///
    /// # Panics
    ///
    /// If it does not start; the message has its log.
    pub fn start(settings: &str) -> Option<Nats> {
        // The one beside the build comes first: that of a Linux distribution may be years old.
        let Some(program) = tool("nats-server").or_else(|| program("nats-server")) else {
            skipped("there is no nats-server here (./check needs fetches it)");
            return None;
        };
        let directory = Directory::new();
        let (process, port) = listening("NATS", &directory, |port| {
            let text = configuration(port, &directory, settings);
            std::fs::write(file(&directory), text).expect("a directory of our own");
            launch(&program, &directory)
        });
        let mut nats = Nats {
            process: Some(process),
            directory,
            port,
            program,
        };
        nats.wait_until_ready();
        Some(nats)
    }

    /// The URL, without credentials.
    pub fn url(&self) -> String {
        format!("nats://{}", self.address())
    }

    /// The address it listens on.
    pub fn address(&self) -> SocketAddr {
        self.port.address()
    }

    /// The port it listens on, on the loopback interface.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// The directory of its configuration, log and streams.
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

    /// Whether it greets a client within a second. It does not while it is paused.
    pub fn is_up(&self) -> bool {
        self.greeting().is_some()
    }

    /// Kills it (SIGKILL), also if it is paused.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill();
        }
    }

    /// Starts it again after [`kill`](Nats::kill), with the same port, directory and settings.
    ///
    /// # Panics
    ///
    /// If it runs, or does not start.
    pub fn restart(&mut self) {
        assert!(self.process.is_none(), "it runs: kill it first");
        self.process = Some(launch(&self.program, &self.directory));
        self.wait_until_ready();
    }

    /// Stops all its threads (SIGSTOP). Its connections stay open. Returns when nothing runs.
    pub fn pause(&self) {
        self.process().pause();
    }

    /// Continues after [`pause`](Nats::pause) (SIGCONT).
    pub fn resume(&self) {
        self.process().resume();
    }

    fn process(&self) -> &Process {
        self.process.as_ref().expect("it runs")
    }

    /// Returns when it has read its streams and takes clients.
    fn wait_until_ready(&mut self) {
        // Another process may listen on its port, so it tells its name.
        let name = format!(
            "\"server_name\":{:?}",
            server_name(&self.port, &self.directory)
        );
        wait_until("NATS is ready", || {
            let ended = self.process.as_mut().and_then(Process::ended);
            assert!(ended.is_none(), "NATS does not start: {}", self.log());
            let greeting = self.greeting().unwrap_or_default();
            greeting.contains(&name) && greeting.contains("\"jetstream\":true")
        });
    }

    /// The line by which a server greets each client: facts about itself as JSON.
    fn greeting(&self) -> Option<String> {
        let stream = TcpStream::connect_timeout(&self.address(), PATIENCE).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).ok()?;
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).ok()?;
        line.starts_with("INFO ").then_some(line)
    }
}

impl Drop for Nats {
    fn drop(&mut self) {
        self.kill();
    }
}

fn launch(program: &Path, directory: &Directory) -> Process {
    let file = file(directory);
    // NATS does not refuse to run as root, and as this user it can read the program beside the
    // build, wherever that is.
    Process::start(
        program,
        &[OsStr::new("--config"), file.as_os_str()],
        User::current(),
        "KILL",
        directory,
    )
}

fn file(directory: &Directory) -> PathBuf {
    directory.path().join("nats.conf")
}

fn server_name(port: &Port, directory: &Directory) -> String {
    let directory = directory.path().file_name().unwrap_or_default();
    format!("{}-{}", directory.to_string_lossy(), port.number())
}

fn configuration(port: &Port, directory: &Directory, settings: &str) -> String {
    format!(
        "listen: \"{}\"\n\
         server_name: \"{}\"\n\
         jetstream {{ store_dir: {:?}, max_memory_store: 256MB, max_file_store: 4GB }}\n\
         {settings}\n",
        port.address(),
        server_name(port, directory),
        directory.path().join("jetstream"),
    )
}
