//! Passwords in `.pgpass`.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::{Host, Place};

/// A password file, read for each connection, so that a changed password needs no restart.
#[derive(Clone)]
pub(in super::super) struct Passfile {
    pub(in super::super) path: PathBuf,
}

/// The result of searching a password file.
pub(in super::super) enum Found {
    Password(String),
    Nothing,
    /// The file was not used, and why. The user sees the reason if the server asks for a password.
    NotUsed(String),
}

impl Passfile {
    /// Finds the first matching line.
    pub(in super::super) fn find(&self, host: &Host, database: &str, user: &str) -> Found {
        let metadata = match fs::metadata(&self.path) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == ErrorKind::NotFound => return Found::Nothing,
            Err(error) => return self.not_used(&error.to_string()),
        };
        if !metadata.is_file() {
            return self.not_used("it is not a file");
        }
        if is_open_to_others(&metadata) {
            return self.not_used("others may read it: chmod 0600");
        }
        match fs::read_to_string(&self.path) {
            Ok(text) => password_in(
                &text,
                &[name_of(host), &host.port.to_string(), database, user],
            )
            .map_or(Found::Nothing, Found::Password),
            Err(error) => self.not_used(&error.to_string()),
        }
    }

    fn not_used(&self, why: &str) -> Found {
        Found::NotUsed(format!("{} was not used: {why}", self.path.display()))
    }
}

#[cfg(unix)]
fn is_open_to_others(metadata: &fs::Metadata) -> bool {
    std::os::unix::fs::PermissionsExt::mode(&metadata.permissions()) & 0o077 != 0
}

#[cfg(not(unix))]
fn is_open_to_others(_: &fs::Metadata) -> bool {
    false
}

/// The name of a host in a password file. The usual sockets are called `localhost` there.
fn name_of(host: &Host) -> &str {
    match &host.place {
        Place::Tcp { name, .. } => name,
        Place::Socket(path) if super::SOCKETS.iter().any(|usual| path == Path::new(usual)) => {
            "localhost"
        }
        Place::Socket(path) => path.to_str().unwrap_or_default(),
    }
}

fn password_in(text: &str, wanted: &[&str; 4]) -> Option<String> {
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .find_map(|line| {
            let (fields, password) = fields_of(line)?;
            let fits = fields
                .iter()
                .zip(wanted)
                .all(|((field, literal), wanted)| field == wanted || (field == "*" && !literal));
            (fits && !password.is_empty()).then_some(password)
        })
}

/// The four fields, each with whether anything in it was escaped (an escaped `*` is not a
/// wildcard), and the rest of the line.
fn fields_of(line: &str) -> Option<([(String, bool); 4], String)> {
    let mut characters = line.trim_end_matches('\r').chars();
    let fields = [
        field(&mut characters)?,
        field(&mut characters)?,
        field(&mut characters)?,
        field(&mut characters)?,
    ];
    // A colon in the password needs no escape.
    let mut password = String::new();
    while let Some(c) = characters.next() {
        password.extend(if c == '\\' {
            characters.next()
        } else {
            Some(c)
        });
    }
    Some((fields, password))
}

fn field(characters: &mut std::str::Chars<'_>) -> Option<(String, bool)> {
    let (mut field, mut escaped) = (String::new(), false);
    loop {
        match characters.next()? {
            ':' => return Some((field, escaped)),
            '\\' => {
                field.push(characters.next()?);
                escaped = true;
            }
            c => field.push(c),
        }
    }
}
