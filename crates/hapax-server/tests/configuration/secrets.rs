//! Secrets: given directly or in files, and never shown.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use hapax_server::config::file::Overrides;

use crate::harness::words;
use crate::{directory, hapax, load, upstream};

const CANARY: &str = "canary-0123456789abcdef";

#[test]
fn a_secret_may_stand_in_a_file_that_only_its_owner_reads() {
    let directory = directory();
    let path = directory.path().join("secret");
    for (text, mode, warned) in [
        ("\n", 0o600, ""),
        ("", 0o600, ""),
        ("\r\n", 0o640, "its group"),
        ("\n", 0o644, "everybody"),
    ] {
        fs::write(&path, format!("{CANARY}{text}")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        let loaded = load(
            directory.path(),
            "admin_token_file = \"secret\"\n",
            &upstream(),
        )
        .unwrap();
        assert_eq!(loaded.config.admin_token.as_ref().unwrap().expose(), CANARY);
        assert_eq!(
            loaded.warnings.len(),
            usize::from(!warned.is_empty()),
            "{:?}",
            loaded.warnings
        );
        assert!(
            loaded
                .warnings
                .iter()
                .all(|warning| warning.contains(warned) && warning.contains("chmod 600")),
            "{:?}",
            loaded.warnings
        );
    }
}

#[test]
fn a_variable_may_have_a_secret_or_name_its_file() {
    let directory = directory();
    let path = directory.path().join("token");
    for (name, value) in [
        ("HAPAX__ADMIN_TOKEN", "0123456789abcdef"),
        ("HAPAX__ADMIN_TOKEN_FILE", path.to_str().unwrap()),
    ] {
        let overrides = Overrides {
            environment: [(name, value)].into_iter().collect(),
            ..upstream()
        };
        let loaded =
            load(directory.path(), "", &overrides).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(
            loaded.config.admin_token.unwrap().expose(),
            "0123456789abcdef"
        );
    }
}

/// However a secret is given, and whatever else is wrong, no output contains it.
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
        format!("store = \"postgres://ada:{CANARY}@db/hapax\"\n"),
        format!("store = \"postgres://ada:{CANARY}@db/hapax\"\nlisten = 4000\n"),
        format!("store = \"postgres://ada:{CANARY}@db:none/hapax\"\n"),
        format!("store = \"postgres://ada:x/{CANARY}@db/hapax\"\n"),
        format!("store = \"postgres://ada:{CANARY}/x@y@db/hapax?sslmodus=x\"\n"),
        format!("store = \"postgres:///hapax?user=ada&password={CANARY}\"\n"),
        format!("store = \"host=db password={CANARY}\"\n"),
        format!("store = \"mysql://ada:{CANARY}@db/hapax\"\n"),
        format!("store = \"postgres://ada:{CANARY}@db/hapax\n"),
        format!("store = \"postgres:ada:{CANARY}@db\"\n"),
        format!("store = \"postgres:///hapax?user=ada&password=x@{CANARY}\"\nlisten = 4000\n"),
        format!("store = \"redis://ada:{CANARY}@db\"\n"),
        format!("store = \"redis://:{CANARY}@db\"\ndurability = \"best-effort\"\n"),
        format!("store = \"redis://:{CANARY}@db\"\ndurability = \"strict\"\n"),
        format!(
            "store = \"redis://:{CANARY}@db\" # postgres://ada:{CANARY}@db/hapax\nlisten = 4\n"
        ),
        format!("store = \"redis://ada:{CANARY}@db:none\"\n"),
        format!("store = \"redis://ada:x/{CANARY}@db\"\n"),
        format!("store = \"redis://ada:x?{CANARY}@db\"\n"),
        format!("store = \"redis://ada:{CANARY}?x@db\"\n"),
        format!("store = \"redis:/ada:{CANARY}@db\"\n"),
        format!("store = \"redis:ada:{CANARY}@db\"\n"),
        format!("store = \"rediss+cluster://ada:{CANARY}@a,b/1\"\n"),
        format!("store = \"redis+sentinel://a/m?sentinel_password={CANARY}\"\n"),
        format!("store = \"redis+sentinel://a/m?sentinel_pasword={CANARY}\"\n"),
        format!("store = \"redis+sentinel://a/m?sentinel_password=x@{CANARY}\"\n"),
        format!("store = \"redis+ring://ada:{CANARY}@db\"\n"),
        format!("store = \"valkey://ada:{CANARY}@db\"\n"),
        format!("store = \"redis://ada:{CANARY}@db\n"),
        format!("store = \"redis://ada:{CANARY}@db\"\n[defaults]\nmode = \"transaction\"\n"),
    ];
    let shown = |said: &str, how: &str| assert!(!said.contains(CANARY), "{how}:\n{said}");
    for text in &files {
        match load(directory.path(), text, &upstream()) {
            Ok(loaded) => shown(&format!("{loaded:?}"), text),
            Err(error) => shown(&format!("{error} {error:?}"), text),
        }
        for command in [
            &["config", "check"][..],
            &["config", "print"],
            &words("config print --json"),
            &["config", "explain", "POST", "/"],
        ] {
            let args = [
                command,
                &words("--config hapax.toml --upstream http://127.0.0.1:3000"),
            ]
            .concat();
            let (_, stdout, stderr) = hapax(directory.path(), &args, &[]);
            shown(&format!("{stdout}{stderr}"), text);
        }
    }
    for (name, value) in [
        ("HAPAX__ADMIN_TOKEN", CANARY),
        ("HAPAX__ADMIN_TOKN", CANARY),
        ("HAPAX_ADMIN_TOKEN", CANARY),
        ("HAPAX__admin_token", CANARY),
        ("HAPAX__STORE", &format!("postgres://ada:{CANARY}@db/hapax")),
        (
            "HAPAX__STORE",
            &format!("postgres://ada:{CANARY}@db/hapax?sslmodus=x"),
        ),
        ("HAPAX_STORE", &format!("postgres://ada:{CANARY}@db/hapax")),
        ("HAPAX__STORE", &format!("redis://ada:{CANARY}@db")),
        ("HAPAX__STORE", &format!("redis://ada:{CANARY}@db?ca=x")),
        (
            "HAPAX__STORE",
            &format!("redis+sentinel://a/m?sentinel_password={CANARY}"),
        ),
        ("HAPAX_STORE", &format!("rediss://ada:{CANARY}@db")),
    ] {
        let overrides = Overrides {
            environment: [(name, value)].into_iter().collect(),
            ..upstream()
        };
        shown(&format!("{overrides:?}"), name);
        let said = match load(directory.path(), "", &overrides) {
            Ok(loaded) => format!("{loaded:?}"),
            Err(error) => format!("{error} {error:?}"),
        };
        shown(&said, name);
    }
}

