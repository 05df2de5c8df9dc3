//! One Kafka server.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::directory::Directory;
use super::port::Port;
use super::process::{Process, User, listening, run, wait_until};
use super::programs::{program, tool};
use crate::skipped;

#[cfg(feature = "harness")]
mod secured;

#[cfg(feature = "harness")]
pub use secured::SecuredKafka;

/// The line by which a server says that it takes clients.
const READY: &str = "Kafka Server started";

/// A running server, which is its own controller. Ended when dropped, and when the process ends.
///
/// It keeps its topics in files, and has them again after a [`kill`](Kafka::kill).
pub struct Kafka {
    // In this order: the server ends before its directory is removed.
    process: Option<Process>,
    directory: Directory,
    port: Port,
    /// Where it talks to itself. It is reserved for as long as the server lives.
    _controller: Port,
    programs: Programs,
}

/// Where the programs are that `./check needs` puts beside the build.
#[derive(Clone)]
struct Programs {
    java: PathBuf,
    tools: PathBuf,
}

impl Kafka {
    /// Starts one with further lines of its configuration, such as `num.partitions=2`. Prints
    /// `SKIPPED` and returns `None` if Kafka is not installed.
    ///
    /// # Panics
    ///
    /// If it does not start; the message has its log.
    pub fn start(settings: &str) -> Option<Kafka> {
        let (Some(java), Some(formatted)) =
            (program("java"), tool("kafka/formatted/meta.properties"))
        else {
            skipped("there is no Kafka here (./check needs fetches it, and needs java and mvn)");
            return None;
        };
        let tools = formatted.ancestors().nth(2).expect("two directories");
        let programs = Programs {
            java,
            tools: tools.to_owned(),
        };
        let directory = Directory::new();
        programs.format(&directory);
        let mut controller = None;
        let (process, port) = listening("Kafka", &directory, |port| {
            let own = controller.insert(Port::free());
            let text = configuration(port, own, &directory, settings);
            std::fs::write(file(&directory), text).expect("a directory of our own");
            programs.launch(&directory)
        });
        let mut kafka = Kafka {
            process: Some(process),
            directory,
            port,
            _controller: controller.expect("it was started"),
            programs,
        };
        kafka.wait_until_ready(0);
        Some(kafka)
    }

    /// Host and port, as clients want it.
    pub fn bootstrap(&self) -> String {
        self.address().to_string()
    }

    /// The address it listens on.
    pub fn address(&self) -> SocketAddr {
        self.port.address()
    }

    /// The directory of its configuration, log and topics.
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

    /// Kills it (SIGKILL), also if it is paused.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill();
        }
    }

    /// Starts it again after [`kill`](Kafka::kill), with the same port, directory and settings.
    ///
    /// # Panics
    ///
    /// If it runs, or does not start.
    pub fn restart(&mut self) {
        assert!(self.process.is_none(), "it runs: kill it first");
        let starts = self.starts();
        self.process = Some(self.programs.launch(&self.directory));
        self.wait_until_ready(starts);
    }

    /// Stops all its threads (SIGSTOP). Its connections stay open. Returns when nothing runs.
    pub fn pause(&self) {
        self.process().pause();
    }

    /// Continues after [`pause`](Kafka::pause) (SIGCONT).
    pub fn resume(&self) {
        self.process().resume();
    }

    /// What the console consumer of Kafka, which is written in Java, reads of a topic from its
    /// beginning under `read_committed`: of each message its headers, `NAME:VALUE` with commas, and
    /// its payload, with a tab between. A reading ends when nothing more has come for three seconds;
    /// it is repeated a few times if there is less than is expected.
    ///
    /// # Panics
    ///
    /// If it fails; the message has its output.
    pub fn read_by_java(&self, topic: &str, expected: usize) -> Vec<String> {
        let mut tries = 0;
        loop {
            let output = run(self
                .client("org.apache.kafka.tools.consumer.ConsoleConsumer", topic)
                .args(["--from-beginning", "--isolation-level", "read_committed"])
                .args(["--property", "print.headers=true"])
                .args(["--timeout-ms", "3000"]));
            let output = output.unwrap_or_else(|error| panic!("{error}"));
            tries += 1;
            if output.lines().count() >= expected || tries == 5 {
                return output.lines().map(str::to_owned).collect();
            }
        }
    }

    /// Has the console producer of Kafka write messages without keys and headers.
    ///
    /// # Panics
    ///
    /// If it fails; the message has its output.
    pub fn write_by_java(&self, topic: &str, payloads: &[&str]) {
        let input = self.directory.path().join("input");
        std::fs::write(&input, payloads.join("\n")).expect("a directory of our own");
        let mut producer = self.client("org.apache.kafka.tools.ConsoleProducer", topic);
        producer.stdin(File::open(input).expect("a file of our own"));
        let ended = producer.output().expect("java can be started");
        assert!(
            ended.status.success(),
            "{}",
            String::from_utf8_lossy(&ended.stderr)
        );
    }

    /// Gives it a user for SASL, with SCRAM, by a client with these settings.
    ///
    /// # Panics
    ///
    /// If it fails; the message has its output.
    pub fn add_user(&self, name: &str, password: &str, client: &str) {
        let file = self.directory.path().join("client.properties");
        std::fs::write(&file, client).expect("a directory of our own");
        // Not both in one go: it takes them for a mistake.
        for mechanism in ["SCRAM-SHA-256", "SCRAM-SHA-512"] {
            let added = run(Command::new(&self.programs.java)
                .args(self.programs.options())
                .arg("kafka.admin.ConfigCommand")
                .args(["--bootstrap-server", &self.bootstrap(), "--command-config"])
                .arg(&file)
                .args(["--alter", "--entity-type", "users", "--entity-name", name])
                .args([
                    "--add-config",
                    &format!("{mechanism}=[password={password}]"),
                ]));
            added.unwrap_or_else(|error| panic!("{error}"));
        }
    }

    /// A program of Kafka's own.
    fn client(&self, class: &str, topic: &str) -> Command {
        let mut command = Command::new(&self.programs.java);
        command
            .args(self.programs.options())
            .arg(class)
            .args(["--bootstrap-server", &self.bootstrap()])
            .args(["--topic", topic]);
        command
    }

    fn process(&self) -> &Process {
        self.process.as_ref().expect("it runs")
    }

    /// How often it has become ready.
    fn starts(&self) -> usize {
        let log = std::fs::read_to_string(self.directory.path().join("log")).unwrap_or_default();
        log.matches(READY).count()
    }

    /// Returns when it has become ready once more than so many times.
    fn wait_until_ready(&mut self, starts: usize) {
        wait_until("Kafka is ready", || {
            let ended = self.process.as_mut().and_then(Process::ended);
            assert!(ended.is_none(), "Kafka does not start: {}", self.log());
            self.starts() > starts
        });
    }
}

