//! `hapax fingerprint`

use std::path::Path;

use super::fixture::{charges, hapax, id};
use super::harness::{Said, words};

fn requests(files: &[(&str, &str)]) -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    for (name, request) in files {
        std::fs::write(directory.path().join(name), request).expect("written");
    }
    directory
}

fn run(directory: &Path, args: &[&str]) -> Said {
    hapax(directory, &[&["fingerprint"][..], args].concat())
}

const A: &str = "POST /v1/charges HTTP/1.1\nHost: shop\nContent-Type: application/json\nIdempotency-Key: order-1\n\n{\"amount\": 5, \"note\": \"a\"}";

#[test]
fn one_request_shows_what_counts() {
    let directory = requests(&[("a.http", A)]);
    let said = run(
        directory.path(),
        &words("a.http --fingerprint json --headers X-Tenant"),
    );
    said.assert_code(0);
    let (first, rest) = said.stdout.split_once('\n').unwrap();
    assert!(
        first.starts_with("fingerprint              ") && first.len() == 25 + 64,
        "{first}"
    );
    let expected = format!(
        "\
made with                2 sha256 json, header content-encoding, header content-type, header x-tenant
record                   {}
namespace                default
principal                (anonymous)
method                   POST
target                   /v1/charges
header content-encoding  (absent)
header content-type      application/json
header x-tenant          (absent)
body                     as JSON

{{\"amount\":5,\"note\":\"a\"}}
",
        id(&charges(), "order-1")
    );
    assert_eq!(rest, expected);
}

#[test]
fn the_digest_is_the_one_that_the_store_has() {
    let directory = requests(&[(
        "a.http",
        "POST /v1/charges HTTP/1.1\r\nContent-Type: application/json\r\n\r\n{\"amount\":5}",
    )]);
    let said = run(directory.path(), &["a.http", "--json"]);
    let object: serde_json::Value = serde_json::from_str(&said.stdout).expect("an object");
    let scope = charges();
    let head = hapax::core::fingerprint::RequestHead {
        scope: &scope,
        target: "/v1/charges",
        headers: vec![("content-type", b"application/json")],
    };
    let mut fingerprinter = hapax::core::Fingerprinter::new(&std::sync::Arc::default(), &head);
    fingerprinter.update(br#"{"amount":5}"#);
    let digest: String = fingerprinter
        .finish()
        .digest
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    assert_eq!(object["fingerprint"], digest);
    assert_eq!(
        (&object["body"]["read_as"], &object["record"]),
        (&"json".into(), &serde_json::Value::Null)
    );
}

#[test]
fn the_same_request_in_another_spelling_is_the_same() {
    let respelled = A.replace('\n', "\r\n").replace(
        "{\"amount\": 5, \"note\": \"a\"}",
        "{\"note\":\"\\u0061\",\"amount\":5}",
    );
    let directory = requests(&[("a", A), ("b", &respelled)]);
    for mode in [&["--fingerprint", "json"][..], &[]] {
        let said = run(directory.path(), &[&words("--explain a b"), mode].concat());
        assert_eq!(
            (said.code, said.stdout.as_str(), said.stderr.as_str()),
            (0, "the same request\n", "")
        );
    }
    let said = run(directory.path(), &words("--explain a b --fingerprint raw"));
    assert_eq!(
        (said.code, said.stdout.as_str()),
        (
            1,
            "body at byte 2\n  a: amount\\\": 5, \\\"note\\\": \\\"a\\\"}\n  b: note\\\":\\\"\\\\u0061\\\",\\\"amount\\\":5}\n"
        )
    );
}

#[test]
fn each_part_that_differs_is_named() {
    let other = "PATCH /v1/charges?dry=1 HTTP/1.1\nX-Tenant: 2\n\n{\"amount\":5.0,\"items\":[{\"a/b\":1}],\"note\":\"a\"}";
    let directory = requests(&[("a", A), ("b", other)]);
    let said = run(
        directory.path(),
        &words("--explain a b --fingerprint json --headers x-tenant"),
    );
    let expected = "\
method
  a: POST
  b: PATCH
target
  a: /v1/charges
  b: /v1/charges?dry=1
header content-type
  a: application/json
  b: (absent)
header x-tenant
  a: (absent)
  b: 2
body at /amount
  a: 5
  b: 5.0
body at /items
  a: (absent)
  b: [{\"a/b\":1}]
";
    assert_eq!((said.code, said.stdout.as_str()), (1, expected));
    assert_eq!(
        said.stderr,
        "hapax: the requests differ: with the same key the second gets 422 key-reused\n"
    );
    let said = run(directory.path(), &words("--explain a b --json"));
    let object: serde_json::Value = serde_json::from_str(&said.stdout).expect("an object");
    assert_eq!(
        (&object["same"], &object["differences"][0]["part"]),
        (&false.into(), &"method".into())
    );
}

#[test]
fn values_may_be_left_out_or_singled_out() {
    let directory = requests(&[
        ("a", A),
        ("b", &A.replace("\"note\": \"a\"", "\"note\": \"b\"")),
    ]);
    let code = |args: &[&str]| {
        run(
            directory.path(),
            &[&words("--explain a b")[..], args].concat(),
        )
        .code
    };
    assert_eq!(code(&["--fingerprint", "json"]), 1);
    // Only the names of the configuration are accepted.
    assert_eq!(code(&["--fingerprint", "raw"]), 1);
    assert_eq!(code(&["--fingerprint", "bytes"]), 2);
    assert_eq!(code(&words("--fingerprint json --omit /note")), 0);
    assert_eq!(code(&words("--fingerprint json --only /amount")), 0);
    assert_eq!(code(&words("--fingerprint json --only /note")), 1);
    assert_eq!(code(&["--omit", "/note"]), 2);
    assert_eq!(code(&words("--fingerprint json --omit note")), 2);
    assert_eq!(code(&words("--principal ada --namespace shop")), 1);
}

#[test]
fn a_configuration_says_what_counts_on_the_route() {
    let config = |settings: &str| {
        format!(
            "namespace = \"shop\"\n[upstream]\nurl = \"http://127.0.0.1:1\"\n[[routes]]\npath = \"/**\"\n{settings}\n"
        )
    };
    let omits = config("fingerprint = \"json\"\nfingerprint_omit = [\"/note\"]");
    let other = A.replace("\"note\": \"a\"", "\"note\": \"b\"");
    let directory = requests(&[
        ("a", A),
        ("b", &other),
        ("omits.toml", &omits),
        ("raw.toml", &config("fingerprint = \"raw\"")),
    ]);
    let explain = |config: &str| {
        run(
            directory.path(),
            &["--explain", "a", "b", "--config", config],
        )
    };
    assert_eq!(
        (explain("omits.toml").code, explain("raw.toml").code),
        (0, 1)
    );
    let said = run(directory.path(), &words("a --config omits.toml"));
    assert!(
        said.stdout.contains("omit /note") && said.stdout.contains("shop"),
        "{}",
        said.stdout
    );
    assert_eq!(
        run(
            directory.path(),
            &words("a --config omits.toml --fingerprint raw")
        )
        .code,
        2,
        "one of them says it"
    );
    assert_eq!(
        run(directory.path(), &words("a --config none.toml")).code,
        2
    );
}

#[test]
fn why_json_counts_byte_for_byte_is_said() {
    let directory = requests(&[("a", &A.replace("note", "amount")), ("b", A)]);
    let said = run(directory.path(), &words("--explain a b --fingerprint json"));
    let expected = "body is compared\n  a: byte for byte, 28 bytes, because the name \"amount\" is in one object twice\n  b: as JSON\n";
    assert_eq!((said.code, said.stdout.as_str()), (1, expected));
}

#[test]
fn multipart_differs_by_parts() {
    let request = |boundary: &str, second: &str| {
        let part = |content: &str| {
            format!(
                "--{boundary}\r\nContent-Disposition: form-data; name=\"x\"\r\n\r\n{content}\r\n"
            )
        };
        let parts = [part("one"), part(second)].concat();
        format!(
            "POST /v1/files HTTP/1.1\r\nContent-Type: multipart/form-data; boundary={boundary}\r\n\r\n{parts}--{boundary}--\r\n"
        )
    };
    let directory = requests(&[
        ("a", &request("x1", "two")),
        ("b", &request("y22", "two")),
        ("c", &request("y22", "six")),
    ]);
    assert_eq!(
        run(
            directory.path(),
            &words("--explain a b --fingerprint multipart")
        )
        .stdout,
        "the same request\n"
    );
    let said = run(
        directory.path(),
        &words("--explain a c --fingerprint multipart"),
    );
    assert_eq!(
        (said.code, said.stdout.as_str()),
        (1, "body, part 2 at byte 46\n  a: two\n  b: six\n")
    );
    assert!(
        run(directory.path(), &words("a --fingerprint multipart"))
            .stdout
            .contains("as multipart, 2 parts")
    );
}

#[test]
fn what_is_no_request_is_refused() {
    let directory = requests(&[("a", A), ("bad", "POST /\n")]);
    for (args, word) in [
        (&["bad"][..], "bad: line 1"),
        (&["none"], "none could not be read"),
        (&["a", "a"], "--explain"),
        (&["--explain", "a"], "two files"),
        (
            &words("a --headers 'a b'"),
            "not the name of a header field",
        ),
    ] {
        let said = run(directory.path(), args);
        assert_eq!((said.code, said.stdout.as_str()), (2, ""), "{args:?}");
        assert!(said.stderr.contains(word), "{args:?}: {}", said.stderr);
    }
}