/// The argument parser shows a flag that is invalid, and commands that print the configuration show
/// one that is valid.
#[test]
fn no_password_of_a_flag_is_ever_repeated() {
    let directory = directory();
    for url in [
        format!("postgres://ada:{CANARY}@db/hapax"),
        format!("postgres://ada:{CANARY}@db/hapax?sslmodus=x"),
        format!("postgres:ada:{CANARY}@db"),
        format!("host=db password={CANARY}"),
        format!("redis://ada:{CANARY}@127.0.0.1:1"),
        format!("redis://ada:{CANARY}@127.0.0.1:1?timeout=3"),
        format!("redis+sentinel://127.0.0.1:1/m?sentinel_password={CANARY}"),
        format!("redis:ada:{CANARY}@db"),
    ] {
        for command in [
            &words("config check --upstream http://127.0.0.1:3000 --store")[..],
            &words("config print --upstream http://127.0.0.1:3000 --store"),
            &["store", "check"],
            &words("store copy --give-up sqlite:none.db"),
            &words("store copy memory:"),
            &words("store backup copy.db --store"),
            &words("keys list --store"),
            &["migrate", "--store"],
            &["sweep", "--store"],
        ] {
            let (_, stdout, stderr) = hapax(
                directory.path(),
                &[command, &[&url]].concat(),
                &[("PGCONNECT_TIMEOUT", "1")],
            );
            assert!(
                !format!("{stdout}{stderr}").contains(CANARY),
                "{command:?} {url}\n{stdout}{stderr}"
            );
        }
    }
    for (url, instead) in [
        ("postgres://ada:hunter2@db/hapax", "PGPASSWORD"),
        ("redis://:hunter2@db", "HAPAX__STORE"),
    ] {
        let args = words("config check --upstream http://127.0.0.1:3000 --store");
        let (_, _, stderr) = hapax(directory.path(), &[&args[..], &[url]].concat(), &[]);
        assert!(
            stderr.contains("everybody on this machine can read the password")
                && stderr.contains(instead),
            "{stderr}"
        );
    }
}
