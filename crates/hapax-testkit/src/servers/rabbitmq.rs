//! One RabbitMQ server.

use std::ffi::OsStr;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use super::directory::Directory;
use super::port::Port;
use super::process::{Process, User, listening, wait_long_until};
use super::programs::program;
use crate::skipped;

/// Where Debian keeps the script that starts a node. The one on the path insists on being root.
const DEBIAN: &str = "/usr/lib/rabbitmq/bin/rabbitmq-server";

/// It has to load thousands of modules, which a busy machine takes its time for.
const START_MAX: Duration = Duration::from_secs(180);

const MISSING: &str = "there is no RabbitMQ here (Debian: apt-get install rabbitmq-server)";

/// A running server. Ended when dropped, and when the process ends.
///
/// It takes seconds to start. Tests share one, each with a virtual host of its own: see
/// [`shared`](RabbitMq::shared) and, for those that kill it, [`mortal`](RabbitMq::mortal).
pub struct RabbitMq {
    // In this order: the servers end before their directory is removed.
    process: Option<Process>,
    /// Tells Erlang programs where each other are. The one that a machine may have is not asked.
    _epmd: Process,
    epmd_port: Port,
    directory: Directory,
    port: Port,
    /// What Erlang programs talk to the server by.
    distribution: Port,
    user: User,
    programs: Programs,
    virtual_hosts: AtomicU32,
}

struct Programs {
    server: PathBuf,
    epmd: PathBuf,
    erl_call: PathBuf,
}

impl RabbitMq {
    /// Starts one. Prints `SKIPPED` and returns `None` if RabbitMQ is not installed.
    ///
    /// # Panics
    ///
    /// If it does not start; the message has its log.
    pub fn start() -> Option<RabbitMq> {
        let Some(programs) = Programs::find() else {
            skipped(MISSING);
            return None;
        };
        // Its disk is memory: a killed server finds the same data there as on disk.
        let directory = Directory::in_memory();
        let user = User::other_than_root(&["rabbitmq", "nobody"]);
        user.give(directory.path());
        write_cookie(directory.path(), user);
        std::fs::write(directory.path().join("plugins"), "[].").expect("a directory of our own");
        std::fs::write(directory.path().join("rabbitmq.conf"), SETTINGS)
            .expect("a directory of our own");
        let (epmd, epmd_port) = listening("epmd", &directory, |port| {
            let number = port.number().to_string();
            let arguments = ["-address", "127.0.0.1", "-port", &number].map(OsStr::new);
            Process::start(&programs.epmd, &arguments, user, "KILL", &directory)
        });
        let (port, distribution) = (Port::free(), Port::free());
        let mut rabbit = RabbitMq {
            process: None,
            _epmd: epmd,
            epmd_port,
            directory,
            port,
            distribution,
            user,
            programs,
            virtual_hosts: AtomicU32::new(0),
        };
        rabbit.restart();
        Some(rabbit)
    }

