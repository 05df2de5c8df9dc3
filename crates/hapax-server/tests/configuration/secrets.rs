//! Secrets: as they are, in files, and never shown.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use hapax_server::config::file::Overrides;

use crate::{directory, hapax, load, upstream};

const CANARY: &str = "canary-0123456789abcdef";

#[test]
fn a_secret_may_stand_in_a_file_that_only_its_owner_reads() {
    let directory = directory();
    let path = directory.path().join("secret");
    for (text, mode, warned) in [("\n", 0o600, ""), ("", 0o600, ""), ("\r\n", 0o640, "its group"), ("\n", 0o644, "everybody")] {
        fs::write(&path, format!("{CANARY}{text}")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        let loaded = load(directory.path(), "admin_token_file = \"secret\"\n", &upstream()).unwrap();
        assert_eq!(loaded.config.admin_token.as_ref().unwrap().expose(), CANARY);
        assert_eq!(loaded.warnings.len(), usize::from(!warned.is_empty()), "{:?}", loaded.warnings);
        assert!(
            loaded.warnings.iter().all(|warning| warning.contains(warned) && warning.contains("chmod 600")),
            "{:?}",
            loaded.warnings
        );
    }
}

#[test]
fn a_variable_may_have_a_secret_or_name_its_file() {
    let directory = directory();
    let path = directory.path().join("token");
    for (name, value) in [("HAPAX__ADMIN_TOKEN", "0123456789abcdef"), ("HAPAX__ADMIN_TOKEN_FILE", path.to_str().unwrap())] {
        let overrides = Overrides { environment: [(name, value)].into_iter().collect(), ..upstream() };
        let loaded = load(directory.path(), "", &overrides).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(loaded.config.admin_token.unwrap().expose(), "0123456789abcdef");
    }
}

/// In whatever way a secret is given, and whatever else is wrong: nothing that is shown holds it.
#[test]
fn no_secret_is_ever_shown() {
    let directory = directory();
    let files = [
        format!("admin_token = \"{CANARY}\"\n"),
        format!("admin_token = \"{CANARY}\"\nlisten = 4000\n"),
        format!("admin_token = '{CANARY}'\nsettle_token = '{CANARY}'\n"),
        format!("admin_token = \"\"\"{CANARY}\n\"\"\"\n"),
        format!("admin_token = \"\"\"\n{CANARY}\n[[[\n"),
        format!("\"admin_token\" = \"{CANARY}\n"),
        format!("admin_token=\"{CANARY}\" [x\n"),
        format!("admin-token = \"{CANARY}\"\n"),
        format!("Admin_Token = \"{CANARY}\"\n"),
        format!("[admin]\ntoken = \"{CANARY}\"\n"),
        format!("admin_token = [\"{CANARY}\"]\n"),
        format!("admin_token = \"{CANARY} with a space\"\n"),
        format!("upstream = {{ url = \"http://u:{CANARY}@a\" }}\n"),
        format!("jwt = {{ secret = \"{CANARY}\" }}\n"),
    ];
    let shown = |said: &str, how: &str| assert!(!said.contains(CANARY), "{how}:\n{said}");
    for text in &files {
        match load(directory.path(), text, &upstream()) {
            Ok(loaded) => shown(&format!("{loaded:?}"), text),
            Err(error) => shown(&format!("{error} {error:?}"), text),
        }
        for command in
            [&["config", "check"][..], &["config", "print"], &["config", "print", "--json"], &["config", "explain", "POST", "/"]]
        {
            let args = [command, &["--config", "hapax.toml", "--upstream", "http://127.0.0.1:3000"]].concat();
            let (_, stdout, stderr) = hapax(directory.path(), &args, &[]);
            shown(&format!("{stdout}{stderr}"), text);
        }
    }
    for (name, value) in [
        ("HAPAX__ADMIN_TOKEN", CANARY),
        ("HAPAX__ADMIN_TOKN", CANARY),
        ("HAPAX_ADMIN_TOKEN", CANARY),
        ("HAPAX__admin_token", CANARY),
    ] {
        let overrides = Overrides { environment: [(name, value)].into_iter().collect(), ..upstream() };
        shown(&format!("{overrides:?}"), name);
        let said = match load(directory.path(), "", &overrides) {
            Ok(loaded) => format!("{loaded:?}"),
            Err(error) => format!("{error} {error:?}"),
        };
        shown(&said, name);
    }
}
