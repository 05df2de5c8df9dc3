//! The template cluster, which other clusters are copies of: making a cluster takes a second or
//! two, copying one a tenth of that.

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
    // Its user may not have access to the current directory.
    initdb.current_dir("/");
    run(&mut initdb).unwrap_or_else(|error| panic!("no cluster can be made: {error}"));
}

/// Copies the template, which is made on first use.
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

/// Whether the template exists and belongs to the expected user.
fn is_there(template: &Path, user: User) -> bool {
    std::fs::symlink_metadata(template)
        .is_ok_and(|metadata| metadata.is_dir() && metadata.uid() == user.id())
}

fn make_template(programs: &Path, user: User, template: &Path) {
    let directory = Directory::new();
    user.give(directory.path());
    let data = directory.path().join("data");
    make(programs, user, &data);
    // The rename is atomic. If another process was faster, the rename fails and its template is
    // used.
    let moved = std::fs::rename(&data, template);
    assert!(
        is_there(template, user),
        "{} cannot be made: {moved:?}",
        template.display()
    );
}