    /// One server for all tests of this process that leave it alive. Each test should use its own
    /// [`virtual_host`](RabbitMq::virtual_host).
    pub fn shared() -> Option<&'static RabbitMq> {
        static SHARED: OnceLock<Option<RabbitMq>> = OnceLock::new();
        let shared = SHARED.get_or_init(|| Programs::find().and_then(|_| RabbitMq::start()));
        if shared.is_none() {
            skipped(MISSING);
        }
        shared.as_ref()
    }

    /// One server for all tests of this process that kill or pause it, one test after the other. It
    /// runs when it is handed out.
    pub fn mortal() -> Option<MutexGuard<'static, RabbitMq>> {
        static MORTAL: OnceLock<Option<Mutex<RabbitMq>>> = OnceLock::new();
        let start = || Programs::find().and_then(|_| RabbitMq::start());
        let Some(server) = MORTAL.get_or_init(|| start().map(Mutex::new)) else {
            skipped(MISSING);
            return None;
        };
        // A test that failed may have left it dead or paused, and says so by itself.
        let mut server = server.lock().unwrap_or_else(PoisonError::into_inner);
        match &server.process {
            Some(process) => process.resume(),
            None => server.restart(),
        }
        Some(server)
    }

    /// Makes a new, empty virtual host.
    ///
    /// # Returns
    ///
    /// Its URL, with the user `guest`, who may do everything there.
    ///
    /// # Panics
    ///
    /// If the server does not make one.
    pub fn virtual_host(&self) -> String {
        let name = format!(
            "test_{}",
            self.virtual_hosts.fetch_add(1, Ordering::Relaxed)
        );
        let made = self.erlang(&format!(
            "rabbit_vhost:add(<<\"{name}\">>, <<\"test\">>), \
             rabbit_auth_backend_internal:set_permissions(<<\"guest\">>, <<\"{name}\">>, \
             <<\".*\">>, <<\".*\">>, <<\".*\">>, <<\"test\">>)."
        ));
        assert_eq!(made, "{ok, ok}", "the virtual host {name}: {}", self.log());
        self.url(&name)
    }

    /// The URL of a virtual host, with the user `guest`.
    pub fn url(&self, virtual_host: &str) -> String {
        format!("amqp://guest:guest@{}/{virtual_host}", self.address())
    }

    /// The address it listens on.
    pub fn address(&self) -> SocketAddr {
        self.port.address()
    }

    /// The port it listens on, on the loopback interface.
    pub fn port(&self) -> u16 {
        self.port.number()
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

    /// Has on disk which queues there are. A server that is killed soon after a declaration may have
    /// forgotten it: it begins a quorum queue anew, empty, and does not know a classic one.
    ///
    /// # Panics
    ///
    /// If that fails.
    pub fn write_declarations(&self) {
        let written = self.erlang(
            "mnesia:sync_log(), mnesia:dump_log(), [dets:sync(Table) || Table <- dets:all()], ok.",
        );
        assert_eq!(written, "{ok, ok}");
    }

    /// Has the server evaluate Erlang expressions, which end with a dot.
    ///
    /// # Returns
    ///
    /// What `erl_call` prints: `{ok, VALUE}` if all went well.
    pub fn erlang(&self, expressions: &str) -> String {
        // A node must not have the name of another, also of one that has just ended.
        static NAMES: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "asking-{}-{}",
            std::process::id(),
            NAMES.fetch_add(1, Ordering::Relaxed)
        );
        let mut command = self.user.command(&self.programs.erl_call);
        command
            .env("HOME", self.directory.path())
            .env("ERL_EPMD_PORT", self.epmd_port.number().to_string())
            .args([
                "-h",
                &name,
                "-c",
                &cookie(self.directory.path()),
                "-address",
            ])
            .arg(format!("127.0.0.1:{}", self.distribution.number()))
            .arg("-e");
        let mut asking = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("erl_call starts");
        let mut input = asking.stdin.take().expect("piped");
        // It may end early, when nobody listens. Its output shows that.
        drop(writeln!(input, "{expressions}"));
        drop(input);
        let output = asking.wait_with_output().expect("erl_call can be read");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// Kills it (SIGKILL), also if it is paused.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill();
        }
    }

    /// Starts it again after [`kill`](RabbitMq::kill), with the same port, name and data.
    ///
    /// # Panics
    ///
    /// If it runs, or does not start.
    pub fn restart(&mut self) {
        assert!(self.process.is_none(), "it runs: kill it first");
        let ports = [&self.port, &self.distribution, &self.epmd_port];
        self.process = Some(launch(&self.programs, &self.directory, self.user, ports));
        self.wait_until_ready();
    }

    /// Stops all its threads (SIGSTOP). Its connections stay open. Returns when nothing runs.
    pub fn pause(&self) {
        self.process().pause();
    }

    /// Continues after [`pause`](RabbitMq::pause) (SIGCONT).
    pub fn resume(&self) {
        self.process().resume();
    }

    fn process(&self) -> &Process {
        self.process.as_ref().expect("it runs")
    }

    /// Returns when it has read its queues and takes clients. Only this server knows the cookie.
    fn wait_until_ready(&mut self) {
        wait_long_until("RabbitMQ is ready", START_MAX, || {
            let ended = self.process.as_mut().and_then(Process::ended);
            assert!(ended.is_none(), "RabbitMQ does not start: {}", self.log());
            // Asked only when it listens: each question is a process.
            TcpStream::connect(self.address()).is_ok()
                && self.erlang("rabbit:is_running().") == "{ok, true}"
        });
    }
}

