//! The cluster that the others are copies of, because making one takes a second or two and copying
//! one a tenth of it.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::directory::Directory;
use super::process::{User, run};
use super::programs::postgres_version;

/// Makes a cluster.
pub(super) fn make(programs: &Path, user: User, data: &Path) {
    let mut initdb = user.command(&programs.join("initdb"));
    initdb
        .args([
            "--no-sync",
            "--auth=trust",
            "--username=postgres",
            "--encoding=UTF8",
            "--locale=C",
            "--pgdata",
        ])
        .arg(data);
    // From wherever we are its user may not be allowed to look.
    initdb.current_dir("/");
    run(&mut initdb).unwrap_or_else(|error| panic!("no cluster can be made: {error}"));
}

/// Copies the template, which is made by whoever needs it first.
pub(super) fn copy(programs: &Path, user: User, data: &Path) {
    let template = place(programs, user);
    if !is_there(&template, user) {
        make_template(programs, user, &template);
    }
    run(Command::new("cp")
        .args(["--archive", "--reflink=auto", "--no-target-directory"])
        .arg(&template)
        .arg(data))
    .unwrap_or_else(|error| panic!("{} cannot be copied: {error}", template.display()));
}

fn place(programs: &Path, user: User) -> PathBuf {
    let version = postgres_version(programs).expect("PostgreSQL knows its version");
    std::env::temp_dir().join(format!("hapax-postgres-{version}-{}", user.id()))
}

/// Not one that somebody else has put there.
fn is_there(template: &Path, user: User) -> bool {
    std::fs::symlink_metadata(template)
        .is_ok_and(|metadata| metadata.is_dir() && metadata.uid() == user.id())
}

fn make_template(programs: &Path, user: User, template: &Path) {
    let directory = Directory::new();
    user.give(directory.path());
    let data = directory.path().join("data");
    make(programs, user, &data);
    // Whole or not at all. Whoever comes second finds that it cannot be replaced, and takes the one
    // that is there.
    let moved = std::fs::rename(&data, template);
    assert!(
        is_there(template, user),
        "{} cannot be made: {moved:?}",
        template.display()
    );
}
