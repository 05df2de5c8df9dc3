//! The `hapax config` commands as a user runs them.

use std::fs;

use hapax_server::config::file::{self, Overrides};
use serde_json::Value;

use crate::harness::words;
use crate::{directory, documentation, example, files, hapax, upstream};

const FILE: &str = r#"
[upstream]
url = "http://127.0.0.1:3000"

[defaults]
retention = "48h"

[[routes]]
name = "charges"
method = "POST"
path = "/v1/charges"
key = "required"
retention = "1h"

[[routes]]
method = "POST"
path = "/v1/orders/{id}/refund"
mode = "rerun"
wait = "2s"

[[routes]]
path = "/uploads/**"
key = "off"
"#;

/// The warning of `config check` about that file.
const UNGUARDED_SIBLING: &str = "hapax: warning: route `charges` requires a key, but `/v1/charges/{id}` goes by no route, and there a key is optional: write a route for it, or path = \"/v1/charges/**\"\n";

fn with_file(text: &str) -> tempfile::TempDir {
    let directory = directory();
    fs::write(directory.path().join("hapax.toml"), text).unwrap();
    directory
}

#[test]
fn check_says_ok_or_every_mistake_with_2() {
    let directory = with_file(FILE);
    let check = ["config", "check", "--config", "hapax.toml"];
    assert_eq!(
        hapax(directory.path(), &check, &[]),
        (
            0,
            "ok: 3 routes, 13 settings changed from defaults\n".to_owned(),
            UNGUARDED_SIBLING.to_owned()
        )
    );
    let (code, stdout, stderr) = hapax(
        directory.path(),
        &check,
        &[("HAPAX__ROUTES__0__MODE", "once")],
    );
    assert_eq!((code, stdout.as_str()), (2, ""));
    assert!(
        stderr.starts_with("hapax: HAPAX__ROUTES__0__MODE: `once` is no mode"),
        "{stderr}"
    );
    let (code, _, stderr) = hapax(directory.path(), &["config", "check"], &[]);
    assert!(code == 2 && stderr.contains("no upstream"), "{stderr}");
    let (code, stdout, _) = hapax(
        directory.path(),
        &["config", "check"],
        &[("HAPAX__UPSTREAM__URL", "http://127.0.0.1:1")],
    );
    assert_eq!(
        (code, stdout.as_str()),
        (0, "ok: 0 routes, 1 setting changed from defaults\n"),
        "without a file too"
    );
}

#[test]
fn the_documentation_shows_what_check_says_of_its_file() {
    let directory = with_file(&example());
    files::pair(directory.path());
    let (code, stdout, stderr) = hapax(
        directory.path(),
        &words("config check --config hapax.toml"),
        &[],
    );
    assert_eq!(code, 0, "{stderr}");
    let shown = format!("$ hapax config check --config hapax.toml\n{stdout}");
    assert!(documentation().contains(&shown), "{shown}");
}

#[test]
fn check_warns_of_secrets_that_others_can_read() {
    use std::os::unix::fs::PermissionsExt;
    let directory = with_file(&format!("admin_token_file = \"token\"\n{FILE}"));
    fs::set_permissions(
        directory.path().join("token"),
        fs::Permissions::from_mode(0o644),
    )
    .unwrap();
    let (code, _, stderr) = hapax(
        directory.path(),
        &words("config check --config hapax.toml"),
        &[],
    );
    let secret =
        "hapax: warning: everybody on this machine can read the secret in token: chmod 600 token\n";
    assert_eq!((code, stderr), (0, format!("{secret}{UNGUARDED_SIBLING}")));
}

/// Each setting of each section in the order of the report.
fn printed(variables: &[(&str, &str)], more: &[&str]) -> Value {
    let directory = with_file(FILE);
    let args = [&words("config print --json --config hapax.toml"), more].concat();
    let (code, stdout, stderr) = hapax(directory.path(), &args, variables);
    assert_eq!(code, 0, "{stderr}");
    serde_json::from_str(&stdout).unwrap()
}

fn setting<'a>(
    document: &'a Value,
    section: &str,
    index: usize,
    name: &str,
) -> (&'a Value, &'a str) {
    let sections: Vec<&Value> = document
        .as_array()
        .unwrap()
        .iter()
        .filter(|one| one["section"] == section)
        .collect();
    let settings = sections[index]["settings"].as_array().unwrap();
    let setting = settings
        .iter()
        .find(|setting| setting["name"] == name)
        .unwrap_or_else(|| panic!("no {name}"));
    (&setting["value"], setting["from"].as_str().unwrap())
}