impl Drop for Kafka {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Programs {
    /// Gives a server the directory of an empty one.
    fn format(&self, directory: &Directory) {
        let data = data(directory);
        std::fs::create_dir(&data).expect("a directory of our own");
        let formatted = std::fs::read_dir(self.tools.join("formatted"));
        for entry in formatted.expect("a directory with files").flatten() {
            let copied = std::fs::copy(entry.path(), data.join(entry.file_name()));
            copied.expect("a file can be copied");
        }
    }

    fn launch(&self, directory: &Directory) -> Process {
        let mut arguments = self.options();
        arguments.push("kafka.Kafka".into());
        arguments.push(file(directory).into());
        let arguments: Vec<&OsStr> = arguments.iter().map(OsString::as_os_str).collect();
        // Kafka does not refuse to run as root, and as this user it can read its programs beside
        // the build, wherever that is.
        Process::start(&self.java, &arguments, User::current(), "KILL", directory)
    }

    /// For a small server that starts quickly. The archive has its classes; without it, or with
    /// that of another Java, the start takes longer.
    fn options(&self) -> Vec<OsString> {
        let mut archive = OsString::from("-XX:SharedArchiveFile=");
        archive.push(self.tools.join("classes.jsa"));
        let mut options: Vec<OsString> = [
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-Xmx192m",
            "-Xshare:auto",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            "-Dorg.slf4j.simpleLogger.log.kafka.server.KafkaRaftServer=info",
        ]
        .map(OsString::from)
        .into();
        options.push(archive);
        options.push("-cp".into());
        options.push(self.tools.join("jars/*").into());
        options
    }
}

fn file(directory: &Directory) -> PathBuf {
    directory.path().join("server.properties")
}

fn data(directory: &Directory) -> PathBuf {
    directory.path().join("data")
}

fn configuration(port: &Port, controller: &Port, directory: &Directory, settings: &str) -> String {
    let (port, controller) = (port.address(), controller.address());
    let data = data(directory);
    let data = data.display();
    // A server that was killed may come back when its session has ended. Else it would wait.
    format!(
        "process.roles=broker,controller\n\
         node.id=1\n\
         controller.quorum.voters=1@{controller}\n\
         controller.listener.names=CONTROLLER\n\
         listeners=PLAINTEXT://{port},CONTROLLER://{controller}\n\
         advertised.listeners=PLAINTEXT://{port}\n\
         log.dirs={data}\n\
         broker.session.timeout.ms=500\n\
         broker.heartbeat.interval.ms=100\n\
         controller.quorum.election.timeout.ms=100\n\
         controller.quorum.election.backoff.max.ms=100\n\
         controller.quorum.fetch.timeout.ms=200\n\
         num.network.threads=2\n\
         num.io.threads=4\n\
         background.threads=2\n\
         num.partitions=4\n\
         log.cleaner.enable=false\n\
         log.index.size.max.bytes=262144\n\
         offsets.topic.num.partitions=2\n\
         offsets.topic.replication.factor=1\n\
         transaction.state.log.num.partitions=2\n\
         transaction.state.log.replication.factor=1\n\
         transaction.state.log.min.isr=1\n\
         group.initial.rebalance.delay.ms=0\n\
         group.min.session.timeout.ms=500\n\
         {settings}\n"
    )
}
