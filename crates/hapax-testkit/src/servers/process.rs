//! Server processes that end with this process.

use std::ffi::OsStr;
use std::io;
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use super::directory::Directory;
use super::port::{IN_USE, PORTS_MAX, Port};

/// Long enough for a slow machine. Only a broken test waits this long.
pub(super) const GUARD: Duration = Duration::from_secs(60);

/// A server process. Killed and reaped when dropped.
pub(super) struct Process {
    child: Child,
}

impl Process {
    /// Starts it as `user`. Its output goes to the log of its directory. `death_signal` is the signal
    /// it gets when this process ends.
    pub(super) fn start(
        program: &Path,
        arguments: &[&OsStr],
        user: User,
        death_signal: &str,
        directory: &Directory,
    ) -> Process {
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", death_signal])
            .args(user.options())
            .arg("--")
            .arg(program)
            .args(arguments);
        command
            .stdin(Stdio::null())
            .stdout(directory.log())
            .stderr(directory.log());
        command.current_dir(directory.path());
        Process {
            child: born(command)
                .unwrap_or_else(|error| panic!("{} cannot be started: {error}", program.display())),
        }
    }

    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Its exit status, if it has ended.
    pub(super) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("a child can be asked for")
    }

    pub(super) fn signal(&self, name: &str) {
        // The id is still valid, since the process has not been reaped.
        signal(self.id(), name);
    }

    /// Stops all its threads (SIGSTOP). Its connections stay open. Returns when nothing runs.
    pub(super) fn pause(&self) {
        self.signal("STOP");
        wait_until("a paused server stands still", || self.is_paused());
    }

    /// Continues after [`pause`](Process::pause) (SIGCONT).
    pub(super) fn resume(&self) {
        self.signal("CONT");
    }

    fn is_paused(&self) -> bool {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.id()))
            .expect("a process that is not reaped");
        tasks.flatten().all(|task| {
            let status = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            // The state is behind the name, which is in brackets and may hold any character.
            status
                .rsplit_once(") ")
                .is_some_and(|(_, state)| state.starts_with('T'))
        })
    }

    pub(super) fn kill(&mut self) {
        self.child
            .kill()
            .expect("a child can be killed, even one that has ended");
        self.child.wait().expect("a child can be reaped");
    }

    /// Waits until it has ended by itself.
    pub(super) fn wait(&mut self, what: &str) {
        wait_until(what, || self.ended().is_some());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Uses the command, since the system call would need unsafe code.
pub(super) fn signal(id: u32, name: &str) {
    drop(
        Command::new("kill")
            .args(["-s", name, &id.to_string()])
            .stderr(Stdio::null())
            .status(),
    );
}

/// Polls, since there is no event to wait for from processes that are not children.
///
/// # Panics
///
/// If the predicate does not hold within a minute.
pub(super) fn wait_until(what: &str, is_so: impl FnMut() -> bool) {
    wait_long_until(what, GUARD, is_so);
}

/// The same, with another limit than a minute.
pub(super) fn wait_long_until(what: &str, limit: Duration, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + limit;
    while !is_so() {
        assert!(
            Instant::now() < deadline,
            "waited {limit:?} in vain until {what}"
        );
        thread::sleep(Duration::from_millis(2));
    }
}

/// Starts a server on a port, or on another if that one is in use. Returns when it accepts
/// connections.
///
/// # Panics
///
/// If it does not start; the message has its log.
pub(super) fn listening(
    name: &str,
    directory: &Directory,
    mut start: impl FnMut(&Port) -> Process,
) -> (Process, Port) {
    for _ in 0..PORTS_MAX {
        let port = Port::free();
        let mut process = start(&port);
        wait_until(&format!("{name} is up"), || {
            TcpStream::connect(port.address()).is_ok() || process.ended().is_some()
        });
        if process.ended().is_none() {
            return (process, port);
        }
        assert!(
            directory.log_tail().contains(IN_USE),
            "{name} does not start: {}",
            directory.log_tail()
        );
    }
    panic!("no port is free for {name}: {}", directory.log_tail());
}

/// Runs a command to its end.
///
/// # Errors
///
/// If it fails: its output.
pub(super) fn run(command: &mut Command) -> Result<String, String> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("{:?}: {error}", command.get_program()))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
    }
}

/// Starts a child from a thread that lives as long as the process. The system's signal for the
/// death of the parent is sent when the *thread* that started the child ends. A test's thread ends
/// with the test, while other tests may still use the server.
fn born(command: Command) -> io::Result<Child> {
    type Birth = (Command, Sender<io::Result<Child>>);
    static SPAWNER: OnceLock<Mutex<Sender<Birth>>> = OnceLock::new();
    let mother = SPAWNER.get_or_init(|| {
        let (sender, births) = channel::<Birth>();
        thread::spawn(move || {
            births
                .into_iter()
                .for_each(|(mut command, reply)| drop(reply.send(command.spawn())));
        });
        Mutex::new(sender)
    });
    let (reply, child) = channel();
    mother
        .lock()
        .unwrap()
        .send((command, reply))
        .expect("the thread lives as long as the process");
    child.recv().expect("every birth is answered")
}

/// The user that a server runs as. Most servers refuse to run as root.
#[derive(Clone, Copy)]
pub(super) struct User {
    /// The user and group to switch to if this process is root; otherwise `None`.
    ids: Option<(u32, u32)>,
}

impl User {
    /// The current user, for servers that may run as root.
    pub(super) fn current() -> User {
        User { ids: None }
    }

    /// The current user; if that is root, the first of these users that exists.
    pub(super) fn other_than_root(names: &[&str]) -> User {
        if own_id() != 0 {
            return User { ids: None };
        }
        let ids = names.iter().find_map(|name| in_passwd(name));
        User {
            ids: Some(ids.unwrap_or_else(|| {
                panic!("root needs one of the users {names:?} to run a server as")
            })),
        }
    }

    /// The id of the owner of its files.
    pub(super) fn id(self) -> u32 {
        self.ids.map_or_else(own_id, |(user, _)| user)
    }

    /// Makes this user the owner of a file or directory.
    pub(super) fn give(self, path: &Path) {
        if let Some((user, group)) = self.ids {
            chown(path, Some(user), Some(group)).expect("root can give away its files");
        }
    }

    /// A command that runs as this user.
    pub(super) fn command(self, program: &Path) -> Command {
        let Some((user, group)) = self.ids else {
            return Command::new(program);
        };
        let mut command = Command::new("setpriv");
        command.args(switches(user, group)).arg("--").arg(program);
        command
    }

    fn options(self) -> Vec<String> {
        self.ids
            .map_or_else(Vec::new, |(user, group)| switches(user, group).to_vec())
    }
}

fn switches(user: u32, group: u32) -> [String; 3] {
    [
        format!("--reuid={user}"),
        format!("--regid={group}"),
        "--clear-groups".to_owned(),
    ]
}

fn own_id() -> u32 {
    std::fs::metadata("/proc/self")
        .expect("a Linux system")
        .uid()
}

fn in_passwd(name: &str) -> Option<(u32, u32)> {
    let passwd = std::fs::read_to_string("/etc/passwd").ok()?;
    let mut fields = passwd
        .lines()
        .map(|line| line.split(':'))
        .find(|line| line.clone().next() == Some(name))?;
    Some((fields.nth(2)?.parse().ok()?, fields.next()?.parse().ok()?))
}