#[test]
fn print_says_where_each_value_comes_from() {
    let document = printed(
        &[
            ("HAPAX__LISTEN", "127.0.0.1:5000"),
            ("HAPAX__ROUTES__1__LEASE", "7s"),
            ("HAPAX__DEFAULTS__STRICT_KEY", "true"),
        ],
        &["--admin", "off"],
    );
    let of = |section, index, name| setting(&document, section, index, name);
    assert_eq!(
        of("", 0, "listen"),
        (&"127.0.0.1:5000".into(), "HAPAX__LISTEN")
    );
    assert_eq!(of("", 0, "admin"), (&"off".into(), "--admin"));
    assert_eq!(of("", 0, "store"), (&"sqlite:hapax.db".into(), "default"));
    assert_eq!(of("", 0, "admin_token"), (&Value::Null, "default"));
    assert_eq!(
        of("upstream", 0, "url"),
        (&"http://127.0.0.1:3000".into(), "hapax.toml:3")
    );
    assert_eq!(
        of("routes", 0, "retention"),
        (&"1h".into(), "hapax.toml:13")
    );
    assert_eq!(
        of("routes", 1, "retention"),
        (&"48h".into(), "hapax.toml:6, [defaults]")
    );
    assert_eq!(
        of("routes", 1, "lease"),
        (&"7s".into(), "HAPAX__ROUTES__1__LEASE")
    );
    assert_eq!(
        of("routes", 1, "strict_key"),
        (&true.into(), "HAPAX__DEFAULTS__STRICT_KEY")
    );
    assert_eq!(
        of("routes", 3, "retention"),
        (&"48h".into(), "hapax.toml:6, [defaults]"),
        "the unwritten route"
    );
    assert_eq!(of("routes", 3, "mode"), (&"hold".into(), "default"));
    assert_eq!(
        document.as_array().unwrap().last().unwrap()["route"],
        "default"
    );
}

/// Printed configurations are read back as the same, for long and short files.
#[test]
fn what_is_printed_is_the_same_configuration() {
    let directory = with_file("");
    let much = "admin_token = \"0123456789abcdef\"\n[upstream]\nurl = \"https://a\"\n[limits]\nconnections_max = 5\nbytes_per_principal_max = \"1GiB\"\n\
                [[routes]]\npath = \"/a\"\nkey_from = \"derived:body:/x\"\nclasses = { 404 = \"release\" }\nbody_bytes_max = \"1KiB\"\n\
                [[routes.velocity]]\nby = \"principal\"\nkeys = 2\nper = \"1s\"\n";
    for text in [FILE, &example(), much, "[upstream]\nurl = \"http://a\"\n"] {
        fs::write(directory.path().join("hapax.toml"), text).unwrap();
        let (code, stdout, stderr) = hapax(
            directory.path(),
            &words("config print --config hapax.toml"),
            &[],
        );
        assert_eq!(code, 0, "{stderr}");
        assert!(stdout.is_ascii(), "{stdout}");
        fs::write(directory.path().join("printed.toml"), &stdout).unwrap();
        let [first, second] = ["hapax.toml", "printed.toml"].map(|name| {
            let config = file::read_with(&directory.path().join(name), &Overrides::default());
            let mut config = config.unwrap_or_else(|error| panic!("{error}\n{stdout}"));
            // The token is hidden in the printed text. A default store path that is printed is read
            // again as an explicit one, which is relative to the file.
            config.admin_token = None;
            if let hapax_server::config::StoreUrl::Sqlite(path) = &mut config.store {
                *path = path.file_name().unwrap().into();
            }
            format!("{config:?}")
        });
        assert_eq!(first, second, "{stdout}");
    }
}

