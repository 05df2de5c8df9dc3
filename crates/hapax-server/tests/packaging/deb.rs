//! The Debian package: made from the built program, installed into a separate root, run from there,
//! and purged.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use hapax_testkit::skipped;

use super::harness::words;
use super::tools::{is_root, needed, ran, root, run};

fn built(out: &Path) -> PathBuf {
    let said = ran(Command::new(root().join("packaging/deb/build"))
        .args(["--binary", env!("CARGO_BIN_EXE_hapax"), "--out"])
        .arg(out)
        .env("HAPAX_DEB_COMPRESSION", "none"));
    said.lines()
        .map(PathBuf::from)
        .find(|path| path.is_file())
        .unwrap_or_else(|| panic!("{said}"))
}

#[test]
fn the_package_holds_what_it_should_and_purging_it_leaves_the_state() {
    let (Some(dpkg), Some(dpkg_deb), Some(_)) =
        (needed("dpkg"), needed("dpkg-deb"), needed("strip"))
    else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let package = built(directory.path());
    looks_right(&dpkg_deb, &package);
    if !is_root() {
        return skipped("only root can install into a root of its own");
    }

    let system = directory.path().join("system");
    for part in [
        "var/lib/dpkg/info",
        "var/lib/dpkg/updates",
        "var/lib/private/hapax",
    ] {
        std::fs::create_dir_all(system.join(part)).unwrap();
    }
    std::fs::write(system.join("var/lib/dpkg/status"), "").unwrap();
    // A file that the service would have created.
    std::fs::write(system.join("var/lib/private/hapax/hapax.db"), "state").unwrap();
    let at = |what: &[&str]| {
        let mut command = Command::new(&dpkg);
        command
            .arg(format!("--root={}", system.display()))
            .args(words(
                "--force-depends --force-script-chrootless --log=/dev/null",
            ));
        ran(command.args(what))
    };
    let said = at(&["--install", package.to_str().unwrap()]);
    assert!(said.contains("systemctl enable --now hapax"), "{said}");
    assert!(ran(Command::new(system.join("usr/bin/hapax")).arg("-V")).starts_with("hapax "));
    // The checksums match the unpacked files.
    ran(Command::new("md5sum")
        .args(words("--check --quiet var/lib/dpkg/info/hapax.md5sums"))
        .current_dir(&system));

    // The operator's configuration survives an upgrade and a removal, and is deleted by a purge;
    // the state is always kept.
    let config = system.join("etc/hapax/hapax.toml");
    std::fs::write(&config, "# mine\n").unwrap();
    at(&["--install", package.to_str().unwrap()]);
    assert_eq!(std::fs::read_to_string(&config).unwrap(), "# mine\n");
    at(&["--remove", "hapax"]);
    assert!(config.exists() && !system.join("usr/bin/hapax").exists());
    let said = at(&["--purge", "hapax"]);
    assert!(said.contains("Remove them by hand"), "{said}");
    let left: Vec<_> = files(&system)
        .into_iter()
        .filter(|path| !path.starts_with("var/lib/dpkg"))
        .collect();
    assert_eq!(left, [Path::new("var/lib/private/hapax/hapax.db")]);
}

fn looks_right(dpkg_deb: &Path, package: &Path) {
    let field = |name: &str| {
        run(
            dpkg_deb,
            ["--field".as_ref(), package.as_os_str(), name.as_ref()],
        )
        .trim()
        .to_owned()
    };
    assert_eq!(
        (field("Package"), field("Version")),
        ("hapax".to_owned(), env!("CARGO_PKG_VERSION").to_owned())
    );
    assert!(
        field("Depends").contains("libc6 (>= 2."),
        "{}",
        field("Depends")
    );
    assert!(field("Installed-Size").parse::<u64>().unwrap() > 1_000);
    let contents = run(dpkg_deb, ["--contents".as_ref(), package.as_os_str()]);
    for (mode, path) in [
        ("-rwxr-xr-x", "./usr/bin/hapax"),
        ("-rw-r--r--", "./etc/hapax/hapax.toml"),
        ("-rw-r--r--", "./lib/systemd/system/hapax.service"),
        ("-rw-r--r--", "./usr/share/man/man1/hapax.1.gz"),
        ("-rw-r--r--", "./usr/share/man/man1/hapax-keys-settle.1.gz"),
        (
            "-rw-r--r--",
            "./usr/share/bash-completion/completions/hapax",
        ),
        ("-rw-r--r--", "./usr/share/zsh/vendor-completions/_hapax"),
        (
            "-rw-r--r--",
            "./usr/share/fish/vendor_completions.d/hapax.fish",
        ),
        ("-rw-r--r--", "./usr/share/doc/hapax/copyright"),
        ("-rw-r--r--", "./usr/share/doc/hapax/changelog.gz"),
        ("-rw-r--r--", "./usr/share/doc/hapax/examples/alerts.yml"),
    ] {
        let line = contents
            .lines()
            .find(|line| line.ends_with(&format!(" {path}")))
            .unwrap_or_else(|| panic!("no {path} in\n{contents}"));
        assert!(
            line.starts_with(mode) && line.contains(" root/root "),
            "{line}"
        );
    }
    let control = tempfile::tempdir().unwrap();
    run(
        dpkg_deb,
        [
            "--control".as_ref(),
            package.as_os_str(),
            control.path().as_os_str(),
        ],
    );
    assert_eq!(
        std::fs::read_to_string(control.path().join("conffiles")).unwrap(),
        "/etc/hapax/hapax.toml\n"
    );
    for script in ["postinst", "prerm", "postrm"] {
        let path = control.path().join(script);
        assert_eq!(
            std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o755,
            "{script}"
        );
        ran(Command::new("sh").arg("-n").arg(&path));
    }
}

/// All files below a directory, by their relative paths.
fn files(below: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut waiting = vec![below.to_owned()];
    while let Some(directory) = waiting.pop() {
        for entry in std::fs::read_dir(directory)
            .unwrap()
            .map(|entry| entry.unwrap().path())
        {
            match entry.is_dir() {
                true => waiting.push(entry),
                false => found.push(entry.strip_prefix(below).unwrap().to_owned()),
            }
        }
    }
    found
}