impl Drop for RabbitMq {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Programs {
    fn find() -> Option<Programs> {
        let debian = Path::new(DEBIAN);
        Some(Programs {
            server: match debian.is_file() {
                true => debian.to_owned(),
                false => program("rabbitmq-server")?,
            },
            epmd: program("epmd")?,
            erl_call: program("erl_call")?,
        })
    }
}

const SETTINGS: &str = "log.console = true\nlog.console.level = warning\nlog.file = false\n";

fn launch(
    programs: &Programs,
    directory: &Directory,
    user: User,
    [port, distribution, epmd]: [&Port; 3],
) -> Process {
    let path = directory.path();
    let node = path.file_name().unwrap_or_default().to_string_lossy();
    let variables = [
        ("PATH", "/usr/sbin:/usr/bin:/sbin:/bin".to_owned()),
        ("LANG", "C.UTF-8".to_owned()),
        ("HOME", path.display().to_string()),
        // Erlang would start a daemon that outlives everything.
        ("ERL_AFLAGS", "-start_epmd false".to_owned()),
        ("ERL_EPMD_ADDRESS", "127.0.0.1".to_owned()),
        ("ERL_EPMD_PORT", epmd.number().to_string()),
        ("RABBITMQ_NODENAME", format!("{node}@localhost")),
        ("RABBITMQ_NODE_IP_ADDRESS", "127.0.0.1".to_owned()),
        ("RABBITMQ_NODE_PORT", port.number().to_string()),
        ("RABBITMQ_DIST_PORT", distribution.number().to_string()),
        ("RABBITMQ_MNESIA_BASE", format!("{}/data", path.display())),
        ("RABBITMQ_LOG_BASE", path.display().to_string()),
        (
            "RABBITMQ_CONFIG_FILE",
            format!("{}/rabbitmq", path.display()),
        ),
        ("RABBITMQ_CONF_ENV_FILE", "/dev/null".to_owned()),
        (
            "RABBITMQ_ENABLED_PLUGINS_FILE",
            format!("{}/plugins", path.display()),
        ),
        (
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS",
            "+S 2:2 -kernel inet_dist_use_interface {127,0,0,1}".to_owned(),
        ),
        // Then the script becomes the server, in place of watching over it.
        ("RABBITMQ_ALLOW_INPUT", "1".to_owned()),
    ];
    // Nothing that the environment says of another server applies to this one.
    let mut arguments = vec!["-i".to_owned()];
    arguments.extend(variables.map(|(name, value)| format!("{name}={value}")));
    arguments.push(programs.server.display().to_string());
    arguments.push("-noinput".to_owned());
    let arguments: Vec<&OsStr> = arguments.iter().map(OsStr::new).collect();
    let env = program("env").expect("the command env");
    Process::start(&env, &arguments, user, "KILL", directory)
}

/// Writes down what Erlang programs know each other by.
fn write_cookie(directory: &Path, user: User) {
    let file = directory.join(".erlang.cookie");
    std::fs::write(&file, cookie(directory)).expect("a directory of our own");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o400))
        .expect("a file of our own");
    user.give(&file);
}

fn cookie(directory: &Path) -> String {
    let name = directory.file_name().unwrap_or_default();
    format!("cookie-of-{}", name.to_string_lossy())
}
