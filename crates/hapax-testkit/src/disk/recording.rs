//! A recording: what a process did to some files of one directory, and what it wrote elsewhere, in
//! order.

use std::collections::BTreeMap;
use std::path::Path;

use super::calls::{Call, calls};

/// The options of strace for a log that can be read as a recording.
pub const RECORD: [&str; 9] = [
    "-f",
    "-y",
    "-xx",
    "-s",
    "16777216",
    "-e",
    "signal=none",
    "-e",
    CALLS,
];

/// All calls that change a file, a name or what is durable. It includes calls that a recording does
/// not support, so that they are noticed.
const CALLS: &str = "trace=open,openat,openat2,creat,write,writev,pwrite64,pwritev,pwritev2,ftruncate,truncate,fallocate,fsync,fdatasync,\
                     sync_file_range,sync,syncfs,unlink,unlinkat,rename,renameat,renameat2,link,linkat,copy_file_range,sendfile";

/// What one process did to some files of a directory that was initially empty.
#[derive(Debug)]
pub struct Recording {
    /// Changes, in the order in which they began.
    pub(super) steps: Vec<Step>,
    /// All files that ever existed. A name appears twice if its first file was removed.
    pub(super) files: Vec<String>,
    /// What the process wrote elsewhere.
    said: Vec<Said>,
    /// One past the last event.
    pub(super) end: usize,
}

/// A write to a pipe, or to a file that is not followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    /// When it began: from then on other processes may know it.
    pub begun: usize,
    /// The destination: a path, or strace's name for it.
    pub to: String,
    /// The text.
    pub text: String,
}

/// One change.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) begun: usize,
    pub(super) ended: usize,
    pub(super) change: Change,
}

#[derive(Debug)]
pub(super) enum Change {
    Write {
        file: usize,
        offset: usize,
        data: Vec<u8>,
    },
    /// Shortened, or extended with zeros.
    Truncate {
        file: usize,
        length: usize,
    },
    Sync {
        file: usize,
    },
    Create {
        file: usize,
    },
    Unlink {
        file: usize,
    },
    SyncDirectory,
}

impl Change {
    pub(super) fn is_of_names(&self) -> bool {
        matches!(self, Change::Create { .. } | Change::Unlink { .. })
    }
}

impl Recording {
    /// Reads a log that was written with [`RECORD`]. Only the files with these names in the
    /// directory are followed.
    ///
    /// # Panics
    ///
    /// If a call that a recording does not support was made on one of them.
    pub fn parse(log: &str, directory: &Path, names: &[&str]) -> Recording {
        let directory = directory.to_str().expect("a path in UTF-8").to_owned();
        let mut reader = Reader {
            directory,
            names,
            current: BTreeMap::new(),
            recording: Recording::empty(),
        };
        for call in calls(log) {
            reader.recording.end = reader.recording.end.max(call.begun + 1);
            // A call that failed changed nothing. A call that never returned may have.
            if call.result.is_none() || call.has_succeeded() {
                reader.read(&call);
            }
        }
        reader.recording
    }

    /// What the process wrote elsewhere, in order.
    pub fn said(&self) -> &[Said] {
        &self.said
    }

    /// How often a file of this name was made durable.
    pub fn syncs(&self, name: &str) -> usize {
        self.steps
            .iter()
            .filter(|step| matches!(step.change, Change::Sync { file } if self.files[file] == name))
            .count()
    }

    /// How often a file of this name was written at offset zero.
    pub fn writes_at_start(&self, name: &str) -> usize {
        let is_at_start = |step: &&Step| matches!(step.change, Change::Write { file, offset: 0, .. } if self.files[file] == name);
        self.steps.iter().filter(is_at_start).count()
    }

    fn empty() -> Recording {
        Recording {
            steps: Vec::new(),
            files: Vec::new(),
            said: Vec::new(),
            end: 0,
        }
    }
}

struct Reader<'a> {
    directory: String,
    names: &'a [&'a str],
    /// The current file of each name.
    current: BTreeMap<String, usize>,
    recording: Recording,
}