#[test]
fn explain_says_which_route_why_and_what_a_caller_gets() {
    let directory = with_file(FILE);
    let explain = |method: &str, path: &str| {
        let (code, stdout, stderr) = hapax(
            directory.path(),
            &["config", "explain", method, path, "--config", "hapax.toml"],
            &[],
        );
        assert_eq!(code, 0, "{stderr}");
        stdout
    };
    let said = explain("POST", "/v1/orders/7/refund?x=1");
    for part in [
        "not  charges (hapax.toml:8): segment 2 is `orders`, and this route wants `charges`",
        "takes POST /v1/orders/{id}/refund (hapax.toml:15)",
        "waits 2s for the answer",
        "the kept answer again for 2d, with Idempotent-Replayed: true; then 410 key-expired for 7d",
        "the next repeat runs it again, up to 100 attempts in all",
        "401, 403, 425, 429, 500 to 599 release the key for another attempt; 408 leave it unknown",
        "mode = \"rerun\"",
        "# hapax.toml:18",
        "# hapax.toml:6, [defaults]",
    ] {
        assert!(said.contains(part), "{part}\n{said}");
    }
    // The limits of one client.
    for part in [
        "is buffered in memory up to 1MiB (body_memory_bytes_max), else in a file in ",
        "For all bodies there is room for 256MiB in memory and 4GiB in files, for those of one client address 64MiB and 1GiB (limits.buffered_…): over it 503 buffer-full",
        "use at most 768 of 1024 connections to the service, 512 from one client address, and 512 of them as tunnels, which end after 5m without a byte: over it 503 upstream-busy.",
    ] {
        assert!(said.contains(part), "{part}\n{said}");
    }
    let said = explain("patch", "/v1/charges");
    assert!(
        said.contains(
            "not  charges (hapax.toml:8): the method is PATCH, and this route is for POST"
        ),
        "{said}"
    );
    assert!(
        said.contains("takes default (unwritten)") && said.contains("409 outcome-unknown"),
        "{said}"
    );
    assert!(explain("POST", "/v1/charges").contains("a request without one gets 400 key-missing"));
    assert!(explain("POST", "/uploads/a/b").contains("key = \"off\" ignores keys here"));
    assert!(explain("GET", "/v1/charges").contains("GET is not guarded here, POST and PATCH are"));
    assert!(
        explain("POST", "/v1/charges?x=1")
            .starts_with("POST /v1/charges\n  (the query does not count")
    );
    assert!(!explain("POST", "/v1/charges").contains("query"));
    // Another spelling of a path gets the stricter route.
    let said = explain("POST", "/uploads/../v1/charges");
    assert!(
        said.contains("not  /uploads/** (hapax.toml:21): it matches, but a service may read the path as `/v1/charges`"),
        "{said}"
    );
    assert!(said.contains("takes charges (hapax.toml:8)"), "{said}");
    let said = explain("POST", "/V1/charges");
    assert!(
        said.contains("may read the path in another letter case")
            && said.contains("takes charges (hapax.toml:8)"),
        "{said}"
    );
    // Requests that the gateway answers before it selects a route.
    let said = explain("POST", "/.well-known/idempotency?x");
    assert!(
        said.contains("answers this itself, with 405") && !said.contains("takes"),
        "{said}"
    );
    assert!(
        explain("GET", "/.well-known/idempotency").contains("with what it promises on each route")
    );
    assert!(explain("GET", "/.well-known/idempotency/").contains("takes default"));
}

#[test]
fn explain_in_json_and_its_mistakes() {
    let directory = with_file(FILE);
    let args = [
        "config",
        "explain",
        "POST",
        "/v1/charges/7",
        "--config",
        "hapax.toml",
        "--json",
    ];
    let document: Value = serde_json::from_str(&hapax(directory.path(), &args, &[]).1).unwrap();
    assert_eq!(document["route"], "default");
    assert_eq!(
        document["earlier"][0]["why_not"],
        "the path goes on with `7`, and this route ends before it"
    );
    assert_eq!(document["earlier"].as_array().unwrap().len(), 3);
    let args = [
        "config",
        "explain",
        "GET",
        "/.well-known/idempotency",
        "--config",
        "hapax.toml",
        "--json",
    ];
    let document: Value = serde_json::from_str(&hapax(directory.path(), &args, &[]).1).unwrap();
    assert!(
        document["route"].is_null()
            && document["caller_gets"]["every request"]
                .as_str()
                .unwrap()
                .contains("itself")
    );
    for (path, said) in [
        ("v1/charges", "write /v1/charges"),
        ("http://a/v1", "write the path alone: /v1"),
    ] {
        let (code, _, stderr) = hapax(
            directory.path(),
            &["config", "explain", "POST", path, "--upstream", "http://a"],
            &[],
        );
        assert!(code == 2 && stderr.contains(said), "{stderr}");
    }
}

/// The gateway and `explain` use the same policy; this test checks that they also take the same
/// route.
#[test]
fn explain_takes_the_route_that_the_gateway_takes() {
    let directory = with_file(FILE);
    let config = file::read_with(&directory.path().join("hapax.toml"), &upstream()).unwrap();
    for path in [
        "/",
        "/v1",
        "/v1/charges",
        "/v1/charges/",
        "/V1/Charges",
        "/uploads/../v1/charges",
        "/v1/orders//refund",
        "/v1/orders/7/refund",
        "/uploads",
        "/uploads/a",
        "/%2f",
    ] {
        for method in ["POST", "PUT"] {
            let args = [
                "config",
                "explain",
                method,
                path,
                "--config",
                "hapax.toml",
                "--json",
            ];
            let document: Value =
                serde_json::from_str(&hapax(directory.path(), &args, &[]).1).unwrap();
            let routes = config.all_routes();
            let taken =
                hapax_server::config::choose(&routes, &method.parse().unwrap(), path).unwrap();
            assert_eq!(document["route"], *taken.route.name, "{method} {path}");
        }
    }
}
