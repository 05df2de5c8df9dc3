//! The files that a configuration names: `hapax config check` reports the same problems as a start.

use std::fs;
use std::path::Path;

use rcgen::{CertificateParams, KeyPair};

use crate::harness::words;
use crate::{directory, hapax};

/// Writes a self-signed certificate and its key, `certificate.pem` and `key.pem`.
pub fn pair(directory: &Path) {
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(["localhost".to_owned()])
        .unwrap()
        .self_signed(&key)
        .unwrap();
    fs::write(directory.join("certificate.pem"), certificate.pem()).unwrap();
    fs::write(directory.join("key.pem"), key.serialize_pem()).unwrap();
}

const TLS: &str = "[upstream]\nurl = \"http://127.0.0.1:1\"\n[tls]\ncertificate = \"certificate.pem\"\nkey = \"key.pem\"\n";
const CA: &str = "[upstream]\nurl = \"https://127.0.0.1:1\"\nca_file = \"ca.pem\"\n";
const JWT: &str = "principal = \"jwt:sub\"\n[upstream]\nurl = \"http://127.0.0.1:1\"\n[jwt]\nissuer = \"https://id.example.com\"\naudience = \"shop\"\nalgorithms = [\"RS256\"]\nkeys_file = \"keys.json\"\n";
const GARBAGE_DER: &str = "-----BEGIN CERTIFICATE-----\nZ2FyYmFnZQ==\n-----END CERTIFICATE-----\n";

/// The error of `config check` and `serve`, which must be the same.
fn refused(directory: &Path, settings: &str) -> String {
    let settings =
        format!("listen = \"127.0.0.1:0\"\nadmin = \"off\"\nstore = \"memory:\"\n{settings}");
    fs::write(directory.join("hapax.toml"), settings).unwrap();
    let (code, stdout, checked) = hapax(directory, &words("config check --config hapax.toml"), &[]);
    assert_eq!((code, stdout.as_str()), (2, ""), "{checked}");
    let (code, _, started) = hapax(
        directory,
        &words("serve --config hapax.toml --log text"),
        &[("HAPAX_LOG", "off")],
    );
    assert_eq!(
        (code, &started),
        (2, &checked),
        "a start says something else"
    );
    checked
}

#[test]
fn check_refuses_what_a_start_refuses_and_names_setting_and_file() {
    let directory = directory();
    let at = directory.path();
    pair(at);
    fs::write(at.join("hapax.toml"), TLS).unwrap();
    let (code, stdout, stderr) = hapax(at, &words("config check --config hapax.toml"), &[]);
    assert!(code == 0 && stdout.starts_with("ok: "), "{stderr}");

    let key = fs::read(at.join("key.pem")).unwrap();
    fs::write(at.join("key.pem"), "garbage").unwrap();
    let said = refused(at, TLS);
    assert!(said.starts_with("hapax: tls.key key.pem: "), "{said}");
    pair(at);
    fs::write(at.join("key.pem"), key).unwrap();
    let said = refused(at, TLS);
    assert!(
        said.starts_with(
            "hapax: tls.key key.pem: this is not the key of the certificate in certificate.pem"
        ),
        "{said}"
    );
    for garbage in ["garbage", GARBAGE_DER] {
        fs::write(at.join("certificate.pem"), garbage).unwrap();
        let said = refused(at, TLS);
        assert!(
            said.starts_with("hapax: tls.certificate certificate.pem: "),
            "{said}"
        );
        fs::write(at.join("ca.pem"), garbage).unwrap();
        let said = refused(at, CA);
        assert!(
            said.starts_with("hapax: upstream.ca_file ca.pem: "),
            "{said}"
        );
    }
    for broken in ["garbage", "{\"keys\": []}", "{\"keys\""] {
        fs::write(at.join("keys.json"), broken).unwrap();
        let said = refused(at, JWT);
        assert!(
            said.starts_with("hapax: jwt.keys_file keys.json: "),
            "{said}"
        );
    }
    // All mistakes are reported together.
    let both = format!("{JWT}[tls]\ncertificate = \"certificate.pem\"\nkey = \"key.pem\"\n");
    let said = refused(at, &both);
    assert!(
        said.contains("tls.certificate") && said.contains("\njwt.keys_file"),
        "{said}"
    );
}

#[test]
fn check_asks_nobody_for_the_keys_of_tokens() {
    let directory = directory();
    let asked = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    asked.set_nonblocking(true).unwrap();
    let url = format!("keys_url = \"http://{}/keys\"", asked.local_addr().unwrap());
    fs::write(
        directory.path().join("hapax.toml"),
        JWT.replace("keys_file = \"keys.json\"", &url),
    )
    .unwrap();
    let (code, _, stderr) = hapax(
        directory.path(),
        &words("config check --config hapax.toml"),
        &[],
    );
    assert_eq!(code, 0, "{stderr}");
    assert!(asked.accept().is_err(), "somebody was asked");
}
