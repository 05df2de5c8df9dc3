//! Finds the programs of servers.

use std::path::PathBuf;

/// Finds a program by name: on the path, or in the directories for administrators.
pub(super) fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories = std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin", "/usr/local/sbin"].map(PathBuf::from));
    directories
        .map(|directory| directory.join(name))
        .find(|file| file.is_file())
}

/// Finds a program that `./check needs` put beside the build: in the directory `tools` of the build
/// that this test belongs to.
pub(super) fn tool(name: &str) -> Option<PathBuf> {
    let test = std::env::current_exe().ok()?;
    test.ancestors()
        .map(|directory| directory.join("tools").join(name))
        .find(|file| file.is_file())
}

/// The directory of the newest supported PostgreSQL. Debian keeps the programs of a server off the
/// path.
pub(super) fn postgres_programs() -> Option<PathBuf> {
    let debian = std::fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten();
    let mut versions: Vec<(u32, PathBuf)> = debian
        .filter_map(|entry| {
            Some((
                entry.file_name().to_str()?.parse().ok()?,
                entry.path().join("bin"),
            ))
        })
        .filter(|(version, programs)| *version >= OLDEST && programs.join("postgres").is_file())
        .collect();
    versions.sort();
    versions
        .pop()
        .map(|(_, programs)| programs)
        .or_else(on_the_path)
}

/// The oldest version of PostgreSQL that Hapax supports.
pub(super) const OLDEST: u32 = 14;

fn on_the_path() -> Option<PathBuf> {
    let programs = program("postgres")?.parent()?.to_owned();
    let version = postgres_version(&programs)?;
    let major: u32 = version
        .split(|character: char| !character.is_ascii_digit())
        .next()?
        .parse()
        .ok()?;
    (major >= OLDEST).then_some(programs)
}

/// The version, such as `15.20`.
pub(super) fn postgres_version(programs: &std::path::Path) -> Option<String> {
    let output = std::process::Command::new(programs.join("postgres"))
        .arg("--version")
        .output()
        .ok()?;
    let said = String::from_utf8(output.stdout).ok()?;
    // postgres (PostgreSQL) 15.20 (Debian 15.20-0+deb12u1)
    said.split_whitespace().nth(2).map(str::to_owned)
}