impl Reader<'_> {
    fn read(&mut self, call: &Call) {
        let argument = |index: usize| call.arguments.get(index).map_or("", String::as_str);
        let number = |index: usize| {
            argument(index)
                .parse::<usize>()
                .unwrap_or_else(|_| panic!("no number: {call:?}"))
        };
        match call.name.as_str() {
            "openat" => self.open(call, argument(1), argument(2)),
            "pwrite64" => self.write(call, argument(0), argument(1), number(3)),
            "write" => self.say(call, argument(0), argument(1)),
            "ftruncate" => self.truncate(call, argument(0), number(1)),
            "fsync" | "fdatasync" => self.sync(call, argument(0)),
            "unlink" => self.unlink(call, argument(0)),
            "unlinkat" => self.unlink(call, argument(1)),
            _ => {
                let touches = call
                    .arguments
                    .iter()
                    .any(|argument| self.name(&path(argument)).is_some());
                assert!(!touches, "a recording has no word for {call:?}");
            }
        }
    }

    fn open(&mut self, call: &Call, name: &str, flags: &str) {
        let Some(name) = self.name(&path(name)) else {
            return;
        };
        if flags.contains("O_CREAT") && !self.current.contains_key(&name) {
            let file = self.recording.files.len();
            self.recording.files.push(name.clone());
            self.current.insert(name.clone(), file);
            self.push(call, Change::Create { file });
        }
        if flags.contains("O_TRUNC") {
            let file = self.current[&name];
            self.push(call, Change::Truncate { file, length: 0 });
        }
    }

    fn write(&mut self, call: &Call, file: &str, data: &str, offset: usize) {
        let Some(file) = self.file(file) else { return };
        assert!(
            !data.ends_with("..."),
            "strace left out some of what was written"
        );
        let mut data = unescape(data);
        // A short write wrote only this many bytes.
        data.truncate(
            call.result
                .as_ref()
                .map_or(data.len(), |written| written.parse().expect("a count")),
        );
        self.push(call, Change::Write { file, offset, data });
    }

    fn say(&mut self, call: &Call, to: &str, data: &str) {
        assert!(
            self.file(to).is_none(),
            "a recording cannot tell where in the file this goes: {call:?}"
        );
        let to = path(to);
        // A runtime wakes its own threads with such writes, which no other process sees.
        if !to.starts_with("anon_inode:") {
            let text = String::from_utf8_lossy(&unescape(data)).into_owned();
            self.recording.said.push(Said {
                begun: call.begun,
                to,
                text,
            });
        }
    }

    fn truncate(&mut self, call: &Call, file: &str, length: usize) {
        if let Some(file) = self.file(file) {
            self.push(call, Change::Truncate { file, length });
        }
    }

    fn sync(&mut self, call: &Call, file: &str) {
        if path(file) == self.directory {
            self.push(call, Change::SyncDirectory);
        } else if let Some(file) = self.file(file) {
            self.push(call, Change::Sync { file });
        }
    }

    fn unlink(&mut self, call: &Call, name: &str) {
        let removed = self
            .name(&path(name))
            .and_then(|name| self.current.remove(&name));
        if let Some(file) = removed {
            self.push(call, Change::Unlink { file });
        }
    }

    fn push(&mut self, call: &Call, change: Change) {
        self.recording.steps.push(Step {
            begun: call.begun,
            ended: call.ended,
            change,
        });
    }

    /// The followed file behind an open descriptor.
    fn file(&self, descriptor: &str) -> Option<usize> {
        // Changes to a file without a name do not matter.
        if descriptor.contains("(deleted)") {
            return None;
        }
        let name = self.name(&path(descriptor))?;
        Some(
            *self
                .current
                .get(&name)
                .unwrap_or_else(|| panic!("{name} was there before the recording")),
        )
    }

    /// The name of a path, if it is followed.
    fn name(&self, path: &str) -> Option<String> {
        let name = path.strip_prefix(&self.directory)?.strip_prefix('/')?;
        self.names.contains(&name).then(|| name.to_owned())
    }
}

/// The path in an argument: of a descriptor (`3<…>`), or in quotes.
fn path(argument: &str) -> String {
    let inside = argument.split_once('<').map_or(argument, |(_, rest)| {
        rest.rsplit_once('>').map_or(rest, |(inside, _)| inside)
    });
    String::from_utf8_lossy(&unescape(inside)).into_owned()
}

/// The bytes of `\x2f\x74`, in quotes or not. Other characters stay as they are.
fn unescape(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len() / 4);
    let mut rest = text.trim_matches('"').as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        match after {
            [b'x', high, low, after @ ..] if first == b'\\' => {
                bytes.push(hex(*high) << 4 | hex(*low));
                rest = after;
            }
            _ => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    bytes
}

fn hex(digit: u8) -> u8 {
    char::from(digit).to_digit(16).map_or_else(
        || panic!("no hexadecimal digit: {digit}"),
        |digit| digit as u8,
    )
}
