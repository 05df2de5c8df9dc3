//! A secret in the URL of a service that the gateway calls is printed nowhere.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::harness::{Client, Signal, get, replace, words};
use crate::world::{Upstream, file, serve};
use hapax_server::config::Protocol;

const SECRETS: [&str; 4] = [
    "first-s3cret",
    "second-s3cret",
    "third-s3cret",
    "typed-s3cret",
];

fn config(host: &str, secret: &str) -> String {
    format!(
        "principal = [\"forward-auth:http://{host}/verify?tenant=a&token={secret}\"]\n[forward_auth]\nprincipal_field = \"x-auth-user\"\n"
    )
}

/// The output of a command on both streams.
fn printed(directory: &Path, arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_hapax"))
        .args(arguments)
        .current_dir(directory)
        .output()
        .unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[track_caller]
fn holds_no_secret(text: &str, about: &str) {
    let found: Vec<&str> = SECRETS
        .into_iter()
        .filter(|secret| text.contains(secret))
        .collect();
    assert!(found.is_empty(), "{about} shows {found:?}:\n{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_secret_in_the_url_of_forward_auth_is_printed_nowhere() {
    let (directory, upstream) = (
        tempfile::tempdir().unwrap(),
        Upstream::start(Protocol::Http1),
    );
    let path = directory.path();
    let mut program = serve(path, &upstream, &config("127.0.0.1:1", SECRETS[0]));
    holds_no_secret(program.log(), "the banner");
    assert!(
        program
            .log()
            .contains("forward-auth:http://127.0.0.1:1/verify?***"),
        "{}",
        program.log()
    );
    let well_known = get("/.well-known/idempotency");
    holds_no_secret(
        Client::new(program.clients).send(well_known).await.text(),
        "/.well-known",
    );

    // With another token it is the same provider; with another host it is another one, which a
    // reload refuses.
    for (host, secret, line) in [
        ("127.0.0.1:1", SECRETS[1], "the configuration was reloaded"),
        (
            "127.0.0.1:2",
            SECRETS[2],
            "this would break promises to callers",
        ),
    ] {
        replace(
            &path.join("hapax.toml"),
            &file(&upstream, &config(host, secret)),
        );
        program.signal(Signal::HUP);
        program.wait_for(line);
        let log = program.log();
        holds_no_secret(log, "the log of a reload");
        assert!(
            log.contains("forward-auth:http://127.0.0.1:1/verify?***"),
            "{log}"
        );
    }
    for arguments in [
        &words("config print --config hapax.toml")[..],
        &words("config print --json --config hapax.toml"),
        &words("config explain POST /a --config hapax.toml"),
        &words("config explain POST /a --json --config hapax.toml"),
        &words("config check --config hapax.toml"),
        &words(
            "config print --config hapax.toml --principal forward-auth:http://127.0.0.1:3/verify?token=typed-s3cret",
        ),
        &words(
            "config print --config hapax.toml --principal forward-auth:http://u:typed-s3cret@127.0.0.1:3/verify",
        ),
        &words(
            "config print --config hapax.toml --principal forwardauth:http://127.0.0.1:3/verify?token=typed-s3cret",
        ),
    ] {
        let text = printed(path, arguments);
        assert!(
            text.contains("forward-auth")
                || text.contains("forwardauth")
                || text.contains("URL")
                || text.contains("ok"),
            "{arguments:?}: {text}"
        );
        holds_no_secret(&text, &format!("{arguments:?}"));
    }
    for bad in [
        "principal = \"forward-auth:http://a b/verify?token=first-s3cret\"\n",
        "principal = \"forward-auth:http://u:first-s3cret@a/verify\"\n",
        "principal = \"forward-auth:ftp://a/verify?token=first-s3cret\"\n",
        "principal = \"forwardauth:http://a/verify?token=first-s3cret\"\n",
        "principal = \"forward-auth:http://a/verify?token=first-s3cret\"\nlisten = 5\n",
        "principal = \"forward-auth:http://a/verify?token=first-s3cret\n",
        "principal = [\"digest:x\", \"forward-auth:http://a/verify?token=first-s3cret\", 7]\n",
        "principal = \"jwt:sub\"\n[jwt]\nkeys_url = \"http://a.example/jwks?token=first-s3cret\"\n",
    ] {
        fs::write(
            path.join("bad.toml"),
            format!("{bad}\n[upstream]\nurl = \"http://127.0.0.1:1\"\n"),
        )
        .unwrap();
        let text = printed(path, &words("config check --config bad.toml"));
        assert!(text.contains("bad.toml"), "{text}");
        holds_no_secret(&text, bad);
    }
    let log = program.end();
    assert!(log.contains("the configuration was reloaded"));
    holds_no_secret(&log, "the log");
}
